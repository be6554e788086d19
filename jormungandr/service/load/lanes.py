"""`Lanes`: what the requests of all models share, and wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from jormungandr.service.decoding import LOOP_BYTES, Decoder
from jormungandr.service.http.route import Request
from jormungandr.service.load.lane import INFERENCE, INGESTION, Bounds, Lane
from jormungandr.service.load.rates import RateLimit, Rates
from jormungandr.service.load.turns import Turns
from jormungandr.service.load.waits import Waits

__all__ = ["Lanes"]

#: Threads for forward passes that would hold the event loop.
FORWARDS = 2

T = TypeVar("T", bound=Sized)


class Lanes:
    """Transitions and labels on one side, actions on the other; neither queues behind the other.

    Args:
        rate_limit: of each token.
        ingestion: bounds of transitions and labels on their way.
        inference: bounds of requests for actions on their way.
    """

    def __init__(
        self,
        rate_limit: RateLimit = RateLimit(),  # noqa: B008 - frozen
        ingestion: Bounds = INGESTION,
        inference: Bounds = INFERENCE,
    ) -> None:
        self.rates = Rates(rate_limit)
        self.turns, self.waits = Turns(), Waits()
        self.ingestion = Lane("transitions and labels", ingestion, self.rates, self.turns.crowded)
        self.inference = Lane("requests for actions", inference, self.rates)
        self.forward = ThreadPoolExecutor(FORWARDS, thread_name_prefix="forward")
        self._decoder = Decoder()

    async def decoded(
        self, request: Request, decode: Callable[[bytes], T], is_open: Callable[[], bool]
    ) -> T:
        """Return what `decode` makes of a body, when it is its turn.

        Args:
            request: of the lane of ingestion.
            decode: an error that it raises is the caller's.
            is_open: whether the model takes more now.

        Raises:
            Overloaded: its turn did not come.
        """
        assert request.held is not None  # of a route with a lane
        async with self.turns.turn(request.held, is_open):
            found = await self._decoder(decode, request.body)
        self.rates.rows(request.grant.name, len(found))
        return found

    async def asked(self, request: Request, decode: Callable[[bytes], T]) -> T:
        """Return what `decode` makes of a body at once, or beside the event loop if it is large."""
        if len(request.body) < LOOP_BYTES:
            return decode(request.body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.forward, decode, request.body)

    def close(self) -> None:
        """Let the threads go."""
        self.forward.shutdown(wait=False)
        self._decoder.close()
