"""Prioritized replay: a ring of items sampled with P(i) ∝ p_i^α (Schaul et al. 2016, equation 1).

The priorities say which slots to draw; here is what the slots hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jormungandr.columns import Columns
from jormungandr.learner.nstep import Item
from jormungandr.learner.priorities import Draw, Priorities
from jormungandr.spec import Replay as ReplaySpec

__all__ = ["Replay", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample(Draw):
    """B drawn items with what they hold, observations as stored."""

    observation: NDArray[Any]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next_observation: NDArray[Any]
    discount: NDArray[np.float32]
    label: NDArray[np.int32]
    next_action_mask: NDArray[np.bool_]


class Replay:
    """The newest `capacity` items.

    Args:
        spec: capacity and exponents.
        shape: of one observation.
        dtype: of observations.
        masked: actions that a mask is over; 0 in a model without masks.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.float32,
        masked: int = 0,
    ) -> None:
        self.spec = spec
        self.capacity = capacity = spec.capacity
        self.priorities = Priorities(spec)
        self.arrays: dict[str, NDArray[Any]] = {
            "observation": np.zeros((capacity, *shape), dtype=dtype),
            "action": np.zeros(capacity, dtype=np.int64),
            "reward": np.zeros(capacity, dtype=np.float32),
            "next_observation": np.zeros((capacity, *shape), dtype=dtype),
            "discount": np.zeros(capacity, dtype=np.float32),
            "label": np.full(capacity, -1, dtype=np.int32),
            "next_action_mask": np.zeros((capacity, masked), dtype=np.bool_),
        }
        # Training transition o started the item in slot_of[o % capacity], if that slot still
        # says so.
        self.slot_of = np.full(capacity, -1, dtype=np.int64)
        self.ordinal = np.full(capacity, -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.priorities)

    @property
    def size(self) -> int:
        """Items held."""
        return len(self)

    def add_steps(self, columns: Columns, ordinal: int, gamma: float) -> None:
        """Add one-step items, the first of transition `ordinal`."""
        discount = np.where(columns.terminated, 0.0, gamma).astype(np.float32)
        self._put(
            np.arange(ordinal, ordinal + len(columns)),
            observation=columns.observation,
            action=columns.action,
            reward=columns.reward,
            next_observation=columns.next_observation,
            discount=discount,
            label=columns.label,
            next_action_mask=columns.next_action_mask,
        )

    def add_items(self, items: Sequence[Item]) -> None:
        """Add n-step items."""
        if items:
            self._put(
                np.array([item.ordinal for item in items]),
                observation=np.stack([item.observation for item in items]),
                action=np.array([item.action for item in items]),
                reward=np.array([item.reward for item in items], dtype=np.float32),
                next_observation=np.stack([item.next_observation for item in items]),
                discount=np.array([item.discount for item in items], dtype=np.float32),
                label=np.array([item.label for item in items], dtype=np.int32),
                next_action_mask=np.stack([item.next_action_mask for item in items]),
            )

    def _put(self, ordinal: NDArray[np.int64], **values: NDArray[Any]) -> None:
        slot = self.priorities.append(len(ordinal))
        keep = len(ordinal) - len(slot)  # the earliest would be overwritten at once
        for name, value in values.items():
            self.arrays[name][slot] = value[keep:]
        self.ordinal[slot] = ordinal[keep:]
        self._index(slot)

    def _index(self, slot: NDArray[np.int64]) -> None:
        """Enter what slots hold into `slot_of`.

        A window that closes late brings an ordinal whose place a newer one has taken. The newer one
        keeps it: of ordinals a capacity apart, only the newest can still be labelled.
        """
        slot = slot[np.argsort(self.ordinal[slot], kind="stable")]
        place = self.ordinal[slot] % self.capacity
        there = self.ordinal[self.slot_of[place]]
        taken = (there % self.capacity == place) & (there > self.ordinal[slot])
        self.slot_of[place[~taken]] = slot[~taken]

    def set_label(self, ordinal: int, label: int) -> bool:
        """Label the item that training transition `ordinal` started, if it is still here."""
        slot = self.slot_of[ordinal % self.capacity]
        here = slot >= 0 and self.ordinal[slot] == ordinal
        if here:
            self.arrays["label"][slot] = label
        return bool(here)

    def sample(self, count: int, beta: float, rng: np.random.Generator) -> Sample:
        """Draw `count` items with replacement, as `Priorities.sample` does."""
        draw = self.priorities.sample(count, beta, rng)
        held = {name: array[draw.slot] for name, array in self.arrays.items()}
        return Sample(draw.slot, draw.generation, draw.weight, **held)

    def newest(self, count: int) -> dict[str, NDArray[Any]]:
        """Return up to `count` of the newest items, oldest of them first."""
        added = self.priorities.added
        slots = np.arange(max(added - min(count, len(self)), 0), added) % self.capacity
        return {name: array[slots] for name, array in self.arrays.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `restore` rebuilds the buffer."""
        size = len(self)
        return {
            **{name: array[:size] for name, array in self.arrays.items()},
            "ordinal": self.ordinal[:size],
            **self.priorities.state(),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self.priorities.restore(state)
        size = len(self)
        for name, array in self.arrays.items():
            array[:size] = state[name]
        self.ordinal[:size] = state["ordinal"]
        self._index(np.arange(size))
