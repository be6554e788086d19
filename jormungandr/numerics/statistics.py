"""Scores with their uncertainty: means, interquartile means, and who wins how often.

n is the number of episodes; differences are of two policies on the same episode.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Improvement",
    "Interval",
    "iqm",
    "iqm_bootstrap",
    "paired_bootstrap",
    "probability_of_improvement",
    "ratio_bootstrap",
]

_CHUNK = 1 << 20  # resampled indices held at a time: 8 MiB, whatever the number of resamples


class Interval(NamedTuple):
    """An estimate and its confidence interval.

    Attributes:
        estimate: The statistic of the data themselves.
        low: Lower end.
        high: Upper end.
    """

    estimate: float
    low: float
    high: float


class Improvement(NamedTuple):
    """How often one policy did better than another on the same episode.

    Attributes:
        probability: That it does better, ties counted half.
        wins: Episodes on which it did better.
        ties: Episodes on which both did the same, to the last bit.
        losses: Episodes on which it did worse.
    """

    probability: Interval
    wins: int
    ties: int
    losses: int


def paired_bootstrap(
    differences: npt.ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int
) -> Interval:
    """Estimate a mean, of paired differences above all, with a percentile bootstrap interval.

    Efron and Tibshirani (1993), "An Introduction to the Bootstrap", section 13.3. Pairing (two
    policies on the same random path) is done by the caller's subtraction; episodes are resampled
    whole, as independent units. The mean of one policy's returns is had the same way.

    Args:
        differences: One number per episode, shape (n,), n ≥ 2, finite.
        confidence: Coverage aimed at, in (0, 1). The percentile interval is narrow for few
            episodes: aimed at 95 % it covered 88 % at n = 7, 92 % at 20, 95 % at 200 (normal data).
        resamples: Number of bootstrap samples, at least 1.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        `Interval(mean, low, high)`.

    Raises:
        ValueError: An argument is outside its range, or the data are not finite or not of shape
            (n,).
    """
    x = _sample("paired_bootstrap.differences", differences)
    means = _resampled_means("paired_bootstrap", x[None], resamples, seed)[0]
    return Interval(float(x.mean()), *_percentiles("paired_bootstrap", means, confidence))


def iqm_bootstrap(
    values: npt.ArrayLike, *, confidence: float = 0.95, resamples: int = 10_000, seed: int
) -> Interval:
    """Estimate an interquartile mean with a percentile bootstrap interval.

    Agarwal et al. (2021), arXiv:2108.13264, sections 4.1 and 4.3. Episodes are resampled whole,
    and every resample is trimmed anew.

    Args:
        values: One number per episode, shape (n,), n ≥ 2, finite: returns, or paired differences.
        confidence: Coverage aimed at, in (0, 1). Aimed at 95 % it covered 92 % at n = 7, 93 % at
            20, 95 % at 200 (normal data).
        resamples: Number of bootstrap samples, at least 1.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        `Interval(iqm, low, high)`.

    Raises:
        ValueError: An argument is outside its range, or the data are not finite or not of shape
            (n,).
    """
    x = _sample("iqm_bootstrap.values", values)
    cut = x.size // 4
    kept = slice(cut, x.size - cut)
    iqms = np.empty(_checked_resamples("iqm_bootstrap", resamples))
    for rows, picks in _resamples(x.size, resamples, seed):
        iqms[rows] = np.sort(x[picks], axis=1)[:, kept].mean(axis=1)
    return Interval(iqm(x), *_percentiles("iqm_bootstrap", iqms, confidence))


def probability_of_improvement(
    differences: npt.ArrayLike, *, confidence: float = 0.95
) -> Improvement:
    """Estimate the probability that one policy does better than another on the same episode.

    Agarwal et al. (2021), arXiv:2108.13264, section 4.3, for pairs: they count all n² pairs of two
    independent samples, here an episode is compared with itself alone. The interval is Wilson's
    score interval (1927), doi:10.1080/01621459.1927.10502953: unlike a bootstrap it keeps a width
    when every episode is won. With ties it is wider than it need be, since a score of 0, ½ or 1
    varies at most as a score of 0 or 1 with the same mean does.

    Args:
        differences: One number per episode, shape (n,), n ≥ 2, finite; positive is a win.
        confidence: Coverage aimed at, in (0, 1).

    Returns:
        The probability with its interval, inside [0, 1], and the counts it is made of.

    Raises:
        ValueError: The confidence is outside its range, or the data are not finite or not of shape
            (n,).
    """
    x = _sample("probability_of_improvement.differences", differences)
    _check_confidence("probability_of_improvement", confidence)
    n, wins, losses = x.size, int((x > 0).sum()), int((x < 0).sum())
    ties = n - wins - losses
    p = (wins + ties / 2) / n
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * p * (1 - p) / n + (z2 / (2 * n)) ** 2) / (1 + z2 / n)
    # At p = 0 or 1 an end is p itself; rounding must not put it on p's other side.
    low, high = max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))
    return Improvement(Interval(p, low, high), wins, ties, losses)


def ratio_bootstrap(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int,
) -> Interval:
    """Estimate a ratio of two means, such as the share of a gap closed, with a bootstrap interval.

    Efron and Tibshirani (1993), "An Introduction to the Bootstrap", section 13.3. Both means are
    taken over the same resampled episodes, so what the two quantities share within an episode does
    not widen the interval.

    Args:
        numerator: One number per episode, shape (n,), n ≥ 2: for a gap, policy − reference.
        denominator: Of the same episodes, shape (n,): for a gap, optimum − reference.
        confidence: Coverage aimed at, in (0, 1).
        resamples: Number of bootstrap samples, at least 1.
        seed: Seed of the resampling; the same seed gives the same interval.

    Returns:
        `Interval(mean(numerator) / mean(denominator), low, high)`.

    Raises:
        ValueError: An argument is outside its range, the data are not finite or not of one shape
            (n,), or some resampled denominator is 0 or has the other sign: the ratio's interval is
            then unbounded.
    """
    top = _sample("ratio_bootstrap.numerator", numerator)
    bottom = _sample("ratio_bootstrap.denominator", denominator)
    if top.shape != bottom.shape:
        raise ValueError(
            f"ratio_bootstrap: expected arrays of one shape, got {top.shape} and {bottom.shape}"
        )
    tops, bottoms = _resampled_means("ratio_bootstrap", np.stack([top, bottom]), resamples, seed)
    center = bottom.mean()
    if not (bottoms * center > 0).all():
        raise ValueError(
            "ratio_bootstrap.denominator: expected a mean clear of 0 in every resample, "
            f"got {float(center):.3g} from {bottom.size} episodes, too near; use more episodes"
        )
    return Interval(
        float(top.mean() / center), *_percentiles("ratio_bootstrap", tops / bottoms, confidence)
    )


def iqm(values: npt.ArrayLike) -> float:
    """Return the interquartile mean, over all values but the lowest and the highest quarter.

    Agarwal et al. (2021), arXiv:2108.13264, section 4.3. Of n values, floor(n / 4) are dropped at
    each end and none is weighted, as in `scipy.stats.trim_mean(values, 0.25)`, which their library
    calls.

    Args:
        values: Scores of any shape (runs × tasks, say), at least one, finite.

    Returns:
        The interquartile mean.

    Raises:
        ValueError: There is no value, or one is not finite.
    """
    x = np.sort(np.asarray(values, dtype=np.float64), axis=None)
    if x.size == 0 or not np.isfinite(x).all():
        raise ValueError(
            f"iqm.values: expected at least one value and all finite, got shape {np.shape(values)}"
        )
    cut = x.size // 4
    return float(x[cut : x.size - cut].mean())


def _sample(where: str, data: npt.ArrayLike) -> npt.NDArray[np.float64]:  # (n,)
    """Return data as a checked float64 vector."""
    x = np.asarray(data, dtype=np.float64)
    if x.ndim != 1 or x.size < 2 or not np.isfinite(x).all():
        raise ValueError(
            f"{where}: expected at least two finite numbers of shape (n,), got shape {x.shape}"
        )
    return x


def _resampled_means(
    where: str, columns: npt.NDArray[np.float64], resamples: int, seed: int
) -> npt.NDArray[np.float64]:  # (columns, resamples)
    """Return the means of bootstrap samples, every column resampled with the same indices."""
    means = np.empty((len(columns), _checked_resamples(where, resamples)))
    for rows, picks in _resamples(columns.shape[1], resamples, seed):
        for column, out in zip(columns, means, strict=True):
            out[rows] = column[picks].mean(axis=1)
    return means


def _resamples(
    n: int, resamples: int, seed: int
) -> Iterator[tuple[slice, npt.NDArray[np.int64]]]:  # (rows, n)
    """Yield bootstrap samples of n indices a bounded number at a time, with their rows."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK // n)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        yield slice(start, stop), rng.integers(0, n, size=(stop - start, n))


def _checked_resamples(where: str, resamples: int) -> int:
    if resamples < 1:
        raise ValueError(f"{where}.resamples: expected at least 1, got {resamples!r}")
    return resamples


def _percentiles(
    where: str, statistics: npt.NDArray[np.float64], confidence: float
) -> tuple[float, float]:
    """Return the ends that leave out (1 − confidence) / 2 on either side."""
    _check_confidence(where, confidence)
    low, high = np.quantile(statistics, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _check_confidence(where: str, confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"{where}.confidence: expected a number in (0, 1), got {confidence!r}")
