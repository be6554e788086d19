"""Prioritized replay: a ring of items sampled with P(i) ∝ p_i^α (Schaul et al. 2016, equation 1).

The priorities say which slots to draw; here is what the slots hold: one record each, so that a
batch is gathered in one go.
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
    """B drawn items with what they hold.

    Args:
        held: (B,) records of `Replay`, copies.
    """

    held: NDArray[np.void]

    @property
    def action(self) -> NDArray[np.int64]:
        """(B,)."""
        return self.held["action"].astype(np.int64)

    @property
    def observations(self) -> NDArray[Any]:
        """Each one and its successor, as stored: (B, 2, …)."""
        both: NDArray[Any] = self.held["observations"]
        return both

    @property
    def observation(self) -> NDArray[Any]:
        """As stored: (B, …)."""
        return self.observations[:, 0]

    @property
    def next_observation(self) -> NDArray[Any]:
        """As stored: (B, …)."""
        return self.observations[:, 1]


class Replay:
    """The newest `capacity` items.

    Args:
        spec: capacity and exponents.
        shape: of one observation.
        dtype: of observations.
        masked: actions that a mask is over; 0 in a model without masks.
        labelled: whether labels come later, to be joined to what is held.

    Attributes:
        arrays: what the slots hold, by name; views of the records.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        shape: tuple[int, ...],
        dtype: DTypeLike = np.float32,
        masked: int = 0,
        labelled: bool = True,
    ) -> None:
        self.spec = spec
        self.capacity = capacity = spec.capacity
        self.priorities = Priorities(spec)
        record = np.dtype(
            [
                ("action", np.int32),
                ("reward", np.float32),
                ("discount", np.float32),
                ("label", np.int32),
                ("observations", dtype, (2, *shape)),
                ("next_action_mask", np.bool_, (masked,)),
            ],
            align=True,
        )
        self._records = np.zeros(capacity, dtype=record)
        both = self._records["observations"]
        self.arrays: dict[str, NDArray[Any]] = {
            "observation": both[:, 0],
            "action": self._records["action"],
            "reward": self._records["reward"],
            "next_observation": both[:, 1],
            "discount": self._records["discount"],
            "label": self._records["label"],
            "next_action_mask": self._records["next_action_mask"],
        }
        self.arrays["label"].fill(-1)
        # Training transition o started the item in slot_of[o % capacity], if that slot still
        # says so.
        places = capacity if labelled else 0
        self.slot_of = np.full(places, -1, dtype=np.int64)
        self.ordinal = np.full(places, -1, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.priorities)

    @property
    def size(self) -> int:
        """Items held."""
        return len(self)

    def add_steps(self, columns: Columns, ordinal: int, gamma: float) -> None:
        """Add one-step items, the first of transition `ordinal`."""
        if len(columns) == 1:
            self._put_one(
                ordinal,
                observation=columns.observation[0],
                action=columns.action[0],
                reward=columns.reward[0],
                next_observation=columns.next_observation[0],
                discount=0.0 if columns.terminated[0] else gamma,
                label=columns.label[0],
                next_action_mask=columns.next_action_mask[0],
            )
            return
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
        if len(items) == 1:
            one = items[0]
            self._put_one(
                one.ordinal,
                observation=one.observation,
                action=one.action,
                reward=one.reward,
                next_observation=one.next_observation,
                discount=one.discount,
                label=one.label,
                next_action_mask=one.next_action_mask,
            )
        elif items:
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
        if len(self.ordinal):
            self.ordinal[slot] = ordinal[keep:]
            self._index(slot)

    def _put_one(self, ordinal: int, **values: Any) -> None:
        """Put a single item, as `_put` and `_index` do, without arrays."""
        slot = int(self.priorities.append(1)[0])
        for name, value in values.items():
            self.arrays[name][slot] = value
        if len(self.ordinal):
            self.ordinal[slot] = ordinal
            place = ordinal % self.capacity
            there = int(self.ordinal[self.slot_of[place]])
            if there <= ordinal or there % self.capacity != place:
                self.slot_of[place] = slot

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
        if not len(self.ordinal):
            return False
        slot = self.slot_of[ordinal % self.capacity]
        here = slot >= 0 and self.ordinal[slot] == ordinal
        if here:
            self.arrays["label"][slot] = label
        return bool(here)

    def sample(self, count: int, beta: float, rng: np.random.Generator) -> Sample:
        """Draw `count` items with replacement, as `Priorities.sample` does."""
        draw = self.priorities.sample(count, beta, rng)
        held = self._records.take(draw.slot)
        return Sample(draw.slot, draw.added, draw.weight, held)

    def newest(self, count: int) -> dict[str, NDArray[Any]]:
        """Return up to `count` of the newest items, oldest of them first."""
        added = self.priorities.added
        slots = np.arange(max(added - min(count, len(self)), 0), added) % self.capacity
        held = {name: array[slots] for name, array in self.arrays.items()}
        return {**held, "action": held["action"].astype(np.int64)}

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
        if len(self.ordinal):
            self.ordinal[:size] = state["ordinal"]
            self._index(np.arange(size))
