"""`Exchange`: one request that has come whole, and the way back; `Direct`: who may answer it."""

from __future__ import annotations

from typing import Any, Protocol, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["SHORT", "Direct", "Exchange", "Way"]

#: Bytes of a body for whose end is waited before anybody looks at the request; what is longer is
#: counted while it comes.
SHORT = 4_096


class Way(Protocol):
    """A connection, as an exchange sees it."""

    def reply(self, cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> None:
        """Send an answer whole; `head` are lines of headers."""
        ...

    def route(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Have the application answer, in a task of its own."""
        ...


class Exchange:
    """A request that has come whole, with the way back.

    Args:
        way: the connection.
        cycle: uvicorn's, of the request.
        app: that answers it where nobody does so directly.
    """

    __slots__ = ("_app", "_cycle", "_way", "body", "scope")

    def __init__(self, way: Way, cycle: RequestResponseCycle, app: Any) -> None:
        self._way, self._cycle, self._app = way, cycle, app
        self.scope, self.body = cast("Scope", cycle.scope), bytes(cycle.body)

    def reply(self, status: int, head: bytes, body: bytes) -> None:
        """Send the answer; `head` are lines of headers."""
        self._way.reply(self._cycle, status, head, body)

    def route(self) -> None:
        """Have the application answer instead."""
        self._way.route(self._cycle, self._app)


class Direct(Protocol):
    """Answers small requests without a task of their own."""

    def expects(self, scope: Scope) -> bool:
        """Whether a request is worth waiting for the rest of its short body, by its head."""
        ...

    def __call__(self, exchange: Exchange) -> bool:
        """Return whether a request is taken; it is replied to or routed once, now or later."""
        ...
