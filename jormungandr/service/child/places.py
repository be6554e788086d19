"""`Places`: how many learner processes run at once; the next one waits for its place."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["MOST", "Place", "Places"]

#: Processes at once: each takes some 220 MB for itself, and half as much that they share.
MOST = 12


class Place:
    """One process's, from when it is asked for until it is given back."""

    def __init__(self) -> None:
        #: True when the process may start; False when it need not any more.
        self.granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.leaving = False


class Places:
    """Hands out places, first come, first served; lives on the event loop.

    Args:
        most: processes at once.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken: set[Place] = set()
        self._waiting: deque[Place] = deque()

    @property
    def waiting(self) -> int:
        """Processes that wait for a place."""
        return len(self._waiting)

    def ask(self) -> Place:
        """Return a place; it is `granted` when one is free."""
        place = Place()
        self._waiting.append(place)
        self._grant()
        return place

    def give(self, place: Place) -> None:
        """Give a place back, or what was asked for up."""
        if place in self._taken:
            self._taken.remove(place)
            self._grant()
        elif place in self._waiting:
            self._waiting.remove(place)
            place.granted.set_result(False)

    def wanted(self, place: Place) -> bool:
        """Whether somebody waits for whom nobody else makes room; whoever does says `leaving`."""
        leaving = sum(taken.leaving for taken in self._taken)
        return not place.leaving and len(self._waiting) > leaving

    def _grant(self) -> None:
        while self._waiting and len(self._taken) < self._most:
            place = self._waiting.popleft()
            self._taken.add(place)
            place.granted.set_result(True)
