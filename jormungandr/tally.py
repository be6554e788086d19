"""Tallies: what each actor has sent so far, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["RECENT", "Arrival", "Overlay", "Roll", "Tallies", "Tally"]

#: Actors that are held in memory and told apart: the most recently active ones.
RECENT = 1_000


class Tally(NamedTuple):
    """Totals of one actor. A transition counts once, however often it is sent.

    The *stream* is every new training transition of all actors whose policy was this model's; a
    place in it is how many of them had come.

    Args:
        train, validation: transitions accepted.
        stale_dropped: transitions dropped as stale.
        first, last: positions of the first and the last row that has something of it.
        version: newest policy version it has used, -1 none.
        place: in the stream, after its last transition there; 0 for none.
        filled: place in the stream up to which its allowance is counted; -1: not asked for yet.
        allowance: stale transitions that are still taken from it, in units of
            `jormungandr.admission.staleness.UNIT`; below 0 after a long stretch of them.
    """

    train: int = 0
    validation: int = 0
    stale_dropped: int = 0
    first: int = 0
    last: int = 0
    version: int = -1
    place: int = 0
    filled: int = -1
    allowance: int = 0


class Arrival(NamedTuple):
    """What one request brought, by actor; K actors, L new transitions of the stream.

    Args:
        actors: the K ids.
        counts: (K, 4) int64: accepted training, accepted validation, dropped, known before.
        ends: (K,) int64, new transitions that end an episode.
        version: (K,) int64, newest version among an actor's new transitions, -1 none.
        actor: (L,) int32, index into `actors`.
        lag: (L,) int64, versions that its policy was behind the newest served, at least 0.
        dropped: (L,) bool, whether it was dropped as stale.
        served: the newest version served.
        lsn: position by which all of it is durable.
    """

    actors: tuple[str, ...]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]
    version: NDArray[np.int64]
    actor: NDArray[np.int32]
    lag: NDArray[np.int64]
    dropped: NDArray[np.bool_]
    served: int
    lsn: int


class Tallies(Protocol):
    """Tallies by actor."""

    @property
    def offered(self) -> int:
        """Length of the stream so far."""
        ...

    def get(self, actor: str) -> Tally | None:
        """Return the tally of an actor; None when it has sent nothing."""
        ...

    def active(self, since: int) -> int:
        """Return how many of the `RECENT` actors sent something at this place or later."""
        ...


class Overlay:
    """Newer tallies over others, kept apart until they are taken over or forgotten."""

    def __init__(self, base: Tallies) -> None:
        self._base = base
        self.tallies: dict[str, Tally] = {}

    @property
    def offered(self) -> int:
        """Length of the stream, with what is newer."""
        return max([self._base.offered, *(t.place for t in self.tallies.values())])

    def get(self, actor: str) -> Tally | None:
        """Return the tally of an actor; None when it has sent nothing."""
        found = self.tallies.get(actor)
        return found if found is not None else self._base.get(actor)

    def active(self, since: int) -> int:
        """Return how many of the `RECENT` actors sent something at this place or later."""
        found = self._base.active(since)
        for actor, tally in self.tallies.items():
            if tally.place >= since:
                before = self._base.get(actor)
                found += before is None or before.place < since
        return min(found, RECENT)

    def take(self, tallies: Mapping[str, Tally]) -> None:
        """Take over newer tallies, in the order of their last activity."""
        for actor, tally in tallies.items():
            self.tallies.pop(actor, None)
            self.tallies[actor] = tally


class Roll:
    """Tallies by actor, the most recently active ones last.

    Args:
        limit: actors held; the one that has been silent for longest makes room. None: all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._tallies: dict[str, Tally] = {}
        #: Length of the stream so far.
        self.offered = 0
        #: Whether every actor there ever was is here.
        self.whole = True

    def __len__(self) -> int:
        return len(self._tallies)

    def get(self, actor: str) -> Tally | None:
        """Return the tally of an actor; None when it is not here."""
        return self._tallies.get(actor)

    def take(self, tallies: Mapping[str, Tally]) -> None:
        """Take over newer tallies, in the order of their last activity."""
        for actor, tally in tallies.items():
            self._tallies.pop(actor, None)
            self._tallies[actor] = tally
            self.offered = max(self.offered, tally.place)
        while self._limit is not None and len(self._tallies) > self._limit:
            del self._tallies[next(iter(self._tallies))]
            self.whole = False

    def active(self, since: int) -> int:
        """Return how many of the `RECENT` actors sent something at this place or later."""
        recent = islice(reversed(self._tallies.values()), RECENT)
        return sum(tally.place >= since for tally in recent)

    def recent(self) -> Iterator[tuple[str, Tally]]:
        """Iterate over the most recently active actors, the newest first."""
        return islice(reversed(self._tallies.items()), RECENT)

    def items(self) -> Iterator[tuple[str, Tally]]:
        """Iterate over all that is here, the oldest first."""
        return iter(self._tallies.items())
