"""Lower bounds of differences: quantiles by integration, closed forms, how often they err."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.numerics.bounds import paired_lower_bound, student_quantile, welch_lower_bound

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40)


def below(t: float, degrees: float, parts: int = 20_001) -> float:
    """Integrate Student's density up to t: slow, and by Simpson's rule."""
    log_front = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    front = math.exp(log_front) / math.sqrt(degrees * math.pi)
    x = np.linspace(0.0, t, parts)
    density = front * (1 + x * x / degrees) ** (-(degrees + 1) / 2)
    weights = np.ones(parts)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return 0.5 + float(weights @ density) * (x[1] - x[0]) / 3


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [
        (0.95, 1, 6.313751514675043),
        (0.95, 2, 2.919985580353725),
        (0.975, 10, 2.228138851964939),
        (0.95, 99, 1.660391156),
        (0.99, 30, 2.457261542),
        (0.95, 10_000, 1.645006018),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_of_the_tables(probability: float, degrees: float, quantile: float) -> None:
    """Published values, to the digits that they are published with."""
    assert student_quantile(probability, degrees) == pytest.approx(quantile, abs=2e-9)


@PROPERTY
@given(st.floats(0.51, 0.999), st.floats(1.0, 5_000.0))
def test_a_quantile_has_its_probability_below_it(probability: float, degrees: float) -> None:
    """The integral of the density up to the quantile is the probability."""
    t = student_quantile(probability, degrees)
    if t < 50:
        assert below(t, degrees) == pytest.approx(probability, abs=1e-8)


def test_the_paired_bound_by_hand() -> None:
    """Mean − t · s / √n, for numbers that are easy."""
    bound = paired_lower_bound([1.0, 2.0, 3.0])

    assert bound.estimate == 2.0
    assert bound.standard_error == pytest.approx(1 / math.sqrt(3))
    assert bound.degrees == 2
    assert bound.low == pytest.approx(2.0 - 2.919985580353725 / math.sqrt(3))


def test_welchs_bound_is_students_for_equal_samples() -> None:
    """With equal sizes and variances there are 2n − 2 degrees of freedom, and one variance."""
    bound = welch_lower_bound([2.0, 4.0, 6.0], [1.0, 3.0, 5.0])

    assert bound.estimate == 1.0
    assert bound.degrees == pytest.approx(4)
    assert bound.standard_error == pytest.approx(math.sqrt(8 / 3))


def test_welchs_degrees_of_one_that_does_not_vary() -> None:
    """All of the uncertainty is the other one's, and so are the degrees of freedom."""
    bound = welch_lower_bound([1.0] * 9, [0.0, 1.0, 2.0, 3.0])

    assert bound.degrees == pytest.approx(3)


@pytest.mark.parametrize("level", [0.0, 0.1, -3.5])
def test_what_does_not_vary_has_no_width(level: float) -> None:
    """Equal deterministic policies differ by exactly nothing, and that is not above 0."""
    assert paired_lower_bound([level] * 7)[:2] == (level, level)
    assert welch_lower_bound([0.1] * 7, [0.1] * 5)[:2] == (0.0, 0.0)


def test_the_order_of_the_episodes_does_not_matter() -> None:
    """Sums are exact: actors may send in any order."""
    rng = np.random.default_rng(0)
    x, y = rng.lognormal(3, 2, 200).tolist(), rng.lognormal(3, 2, 200).tolist()

    assert paired_lower_bound(x) == paired_lower_bound(x[::-1])
    assert welch_lower_bound(x, y) == welch_lower_bound(sorted(x), sorted(y))


RETURNS = {
    "normal": lambda rng, n: rng.normal(5, 2, n),
    "skewed": lambda rng, n: rng.exponential(3, n),
    "heavy tails": lambda rng, n: rng.standard_t(2.5, n),
    "two outcomes": lambda rng, n: rng.choice([0.0, 1.0], n),
    "mostly the limit": lambda rng, n: np.minimum(rng.exponential(900, n), 500),
}


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("shape", RETURNS)
def test_equal_policies_are_seldom_told_apart(shape: str, n: int) -> None:
    """Of 600 comparisons of a policy with itself, about 5 % at most say that it is better."""
    rng, tries = np.random.default_rng(7), 600
    wrong = {"paired": 0, "unpaired": 0}
    for _ in range(tries):
        path = rng.normal(0, 4, n)  # what the two of a pair have in common
        ours, theirs = (RETURNS[shape](rng, n) for _ in range(2))
        difference = ((path + ours) - (path + theirs)).tolist()
        wrong["paired"] += paired_lower_bound(difference).low > 0
        wrong["unpaired"] += welch_lower_bound(ours.tolist(), theirs.tolist()).low > 0

    # Three standard errors of 600 tries above 5 %.
    assert max(wrong.values()) / tries < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tries)


def test_pairs_tell_apart_what_single_episodes_do_not() -> None:
    """What both of a pair have in common takes no part in the difference."""
    rng = np.random.default_rng(3)
    path = rng.normal(0, 10, 100)
    ours, theirs = path + 1 + rng.normal(0, 1, 100), path + rng.normal(0, 1, 100)

    assert paired_lower_bound((ours - theirs).tolist()).low > 0.5
    assert welch_lower_bound(ours.tolist(), rng.permutation(theirs).tolist()).low < 0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan], [math.inf, 1.0]])
def test_refused_samples(values: list[float]) -> None:
    """Fewer than two numbers, or one that is none."""
    with pytest.raises(ValueError, match="at least two numbers"):
        paired_lower_bound(values)
    with pytest.raises(ValueError, match="at least two numbers"):
        welch_lower_bound([1.0, 2.0], values)


@pytest.mark.parametrize("confidence", [0.5, 1.0, -1.0, math.nan])
def test_refused_confidence(confidence: float) -> None:
    """A bound with no confidence, or with certainty, is none."""
    with pytest.raises(ValueError, match="confidence"):
        paired_lower_bound([1.0, 2.0], confidence)


@pytest.mark.parametrize(("probability", "degrees"), [(0.4, 3), (1.0, 3), (0.9, 0.5)])
def test_refused_quantiles(probability: float, degrees: float) -> None:
    """Outside of the ranges that are promised."""
    with pytest.raises(ValueError, match="student_quantile"):
        student_quantile(probability, degrees)
