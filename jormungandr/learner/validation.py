"""The held-out store: a bounded ring of transitions that nothing but evaluation reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jormungandr.columns import Columns
from jormungandr.held_steps import episode_keys

__all__ = ["ValidationStore"]


class ValidationStore:
    """The newest `capacity` validation transitions, as they came.

    Args:
        capacity: transitions kept.
        shape: of one observation.
        dtype: of observations.
        masked: actions that a mask is over; 0 in a model without masks.
    """

    def __init__(
        self,
        capacity: int,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.float32,
        masked: int = 0,
    ) -> None:
        self.capacity = capacity
        self.added = 0  # transitions ever added; the next one goes to added % capacity
        self.arrays: dict[str, NDArray[Any]] = {
            "observation": np.zeros((capacity, *shape), dtype=dtype),
            "action": np.zeros(capacity, dtype=np.int64),
            "reward": np.zeros(capacity, dtype=np.float32),
            "next_observation": np.zeros((capacity, *shape), dtype=dtype),
            "terminated": np.zeros(capacity, dtype=np.bool_),
            "label": np.full(capacity, -1, dtype=np.int32),
            "next_action_mask": np.zeros((capacity, masked), dtype=np.bool_),
            "behavior_prob": np.full(capacity, np.nan, dtype=np.float32),
            "timestep": np.zeros(capacity, dtype=np.int64),
            "episode": np.zeros(capacity, dtype=np.uint64),  # as of `episode_keys`
        }

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def size(self) -> int:
        """Transitions held."""
        return len(self)

    def add(self, columns: Columns) -> None:
        """Append transitions, the oldest making room."""
        slots = (self.added + np.arange(len(columns))) % self.capacity
        for name, array in self.arrays.items():
            # With more transitions than slots, the last one to land on a slot stays.
            array[slots] = episode_keys(columns) if name == "episode" else getattr(columns, name)
        self.added += len(columns)

    def set_label(self, ordinal: int, label: int) -> None:
        """Label the transition that was the `ordinal`-th added, if it is still here."""
        if self.added - self.capacity <= ordinal < self.added:
            self.arrays["label"][ordinal % self.capacity] = label

    def all(self) -> dict[str, NDArray[Any]]:
        """Return views of what is held, oldest first up to rotation."""
        return {name: array[: len(self)] for name, array in self.arrays.items()}

    def in_order(self) -> dict[str, NDArray[Any]]:
        """Return copies of what is held, oldest first."""
        turn = self.added % self.capacity if self.added > self.capacity else 0
        return {name: np.roll(array, -turn, axis=0) for name, array in self.all().items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `restore` rebuilds the store."""
        return {**self.all(), "added": np.array(self.added)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self.added = int(state["added"])
        for name, array in self.arrays.items():
            array[: len(self)] = state[name]
