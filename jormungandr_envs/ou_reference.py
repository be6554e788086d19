"""The fixed reference policy of the OU task, and its exact value."""

import math
from functools import lru_cache
from typing import Unpack, overload

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_labels import against_band
from jormungandr_envs.ou_parameters import OUFields, OUParameters

__all__ = ["reference_action", "reference_value"]

NODES = 200  # Gauss-Legendre nodes a side; they crowd where the integrand bends, at the threshold
REACH = 12.0  # standard deviations integrated over; beyond lies less than 1e-32


@overload
def reference_action(z: float, threshold: float = ...) -> int: ...
@overload
def reference_action(
    z: npt.NDArray[np.floating], threshold: float = ...
) -> npt.NDArray[np.int64]: ...
def reference_action(
    z: float | npt.NDArray[np.floating], threshold: float = 0.65
) -> int | npt.NDArray[np.int64]:
    """Return the reference action: SHORT above the band, LONG below it, FLAT inside.

    Args:
        z: spread in stationary standard deviations, a number or an array of any shape.
        threshold: SHORT strictly above it, LONG strictly below its negative.

    Returns:
        `Action` index: an int for a number, an int64 array of the same shape for an array.

    Raises:
        ValueError: if ``threshold`` is negative or not a number.
    """
    action = against_band(np.asarray(z), threshold)
    return int(action) if action.ndim == 0 else action


def reference_value(*, x0: float | None = None, **parameters: Unpack[OUFields]) -> float:
    """Return the expected episode return of the reference policy, by one-dimensional quadrature.

    With threshold 0 this is the always-in policy ``-sign(z)``.

    Args:
        x0: start of the path in units of the spread; ``None`` takes the stationary law.
        **parameters: as `OUParameters`.

    Raises:
        ValueError: if a parameter is out of range.
    """
    return _value(OUParameters(**parameters), x0)


@lru_cache(maxsize=32)
def _value(p: OUParameters, x0: float | None) -> float:
    """Add up the expected rewards of the steps, each from the law of ``z`` at its start."""
    mean, variance = (0.0, 1.0) if x0 is None else (x0 / p.sigma_x, 0.0)
    threshold = p.reference_threshold
    value = 0.0
    turnover = None  # expected change of position into this step
    for _ in range(p.horizon):
        spread = math.sqrt(variance)
        above, mean_above = _upper(threshold, mean, spread)
        below, mean_below = _upper(threshold, -mean, spread)  # the mirror image
        if turnover is None:
            turnover = above + below  # the first position is taken from flat
        value += p.kappa * (mean_above + mean_below)  # E[a (x' - x)] = -kappa E[a x]
        value -= p.holding_cost * (above + below) + p.turnover_cost * turnover
        # A position is a step function of z: it changes by one per threshold crossed.
        turnover = sum(
            _crossing(level, mean, spread, p.decay, p.sigma_z) for level in (-threshold, threshold)
        )
        mean, variance = p.decay * mean, p.decay**2 * variance + p.sigma_z**2
    return value


@lru_cache(maxsize=1)
def _rule() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights on [-1, 1]; making them is most of the work."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights


def _cdf(x: float) -> float:
    """Return the standard normal distribution function."""
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _density(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the standard normal density."""
    density: npt.NDArray[np.float64] = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return density


def _upper(level: float, mean: float, spread: float) -> tuple[float, float]:
    """Return ``P(z > level)`` and ``E[z; z > level]`` for ``z ~ N(mean, spread^2)``."""
    if spread == 0.0:
        return (1.0, mean) if mean > level else (0.0, 0.0)
    at = (level - mean) / spread
    mass = _cdf(-at)
    return mass, mean * mass + spread * float(_density(np.array(at)))


def _crossing(level: float, mean: float, spread: float, decay: float, shock: float) -> float:
    """Return the probability that ``z`` and its successor lie on opposite sides of ``level``."""
    if spread == 0.0:
        over = _cdf((decay * mean - level) / shock)
        return 1.0 - over if mean > level else over
    nodes, weights = _rule()
    probability = 0.0
    edge = min(max(level, mean - REACH * spread), mean + REACH * spread)
    for end, side in ((mean - REACH * spread, 1.0), (mean + REACH * spread, -1.0)):
        half = 0.5 * (edge - end)
        z = end + half * (nodes + 1.0)
        other_side = np.array([_cdf(side * (decay * at - level) / shock) for at in z])
        law = _density((z - mean) / spread) / spread
        probability += abs(half) * float(weights @ (law * other_side))
    return probability
