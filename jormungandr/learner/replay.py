"""Prioritized replay: a ring of items sampled with P(i) ∝ p_i^α (Schaul et al. 2016, equation 1).

Samples carry (slot, generation), so that a priority computed for an item that has been overwritten
meanwhile is dropped and counted rather than given to its successor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.learner.nstep import Item
from jormungandr.numerics.sum_tree import SumTree
from jormungandr.spec import Replay as ReplaySpec

__all__ = ["Replay", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """B sampled items: raw observations, and what to weight and write back.

    Args:
        slot, generation: (B,) where each came from.
        weight: (B,) float64 importance weights, at most 1.
    """

    slot: NDArray[np.int64]
    generation: NDArray[np.int64]
    weight: NDArray[np.float64]
    observation: NDArray[np.float32]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next_observation: NDArray[np.float32]
    discount: NDArray[np.float32]
    label: NDArray[np.int32]


class Replay:
    """The newest `capacity` items.

    Args:
        spec: capacity and exponents.
        shape: of one observation.
    """

    def __init__(self, spec: ReplaySpec, shape: tuple[int, ...]) -> None:
        self.spec = spec
        self.capacity = capacity = spec.capacity
        self.added = 0  # items ever added; the next one goes to added % capacity
        self.stale_writes = 0  # priorities that came too late
        self.max_priority = 1.0  # highest ever written, what new items get
        self.arrays: dict[str, NDArray[Any]] = {
            "observation": np.zeros((capacity, *shape), dtype=np.float32),
            "action": np.zeros(capacity, dtype=np.int64),
            "reward": np.zeros(capacity, dtype=np.float32),
            "next_observation": np.zeros((capacity, *shape), dtype=np.float32),
            "discount": np.zeros(capacity, dtype=np.float32),
            "label": np.full(capacity, -1, dtype=np.int32),
            # Which item of all time the slot holds: its index in the order of adding.
            "generation": np.full(capacity, -1, dtype=np.int64),
            "priority": np.zeros(capacity, dtype=np.float64),
        }
        # Training transition o started the item in slot_of[o % capacity], if that slot still
        # says so.
        self.slot_of = np.full(capacity, -1, dtype=np.int64)
        self.ordinal = np.full(capacity, -1, dtype=np.int64)
        self._tree = SumTree(capacity) if spec.alpha > 0 else None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

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
            )

    def _put(self, ordinal: NDArray[np.int64], **values: NDArray[Any]) -> None:
        count = len(ordinal)
        keep = max(0, count - self.capacity)  # the earliest would be overwritten at once
        generation = self.added + np.arange(keep, count)
        slot = generation % self.capacity
        for name, value in values.items():
            self.arrays[name][slot] = value[keep:]
        self.arrays["generation"][slot] = generation
        self.ordinal[slot] = ordinal[keep:]
        self._index(slot)
        self.added += count
        self._set_priority(slot, np.full(len(slot), self.max_priority))

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
        """Draw `count` items with replacement, stratified over the mass when prioritized.

        ``w_i = (N · P(i))^-β / max w``; the maximum is over the batch, or over the buffer
        (Schaul et al. 2016, section 3.4).

        Args:
            count: B.
            beta: exponent of the weights, 0..1.
            rng: the sampling stream.
        """
        size = len(self)
        if self._tree is None:
            slot = rng.integers(size, size=count)
            weight = np.ones(count)
        else:
            total = self._tree.total
            mass = (np.arange(count) + rng.random(count)) * (total / count)
            slot = self._tree.find(np.minimum(mass, np.nextafter(total, 0)))
            scaled = size * self._tree.get(slot) / total
            if self.spec.is_normalizer == "batch":
                smallest = scaled.min()
            else:
                smallest = size * self._tree.minimum() / total
            # (N P)^-β / max (N P)^-β, as one power of a ratio that cannot overflow.
            weight = (smallest / scaled) ** beta
        a = self.arrays
        return Sample(
            slot=slot,
            generation=a["generation"][slot],
            weight=weight,
            observation=a["observation"][slot],
            action=a["action"][slot],
            reward=a["reward"][slot],
            next_observation=a["next_observation"][slot],
            discount=a["discount"][slot],
            label=a["label"][slot],
        )

    def update_priorities(self, sample: Sample, priority: NDArray[np.floating[Any]]) -> None:
        """Write (B,) non-negative priorities back to the items they were computed for."""
        fresh = self.arrays["generation"][sample.slot] == sample.generation
        self.stale_writes += int(np.count_nonzero(~fresh))
        slot, value = sample.slot[fresh], priority[fresh].astype(np.float64)
        if len(value):
            self.max_priority = max(self.max_priority, float(value.max()))
            self._set_priority(slot, value)

    def _set_priority(self, slot: NDArray[np.int64], priority: NDArray[np.float64]) -> None:
        self.arrays["priority"][slot] = priority
        if self._tree is not None:
            self._tree.set(slot, (priority + self.spec.priority_epsilon) ** self.spec.alpha)

    def newest(self, count: int) -> dict[str, NDArray[Any]]:
        """Return up to `count` of the newest items, oldest of them first."""
        slots = np.arange(max(self.added - min(count, len(self)), 0), self.added) % self.capacity
        return {name: array[slots] for name, array in self.arrays.items()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `restore` rebuilds the buffer."""
        size = len(self)
        return {
            **{name: array[:size] for name, array in self.arrays.items()},
            "ordinal": self.ordinal[:size],
            "added": np.array(self.added),
            "stale_writes": np.array(self.stale_writes),
            "max_priority": np.array(self.max_priority),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self.added = int(state["added"])
        self.stale_writes = int(state["stale_writes"])
        self.max_priority = float(state["max_priority"])
        size = len(self)
        for name, array in self.arrays.items():
            array[:size] = state[name]
        self.ordinal[:size] = state["ordinal"]
        self._index(np.arange(size))
        self._set_priority(np.arange(size), self.arrays["priority"][:size].copy())
