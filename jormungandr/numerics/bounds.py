"""Lower confidence bounds of a mean difference: of pairs, and of two independent samples.

Closed forms over exact sums (`math.fsum`): no random draw, so whoever computes a bound again from
the same numbers, in whatever order, gets the same one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LowerBound", "paired_lower_bound", "student_quantile", "welch_lower_bound"]

#: Terms of a continued fraction: some √df are enough.
_TERMS = 100_000
_TINY = 1e-300


class LowerBound(NamedTuple):
    """An estimated difference, and what it is at least, with some confidence.

    Attributes:
        estimate: Mean difference.
        low: One-sided lower bound.
        standard_error: Of the estimate.
        degrees: Of freedom of the Student distribution behind the bound; infinite where the data do
            not vary at all.
    """

    estimate: float
    low: float
    standard_error: float
    degrees: float


def paired_lower_bound(differences: Sequence[float], confidence: float = 0.95) -> LowerBound:
    """Return a one-sided lower bound of the mean of paired differences.

    Student (1908), "The probable error of a mean": mean − t(confidence, n − 1) · s / √n. Exact for
    normal differences. Two equal policies under one condition have differences that are symmetric
    around 0, whatever their returns look like: for those it errs at most about as often as it says
    (heavy tails make it err less).

    Args:
        differences: One number per pair, n ≥ 2, finite.
        confidence: Probability with which the mean is to be above the bound, in (0.5, 1).

    Returns:
        The bound with what it is made of.

    Raises:
        ValueError: An argument is outside its range.
    """
    _check("paired_lower_bound", confidence, differences)
    n = len(differences)
    mean, variance = _moments(differences)
    if variance == 0:
        return LowerBound(mean, mean, 0.0, math.inf)
    error = math.sqrt(variance / n)
    return LowerBound(mean, mean - student_quantile(confidence, n - 1) * error, error, n - 1.0)


def welch_lower_bound(
    ours: Sequence[float], theirs: Sequence[float], confidence: float = 0.95
) -> LowerBound:
    """Return a one-sided lower bound of the difference of two means, of independent samples.

    Welch (1947), doi:10.1093/biomet/34.1-2.28, with the degrees of freedom of Satterthwaite (1946):
    the variances need not be equal.

    Args:
        ours: One number per episode, n ≥ 2, finite.
        theirs: Likewise; n may be another one.
        confidence: Probability with which mean(ours) − mean(theirs) is to be above the bound, in
            (0.5, 1).

    Returns:
        The bound with what it is made of.

    Raises:
        ValueError: An argument is outside its range.
    """
    _check("welch_lower_bound", confidence, ours, theirs)
    (mean, variance), (other, other_variance) = _moments(ours), _moments(theirs)
    parts = (variance / len(ours), other_variance / len(theirs))
    estimate = mean - other
    if sum(parts) == 0:
        return LowerBound(estimate, estimate, 0.0, math.inf)
    # As shares of the whole, so that squares of small variances do not vanish.
    shares = [part / sum(parts) for part in parts]
    degrees = 1 / (shares[0] ** 2 / (len(ours) - 1) + shares[1] ** 2 / (len(theirs) - 1))
    error = math.sqrt(sum(parts))
    return LowerBound(
        estimate, estimate - student_quantile(confidence, degrees) * error, error, degrees
    )


def student_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution.

    By Newton's method from 0 on its upper tail, ½ I(df / (df + t²); df / 2, ½), with the continued
    fraction of the regularised incomplete beta function (DLMF 8.17.22,
    https://dlmf.nist.gov/8.17.E22). The tail is convex there, so that the steps only grow towards
    the quantile.

    Args:
        probability: Of a value below it, in [0.5, 1).
        degrees: Of freedom, at least 1; not an integer in general.

    Returns:
        The quantile, to about 12 digits.

    Raises:
        ValueError: An argument is outside its range.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"student_quantile.probability: expected [0.5, 1), got {probability!r}")
    if not (degrees >= 1 and math.isfinite(degrees)):
        raise ValueError(f"student_quantile.degrees: expected at least 1, got {degrees!r}")
    tail, t = 1 - probability, 0.0
    log_front = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    log_front -= math.log(degrees * math.pi) / 2
    while True:
        density = math.exp(log_front - (degrees + 1) / 2 * math.log1p(t * t / degrees))
        further = t + (_upper_tail(t, degrees) - tail) / density
        if not further > t:
            return t
        t = further


def _upper_tail(t: float, degrees: float) -> float:
    """Return the probability of a value above t ≥ 0."""
    x = degrees / (degrees + t * t)
    # 1 − x by itself, for small t.
    return 0.5 * _regularized_beta(x, t * t / (degrees + t * t), degrees / 2, 0.5)


def _regularized_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return I(x; a, b), where `rest` is 1 − x."""
    if rest == 0:  # the square of a very small t
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log(rest)
    front = math.exp(log_front)
    # The fraction converges fast on one side of the mean; the other one is what is left of 1.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(rest, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of DLMF 8.17.22, by Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + numerator * d)
            c = _off_zero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and unbiased variance, from exact sums."""
    mean = math.fsum(values) / len(values)
    if min(values) == max(values):  # the rounded mean of equal numbers need not be one of them
        return float(values[0]), 0.0
    return mean, math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)


def _check(where: str, confidence: float, *samples: Sequence[float]) -> None:
    if not 0.5 < confidence < 1:
        raise ValueError(f"{where}.confidence: expected a number in (0.5, 1), got {confidence!r}")
    for values in samples:
        if len(values) < 2 or not all(map(math.isfinite, values)):
            raise ValueError(
                f"{where}: expected at least two numbers, all finite, got {len(values)}"
            )
