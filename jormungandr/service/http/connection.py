"""`Connection`: uvicorn's HTTP protocol, with deadlines and limits.

What it refuses it answers itself, before any application: 400 for what is not strict HTTP/1.1, 408
for what took too long, 503 for one connection too many. The connection is closed then.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Any, cast

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from jormungandr.errors import (
    JormungandrError,
    Malformed,
    Overloaded,
    RequestTimeout,
    Unavailable,
)
from jormungandr.service.http.counted import Counted, address_of
from jormungandr.service.http.exchange import SHORT, Direct, Exchange
from jormungandr.service.http.strict import StrictHttp
from jormungandr.service.http.watch import Watch
from jormungandr.wire import encode

__all__ = ["Connection", "connections"]


class _Phase(Enum):
    """What the client is to do next."""

    HEAD = "head"  # send the rest of a request's headers
    BODY = "body"  # send the rest of its body
    REST = "rest"  # likewise, of one that has been answered already and is read by nobody
    WAIT = "wait"  # wait for its answer, or send another request
    DEAF = "deaf"  # nothing: what it sends is read away until the connection closes


class Connection(StrictHttp):
    """One connection.

    Args:
        watch: counts it, and calls `look`.
        direct: answers what it can at once; the rest goes to the application.
        options: uvicorn's own.
    """

    def __init__(self, watch: Watch, direct: Direct | None = None, **options: Any) -> None:
        super().__init__(watch.limits.head_bytes, watch.limits.headers, **options)
        self._watch, self._limits = watch, watch.limits
        self._phase, self._since = _Phase.HEAD, watch.clock()
        self._raw = self._payload = 0  # bytes, of the request that comes in
        self._drained: tuple[float, int] | None = None  # when, and how much was on its way by then
        self._real: asyncio.Transport | None = None
        self._active: RequestResponseCycle | None = None  # the newest that an application answers
        self._direct = direct
        # What is to be answered once what came with its head is parsed, and the application.
        self._ready: tuple[RequestResponseCycle, Any] | None = None
        self._defaults: tuple[Any, bytes] = (None, b"")  # headers of every answer, and their bytes

    # -- the connection ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or turn it away."""
        self._real = transport
        _send_at_once(transport)
        wrapped = cast("asyncio.Transport", Counted(transport, self._close))
        if not self._watch.admit(self, address_of(transport.get_extra_info("peername"))):
            self.transport, self._phase = wrapped, _Phase.DEAF
            self._say(Overloaded("connections", "fewer of them", "too many", "come back later"))
            return
        super().connection_made(wrapped)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._watch.release(self)
        self._ready = None
        if self._active is not None:  # uvicorn tells the newest request alone
            self._active.disconnected = True
            self._active.message_event.set()
        super().connection_lost(exc)

    def _close(self) -> None:
        """Close, once the client has had time to read why."""
        if self._real is None or self._real.is_closing():
            return
        if self._phase not in (_Phase.BODY, _Phase.REST):
            self._end()
            return
        # Closed now, with bytes of the body unread, the answer would be lost to a reset.
        self._deaf()
        cast(Counted, self.transport).closed = True
        if self._real.can_write_eof():
            self._real.write_eof()

    def _end(self) -> None:
        self._phase = _Phase.DEAF
        if self._real is not None:
            self._real.close()

    def _deaf(self) -> None:
        self._phase, self._since, self._raw = _Phase.DEAF, self._watch.clock(), 0
        self.flow.resume_reading()

    # -- what comes in ----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._raw += len(data)
        unread = self._phase in (_Phase.DEAF, _Phase.REST)
        if unread and self._raw > self._limits.linger_bytes:
            self._end()
        if self._phase is _Phase.DEAF:
            return
        if self._phase is _Phase.WAIT:  # also an empty line begins a request
            self._begin()
            self._raw = len(data)
        try:
            try:
                self.parser.feed_data(data)
            finally:
                self._go()
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

    def _begin(self) -> None:
        self._phase, self._since = _Phase.HEAD, self._watch.clock()
        self._raw = self._payload = 0

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._phase is not _Phase.HEAD:  # a second one in one piece of data
            self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Wait for the body, and begin to answer."""
        self.check_request()
        if len(self.pipeline) >= self._limits.pipelined:
            raise self.stop("request", f"at most {self._limits.pipelined} ahead of answers", "more")
        self._phase, self._since, self._raw = _Phase.BODY, self._watch.clock(), 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._payload += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the answer, or for another request."""
        self._phase, self._since = _Phase.WAIT, self._watch.clock()
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        if self._direct is None:
            super()._start_asgi_task(cycle, app)
        else:  # when what came with it is parsed: its body, mostly
            self._ready = cycle, app

    def _go(self) -> None:
        """Answer what is ready, or have the application do it."""
        if self._ready is None or (self._ready[0].more_body and self._is_short()):
            return
        (cycle, app), self._ready = self._ready, None
        assert self._direct is not None
        whole = not cycle.more_body and not self.flow.write_paused
        if not (whole and self._direct(Exchange(self, cycle, app))):
            self.route(cycle, app)

    def _is_short(self) -> bool:
        """Whether the rest of a body is worth waiting for: many clients send it after the head."""
        assert self._direct is not None
        if self.expect_100_continue or self._phase is not _Phase.BODY:
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

    def _answered(self) -> bool:
        return self._active is None or self._active.response_complete

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
        if self._phase is _Phase.DEAF:
            if self._answered():
                self._end()
        elif self._answered():
            self._since = self._watch.clock() if self._phase is not _Phase.HEAD else self._since
            if self._phase is _Phase.BODY:
                self._phase, self._raw = _Phase.REST, 0

    def _check_size(self) -> None:
        """Refuse what the parser gathers before it tells: one long header, lines of chunks."""
        if self._phase is _Phase.HEAD:
            self.check_head(self._raw)
        elif self._phase is _Phase.BODY:
            most = self._limits.chunk_overhead
            if self._raw > 2 * self._payload + most:
                raise Malformed("body", "chunks larger than their own lines", "smaller ones")

    # -- what is refused --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Close if the client took too long."""
        waiting = self._look_at_answer(now)
        if self.flow.read_paused or (waiting and self._phase is _Phase.WAIT):
            self._since = now  # it waits for us, or reads
        passed, limits = now - self._since, self._limits
        if self._phase in (_Phase.DEAF, _Phase.REST):
            if self._answered() and passed > limits.linger_seconds:
                self._end()
        elif self._phase is _Phase.WAIT:
            if self._answered() and passed > self.timeout_keep_alive:
                self._end()
        elif self._phase is _Phase.HEAD and passed > limits.head_seconds:
            expected = f"headers within {limits.head_seconds:g} s"
            self._refuse("head", RequestTimeout("request", expected, "less", "send it again"))
        elif self._phase is _Phase.BODY:
            slow = max(self._raw, self._payload) < limits.least_rate * (passed - limits.body_grace)
            if passed > limits.body_seconds or slow:
                expected = f"a body within {limits.body_seconds:g} s, and no trickle"
                self._refuse("body", RequestTimeout("body", expected, "less", "send it again"))

    def _look_at_answer(self, now: float) -> int:
        """Give up a client that does not read its answer; return how much of that waits for it."""
        assert self._real is not None
        waiting = self._real.get_write_buffer_size()
        gone = cast(Counted, self.transport).written - waiting
        if not waiting:
            self._drained = None
        elif self._drained is None:
            self._drained = now, gone
        elif now - self._drained[0] > self._limits.write_seconds:
            if gone - self._drained[1] < self._limits.least_rate * self._limits.write_seconds:
                self._watch.refused["answer"] += 1
                self._real.abort()
            self._drained = now, gone
        return waiting

    def _refuse(self, reason: str, error: JormungandrError) -> None:
        self._watch.refused[reason] += 1
        active, self._ready = self._active, None
        if self._phase is _Phase.REST:  # it has its answer
            self._end()
            return
        if active is not None and not active.response_complete:
            if self._phase is not _Phase.BODY or active is not self.cycle:
                # An earlier request is being answered: its answer comes first, and is the last.
                active.keep_alive = False
                self._deaf()
                return
            # Nobody answers this one besides.
            active.disconnected = True
            active.message_event.set()
            if active.response_started:
                self._end()
                return
        self._say(error)

    def _say(self, error: JormungandrError) -> None:
        """Answer with an error, outside of any request, and close."""
        body = encode({"error": error.to_dict()})
        lines = [b"content-type: application/json", b"connection: close"]
        lines.append(b"content-length: %d" % len(body))
        if isinstance(error, Unavailable):
            lines.append(b"retry-after: 1")
        head = STATUS_LINE[error.status] + b"\r\n".join(lines) + b"\r\n\r\n"
        self.transport.write(head + body)
        self._end()


def _send_at_once(transport: asyncio.Transport) -> None:
    """Let no piece of an answer wait for the client to confirm the one before it: 40 ms.

    uvloop sees to that, Python's own event loop only for sockets that name their protocol.
    """
    own = transport.get_extra_info("socket")
    if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connections(watch: Watch, direct: Direct | None = None) -> Any:
    """Return what uvicorn makes connections with: the `http` of its configuration."""

    def make(**options: Any) -> Connection:
        return Connection(watch, direct, **options)

    return make
