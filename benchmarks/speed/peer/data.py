"""Experience that every contender learns from: random, the same for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["experience"]


def experience(count: int, size: int, actions: int) -> dict[str, NDArray[Any]]:
    """Return so many transitions of observations of `size` numbers.

    Returns:
        ``observation`` and ``next_observation`` (count, size) float32, ``action`` (count,) int64,
        ``reward`` (count,) float32, ``terminated`` (count,) bool, one in fifty.
    """
    rng = np.random.default_rng(0)
    shown = rng.standard_normal((count + 1, size), dtype=np.float32)
    return {
        "observation": shown[:-1],
        "action": rng.integers(actions, size=count),
        "reward": rng.standard_normal(count, dtype=np.float32),
        "next_observation": shown[1:],
        "terminated": rng.random(count) < 1 / 50,
    }
