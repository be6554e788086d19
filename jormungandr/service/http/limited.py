"""`LimitedHttp`: strict HTTP with deadlines and limits.

What it refuses it answers itself, before any application: 400 for what is not strict HTTP/1.1, 408
for what took too long, 503 for one connection too many. The connection is closed then.
"""

from __future__ import annotations

import asyncio
import socket
from enum import Enum
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from jormungandr.errors import (
    JormungandrError,
    Malformed,
    Overloaded,
    RequestTimeout,
    Unavailable,
)
from jormungandr.service.http.counted import Counted, address_of
from jormungandr.service.http.strict import StrictHttp
from jormungandr.service.http.watch import Watch
from jormungandr.wire import encode

__all__ = ["LimitedHttp", "Phase"]


class Phase(Enum):
    """What the client is to do next."""

    HEAD = "head"  # send the rest of a request's headers
    BODY = "body"  # send the rest of its body
    REST = "rest"  # likewise, of one that has been answered already and is read by nobody
    WAIT = "wait"  # wait for its answer, or send another request
    DEAF = "deaf"  # nothing: what it sends is read away until the connection closes


class LimitedHttp(StrictHttp):
    """A connection that knows what its client is to do next, and for how long it has not.

    Args:
        watch: counts it, and calls `look`.
        options: uvicorn's own.
    """

    def __init__(self, watch: Watch, **options: Any) -> None:
        super().__init__(watch.limits.head_bytes, watch.limits.headers, **options)
        self._watch, self._limits = watch, watch.limits
        self._phase, self._since = Phase.HEAD, watch.clock()
        self._raw = self._payload = 0  # bytes, of the request that comes in
        self._drained: tuple[float, int] | None = None  # when, and how much was on its way by then
        self._real: asyncio.Transport | None = None
        self._active: RequestResponseCycle | None = None  # the newest that is being answered

    # -- the connection ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or turn it away."""
        self._real = transport
        _send_at_once(transport)
        wrapped = cast("asyncio.Transport", Counted(transport, self._close))
        if not self._watch.admit(self, address_of(transport.get_extra_info("peername"))):
            self.transport, self._phase = wrapped, Phase.DEAF
            self._say(Overloaded("connections", "fewer of them", "too many", "come back later"))
            return
        super().connection_made(wrapped)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._watch.release(self)
        if self._active is not None:  # uvicorn tells the newest request alone
            self._active.disconnected = True
            self._active.message_event.set()
        super().connection_lost(exc)

    def _close(self) -> None:
        """Close, once the client has had time to read why."""
        if self._real is None or self._real.is_closing():
            return
        if self._phase not in (Phase.BODY, Phase.REST):
            self._end()
            return
        # Closed now, with bytes of the body unread, the answer would be lost to a reset.
        self._deaf()
        cast(Counted, self.transport).closed = True
        if self._real.can_write_eof():
            self._real.write_eof()

    def _end(self) -> None:
        self._phase = Phase.DEAF
        if self._real is not None:
            self._real.close()

    def _deaf(self) -> None:
        self._phase, self._since, self._raw = Phase.DEAF, self._watch.clock(), 0
        self.flow.resume_reading()

    # -- what comes in ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._phase, self._since = Phase.HEAD, self._watch.clock()
        self._raw = self._payload = 0

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._phase is not Phase.HEAD:  # a second one in one piece of data
            self._begin()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Wait for the body, and begin to answer."""
        self.check_request()
        if len(self.pipeline) >= self._limits.pipelined:
            raise self.stop("request", f"at most {self._limits.pipelined} ahead of answers", "more")
        self._phase, self._since, self._raw = Phase.BODY, self._watch.clock(), 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._payload += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the answer, or for another request."""
        self._phase, self._since = Phase.WAIT, self._watch.clock()
        super().on_message_complete()

    def _check_size(self) -> None:
        """Refuse what the parser gathers before it tells: one long header, lines of chunks."""
        if self._phase is Phase.HEAD:
            self.check_head(self._raw)
        elif self._phase is Phase.BODY:
            most = self._limits.chunk_overhead
            if self._raw > 2 * self._payload + most:
                raise Malformed("body", "chunks larger than their own lines", "smaller ones")

    def _answered(self) -> bool:
        return self._active is None or self._active.response_complete

    # -- what is refused --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Close if the client took too long."""
        waiting = self._look_at_answer(now)
        if self.flow.read_paused or (waiting and self._phase is Phase.WAIT):
            self._since = now  # it waits for us, or reads
        passed, limits = now - self._since, self._limits
        if self._phase in (Phase.DEAF, Phase.REST):
            if self._answered() and passed > limits.linger_seconds:
                self._end()
        elif self._phase is Phase.WAIT:
            if self._answered() and passed > self.timeout_keep_alive:
                self._end()
        elif self._phase is Phase.HEAD and passed > limits.head_seconds:
            expected = f"headers within {limits.head_seconds:g} s"
            self._refuse("head", RequestTimeout("request", expected, "less", "send it again"))
        elif self._phase is Phase.BODY:
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
        active = self._active
        if self._phase is Phase.REST:  # it has its answer
            self._end()
            return
        if active is not None and not active.response_complete:
            if self._phase is not Phase.BODY or active is not self.cycle:
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
