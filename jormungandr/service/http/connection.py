"""`Connection`: one client's requests, in the order in which they come, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from jormungandr.errors import JormungandrError, Malformed
from jormungandr.service.http.counted import Counted
from jormungandr.service.http.exchange import SHORT, Direct, Exchange
from jormungandr.service.http.head import HEADS, Head
from jormungandr.service.http.limited import LimitedHttp, Phase
from jormungandr.service.http.watch import Watch

__all__ = ["Connection", "connections"]


class Connection(LimitedHttp):
    """One connection.

    Args:
        watch: counts it, and calls `look`.
        direct: answers what it can at once; the rest goes to the application.
        options: uvicorn's own.
    """

    def __init__(self, watch: Watch, direct: Direct | None = None, **options: Any) -> None:
        super().__init__(watch, **options)
        self._direct = direct
        # What is to be answered once what came with its head is parsed, and the application.
        self._ready: tuple[RequestResponseCycle, Any] | None = None
        self._heads: list[Head] = []  # of requests that were answered directly
        self._defaults: tuple[Any, bytes] = (None, b"")  # headers of every answer, and their bytes

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._ready = None
        super().connection_lost(exc)

    def _refuse(self, reason: str, error: JormungandrError) -> None:
        self._ready = None
        super()._refuse(reason, error)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._raw += len(data)
        unread = self._phase in (Phase.DEAF, Phase.REST)
        if unread and self._raw > self._limits.linger_bytes:
            self._end()
        if self._phase is Phase.DEAF:
            return
        if self._phase is Phase.WAIT:
            if self._heads and self._again(data):
                return
            self._begin()  # also an empty line begins a request
            self._raw = len(data)
        try:
            try:
                self.parser.feed_data(data)
            finally:
                self._go(data)
            self._check_size()
        except httptools.HttpParserUpgrade:
            # What follows is no HTTP; the request itself is answered.
            self.cycle.keep_alive = False
            self._deaf()
            self._go()  # for no rest of it is read
        except httptools.HttpParserError as error:
            refusal = self.refusal or Malformed("request", "HTTP/1.1", type(error).__name__)
            self._refuse("malformed", refusal)
        except Malformed as error:
            self._refuse("malformed", error)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        if self._direct is None:
            super()._start_asgi_task(cycle, app)
        else:  # when what came with it is parsed: its body, mostly
            self._ready = cycle, app

    def _go(self, data: bytes = b"") -> None:
        """Answer what is ready, or have the application do it; `data` has come in just now."""
        if self._ready is None or (self._ready[0].more_body and self._is_short()):
            return
        (cycle, app), self._ready = self._ready, None
        assert self._direct is not None
        whole = not cycle.more_body and not self.flow.write_paused
        if not (whole and self._direct(Exchange(self, cycle, app))):
            self.route(cycle, app)
        elif len(self._heads) < HEADS and cycle.keep_alive:
            head = Head.of(data, cast("Scope", cycle.scope))
            if head is not None:
                self._heads.append(head)

    def _again(self, data: bytes) -> bool:
        """Answer a request with a head that is known, without parsing it; return whether it is."""
        assert self._direct is not None
        if not self.cycle.response_complete or self.flow.write_paused:
            return False
        for head in self._heads:
            found = head.match(data)
            if found is not None:
                break
        else:
            return False
        scope, body = found
        cycle = RequestResponseCycle(
            scope=cast("Any", scope),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        cycle.body += body
        cycle.more_body = False
        cycle.message_event.set()
        self.cycle = self._active = cycle
        if not self._direct(Exchange(self, cycle, self.app)):
            self.route(cycle, self.app)
        return True

    def _is_short(self) -> bool:
        """Whether the rest of a body is worth waiting for: many clients send it after the head."""
        assert self._direct is not None
        if self.expect_100_continue or self._phase is not Phase.BODY:
            return False
        if not self._direct.expects(cast("Scope", self.scope)):
            return False
        declared = dict(self.headers).get(b"content-length", b"")
        return declared.isdigit() and len(declared) < 5 and int(declared) <= SHORT

    def route(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Have the application answer, in a task of its own."""
        super()._start_asgi_task(cycle, app)

    def reply(self, cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> None:
        """Send an answer whole, as its cycle would in two parts; `head` are lines of headers."""
        if cycle.disconnected:
            return
        given = self.server_state.default_headers
        if self._defaults[0] is not given:  # there is another date in them
            self._defaults = given, b"".join(b"%b: %b\r\n" % header for header in given)
        close = b"" if cycle.keep_alive else b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        head = b"".join((STATUS_LINE[status], self._defaults[1], head, close, b"\r\n", body))
        self.transport.write(head)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile; `look` knows how long a connection is idle."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
                self._go()
        if cast(Counted, self.transport).closed:
            return  # the rest is read away
        if self._phase is Phase.DEAF:
            if self._answered():
                self._end()
        elif self._answered():
            self._since = self._watch.clock() if self._phase is not Phase.HEAD else self._since
            if self._phase is Phase.BODY:
                self._phase, self._raw = Phase.REST, 0


def connections(watch: Watch, direct: Direct | None = None) -> Any:
    """Return what uvicorn makes connections with: the `http` of its configuration."""

    def make(**options: Any) -> Connection:
        return Connection(watch, direct, **options)

    return make
