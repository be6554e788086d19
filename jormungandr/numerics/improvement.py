"""How likely a training run of one algorithm ends better than one of another: independent runs."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from jormungandr.numerics.statistics import Interval

__all__ = ["improvement_of_runs"]


def improvement_of_runs(
    scores: npt.ArrayLike, others: npt.ArrayLike, *, confidence: float = 0.95
) -> Interval:
    """Estimate the probability that a run of one algorithm scores higher than one of another.

    Agarwal et al. (2021), arXiv:2108.13264, section 4.3: all pairs are counted, ties half, which is
    the Mann-Whitney statistic over n · m. They bootstrap; of a few runs that are all better than
    all the others' every resample says the same, and the interval would have no width. This one is
    Newcombe's score interval (2006), doi:10.1002/sim.2324, his method 5: the probabilities θ for
    which the estimate is no further away than z standard errors of an estimate whose truth is θ,
    with the variance of Hanley and McNeil (1982) made symmetric in n and m. Scores that are paired,
    of two policies on one episode, are for `statistics.probability_of_improvement`.

    Args:
        scores: of the runs of the one, shape (n,), finite, at least one.
        others: of the runs of the other, shape (m,), finite, at least one.
        confidence: coverage aimed at, in (0, 1). Aimed at 95 %, with normal scores and truths of
            0.5 to 0.98, it covered 95-97 % at n = 10, m = 5 or 3, and 94-96 % at n = m = 5.

    Returns:
        `Interval(probability, low, high)`, inside [0, 1].

    Raises:
        ValueError: the confidence is outside its range, or scores are not finite or of no such
            shape.
    """
    x = _runs("improvement_of_runs.scores", scores)
    y = _runs("improvement_of_runs.others", others)
    if not 0 < confidence < 1:
        raise ValueError(
            f"improvement_of_runs.confidence: expected a number in (0, 1), got {confidence!r}"
        )
    signs = np.sign(x[:, None] - y[None, :])
    estimate = float(np.mean((signs + 1) / 2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    low = _end(estimate, 0.0, z, x.size, y.size)
    high = _end(estimate, 1.0, z, x.size, y.size)
    return Interval(estimate, low, high)


def _end(estimate: float, limit: float, z: float, n: int, m: int) -> float:
    """Return the probability between the estimate and `limit` that is z standard errors away."""
    inside, outside = estimate, limit
    for _ in range(60):  # halvings: to the last bit of a double
        middle = (inside + outside) / 2
        if abs(middle - estimate) <= z * _variance(middle, n, m) ** 0.5:
            inside = middle
        else:
            outside = middle
    return inside


def _variance(probability: float, n: int, m: int) -> float:
    """Return the variance of the estimate from n and m runs where this is the truth."""
    p, more = probability, (n + m) / 2 - 1
    return p * (1 - p) * (1 + more * (1 - p) / (2 - p) + more * p / (1 + p)) / (n * m)


def _runs(where: str, data: npt.ArrayLike) -> npt.NDArray[np.float64]:  # (n,)
    x = np.asarray(data, dtype=np.float64)
    if x.ndim != 1 or x.size < 1 or not np.isfinite(x).all():
        raise ValueError(
            f"{where}: expected at least one finite number of shape (n,), got shape {x.shape}"
        )
    return x
