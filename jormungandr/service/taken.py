"""`Taken`: a request that is answered without a task of its own, from its head to its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from starlette.types import Message

from jormungandr.errors import JormungandrError
from jormungandr.service.http.exchange import Exchange
from jormungandr.service.http.grants import Grant
from jormungandr.service.http.grants import Scope as TokenScope
from jormungandr.service.http.route import failure, headers_of
from jormungandr.service.load.lane import Held, Lane
from jormungandr.service.load.rates import Rates
from jormungandr.service.model import Model
from jormungandr.service.observe.logs import REQUEST_ID
from jormungandr.service.observe.meters import Meters
from jormungandr.service.observe.requests import Observed
from jormungandr.wire import encode

__all__ = ["Action", "Desk", "Taken"]

log = logging.getLogger("jormungandr")


class Action(NamedTuple):
    """What may be asked of a model, and the route that does it too."""

    needs: TokenScope
    lane: Lane
    route: str
    kinds: frozenset[bytes]
    take: Callable[[Taken], bool]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where requests are counted.

    Args:
        observed: names, counts and logs them.
        meters: count those in flight.
        rates: what a token may send.
    """

    observed: Observed
    meters: Meters
    rates: Rates


class Taken:
    """One request: waits for its answer, counts and sends it.

    Args:
        desk: of the service.
        exchange: the request, and the way back.
        model: that it is for.
        grant: of its bearer.
        action: what is asked.
        headers: of the request, each once.
        began: when it had come.
    """

    __slots__ = (
        "_action",
        "_began",
        "_desk",
        "_held",
        "entered",
        "exchange",
        "grant",
        "headers",
        "model",
        "size",
    )

    def __init__(
        self,
        desk: Desk,
        exchange: Exchange,
        model: Model,
        grant: Grant,
        action: Action,
        headers: dict[bytes, bytes],
        began: float,
    ) -> None:
        self._desk, self.exchange, self.model, self.grant = desk, exchange, model, grant
        self._action, self.headers, self._began = action, headers, began
        self.size = len(exchange.body)
        self._held: Held | None = None
        #: Whether it was counted: it is answered here, and no longer by the route.
        self.entered = False

    def fits(self) -> bool:
        """Whether there is room for it."""
        return self._action.lane.has_room(self.grant.name, self.model.model_id, self.size)

    def enter(self, rows: int) -> None:
        """Count it: it is decoded, and fits; there is nothing left for which it is refused."""
        desk, name, lane = self._desk, self.grant.name, self._action.lane
        desk.rates.request(name)
        desk.rates.rows(name, rows)
        self._held = lane.take(name, self.model.model_id, _nothing, self.size)
        self.entered = True
        desk.meters.in_flight.add(1)

    def done(self) -> bool:
        """Whether it has its answer."""
        return self._held is None

    def set_result(self, result: Any, /) -> None:
        """Send an answer."""
        name = self._desk.observed.named(self.headers.get(b"x-request-id"))
        self._send(name, 200, encode(result), None)

    def set_exception(self, exception: Exception, /) -> None:
        """Send an error."""
        name = self._desk.observed.named(self.headers.get(b"x-request-id"))
        token = REQUEST_ID.set(name)
        error = failure(exception, name)
        REQUEST_ID.reset(token)
        self._send(name, error.status, encode({"error": error.to_dict()}), error)

    def _send(self, name: str, status: int, body: bytes, error: JormungandrError | None) -> None:
        desk, scope, held = self._desk, self.exchange.scope, self._held
        assert held is not None
        self._action.lane.leave(held)
        self._held = None
        head = b"x-request-id: %b\r\n" % name.encode()
        for line in headers_of(body, error):
            head += b"%b: %b\r\n" % line
        try:
            self.exchange.reply(status, head, body)
        except Exception:  # whatever it is, it concerns nobody else
            log.exception("an answer could not be sent")
        desk.meters.in_flight.add(-1)
        scope["grant"] = self.grant
        token = REQUEST_ID.set(name)
        seconds = perf_counter() - self._began
        desk.observed.note(scope, self._action.route, str(status), len(body), seconds)
        REQUEST_ID.reset(token)


async def _nothing() -> Message:
    """Receive of a request that has come whole."""
    return {"type": "http.disconnect"}
