"""`DrainingServer`: a server that is told to end, and ends in time with nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

import uvicorn

__all__ = ["CONNECTIONS", "LIMIT", "DrainingServer"]

log = logging.getLogger("jormungandr")

#: Seconds in which learners write their checkpoints; one that needs longer is ended, and its
#: successor applies the rows since the last one again.
LEARNERS = 22
#: Seconds that connections have, after that, to take the answers that are on their way.
CONNECTIONS = 2
#: Seconds after the first signal at which the process ends, whatever is in the way.
LIMIT = 29


class DrainingServer(uvicorn.Server):
    """Ends on the first SIGTERM or SIGINT in order, on the second at once.

    In order: `drain` begins, while everything is still answered, health checks with 503 first; when
    it is done, connections are closed, who reads slowly is left behind, and the application stops.
    At once: everything that was acknowledged is on the disk already, and recovery finds it.

    Args:
        config: of the server; its graceful time-out is to be `CONNECTIONS`.
        drain: refuses what is new, and returns when there is nothing more to wait for.
        grace: seconds for which it goes on answering at least, so that whoever distributes requests
            to several services sees that this one is not ready.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]], grace: float = 0.0
    ) -> None:
        super().__init__(config)
        self._drain, self._grace = drain, grace
        self._draining: asyncio.Task[None] | None = None
        self._told = False

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals; uvicorn would raise them again after its shutdown, and so end by them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._loop = asyncio.get_running_loop()
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; a second time, end."""
        if self._told:
            os._exit(128 + sig)
        self._told = True
        # Not asyncio's: this one has to go off when the loop does not turn.
        limit = threading.Timer(self._grace + LIMIT, _give_up)
        limit.daemon = True
        limit.start()
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if not self.started:  # uvicorn looks when it has started
            self.should_exit = True
            return
        log.info("told to end: draining")
        self._draining = asyncio.get_running_loop().create_task(self._drained())

    async def _drained(self) -> None:
        try:
            async with asyncio.timeout(self._grace + LEARNERS):
                await asyncio.gather(self._drain(), asyncio.sleep(self._grace))
        except TimeoutError:
            log.error("not drained within %d s; the next start recovers the rest", LEARNERS)
        except Exception:
            log.exception("not drained")
        finally:
            self.should_exit = True


def _give_up() -> None:
    log.critical("not ended within %d s; exiting, with everything acknowledged on the disk", LIMIT)
    os._exit(1)
