"""The gateway's handle on a learner process: start, listen, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jormungandr.service.channel import AsyncChannel, Closed

__all__ = ["LearnerProcess"]

log = logging.getLogger("jormungandr")

#: Ends in a row, without progress between them, after which the learner is not started again.
RESTARTS = 5
#: Seconds a learner has to write its checkpoint and exit.
STOP_TIMEOUT = 25.0

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class LearnerProcess:
    """One supervised child process.

    Args:
        folder: of the model.
        threads: numeric threads of the child.
        on_message: called with each message, in order; the next is read when it has returned.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        on_message: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._folder, self._threads, self._on_message = folder, threads, on_message
        self._task: asyncio.Task[None] | None = None
        self._channel: AsyncChannel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._ends = 0
        self.state = "idle"
        self.error: str | None = None

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the child if it does not run."""
        if self._task is None and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._supervise())

    def send(self, kind: str) -> None:
        """Send a message without content; a child that is not there misses nothing by it."""
        if self._channel is not None:
            self._channel.send({"type": kind})

    def progressed(self) -> None:
        """Note that the child got somewhere: its earlier ends are forgiven."""
        self._ends = 0

    async def _supervise(self) -> None:
        while not self._stopping:
            self.state = "starting" if self._ends == 0 else "restarting"
            try:
                await self._run_once()
            except Exception:  # no process or descriptor to be had; tried again like any end
                log.exception("%s: the learner could not be run", self._folder.name)
            if self._stopping or self.state == "failed":
                break
            self._ends += 1
            if self._ends >= RESTARTS:
                self.state, self.error = "failed", f"the learner ended {RESTARTS} times in a row"
                log.error("%s: %s", self._folder.name, self.error)
                break
            await asyncio.sleep(min(5.0, 0.1 * 2**self._ends))

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **dict.fromkeys(_THREADS, str(self._threads))}
        command = [
            *(sys.executable, "-P"),  # modules do not come from the folder the server started in
            *("-m", "jormungandr.service.host", str(self._folder), str(theirs.fileno())),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal is the gateway's to handle
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = await AsyncChannel.over(ours)
        if self._stopping:  # told so while there was no channel to pass it on
            self.send("stop")
        try:
            while True:
                message = await self._channel.receive()
                if message["type"] == "failed":
                    self.state, self.error = "failed", str(message.get("error"))
                    log.error("%s: %s", self._folder.name, self.error)
                else:
                    self.state = "running"
                    await self._on_message(message)
        except Closed:
            pass
        finally:
            self._channel.close()
            self._channel = None
            status = await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
            self._process = None
            if not self._stopping:
                log.warning("%s: learner process ended with status %s", self._folder.name, status)

    async def stop(self, *, at_once: bool = False) -> None:
        """End the child: after a checkpoint, or at once."""
        self._stopping = True
        if self._task is None:
            return
        if at_once and self._process is not None:
            self._process.kill()
        self.send("stop")
        # A child that is still importing reads the message when it has started.
        done, _ = await asyncio.wait({self._task}, timeout=STOP_TIMEOUT)
        if not done:
            if self._process is not None:
                log.error("%s: learner did not stop; killed", self._folder.name)
                self._process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), 5)
        self.state = "stopped"
