"""`Collector`: when Python looks through everything it holds for garbage.

Such a look stops the whole process: with a thousand connections and a filled ledger's cache for a
tenth of a second, and Python takes it whenever enough has been made since the last one - which is
when there is most to do. Here it waits for a second in which nobody asks for anything.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

__all__ = ["Collector"]

#: Seconds between two looks at whether it is time.
PAUSE = 1.0
#: Seconds after which it is time although there is always something to do: only what refers to
#: itself waits for a collection, and of that a request leaves next to nothing.
LONGEST = 30.0
#: Collections of what is young that make a full one worth its time.
WORTH = 10


class Collector:
    """Collects garbage of the oldest generation when nobody waits for an answer.

    Args:
        requests: how many have come so far.
        collect: a full collection.
        clock: in seconds.
    """

    def __init__(
        self,
        requests: Callable[[], int],
        collect: Callable[[], object] = gc.collect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests, self._collect, self._clock = requests, collect, clock
        self._seen, self._last = -1, clock()

    def start(self) -> None:
        """Take over from Python, on the running event loop, until the process ends.

        What there is now are modules, which stay for good: no collection walks them again.
        """
        self._collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, 1 << 30)
        asyncio.get_running_loop().call_later(PAUSE, self._due)

    def _due(self) -> None:
        self.look(gc.get_count()[2])
        asyncio.get_running_loop().call_later(PAUSE, self._due)

    def look(self, made: int) -> None:
        """Collect, if it is time.

        Args:
            made: collections of what is young since the last full one.
        """
        now, requests = self._clock(), self._requests()
        quiet, self._seen = requests == self._seen, requests
        if made >= WORTH and (quiet or now - self._last >= LONGEST):
            self._collect()
            self._last = now
