"""The words of the OU task: its actions, its drift classes, and the rule that draws both."""

from enum import IntEnum
from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = [
    "ACTION_LABELS",
    "ACTION_VALUES",
    "DRIFT_LABELS",
    "FEATURES",
    "Action",
    "Drift",
    "drift_label",
]


class Action(IntEnum):
    """Action index; `ACTION_VALUES` holds the position that each stands for."""

    SHORT = 0
    FLAT = 1
    LONG = 2


class Drift(IntEnum):
    """Class index of the expected direction of the spread's next change."""

    DOWN = 0
    FLAT = 1
    UP = 2


ACTION_LABELS: tuple[str, ...] = tuple(action.name for action in Action)
ACTION_VALUES: tuple[int, ...] = (-1, 0, 1)
DRIFT_LABELS: tuple[str, ...] = tuple(drift.name for drift in Drift)
FEATURES: tuple[str, ...] = ("z", "dz", "position", "time_left")

# For inner loops: NumPy takes five times as long over a member of an IntEnum as over an int.
FLAT = int(Action.FLAT)
POSITIONS = np.array(ACTION_VALUES, dtype=np.float64)  # (3,)


def against_band(z: npt.NDArray[np.floating], threshold: float) -> npt.NDArray[np.int64]:
    """Return 0 above the band ``[-threshold, threshold]``, 1 inside it, 2 below it.

    A mean-reverting spread is expected to fall above its mean and to rise below it, so this one
    rule gives the drift classes (DOWN, FLAT, UP) and the reference actions (SHORT, FLAT, LONG).

    Args:
        z: spread in stationary standard deviations, any shape.
        threshold: half width of the band, same unit, at least 0.

    Raises:
        ValueError: if ``threshold`` is negative or not a number.
    """
    if not threshold >= 0:  # also catches nan, which every comparison below would let through
        raise ValueError(f"threshold: expected a number >= 0, got {threshold!r}")
    found = np.subtract(z < -threshold, z > threshold, dtype=np.int8)  # a byte each: less to move
    found += 1
    return found.astype(np.int64)


@overload
def drift_label(z: float, threshold: float = ...) -> int: ...
@overload
def drift_label(z: npt.NDArray[np.floating], threshold: float = ...) -> npt.NDArray[np.int64]: ...
def drift_label(
    z: float | npt.NDArray[np.floating], threshold: float = 0.35
) -> int | npt.NDArray[np.int64]:
    """Classify the expected direction of the next change: `Drift` DOWN, FLAT or UP.

    Args:
        z: spread in stationary standard deviations, a number or an array of any shape.
        threshold: DOWN strictly above it, UP strictly below its negative, FLAT between.

    Returns:
        The class index: an int for a number, an int64 array of the same shape for an array.

    Raises:
        ValueError: if ``threshold`` is negative or not a number.
    """
    labels = against_band(np.asarray(z), threshold)
    return int(labels) if labels.ndim == 0 else labels
