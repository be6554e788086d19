"""`Watch`: how many connections there are, and how long each may take."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ConnectionLimits", "Watch", "Watched"]


#: Connections that are looked at, and perhaps closed, in one turn of the event loop.
SLICE = 8
#: Files that a model keeps open: its journal, read and written, with WAL and index, and a channel.
FILES = 8


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one client may take of the server.

    Args:
        connections: open at once, of everybody.
        connections_per_address: open at once, of one address. Behind a proxy all have its own.
        head_seconds: from a connection, or from the first byte of a further request, to the end of
            its headers.
        body_seconds: from there to the end of its body.
        least_rate: bytes a second, of a body on its way in and of an answer on its way out.
        body_grace: seconds of a body without that rate; three packets lost in a row take seven.
        write_seconds: over which the rate of an answer is looked at.
        linger_seconds: for which the rest of a refused body is read away, so that the client reads
            its answer instead of a reset.
        linger_bytes: likewise, at most.
        head_bytes: of request line and headers.
        headers: in a request.
        pipelined: requests that may wait for the answers of those before them.
        chunk_overhead: bytes by which chunks' own lines may exceed what is in the chunks.
    """

    connections: int = 4_096
    connections_per_address: int = 1_024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    least_rate: float = 1_024.0
    body_grace: float = 10.0
    write_seconds: float = 30.0
    linger_seconds: float = 5.0
    linger_bytes: int = 16 << 20
    head_bytes: int = 16 << 10
    headers: int = 64
    pipelined: int = 64
    chunk_overhead: int = 64 << 10


class Watched(Protocol):
    """A connection as the watch sees it."""

    def look(self, now: float) -> None:
        """Close if it took too long."""


class Watch:
    """Admits connections, and looks at all of them once in a while.

    One look at all costs less than a timer of each that every request would set and cancel.

    Args:
        limits: that hold.
        clock: monotonic seconds.
        pause: seconds between two looks: by so much a deadline may be exceeded.
    """

    def __init__(
        self,
        limits: ConnectionLimits = ConnectionLimits(),
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: float = 0.5,
    ) -> None:
        self.limits, self.clock, self._pause = limits, clock, pause
        self._open: dict[Watched, str] = {}
        self._addresses: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        #: How many connections and requests were turned away, by reason.
        self.refused: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Watched, address: str) -> bool:
        """Return whether there is room for one more; if so it is looked at from now on."""
        if len(self._open) >= self.limits.connections:
            self.refused["connections"] += 1
            return False
        if self._addresses[address] >= self.limits.connections_per_address:
            self.refused["connections_per_address"] += 1
            return False
        self._open[connection] = address
        self._addresses[address] += 1
        if self._timer is None:
            self._set()
        return True

    def release(self, connection: Watched) -> None:
        """Forget a connection that has ended; one that was not admitted is none."""
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def look(self) -> None:
        """Look at every connection."""
        self._look(list(self._open))

    def _look(self, connections: list[Watched]) -> None:
        now = self.clock()
        for connection in connections:
            if connection in self._open:
                connection.look(now)

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._due, [])

    def _due(self, left: list[Watched]) -> None:
        """Look at some of them, let requests be answered, and go on."""
        left = left or list(self._open)
        self._look(left[:SLICE])
        if left[SLICE:]:
            self._timer = asyncio.get_running_loop().call_later(0, self._due, left[SLICE:])
            return
        self._timer = None
        if self._open:
            self._set()


def open_files(limits: ConnectionLimits, models: int, spare: int = 1_024) -> None:
    """Let the process have as many files open as connections, models and `spare` others need.

    A process that runs out of them can open no journal either. As far as the system allows.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + FILES * models + spare
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
