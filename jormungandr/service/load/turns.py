"""`Turns`: who is decoded next; one request at a time, token after token."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from jormungandr.errors import Overloaded
from jormungandr.service.load.lane import Held

__all__ = ["Turns"]

#: Seconds after which whoever has waited is sent away.
LONGEST = 2.0
#: Part of them that may be expected when a request comes; what waits can grow slower meanwhile.
EXPECTED = 0.5
#: Requests of one token that may always wait.
LEAST = 4
#: Weight of the newest turn in the mean length of one.
NEWEST = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """One request that waits."""

    answer: asyncio.Future[None]
    is_open: Callable[[], bool]


class Turns:
    """Lets one request after another go on, in turns between tokens and between their models.

    Between two turns the event loop is let go, so that whoever asks for an action waits for one
    decoding at most. A model whose commits are behind is passed over meanwhile.

    Args:
        longest: seconds that a request may wait.
        clock: in seconds.
    """

    def __init__(
        self, longest: float = LONGEST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._longest = longest
        # By token and by model; whoever is first in it is next.
        self._queues: dict[str, dict[str, deque[_Waiting]]] = {}
        self._counts: Counter[str] = Counter()  # of those that wait, by token
        self._clock = clock
        self._mean = 0.0  # seconds from one turn to the next while others wait
        self._last: float | None = None  # when the last turn was given, if others waited
        self._taken = False
        #: Requests that waited too long.
        self.expired = 0

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._counts.total()

    def crowded(self, bearer: str) -> bool:
        """Whether another request of a token would probably not have its turn in time."""
        ahead = self._counts[bearer]
        expected = ahead * max(1, len(self._counts)) * self._mean
        return ahead >= LEAST and expected > EXPECTED * self._longest

    @asynccontextmanager
    async def turn(self, held: Held, is_open: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for the turn of a request, and have it until the block ends.

        Args:
            held: the request.
            is_open: whether its model takes more now; `look` is called when that changes.

        Raises:
            Overloaded: its turn did not come in time, or it was sent away to make room.
        """
        await self._wait(held, is_open)
        try:
            yield
        finally:
            # Whoever else is ready goes on first.
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        self._taken = False
        self.look()

    async def _wait(self, held: Held, is_open: Callable[[], bool]) -> None:
        if not self._taken and not self._queues and is_open():
            self._taken = True
            return
        answer = held.waiting = asyncio.get_running_loop().create_future()
        one = _Waiting(answer, is_open)
        models = self._queues.setdefault(held.bearer, {})
        models.setdefault(held.model_id, deque()).append(one)
        self._counts[held.bearer] += 1
        timer = asyncio.get_running_loop().call_later(self._longest, self._expire, answer)
        self.look()
        try:
            await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:
                self._release()  # it was his turn
            raise
        finally:
            timer.cancel()
            held.waiting = None
            self._counts[held.bearer] -= 1
            if not self._counts[held.bearer]:
                del self._counts[held.bearer]

    def _expire(self, answer: asyncio.Future[None]) -> None:
        if not answer.done():
            self.expired += 1
            expected = f"a turn within {self._longest:g} s"
            answer.set_exception(Overloaded("service", expected, "a queue", "nothing was kept"))

    def look(self) -> None:
        """Give the next one its turn, if nobody has it."""
        if self._taken:
            return
        if not self._queues:
            self._last = None
        for bearer, models in list(self._queues.items()):
            for model_id, queue in list(models.items()):
                while queue and queue[0].answer.done():  # sent away, or gone
                    queue.popleft()
                if not queue:
                    del models[model_id]
                elif queue[0].is_open():
                    self._taken = True
                    queue.popleft().answer.set_result(None)
                    self._measure()
                    # Behind everybody else who waits.
                    del models[model_id]
                    if queue:
                        models[model_id] = queue
                    del self._queues[bearer]
                    if models:
                        self._queues[bearer] = models
                    return
            if not models:
                del self._queues[bearer]

    def _measure(self) -> None:
        """Note how long the last turn took, and whatever else there was to do."""
        now = self._clock()
        if self._last is not None:
            self._mean += NEWEST * (now - self._last - self._mean)
        self._last = now
