"""n-step windows: transitions of one episode joined into replay items.

An item that starts at step t sums up to n rewards and bootstraps at the true successor of its last
step; its discount is γ^k, or 0 at a termination (Sutton and Barto 2018, equation 7.1).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.spec import FLOAT32_MAX

__all__ = ["Item", "NStepWindows"]


@dataclass(slots=True)
class Item:
    """One replay item; `ordinal` is that of the transition it starts with."""

    ordinal: int
    observation: NDArray[Any]
    action: int
    reward: float
    next_observation: NDArray[Any]
    discount: float
    label: int
    next_action_mask: NDArray[np.bool_]


@dataclass(slots=True)
class _Step:
    ordinal: int
    timestep: int
    observation: NDArray[Any]
    action: int
    reward: float
    next_observation: NDArray[Any]
    terminated: bool
    label: int
    next_action_mask: NDArray[np.bool_]


@dataclass(slots=True)
class _Window:
    """Steps that wait for an item, and the episode's newest timestep and ordinal."""

    steps: deque[_Step] = field(default_factory=deque)
    last: int = -1
    touched: int = 0


class NStepWindows:
    """The windows of the episodes in progress.

    A window takes t = last + 1. Anything else closes it with a bootstrap at the true successor of
    its last step; a step before it forms a one-step item. A window that `idle` training transitions
    have passed by is closed as a truncation would close it.

    Args:
        n: steps per item.
        gamma: discount per step.
        idle: training transitions.
    """

    def __init__(self, n: int, gamma: float, idle: int) -> None:
        self.n, self.gamma, self.idle = n, gamma, idle
        self._windows: OrderedDict[tuple[str, str], _Window] = OrderedDict()  # least recent first

    def add(self, columns: Columns, ordinal: int) -> Iterator[Item]:
        """Yield the items that training transitions complete, the first having `ordinal`."""
        for i in range(len(columns)):
            yield from self._close_idle(ordinal + i)
            actor, episode, timestep = columns.identity(i)
            # Copied: a window may stay open for long, and is no reason to keep a whole batch.
            step = _Step(
                ordinal + i,
                timestep,
                columns.observation[i].copy(),
                int(columns.action[i]),
                float(columns.reward[i]),
                columns.next_observation[i].copy(),
                bool(columns.terminated[i]),
                int(columns.label[i]),
                columns.next_action_mask[i].copy(),
            )
            yield from self._take(
                (actor, episode), step, step.terminated or bool(columns.truncated[i])
            )

    def set_label(self, ordinal: int, label: int) -> bool:
        """Label a step that waits in a window; return whether it was there."""
        for window in self._windows.values():
            for step in window.steps:
                if step.ordinal == ordinal:
                    step.label = label
                    return True
        return False

    def _take(self, key: tuple[str, str], step: _Step, ended: bool) -> Iterator[Item]:
        window = self._windows.setdefault(key, _Window())
        if step.timestep < window.last:
            yield self._item([step])
            return
        if step.timestep != window.last + 1:
            yield from self._close(window)
        window.steps.append(step)
        window.last, window.touched = step.timestep, step.ordinal
        self._windows.move_to_end(key)
        if ended:
            # It stays, empty, so that a step which fills a gap is known to be late.
            yield from self._close(window)
        elif len(window.steps) == self.n:
            yield self._item(list(window.steps))
            window.steps.popleft()

    def _close_idle(self, ordinal: int) -> Iterator[Item]:
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if ordinal - window.touched <= self.idle:
                return
            del self._windows[key]
            yield from self._close(window)

    def _close(self, window: _Window) -> Iterator[Item]:
        """Yield the shortened items of the steps that wait, and let them go."""
        steps = list(window.steps)
        window.steps.clear()
        for i in range(len(steps)):
            yield self._item(steps[i:])

    def _item(self, steps: list[_Step]) -> Item:
        total = sum(self.gamma**k * step.reward for k, step in enumerate(steps))
        total = min(max(total, -FLOAT32_MAX), FLOAT32_MAX)  # each reward is finite in float32
        first, last = steps[0], steps[-1]
        return Item(
            first.ordinal,
            first.observation,
            first.action,
            total,
            last.next_observation,
            0.0 if last.terminated else self.gamma ** len(steps),
            first.label,
            last.next_action_mask,
        )

    def state(self) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
        """Return the open windows: JSON-able values, and the arrays of their steps in that order.

        Without any step there is no array.
        """
        entries = [
            {
                "key": list(key),
                "last": window.last,
                "touched": window.touched,
                "steps": [{name: getattr(step, name) for name in _PLAIN} for step in window.steps],
            }
            for key, window in self._windows.items()
        ]
        steps = [step for window in self._windows.values() for step in window.steps]
        if not steps:
            return entries, {}
        return entries, {name: np.stack([getattr(s, name) for s in steps]) for name in _ARRAYS}

    def restore(self, entries: list[dict[str, Any]], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self._windows.clear()
        at = 0
        for entry in entries:
            window = self._windows[entry["key"][0], entry["key"][1]] = _Window()
            window.last, window.touched = entry["last"], entry["touched"]
            for step in entry["steps"]:
                window.steps.append(_Step(**step, **{name: arrays[name][at] for name in _ARRAYS}))
                at += 1


#: Fields of a step that are arrays, and the others.
_ARRAYS = ("observation", "next_observation", "next_action_mask")
_PLAIN = tuple(name for name in _Step.__slots__ if name not in _ARRAYS)
