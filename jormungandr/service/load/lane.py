"""`Lane`: the requests of one kind that are on their way, bounded in bytes and in number."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Message, Receive

from jormungandr.errors import Overloaded
from jormungandr.service.load.rates import Rates

__all__ = ["INFERENCE", "INGESTION", "Bounds", "Held", "Lane"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of one kind may be on its way.

    Args:
        service_bytes, service_requests: for all models together.
        model_bytes, model_requests: for one model.
    """

    service_bytes: int = 64 << 20
    service_requests: int = 4_096
    model_bytes: int = 32 << 20
    model_requests: int = 2_048


#: Requests that are kept waiting for their refusal, and for how many seconds about.
OUTSIDE, OUTSIDE_SECONDS = 4_096, 1.5

#: Of transitions and labels: what is being read, waits, or is being committed.
INGESTION = Bounds()
#: Of requests for actions.
INFERENCE = Bounds()


class Held:
    """One request on its way; also the `Receive` through which its body is counted.

    Args:
        lane: that it is in.
        bearer: name of its token.
        model_id: of the model it is for.
        receive: where its body comes from.
    """

    def __init__(self, lane: Lane, bearer: str, model_id: str, receive: Receive) -> None:
        self._lane, self._receive = lane, receive
        self.bearer, self.model_id, self.bytes = bearer, model_id, 0
        #: Set while it waits for its turn; it may be sent away until then.
        self.waiting: asyncio.Future[None] | None = None

    async def __call__(self) -> Message:
        """Return the next part of the body.

        Raises:
            Overloaded: there is no room for it.
        """
        message = await self._receive()
        self._lane.grow(self, len(message.get("body", b"")))
        return message


class _Held(dict[Held, None]):
    """Requests, in the order in which they came, and the bytes of them all."""

    bytes = 0


#: Of a model or a bearer that holds nothing.
_NOBODY = _Held()


class Lane:
    """Counts what is on its way, and refuses what goes beyond its bounds.

    When it is full, whoever holds less than an even share of it still gets in: the newest waiting
    request of whoever holds most is sent away for it. So one that floods only pushes itself out.

    Args:
        what: it is that waits, for messages.
        bounds: of all that is on its way.
        rates: what one token may send in a second.
        crowded: whether another request of a token would wait too long.
    """

    def __init__(
        self,
        what: str,
        bounds: Bounds,
        rates: Rates,
        crowded: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._what, self.bounds, self.rates = what, bounds, rates
        self._crowded, self._outside = crowded, 0
        self._all = _Held()
        self._models: defaultdict[str, _Held] = defaultdict(_Held)
        self._bearers: defaultdict[str, _Held] = defaultdict(_Held)
        #: Requests that found no room, or were sent away.
        self.refused = 0

    @property
    def bytes(self) -> int:
        """Bytes of bodies on their way."""
        return self._all.bytes

    @property
    def requests(self) -> int:
        """Requests on their way."""
        return len(self._all)

    async def knock(self, bearer: str) -> None:
        """Refuse a request that would wait too long, before anything of it is read.

        Not at once: whoever comes again whatever he is told can do so only so often, and the time
        goes to those who are let in. Of what he sends, nothing is read meanwhile.

        Raises:
            RateLimited: its token has sent too much in too short a time.
            Overloaded: too many wait already.
        """
        self.rates.request(bearer)
        if not self._crowded(bearer):
            return
        refusal = self._refusal()
        if self._outside < OUTSIDE:
            self._outside += 1
            try:
                await asyncio.sleep(random.uniform(0.5, 1.5) * OUTSIDE_SECONDS)
            finally:
                self._outside -= 1
        raise refusal

    @contextmanager
    def enter(self, bearer: str, model_id: str, receive: Receive) -> Iterator[Held]:
        """Take a request in until the block ends.

        Raises:
            Overloaded: there is no room for it.
        """
        held = self.take(bearer, model_id, receive)
        try:
            yield held
        finally:
            self.leave(held)

    def take(self, bearer: str, model_id: str, receive: Receive, size: int = 0) -> Held:
        """Take a request in, until `leave`.

        Args:
            bearer: name of its token.
            model_id: of the model it is for.
            receive: where its body comes from.
            size: bytes of it that are here already.

        Raises:
            Overloaded: there is no room for it.
        """
        held = Held(self, bearer, model_id, receive)
        self._make_room(held, size, 1)
        held.bytes = size
        for group in self._groups(held):
            group[held] = None
            group.bytes += size
        return held

    def has_room(self, bearer: str, model_id: str, size: int) -> bool:
        """Whether a request of so many bytes would be taken in at once, and nobody sent away."""
        model = self._models.get(model_id)
        fits = self._fits(self._all, model or _NOBODY, size, 1)
        return fits and self.rates.allows(bearer) and not self._crowded(bearer)

    def grow(self, held: Held, size: int) -> None:
        """Count more bytes of a request.

        Raises:
            Overloaded: there is no room for them.
        """
        if held not in self._all:
            raise self._refusal()
        self._make_room(held, size, 0)
        held.bytes += size
        for group in self._groups(held):
            group.bytes += size

    def _groups(self, held: Held) -> tuple[_Held, _Held, _Held]:
        return self._all, self._models[held.model_id], self._bearers[held.bearer]

    def leave(self, held: Held) -> None:
        """Let a request go; one that was sent away has gone already."""
        if held not in self._all:
            return
        for group in self._groups(held):
            del group[held]
            group.bytes -= held.bytes
        for groups, name in ((self._models, held.model_id), (self._bearers, held.bearer)):
            if not groups[name]:
                del groups[name]

    def _make_room(self, held: Held, size: int, requests: int) -> None:
        """Send others away until there is room, as far as that is fair."""
        while True:
            model = self._models.get(held.model_id, _NOBODY)
            if self._fits(self._all, model, size, requests):
                return
            b = self.bounds
            crowded = len(model) + requests > b.model_requests or model.bytes + size > b.model_bytes
            if not self._send_away(held, model if crowded else self._all):
                raise self._refusal()

    def _fits(self, everybody: _Held, model: _Held, size: int, requests: int) -> bool:
        b = self.bounds
        return (
            len(everybody) + requests <= b.service_requests
            and everybody.bytes + size <= b.service_bytes
            and len(model) + requests <= b.model_requests
            and model.bytes + size <= b.model_bytes
        )

    def _send_away(self, held: Held, among: _Held) -> bool:
        """Send the newest waiting request of whoever holds most away; return whether one went."""
        mine = self._bearers.get(held.bearer, _NOBODY)
        heaviest = max(self._bearers.values(), key=lambda h: (h.bytes, len(h)), default=mine)
        if (heaviest.bytes, len(heaviest)) <= (mine.bytes + held.bytes, len(mine) + 1):
            return False
        for other in reversed(heaviest):
            if other in among and other.waiting is not None and not other.waiting.done():
                other.waiting.set_exception(self._refusal())
                self.leave(other)
                return True
        return False

    def _refusal(self) -> Overloaded:
        self.refused += 1
        got = f"{self.bytes} bytes in {self.requests} requests"
        return Overloaded("service", f"room for {self._what}", got, "nothing of it was kept")
