"""Intervals of means, interquartile means and wins: closed forms, loops, coverage, refusals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.numerics import statistics
from jormungandr.numerics.statistics import (
    iqm,
    iqm_bootstrap,
    paired_bootstrap,
    probability_of_improvement,
    ratio_bootstrap,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)


def test_equal_differences_have_an_interval_of_no_width() -> None:
    """Every resample of a constant has its mean."""
    assert paired_bootstrap([2.5] * 9, seed=0) == (2.5, 2.5, 2.5)


def test_the_interval_of_two_values_by_hand() -> None:
    """Means of resampled {0, 1} are 0, ½, 1 with chances ¼, ½, ¼, which fixes the percentiles."""
    assert paired_bootstrap([0.0, 1.0], seed=0) == (0.5, 0.0, 1.0)
    assert paired_bootstrap([0.0, 1.0], confidence=0.4, seed=0) == (0.5, 0.5, 0.5)


def test_the_interval_of_many_values_is_the_normal_one() -> None:
    """For 400 values the percentiles approach mean ± 1.96 standard errors."""
    x = np.random.default_rng(3).exponential(size=400)
    mean, low, high = paired_bootstrap(x, seed=1)
    error = x.std() / math.sqrt(400)
    assert mean == x.mean()
    assert (high - low) / (2 * 1.96 * error) == pytest.approx(1.0, abs=0.05)
    assert (high + low) / 2 == pytest.approx(mean, abs=0.2 * error)


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    """The 80 % interval lies inside the 99 % interval."""
    x = np.random.default_rng(4).normal(size=50)
    narrow, wide = (paired_bootstrap(x, confidence=c, seed=2) for c in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of 600 samples of 40, close to 90 % of the 90 % intervals contain the true mean."""
    rng = np.random.default_rng(5)
    intervals = [
        paired_bootstrap(rng.normal(1.0, 2.0, 40), confidence=0.9, resamples=400, seed=seed)
        for seed in range(600)
    ]
    covered = sum(interval.low <= 1.0 <= interval.high for interval in intervals)
    assert 0.86 < covered / 600 < 0.93


def test_the_seed_decides_the_interval() -> None:
    """Same seed, same interval; another seed, another interval close by."""
    x = np.random.default_rng(6).normal(size=30)
    assert paired_bootstrap(x, seed=1) == paired_bootstrap(x, seed=1)
    assert paired_bootstrap(x, seed=1) != paired_bootstrap(x, seed=2)


def test_resampling_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory bound is not part of the result, for chunks that do not divide the resamples."""
    x = np.random.default_rng(7).normal(size=30)
    expected = paired_bootstrap(x, resamples=1000, seed=3)
    monkeypatch.setattr(statistics, "_CHUNK", 30 * 7)
    assert paired_bootstrap(x, resamples=1000, seed=3) == expected
    monkeypatch.setattr(statistics, "_CHUNK", 1)
    assert paired_bootstrap(x, resamples=1000, seed=3) == expected


def test_a_proportional_gap_has_a_ratio_of_no_width() -> None:
    """Resampling both together keeps num = ¾·den in every resample."""
    gap = np.random.default_rng(8).normal(1.0, 0.5, 40)
    ratio, low, high = ratio_bootstrap(0.75 * gap, gap, seed=0)
    assert ratio == pytest.approx(0.75, rel=1e-14)
    assert high - low < 1e-13


def test_a_ratio_over_a_constant_is_a_scaled_mean() -> None:
    """With a denominator of 2 (or −2) everywhere, the interval is half the mean's (mirrored)."""
    x = np.random.default_rng(9).normal(1.0, 1.0, 25)
    mean = paired_bootstrap(x, seed=4)
    ratio = ratio_bootstrap(x, np.full(25, 2.0), seed=4)
    np.testing.assert_allclose(ratio, np.array(mean) / 2, rtol=1e-12)
    mirrored = ratio_bootstrap(x, np.full(25, -2.0), seed=4)
    np.testing.assert_allclose(mirrored, [-ratio.estimate, -ratio.high, -ratio.low], rtol=1e-12)


def test_ratio_intervals_cover_the_truth() -> None:
    """Of 400 samples of 60 pairs, close to 90 % of the 90 % intervals contain the true ratio."""
    rng, covered = np.random.default_rng(10), 0
    for seed in range(400):
        bottom = rng.normal(2.0, 1.0, 60)
        top = 0.5 * bottom + rng.normal(0.3, 1.0, 60)
        interval = ratio_bootstrap(top, bottom, confidence=0.9, resamples=400, seed=seed)
        covered += interval.low <= 1.3 / 2 <= interval.high
    assert 0.85 < covered / 400 < 0.94


def test_a_denominator_near_zero_is_refused() -> None:
    """Where some resample's denominator changes sign, the ratio has no bounded interval."""
    with pytest.raises(ValueError, match=r"denominator: expected a mean clear of 0 .* got"):
        ratio_bootstrap(np.ones(20), np.random.default_rng(0).normal(0.1, 1.0, 20), seed=0)
    with pytest.raises(ValueError, match=r"denominator: expected a mean clear of 0 .* got 0"):
        ratio_bootstrap(np.ones(4), np.zeros(4), seed=0)


def test_iqm_by_hand() -> None:
    """A quarter, rounded down, is dropped at either end; the shape does not matter."""
    assert iqm([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5
    assert iqm([[1000.0, 1.0, 2.0], [3.0, 4.0, -1000.0]]) == 2.5
    assert iqm([5.0, 1.0, 100.0, 2.0, 3.0]) == pytest.approx(10 / 3)
    assert iqm([7.0]) == 7.0
    assert iqm([0.0, 0.0, 9.0]) == 3.0


@PROPERTY
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_iqm_lies_between_the_quartiles_and_follows_shifts(values: list[float]) -> None:
    """It equals a plain loop, and one value at either end cannot pull it outside the kept range."""
    ordered = sorted(values)
    cut = len(values) // 4
    kept = ordered[cut : len(ordered) - cut]
    assert iqm(values) == pytest.approx(math.fsum(kept) / len(kept), rel=1e-12, abs=1e-9)
    assert kept[0] - 1e-9 <= iqm(values) <= kept[-1] + 1e-9
    assert iqm([x + 3 for x in values]) == pytest.approx(iqm(values) + 3, rel=1e-12, abs=1e-8)


def slow_iqm_bootstrap(values: list[float], resamples: int, seed: int) -> tuple[float, float]:
    """Return the ends of a 95 % interval by plain loops over the same draws."""
    rng, n = np.random.default_rng(seed), len(values)
    found = []
    for picks in rng.integers(0, n, size=(resamples, n)).tolist():
        kept = sorted(values[pick] for pick in picks)
        for _ in range(n // 4):
            kept.remove(min(kept))
            kept.remove(max(kept))
        found.append(math.fsum(kept) / len(kept))
    found.sort()

    def percentile(share: float) -> float:
        below = math.floor(share * (resamples - 1))
        part = share * (resamples - 1) - below
        above = min(below + 1, resamples - 1)
        return found[below] + part * (found[above] - found[below])

    return percentile(0.025), percentile(0.975)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 11, 16])
def test_iqm_intervals_are_those_of_a_slow_loop(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every resample is trimmed by itself, whole or in chunks that do not divide the resamples."""
    x = np.random.default_rng(n).exponential(size=n)
    expected = (iqm(x), *slow_iqm_bootstrap(x.tolist(), 300, seed=n))
    np.testing.assert_allclose(iqm_bootstrap(x, resamples=300, seed=n), expected, rtol=1e-12)
    monkeypatch.setattr(statistics, "_CHUNK", n * 7)
    np.testing.assert_allclose(iqm_bootstrap(x, resamples=300, seed=n), expected, rtol=1e-12)


def test_iqm_intervals_heed_no_outlier_and_follow_shifts() -> None:
    """One wild value of forty moves the interval of the mean far, that of the IQM hardly."""
    x = np.random.default_rng(11).normal(size=40)
    wild = np.where(np.arange(40) == 3, 1e6, x)
    assert iqm_bootstrap([2.5] * 9, seed=0) == (2.5, 2.5, 2.5)
    assert paired_bootstrap(wild, seed=0).high > 1e4
    assert abs(iqm_bootstrap(wild, seed=0).high - iqm_bootstrap(x, seed=0).high) < 0.3
    moved = np.array(iqm_bootstrap(x + 5, seed=1)) - 5
    np.testing.assert_allclose(moved, iqm_bootstrap(x, seed=1), rtol=1e-12, atol=1e-12)
    mirrored = iqm_bootstrap(-x, seed=1)
    estimate, low, high = iqm_bootstrap(x, seed=1)
    np.testing.assert_allclose(mirrored, (-estimate, -high, -low), rtol=1e-12)


def test_iqm_intervals_cover_the_truth() -> None:
    """Of 600 skew samples of 40, close to 90 % of the 90 % intervals contain the true IQM."""
    # Twice the integral of the exponential's quantile function, -ln(1 - u), from ¼ to ¾.
    truth = 2 * ((0.75 - 0.75 * math.log(0.75)) - (0.25 - 0.25 * math.log(0.25)))
    rng = np.random.default_rng(12)
    intervals = [
        iqm_bootstrap(rng.exponential(size=40), confidence=0.9, resamples=400, seed=seed)
        for seed in range(600)
    ]
    covered = sum(interval.low <= truth <= interval.high for interval in intervals)
    assert 0.86 < covered / 600 < 0.93


def test_wins_by_hand() -> None:
    """A tie is half a win; all ten won are not proof that all are: 10 / (10 + 1.96²) at the low."""
    better = probability_of_improvement([3.0, 1.0, 0.0, -2.0])
    assert better[1:] == (2, 1, 1)
    assert better.probability.estimate == 0.625
    all_won = probability_of_improvement([0.1] * 10)
    assert all_won[1:] == (10, 0, 0)
    assert all_won.probability == pytest.approx((1.0, 10 / (10 + 1.959964**2), 1.0), rel=1e-6)
    assert all_won.probability.high == 1.0
    assert probability_of_improvement([-0.1] * 10).probability.low == 0.0


@PROPERTY
@given(
    st.lists(st.sampled_from([-2.0, 0.0, 1.0]), min_size=2, max_size=60),
    st.sampled_from([(0.8, 1.2815515655446004), (0.95, 1.959963984540054)]),
)
def test_wins_are_counted_and_the_ends_solve_the_score_equation(
    differences: list[float], level: tuple[float, float]
) -> None:
    """Each end p has (p̂ - p)² = z² p (1 - p) / n, inside [0, 1]; exchanging mirrors all of it."""
    confidence, z = level
    n = len(differences)
    found = probability_of_improvement(differences, confidence=confidence)
    assert found[1:] == tuple(differences.count(value) for value in (1.0, 0.0, -2.0))
    estimate, low, high = found.probability
    assert estimate == (found.wins + found.ties / 2) / n
    assert 0 <= low <= estimate <= high <= 1
    for end in (low, high):
        score = (estimate - end) ** 2 - z**2 * end * (1 - end) / n
        assert score == pytest.approx(0, abs=1e-12)
    other = probability_of_improvement([-d for d in differences], confidence=confidence)
    assert other[1:] == (found.losses, found.ties, found.wins)
    assert other.probability == pytest.approx((1 - estimate, 1 - high, 1 - low), abs=1e-12)


def test_intervals_of_wins_cover_the_truth() -> None:
    """They cover about as often as they say without ties, and more often with them."""
    rng, plain, tied = np.random.default_rng(13), 0, 0
    for _ in range(2_000):
        signs = np.where(rng.random(30) < 0.8, 1.0, -1.0)
        interval = probability_of_improvement(signs, confidence=0.9).probability
        plain += interval.low <= 0.8 <= interval.high
        halved = signs * (rng.random(30) < 0.5)
        interval = probability_of_improvement(halved, confidence=0.9).probability
        tied += interval.low <= 0.65 <= interval.high
    assert 0.87 < plain / 2_000 < 0.94
    assert tied / 2_000 > 0.95


def test_data_that_give_no_interval_are_refused() -> None:
    """Too few, not finite, of the wrong shape or of two lengths: each raises."""
    for bad in ([1.0], [], [[1.0, 2.0]], [1.0, math.nan], [1.0, math.inf]):
        with pytest.raises(ValueError, match=r"differences: expected .* got"):
            paired_bootstrap(bad, seed=0)
        with pytest.raises(ValueError, match=r"iqm_bootstrap\.values: expected .* got"):
            iqm_bootstrap(bad, seed=0)
        with pytest.raises(ValueError, match=r"improvement\.differences: expected .* got"):
            probability_of_improvement(bad)
        with pytest.raises(ValueError, match=r"denominator: expected .* got"):
            ratio_bootstrap([1.0, 2.0], bad, seed=0)
    with pytest.raises(ValueError, match=r"expected arrays of one shape, got"):
        ratio_bootstrap([1.0, 2.0], [1.0, 2.0, 3.0], seed=0)
    for empty in ([], [math.nan], [1.0, -math.inf]):
        with pytest.raises(ValueError, match=r"iqm\.values: expected .* got"):
            iqm(empty)


def test_settings_outside_their_range_are_refused() -> None:
    """The confidence lies in (0, 1) and at least one resample is drawn."""
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(ValueError, match=r"confidence: expected .* got"):
            paired_bootstrap([1.0, 2.0], confidence=confidence, seed=0)
        with pytest.raises(ValueError, match=r"confidence: expected .* got"):
            iqm_bootstrap([1.0, 2.0], confidence=confidence, seed=0)
        with pytest.raises(ValueError, match=r"confidence: expected .* got"):
            probability_of_improvement([1.0, 2.0], confidence=confidence)
    with pytest.raises(ValueError, match=r"iqm_bootstrap\.resamples: expected at least 1, got"):
        iqm_bootstrap([1.0, 2.0], resamples=0, seed=0)
    with pytest.raises(ValueError, match=r"resamples: expected at least 1, got"):
        ratio_bootstrap([1.0, 2.0], [1.0, 2.0], resamples=0, seed=0)
