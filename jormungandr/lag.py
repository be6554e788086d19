"""Lags: how many versions behind the newest a policy was when what it did came in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Histogram", "Window", "quantiles"]

#: Newest lags of one actor that its figures are of.
SIZE = 256
#: A policy that fell behind by so many versions more while so many episodes ended, or so many
#: transitions came, and was not replaced meanwhile, is not going to be.
BEHIND, ENDS, STEPS = 10, 10, 10_000
#: Dropped share of an actor's newest transitions, of at least so many, that is worth a warning.
STARVED, MEASURED = 0.5, 32
#: Highest lag of each bucket of a histogram: 0, 1, 3, 7, … 2**63 - 1; a bucket has the lags of as
#: many binary digits as its number says.
BOUNDS = [(1 << digits) - 1 for digits in range(64)]


class Window:
    """The newest lags of one actor or model, and what came of its transitions.

    Args:
        size: lags held.
    """

    __slots__ = (
        "_count",
        "_dropped",
        "_ends",
        "_lag",
        "_served",
        "_size",
        "_steps",
        "duplicate",
        "grown",
        "last",
        "lsn",
        "place",
        "rejected",
        "version",
    )

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._lag = np.zeros(0, dtype=np.int64)  # nothing until there is something to hold
        self._dropped = np.zeros(0, dtype=np.bool_)
        self._count = 0  # lags ever added
        #: Lag of the newest transition; -1 before there is one.
        self.last = -1
        #: Newest version used, and how far the newest served has risen since it was first used.
        self.version, self.grown = -1, 0
        self._served = self._steps = self._ends = 0
        #: Transitions that were known before, and those of requests that were refused as stale.
        self.duplicate = self.rejected = 0
        #: Position by which the newest request is durable, and place in the stream after it.
        self.lsn = self.place = 0

    def add(self, lag: NDArray[np.int64], dropped: NDArray[np.bool_]) -> None:
        """Take in newer lags, (L,), and which of those transitions were dropped."""
        if not len(lag):
            return
        size = self._size
        if not self._count:
            self._lag = np.zeros(size, dtype=np.int64)
            self._dropped = np.zeros(size, dtype=np.bool_)
        if len(lag) == 1:
            at, self.last = self._count % size, int(lag[0])
            self._lag[at], self._dropped[at] = self.last, dropped[0]
            self._count += 1
            return
        if len(lag) > size:
            self._count += len(lag) - size
            lag, dropped = lag[-size:], dropped[-size:]
        at, count = self._count % size, len(lag)
        head = min(size - at, count)
        self._lag[at : at + head], self._dropped[at : at + head] = lag[:head], dropped[:head]
        if head < count:
            self._lag[: count - head], self._dropped[: count - head] = lag[head:], dropped[head:]
        self._count += count
        self.last = int(lag[-1])

    def follow(self, version: int, served: int, steps: int, ends: int) -> None:
        """Note which policy newer transitions are of.

        Args:
            version: the newest one that they used.
            served: the newest one served when they came.
            steps: how many transitions came.
            ends: how many of them end an episode.
        """
        if version > self.version:
            self.version, self._served, self._steps, self._ends = version, served, 0, 0
        self._steps += steps
        self._ends += ends
        self.grown = served - self._served

    @property
    def measured(self) -> int:
        """How many lags it holds."""
        return min(self._count, self._size)

    def lags(self) -> NDArray[np.int64]:
        """Return the lags it holds, lowest first."""
        return np.sort(self._lag[: self.measured])

    @property
    def dropped_share(self) -> float:
        """The share of its transitions that was dropped."""
        return int(np.count_nonzero(self._dropped[: self.measured])) / max(1, self.measured)

    @property
    def starved(self) -> bool:
        """Whether most of what comes is dropped."""
        return self.measured >= MEASURED and self.dropped_share > STARVED

    @property
    def stuck(self) -> bool:
        """Whether the policy is never replaced."""
        return self.grown >= BEHIND and (self._ends >= ENDS or self._steps >= STEPS)


class Histogram:
    """How often each lag was, in buckets that double."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(BOUNDS), dtype=np.int64)
        self._sum = 0

    def add(self, lag: NDArray[np.int64]) -> None:
        """Count lags, (L,), at least 0 each."""
        if len(lag) == 1:
            value = int(lag[0])
            self._counts[value.bit_length()] += 1
            self._sum += value
            return
        digits = np.bincount(np.frexp(lag)[1])
        self._counts[: len(digits)] += digits
        self._sum += int(lag.sum())

    def figures(self) -> dict[str, Any]:
        """Return the buckets up to the highest that holds something, with their upper bounds."""
        used = int(np.flatnonzero(self._counts)[-1]) + 1 if self._counts.any() else 0
        return {
            "count": int(self._counts.sum()),
            "sum": self._sum,
            "at_most": BOUNDS[:used],
            "counts": self._counts[:used].tolist(),
        }


def quantiles(window: Window) -> dict[str, Any]:
    """Return the figures of a window; of an empty one, all but the number are None."""
    lags = window.lags()
    if not len(lags):
        return {"transitions": 0, **dict.fromkeys(("last", "mean", "p50", "p95", "max"))}
    return {
        "transitions": len(lags),
        "last": window.last,
        "mean": float(lags.mean()),
        "p50": int(lags[math.ceil(0.5 * len(lags)) - 1]),
        "p95": int(lags[math.ceil(0.95 * len(lags)) - 1]),
        "max": int(lags[-1]),
    }
