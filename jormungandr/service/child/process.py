"""The gateway's handle on a learner process: start, listen, watch, restart, park, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jormungandr.service.child.channel import LIMIT, AsyncChannel, Closed, Garbage
from jormungandr.service.child.heartbeat import Heartbeat
from jormungandr.service.child.keeper import RECOVERY_BUDGET
from jormungandr.service.child.places import Place, Places
from jormungandr.service.child.watchdog import Watchdog

__all__ = ["PARK_AFTER", "LearnerProcess"]

log = logging.getLogger("jormungandr")

#: Ends in a row, without progress between them, after which the learner is not started again.
RESTARTS = 5
#: Ends in a row at the same row, after which that row is set aside.
ROW_ENDS = 3
#: Seconds after which a learner that has failed is tried again when a row comes.
RETRY_AFTER = 300.0
#: Seconds before the first restart, doubled with every further end, and the longest of them.
BACKOFF, LONGEST_BACKOFF = 0.2, 5.0
#: Seconds of idleness after which earlier ends are forgiven.
STEADY = 60.0
#: Seconds of idleness after which a learner writes its checkpoint and ends.
PARK_AFTER = 300.0
#: Seconds of idleness after which one is parked when another waits for its place, and of work
#: after which it goes on later.
PARK_SOON, SLICE = 1.0, 60.0
#: Seconds a learner has to write its checkpoint and exit.
STOP_TIMEOUT = 20.0
#: Seconds a learner has to end once it has closed the channel.
EXIT_TIMEOUT = 10.0

#: Variables that say how many threads the libraries compute on.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class _End:
    """How a process ended.

    Args:
        reason: in words.
        lsn: of the row it was applying, 0 when it applied none.
        garbage: whether it was ended for what it sent.
        final: whether another one would end the same way.
    """

    reason: str
    lsn: int = 0
    garbage: bool = False
    final: bool = False


@dataclass(slots=True)
class _Child:
    """One process and what watches it."""

    process: subprocess.Popen[bytes]
    heartbeat: Heartbeat
    watchdog: Watchdog
    channel: AsyncChannel | None = None
    hung: str | None = None  # why the watchdog ended it
    said: str | None = None  # what it said of its own end
    final: bool = False  # whether that holds for every other one too


class LearnerProcess:
    """At most one supervised child process.

    States: ``idle`` (nothing to do), ``starting``, ``running``, ``parked`` (ended after a while of
    idleness, started again by a row), ``hung`` (ended for its silence), ``restarting``, ``failed``
    and ``stopped``.

    Args:
        folder: of the model.
        threads: numeric threads of the child.
        on_message: called with each message, in order; the next is read when it has returned.
            Garbage that it raises ends the child.
        on_row: called with the position of a row that has ended the child `ROW_ENDS` times in a
            row, and how it did; returns whether the next child will go by that row.
        on_failure: called when the child was given up.
        places: that it waits for one of; None gives it one of its own.
        park_after: seconds of idleness after which the child is parked.
        longest: bytes of the largest message.
        recovery_budget: seconds of work that a restart may have to redo.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        on_message: Callable[[dict[str, Any]], Awaitable[None]],
        *,
        on_row: Callable[[int, str], Awaitable[bool]],
        on_failure: Callable[[], None] = lambda: None,
        places: Places | None = None,
        park_after: float = PARK_AFTER,
        longest: int = LIMIT,
        recovery_budget: float = RECOVERY_BUDGET,
    ) -> None:
        self._folder, self._threads, self._on_message = folder, threads, on_message
        self._on_row, self._on_failure = on_row, on_failure
        self._places = places or Places(1)
        self._place: Place | None = None
        self._park_after, self._longest = park_after, longest
        self._recovery_budget = recovery_budget
        self._task: asyncio.Task[None] | None = None
        self._child: _Child | None = None
        self._state = "idle"
        self._stopping = self._parking = self._wanted = False
        self._got_on = False  # this child, beyond where the one before it was
        self._ends = 0  # in a row, without progress between them
        self._garbage = 0  # ends for garbage; no progress makes up for it
        self._blamed, self._blamed_ends = 0, 0  # the row that ended the child last, and how often
        self._total_ends = 0
        self._last_end: str | None = None
        self._failure: str | None = None
        self._retry_at = 0.0

    # -- what it is -----------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """What the learner is about."""
        child = self._child
        if self._state == "running" and child is not None and child.watchdog.phase == "idle":
            return "idle"
        return self._state

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._child.process.pid if self._child is not None else None

    @property
    def error(self) -> str | None:
        """Why it does not run; None while nothing is wrong."""
        if self._state == "failed":
            return self._failure
        return self._last_end if self._state in ("hung", "restarting") else None

    def report(self) -> dict[str, Any]:
        """Return what the model's figures say of its learner.

        `progress_age` is in seconds since its heartbeat moved, None without a process; `ends`
        counts the ends that nobody asked for since the service started, `last_end` says how the
        last of them came about.
        """
        child = self._child
        return {
            "state": self.state,
            "phase": None if child is None else child.watchdog.phase,
            "progress_age": None if child is None else round(child.watchdog.silence(), 3),
            "pid": self.pid,
            "error": self.error,
            "ends": self._total_ends,
            "last_end": self._last_end,
        }

    # -- what it is told ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the child if it does not run; one that has failed only after a pause."""
        self._wanted = True
        if self._stopping or not (self._task is None or self._task.done()):
            return
        if self._state == "failed":
            if asyncio.get_running_loop().time() < self._retry_at:
                return
            self._ends = self._garbage = 0
        self._state = "starting"
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    def send(self, kind: str) -> None:
        """Send a message without content; a child that is not there misses nothing by it."""
        if self._child is not None and self._child.channel is not None:
            self._child.channel.send({"type": kind})

    def progressed(self) -> None:
        """Note that the child got somewhere: its earlier ends are forgiven."""
        self._ends, self._got_on = 0, True

    async def stop(self, *, at_once: bool = False) -> None:
        """End the child: after a checkpoint, or at once."""
        self._stopping = True
        if self._task is None:
            return
        if at_once and self._child is not None:
            self._child.process.kill()
        self.send("stop")
        if self._place is not None and not self._place.granted.done():
            self._places.give(self._place)
        # A child that is still importing reads the message when it has started.
        done, _ = await asyncio.wait({self._task}, timeout=STOP_TIMEOUT)
        if not done:
            if self._child is not None:
                log.error("%s: learner did not stop; killed", self._folder.name)
                self._child.process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), 5)
        self._state = "stopped"

    # -- supervision ----------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while not self._is_stopping():
            self._state = "restarting" if self._ends or self._garbage else "starting"
            place = self._place = self._places.ask()
            if not await place.granted:
                break
            try:
                end = await self._run_once()
            except Exception as error:  # no process or descriptor to be had
                log.exception("%s: the learner could not be run", self._folder.name)
                end = _End(f"not to be started: {error}")
            finally:
                self._places.give(place)
            if self._is_stopping():
                break
            if end is not None:
                self._total_ends, self._last_end = self._total_ends + 1, end.reason
            if self._parking and not self._wanted:
                self._state = "parked"
                break
            if end is None:
                continue  # a row came while it wrote its checkpoint
            self._failure = await self._ended(end)
            if self._failure is not None:
                self._state = "failed"
                self._retry_at = asyncio.get_running_loop().time() + RETRY_AFTER
                log.error("%s: %s", self._folder.name, self._failure)
                self._on_failure()
                break
            tries = max(self._ends, self._garbage)
            await asyncio.sleep(min(LONGEST_BACKOFF, BACKOFF * 2**tries))

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _ended(self, end: _End) -> str | None:
        """Count an end that nobody asked for; return why it was the last one, if it was."""
        again = f"it is tried again when a row comes after {RETRY_AFTER:g} s"
        if end.final:
            return f"{end.reason}; {again}"
        if end.lsn and not end.garbage:
            earlier = self._blamed_ends if end.lsn == self._blamed else 0
            self._blamed, self._blamed_ends = end.lsn, earlier + 1
            if self._blamed_ends >= ROW_ENDS and await self._on_row(end.lsn, end.reason):
                self._blamed = self._blamed_ends = self._ends = 0
                return None
        self._ends += not end.garbage
        self._garbage += end.garbage
        if max(self._ends, self._garbage) < RESTARTS:
            return None
        return f"the learner ended {RESTARTS} times in a row, last: {end.reason}; {again}"

    async def _run_once(self) -> _End | None:
        """Run one child until it ends; return how, None when it ended as it was asked to."""
        self._parking = self._got_on = False
        heartbeat = Heartbeat.create()
        try:
            ours, process = self._spawn(heartbeat)
            child = self._child = _Child(process, heartbeat, Watchdog(heartbeat))
            watching = asyncio.get_running_loop().create_task(self._watch(child))
            garbage: str | None = None
            try:
                child.channel = await AsyncChannel.over(ours, self._longest)
                if self._stopping:  # told so while there was no channel to pass it on
                    self.send("stop")
                await self._listen(child, child.channel)
            except Closed:
                pass
            except Garbage as error:
                garbage = f"killed for sending garbage: {error}"
                child.process.kill()
            finally:
                if child.channel is not None:
                    child.channel.close()
                    child.channel = None
                status = await self._reaped(child)
                watching.cancel()
                self._child = None
            if self._stopping or (self._parking and status == 0):
                return None
            reason = garbage or child.hung or _described(status, child.said)
            self._state = "hung" if child.hung else "restarting"
            at = f" at row {heartbeat.lsn}" if heartbeat.lsn else ""
            log.warning("%s: the learner process ended%s: %s", self._folder.name, at, reason)
            return _End(reason, heartbeat.lsn, garbage is not None, child.final)
        finally:
            heartbeat.close()

    def _spawn(self, heartbeat: Heartbeat) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        command = [
            *(sys.executable, "-P"),  # modules do not come from the folder the server started in
            *("-m", "jormungandr.service.child.host", str(self._folder)),
            *map(str, (theirs.fileno(), heartbeat.fd, os.getpid(), self._recovery_budget)),
        ]
        try:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno(), heartbeat.fd],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **dict.fromkeys(THREADS, str(self._threads))},
                start_new_session=True,  # a Ctrl-C at the terminal is the gateway's to handle
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours, process

    async def _listen(self, child: _Child, channel: AsyncChannel) -> None:
        """Pass messages on until the channel ends."""
        while True:
            message = await channel.receive()
            if message["type"] == "failed":  # another one would find the same
                child.said, child.final = _short(message.get("error")), True
            elif message["type"] == "ending":
                child.said = _short(message.get("error"))
            else:
                self._state = "running"
                await self._on_message(message)
                if message["type"] == "state" and message["info"]["applied_lsn"] >= self._blamed:
                    self._blamed = self._blamed_ends = 0  # it got over that row

    async def _watch(self, child: _Child) -> None:
        """End the child when it shows no sign of life, and park it when it has long been idle."""
        time = asyncio.get_running_loop().time
        begun = busy = time()
        while child.process.poll() is None:
            child.hung = child.watchdog.verdict()
            if child.hung is not None:
                self._state = "hung"
                log.error("%s: the learner is %s; killed", self._folder.name, child.hung)
                child.process.kill()
                return
            if not self._parking:
                if self._wanted or child.watchdog.phase != "idle":
                    busy, self._wanted = time(), False
                if time() - busy >= min(STEADY, self._park_after):
                    self.progressed()
                wanted = self._place is not None and self._places.wanted(self._place)
                if time() - busy >= min(self._park_after, PARK_SOON if wanted else math.inf):
                    # What comes from here on is wanted of the next child.
                    self._park("park")
                elif wanted and self._got_on and time() - begun >= SLICE:
                    self._wanted = True  # it goes on when it is its turn again
                    self._park("stop")
            await asyncio.sleep(min(child.watchdog.period, self._park_after / 4))

    def _park(self, kind: str) -> None:
        self._parking = True
        if self._place is not None:
            self._place.leaving = True
        self.send(kind)

    async def _reaped(self, child: _Child) -> int:
        """Return the exit status of a child whose channel has ended."""
        waiting = asyncio.get_running_loop().run_in_executor(None, child.process.wait)
        done, _ = await asyncio.wait({waiting}, timeout=EXIT_TIMEOUT)
        if not done:
            child.process.kill()
        return await waiting


def _described(status: int, said: str | None) -> str:
    """Return an end in words."""
    if said is not None:
        return said
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps out of memory" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def _short(text: object) -> str:
    return str(text)[:500]
