"""`Fitting`: the support that a model with ``c51.support: auto`` fits to its rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.numerics.moments import RunningMoments
from jormungandr.numerics.support import (
    Bounds,
    centred,
    first_bounds,
    is_known,
    resampling,
    widened,
    widest_bounds,
)

__all__ = ["CLIPPED", "CLIPPED_AVERAGING", "Fitting", "resampled"]

#: Running average of target mass clipped at an end above which the support is too narrow there.
CLIPPED = 0.01
#: Weight of the newest update in those averages.
CLIPPED_AVERAGING = 0.01


class Fitting:
    """Remembers the training rewards, and says where the support should be.

    What it says follows from the rewards, in their order, and from the updates between them: never
    from how they were batched.

    Args:
        gamma: discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._moments = RunningMoments(1)
        self._lowest = self._highest = 0.0

    def add(self, reward: NDArray[np.float32]) -> None:
        """Take in training rewards, (B,), in their order."""
        if not len(reward):
            return
        self._moments.update(reward[:, None])
        first = lowest = highest = float(reward[0])
        if len(reward) > 1:
            lowest, highest = float(reward.min()), float(reward.max())
        if self._moments.count == len(reward):
            self._lowest = self._highest = first
        self._lowest, self._highest = min(self._lowest, lowest), max(self._highest, highest)

    def first(self) -> Bounds | None:
        """Return bounds to begin with; None before any reward but 0 was seen."""
        if not is_known(self._lowest, self._highest):
            return None
        return first_bounds(
            float(self._moments.mean[0]),
            float(np.sqrt(self._moments.var[0])),
            self._lowest,
            self._highest,
            self._gamma,
        )

    def wanted(
        self,
        bounds: Bounds | None,
        clipped_low: float,
        clipped_high: float,
        *,
        learned: bool = False,
    ) -> Bounds | None:
        """Return the bounds to go on with; None as long as they are good as they are.

        Args:
            bounds: those that followed from rewards last; None before.
            clipped_low: running average of the target mass clipped at the low end.
            clipped_high: the same at the high end.
            learned: whether there were updates before a reward other than 0. What they taught is 0,
                the middle of `UNKNOWN`, and so that stays the middle.
        """
        if bounds is None:
            first = self.first()
            return centred(first) if first is not None and learned else first
        if max(clipped_low, clipped_high) <= CLIPPED:
            return None
        end = int(clipped_high >= clipped_low)
        new = widened(bounds, end, widest_bounds(self._lowest, self._highest, self._gamma))
        return None if new == bounds else new

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything it remembers, as arrays by name."""
        extremes = np.array([self._lowest, self._highest])
        return {**self._moments.state(), "extremes": extremes}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self._moments = RunningMoments.from_state(state)
        self._lowest, self._highest = (float(x) for x in state["extremes"])


def resampled(
    state: dict[str, NDArray[Any]], old: Bounds, new: Bounds, atoms: int
) -> dict[str, NDArray[Any]]:
    """Return the state of a `C51` whose networks say on new atoms what they said on the old ones.

    Args:
        state: from `C51.state`.
        old: bounds before.
        new: bounds after.
        atoms: N.
    """
    matrix, shift = resampling(old, new, atoms)
    found = dict(state)
    for name, array in state.items():
        part, _, rest = name.partition(".")
        head, _, kind = rest.partition(".")
        if head not in ("value", "advantage") or kind.endswith("step"):
            continue
        blocks = array.reshape(-1, atoms, *array.shape[1:])  # one of each action
        moved = np.einsum("ij,aj...->ai...", matrix, blocks.astype(np.float64))
        # Of a dueling head V and A are added up: one of them takes the shift.
        if part != "adam" and (head, kind) == ("value", "bias"):
            moved += shift
        found[name] = moved.reshape(array.shape).astype(array.dtype)
    return found
