"""Means and risk measures of categorical distributions in NumPy, for acting.

`categorical.cvar` is the same in torch, with a gradient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["lower_tail_mean", "mean"]

_Floats = npt.NDArray[np.floating]


def mean(support: _Floats, probs: _Floats) -> _Floats:
    """Return the means of distributions, shape (...,).

    OpenBLAS's AVX-512 kernel for five columns (``sgemv_t``) computes, beside what it is asked for,
    with numbers that nobody has set, and drops what comes of it. Where one of those happens to be
    a signalling NaN, NumPy would warn of it.

    Args:
        support: Atoms, shape (N,).
        probs: Probabilities, shape (..., N).
    """
    with np.errstate(invalid="ignore"):
        found: _Floats = probs @ support
    return found


def lower_tail_mean(support: _Floats, probs: _Floats, level: float) -> _Floats:
    """Return the conditional value at risk: the mean of the worst `level` of the probability mass.

    Acerbi and Tasche (2002), arXiv:cond-mat/0104295, with the sign of a return: more is better.

    Args:
        support: Atoms in ascending order, shape (N,).
        probs: Probabilities, shape (..., N), summing to 1 over the last axis.
        level: Mass of the lower tail, in (0, 1]; 1 gives the mean.

    Returns:
        Tail means, shape (...,).
    """
    if level >= 1:
        return mean(support, probs)
    mass_below = probs.cumsum(axis=-1) - probs
    tail = np.minimum(probs, np.maximum(level - mass_below, 0))
    found: _Floats = mean(support, tail) / probs.dtype.type(level)
    return found
