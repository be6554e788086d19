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
from jormungandr.spec import FLOAT32_MAX
from jormungandr.spec import Replay as ReplaySpec

__all__ = ["Draw", "Priorities"]


@dataclass(frozen=True, slots=True)
class Draw:
    """B drawn items.

    Args:
        slot: (B,) where each came from.
        added: items that there had been by then, so that a priority computed for an item that has
            been overwritten meanwhile is not given to its successor.
        weight: (B,) float64 importance weights, at most 1.
    """

    slot: NDArray[np.int64]
    added: int
    weight: NDArray[np.float64]


class Priorities:
    """Those of the newest `capacity` items.

    Args:
        spec: capacity and exponents.

    Attributes:
        added: items ever added; the next one goes to slot added % capacity.
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
        self.priority = np.zeros(self.capacity, dtype=np.float64)
        self._tree = SumTree(self.capacity) if spec.alpha > 0 else None
        self._new = self._leaves(np.full(1, self.max_priority))
        self._strata = np.zeros(0)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def append(self, count: int) -> NDArray[np.int64]:
        """Enter the next `count` items, with the highest priority so far.

        Returns:
            The slots of the last min(count, capacity) of them; those before would be overwritten at
            once.
        """
        first = self.added + max(0, count - self.capacity)
        self.added += count
        slot = np.arange(first, self.added)
        slot %= self.capacity
        if len(slot):
            self.priority[slot] = self.max_priority
            if self._tree is not None:
                self._tree.write(slot, self._new)
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
            mass = rng.random(count)
            if len(self._strata) != count:
                self._strata = np.arange(count, dtype=np.float64)
            mass += self._strata
            mass *= total / count  # of 1 − 2⁻⁵³ and a sum it may come up to the total
            slot = self._tree.search(mass)
            own = self._tree.read(slot)
            in_batch = self.spec.is_normalizer == "batch"
            smallest = np.minimum.reduce(own) if in_batch else self._tree.minimum()
            # (N P)^-β / max (N P)^-β, as one power of a ratio that cannot overflow.
            weight = (smallest / own) ** beta
        return Draw(slot, self.added, weight)

    def update(self, draw: Draw, priority: NDArray[np.floating[Any]]) -> None:
        """Write (B,) non-negative priorities back to the items they were computed for.

        Raises:
            ValueError: one is not finite, or too large for a float32; nothing was written.
        """
        slot, value = draw.slot, priority.astype(np.float64)
        since = self.added - draw.added
        if since:
            fresh = (slot - draw.added) % self.capacity >= since
            self.stale_writes += int(np.count_nonzero(~fresh))
            slot, value = slot[fresh], value[fresh]
        if not len(value):
            return
        highest = float(np.maximum.reduce(value))
        if not highest <= FLOAT32_MAX:  # a NaN fails too
            raise ValueError(f"Priorities.update: expected finite priorities, got {highest}")
        if highest > self.max_priority:
            self.max_priority = highest
            self._new = self._leaves(np.full(1, highest))
        self.priority[slot] = value
        if self._tree is not None:
            self._tree.write(slot, self._leaves(value))

    def _leaves(self, priority: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (p + ε)^α, always of an array: of a number alone it may have other bits."""
        leaves: NDArray[np.float64] = (priority + self.spec.priority_epsilon) ** self.spec.alpha
        return leaves

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `restore` rebuilds the priorities."""
        size = len(self)
        return {
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
        self._new = self._leaves(np.full(1, self.max_priority))
        self.priority[:size] = state["priority"]
        if self._tree is not None and size:
            self._tree.write(np.arange(size), self._leaves(self.priority[:size]))
