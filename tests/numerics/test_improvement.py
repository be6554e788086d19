"""The probability of improvement of runs: by hand, by a loop, its coverage, refusals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from jormungandr.numerics.improvement import improvement_of_runs

Z = NormalDist().inv_cdf(0.975)


def test_it_is_the_share_of_pairs_won_with_ties_half() -> None:
    """Of {1, 2, 3} × {2, 0}: 1 loses and wins, 2 ties and wins, 3 wins twice: 4½ of 6."""
    assert improvement_of_runs([1, 2, 3], [2, 0]).estimate == 4.5 / 6


def test_against_a_loop() -> None:
    """Both sums, by hand."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, 10), rng.integers(0, 6, 5)
    won = sum((a > b) + (a == b) / 2 for a in x for b in y)

    assert improvement_of_runs(x, y).estimate == pytest.approx(won / 50, abs=1e-15)


def test_the_ends_are_z_standard_errors_away() -> None:
    """At each end, |θ − estimate| is 1.96 times Hanley and McNeil's error, symmetric in n and m."""
    n, m = 10, 5
    found = improvement_of_runs(np.arange(n), np.arange(m) + 1.5)
    for end in (found.low, found.high):
        q1, q2 = end / (2 - end), 2 * end * end / (1 + end)
        more = (n + m) / 2 - 1
        variance = (end * (1 - end) + more * (q1 - end**2) + more * (q2 - end**2)) / (n * m)
        assert abs(end - found.estimate) == pytest.approx(Z * math.sqrt(variance), rel=1e-9)


def test_all_pairs_won_leaves_a_width() -> None:
    """Three runs against three say less than ten against ten, and neither says certainly."""
    few, many = (improvement_of_runs(np.ones(n), np.zeros(n)) for n in (3, 10))

    assert few.estimate == few.high == many.high == 1.0
    assert 0.4 < few.low < many.low < 0.9


def test_the_other_way_round_is_the_complement() -> None:
    """P(X > Y) = 1 − P(Y > X), and so are its ends."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=10), rng.normal(0.5, size=3)
    one, other = improvement_of_runs(x, y), improvement_of_runs(y, x)

    assert one == pytest.approx((1 - other.estimate, 1 - other.high, 1 - other.low), abs=1e-12)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of 800 comparisons of ten runs with five, close to 95 % contain the true probability."""
    rng = np.random.default_rng(2)
    for truth in (0.5, 0.9):
        shift = NormalDist().inv_cdf(truth) * math.sqrt(2)
        found = [
            improvement_of_runs(rng.normal(shift, 1, 10), rng.normal(0, 1, 5)) for _ in range(800)
        ]
        covered = sum(interval.low <= truth <= interval.high for interval in found)
        assert 0.93 < covered / 800 < 0.98


@pytest.mark.parametrize("bad", [[], [math.nan], [[1.0]]])
def test_other_shapes_and_values_are_refused(bad: list[object]) -> None:
    """None, not a number, or a matrix; on either side."""
    with pytest.raises(ValueError, match=r"improvement_of_runs\.scores: expected at least one"):
        improvement_of_runs(bad, [1.0])
    with pytest.raises(ValueError, match=r"improvement_of_runs\.others: expected at least one"):
        improvement_of_runs([1.0], bad)


def test_a_confidence_of_one_is_refused() -> None:
    """Nothing is certain."""
    with pytest.raises(ValueError, match=r"improvement_of_runs\.confidence"):
        improvement_of_runs([1.0], [2.0], confidence=1.0)
