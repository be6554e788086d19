"""Priorities of a ring of items: which to draw, P(i) ∝ p_i^α, and with what weight.

Schaul et al. (2016), arXiv:1511.05952, equation 1 and section 3.4. What the items hold is kept
elsewhere, under the same slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.numerics.sum_tree import SumTree
from jormungandr.spec import Replay as ReplaySpec

__all__ = ["Draw", "Priorities"]


@dataclass(frozen=True, slots=True)
class Draw:
    """B drawn items.

    Args:
        slot, generation: (B,) where each came from, so that a priority computed for an item that
            has been overwritten meanwhile is not given to its successor.
        weight: (B,) float64 importance weights, at most 1.
    """

    slot: NDArray[np.int64]
    generation: NDArray[np.int64]
    weight: NDArray[np.float64]


class Priorities:
    """Those of the newest `capacity` items.

    Args:
        spec: capacity and exponents.

    Attributes:
        added: items ever added; the next one goes to slot added % capacity.
        generation: (capacity,) which item of all time a slot holds: its index in the order of
            adding; -1 where none is.
        priority: (capacity,) float64, without ε and α.
        max_priority: highest ever written, what new items get.
        stale_writes: priorities that came when their item had been overwritten.
    """

    def __init__(self, spec: ReplaySpec) -> None:
        self.spec = spec
        self.capacity = spec.capacity
        self.added = 0
        self.stale_writes = 0
        self.max_priority = 1.0
        self.generation = np.full(self.capacity, -1, dtype=np.int64)
        self.priority = np.zeros(self.capacity, dtype=np.float64)
        self._tree = SumTree(self.capacity) if spec.alpha > 0 else None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def append(self, count: int) -> NDArray[np.int64]:
        """Enter the next `count` items, with the highest priority so far.

        Returns:
            The slots of the last min(count, capacity) of them; those before would be overwritten at
            once.
        """
        generation = self.added + np.arange(max(0, count - self.capacity), count)
        slot = generation % self.capacity
        self.generation[slot] = generation
        self.added += count
        self._set(slot, np.full(len(slot), self.max_priority))
        return slot

    def sample(self, count: int, beta: float, rng: np.random.Generator) -> Draw:
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
        return Draw(slot, self.generation[slot], weight)

    def update(self, draw: Draw, priority: NDArray[np.floating[Any]]) -> None:
        """Write (B,) non-negative priorities back to the items they were computed for."""
        fresh = self.generation[draw.slot] == draw.generation
        self.stale_writes += int(np.count_nonzero(~fresh))
        slot, value = draw.slot[fresh], priority[fresh].astype(np.float64)
        if len(value):
            self.max_priority = max(self.max_priority, float(value.max()))
            self._set(slot, value)

    def _set(self, slot: NDArray[np.int64], priority: NDArray[np.float64]) -> None:
        self.priority[slot] = priority
        if self._tree is not None:
            self._tree.set(slot, (priority + self.spec.priority_epsilon) ** self.spec.alpha)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `restore` rebuilds the priorities."""
        size = len(self)
        return {
            "generation": self.generation[:size],
            "priority": self.priority[:size],
            "added": np.array(self.added),
            "stale_writes": np.array(self.stale_writes),
            "max_priority": np.array(self.max_priority),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state; names that are not of `state` are left alone."""
        self.added = int(state["added"])
        self.stale_writes = int(state["stale_writes"])
        self.max_priority = float(state["max_priority"])
        size = len(self)
        self.generation[:size] = state["generation"]
        self._set(np.arange(size), np.array(state["priority"], dtype=np.float64))
