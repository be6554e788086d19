"""The support of categorical distributions that fits itself to rewards: where, and how it moves.

Bounds are (low, high) in units of return. N atoms lie evenly between them, both included.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = [
    "UNKNOWN",
    "centred",
    "first_bounds",
    "is_known",
    "resampling",
    "widened",
    "widest_bounds",
]

Bounds = tuple[float, float]

#: Before any reward but 0 was seen.
UNKNOWN: Bounds = (-1.0, 1.0)
#: Rewards below the one are taken for 0; bounds do not grow beyond the other: float32 ends soon.
SMALLEST, LARGEST = 1e-30, 1e37
#: Standard deviations of a return, either side of its mean.
SPREAD = 3.0
#: A discount nearer to 1 counts as this one: a return is expected to come from a thousand rewards.
LARGEST_DISCOUNT = 0.999
#: Part of its width by which a support grows at an end.
GROWTH = 0.25
#: What the logit of an atom beyond the old ones is below that of the old one at that end.
BEYOND = 6.0


def is_known(lowest: float, highest: float) -> bool:
    """Return whether rewards between these say anything of where returns lie: not 0 alone."""
    return max(-lowest, highest) >= SMALLEST


def widest_bounds(lowest: float, highest: float, gamma: float) -> Bounds:
    """Return what no discounted return of these rewards can exceed.

    Args:
        lowest: of the rewards.
        highest: of them.
        gamma: discount, 0..1; at 1 a return has no bound.
    """
    if gamma >= 1:
        return (-math.inf if lowest < 0 else 0.0, math.inf if highest > 0 else 0.0)
    return min(lowest, 0.0) / (1 - gamma), max(highest, 0.0) / (1 - gamma)


def first_bounds(mean: float, std: float, lowest: float, highest: float, gamma: float) -> Bounds:
    """Return bounds to begin with: where returns would lie if rewards were independent.

    The discounted sum of independent rewards has the mean μ / (1 − γ) and the standard deviation
    σ / √(1 − γ²); the bounds are three of those either side, hold 0, where every episode ends, and
    each single reward, and are no wider than `widest_bounds`.

    Args:
        mean: of the rewards so far.
        std: of them.
        lowest: of them.
        highest: of them.
        gamma: discount, 0..1.

    Returns:
        (low, high), low < high; `UNKNOWN` when every reward was 0, or next to it.
    """
    if not is_known(lowest, highest):
        return UNKNOWN
    g = min(gamma, LARGEST_DISCOUNT)
    center, spread = mean / (1 - g), SPREAD * std / math.sqrt(1 - g * g)
    widest = widest_bounds(lowest, highest, gamma)
    low = max(min(center - spread, lowest, 0.0), widest[0], -LARGEST)
    high = min(max(center + spread, highest, 0.0), widest[1], LARGEST)
    return low, high


def centred(bounds: Bounds) -> Bounds:
    """Return bounds that hold these, with 0 in the middle."""
    reach = max(-bounds[0], bounds[1])
    return -reach, reach


def widened(bounds: Bounds, end: int, widest: Bounds) -> Bounds:
    """Return bounds that reach a quarter of their width further at one end.

    The end that was is an atom again where N − 1 is a multiple of 5, as in 51 and 101, so that the
    mass that was clipped to it stays where it is. At an end that has reached the widest bounds
    nothing is changed; it may pass them by less than a step.

    Args:
        bounds: before.
        end: 0 for the low one, 1 for the high one.
        widest: from `widest_bounds`.
    """
    low, high = bounds
    grown = GROWTH * (high - low)
    if end == 0:
        return (low - grown if low > max(widest[0], -LARGEST) else low), high
    return low, (high + grown if high < min(widest[1], LARGEST) else high)


def resampling(
    old: Bounds, new: Bounds, atoms: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return how logits on the new atoms follow from those on the old ones.

    A logit is the logarithm of a density, which does not depend on how many atoms it is shown at.
    On an atom among the old ones it is the weighted mean of those nearest to it, nearer than one
    new gap; on one beyond them it is that of the end, less `BEYOND`. So a layer that gives logits
    can be rewritten to give the new ones for every input, and expected values stay what they were
    but for the coarser atoms.

    Args:
        old: bounds before.
        new: bounds after.
        atoms: N, the same for both.

    Returns:
        A (N, N) matrix M and (N,) shift s: new logits = M @ old logits + s.
    """
    before, after = np.linspace(*old, atoms), np.linspace(*new, atoms)
    gap, new_gap = before[1] - before[0], after[1] - after[0]
    place = np.clip(after, before[0], before[-1])
    reach = max(gap, new_gap)
    matrix = np.maximum(0.0, 1.0 - np.abs(place[:, None] - before) / reach)
    matrix /= matrix.sum(axis=1, keepdims=True)
    outside = (after < before[0] - gap / 2) | (after > before[-1] + gap / 2)
    ends = np.where(place[outside] == before[0], 0, atoms - 1)
    matrix[outside] = np.eye(atoms)[ends]
    return matrix, np.where(outside, -BEYOND, 0.0)
