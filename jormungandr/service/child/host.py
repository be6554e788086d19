"""The learner process of one model: read the journal, apply, publish, checkpoint.

Started by the gateway with ``python -m jormungandr.service.child.host FOLDER CHANNEL HEARTBEAT
GATEWAY BUDGET``: two descriptors, the gateway's process id, and the `recovery_budget` in seconds.
It owns nothing that is not in the journal or a checkpoint: killed at any moment, the next one
catches up to the same bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.failpoints import reached
from jormungandr.heldout import KEEP
from jormungandr.rows import SkippedRow
from jormungandr.service.child.channel import Channel, Closed
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.child.heartbeat import Heartbeat
from jormungandr.service.child.keeper import RECOVERY_BUDGET, Keeper
from jormungandr.service.child.lineage import enter
from jormungandr.service.child.recovery import recover
from jormungandr.service.journal.database import Created
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.observe.logs import configure_child

log = logging.getLogger("jormungandr.host")

#: Shortest time between two published policies, in seconds, unless the learner has drained.
PUBLISH_INTERVAL = 0.05
#: Shortest time between two reports of a busy learner, in seconds.
REPORT_INTERVAL = 0.1
#: Longest time between two heartbeats of a learner that waits, in seconds.
BEAT_INTERVAL = 0.5
#: Seconds to wait for an earlier learner of the same folder to end.
LOCK_TIMEOUT = 20.0
#: Rows read per SELECT.
ROWS = 64


class Host:
    """The loop around one `Core`.

    Args:
        folder: of the model: journal.db, checkpoints/.
        created: what the journal's first row says.
        channel: to the gateway.
        heartbeat: that the gateway watches.
        recovery_budget: seconds that a restart may need.
    """

    def __init__(
        self,
        folder: Path,
        created: Created,
        channel: Channel,
        heartbeat: Heartbeat,
        recovery_budget: float = RECOVERY_BUDGET,
    ) -> None:
        self._created, self._channel, self._heartbeat = created, channel, heartbeat
        heartbeat.beat("recovering")
        self._reader = JournalReader(folder / "journal.db")
        self._core = recover(folder, self._reader)
        self._lineages = self._reader.lineages()
        # Of this process alone: how long it took depends on what else the machine did.
        starting = time.process_time()
        self._keeper = Keeper(folder, self._core, recovery_budget, time.monotonic, starting)
        self._stopping = self._parking = False
        self._credit = True  # whether the gateway has dealt with the last policy sent
        self._sent_version = -1
        self._sent_at = self._reported_at = 0.0
        self._reported_evaluation = -1
        self._reported_episode = 0  # held-out ones, of a model that promotes policies

    def run(self) -> None:
        """Serve until told to stop, or until the gateway is gone."""
        self._heartbeat.beat("publishing")
        self._report()
        self._begin_lineage()
        while not self._stopping:
            rows = self._reader.rows(self._core.progress.lsn, ROWS)
            for row in rows:
                began = time.monotonic()
                self._heartbeat.beat("applying", row.lsn)
                if not isinstance(row, SkippedRow):
                    reached("apply.begin", row.lsn)
                self._core.apply(row, self._after_update, self._heartbeat.beat)
                self._heartbeat.beat("applying", 0)
                reached("apply.row")
                self._keeper.worked(time.monotonic() - began)
                enter(self._core, self._lineages)
                self._poll(0)
                if self._told_to_stop():
                    break
                self._checkpoint_if_due()
                if time.monotonic() - self._reported_at > REPORT_INTERVAL or self._many_episodes():
                    self._report()
            if not rows:
                self._drained()
                if self._parking:
                    break
                # A row that was committed after the last SELECT rings the bell: nothing is missed.
                self._wait("idle")
        self._checkpoint()
        self._report()

    def _begin_lineage(self) -> None:
        """Go on under a number of its own where this machine is not the one of the last policies.

        The gateway chooses the number and journals it; it is read from there.
        """
        mine, recorded = fingerprint(self._created.spec.threads), self._created.fingerprint
        if self._lineages:
            recorded = self._lineages[-1].fingerprint
        if not recorded or recorded == mine:
            return
        log.warning("this machine computes otherwise than the one before: a new lineage begins")
        self._channel.send(
            {
                "type": "lineage",
                "fingerprint": mine,
                "applied_lsn": self._core.progress.lsn,
                "version": self._core.policy_version + 1,
            }
        )
        known = len(self._lineages)
        while len(self._lineages) == known and not self._stopping:
            self._wait("publishing")
            self._lineages = self._reader.lineages()
        enter(self._core, self._lineages)

    def _drained(self) -> None:
        """Publish what is newest, and report."""
        version = self._core.served_version
        while self._sent_version != version and not self._stopping:
            if self._credit:
                self._publish()
            else:
                self._wait("publishing")
        self._checkpoint_if_due()
        self._report()

    def _wait(self, phase: str) -> None:
        """Sleep until something comes."""
        self._heartbeat.beat(phase)
        while not self._poll(BEAT_INTERVAL):
            self._heartbeat.beat()

    def _after_update(self) -> None:
        reached("apply.update")
        self._poll(0)
        if self._credit and time.monotonic() - self._sent_at > PUBLISH_INTERVAL:
            self._publish()

    def _publish(self) -> None:
        snapshot = self._core.snapshot()
        if snapshot.version == self._sent_version:
            return
        self._heartbeat.beat("publishing")
        self._channel.send(
            {
                "type": "policy",
                "version": snapshot.version,
                "update_count": snapshot.update_count,
                "applied_lsn": self._core.progress.lsn,
                "digest": snapshot.digest(),
                "bytes": snapshot.to_bytes(),
            }
        )
        self._credit = False
        self._sent_version = snapshot.version
        self._sent_at = time.monotonic()

    def _report(self) -> None:
        fresh = [e for e in self._core.evaluations if e.policy_version > self._reported_evaluation]
        if fresh:
            self._reported_evaluation = fresh[-1].policy_version
        held_out = self._core.held_out
        episodes = [] if held_out is None else held_out.since(self._reported_episode)
        if episodes:
            self._reported_episode = episodes[-1].number
        self._channel.send(
            {
                "type": "state",
                "info": self._core.info(),
                "metrics": self._core.metrics(),
                "returns": self._core.returns.figures(),
                "evaluations": [msgspec.to_builtins(e) for e in fresh],
                "checkpoint_error": self._keeper.error,
                "checkpoints": self._keeper.count,
                "episodes": [msgspec.to_builtins(episode) for episode in episodes],
            }
        )
        self._reported_at = time.monotonic()

    def _many_episodes(self) -> bool:
        """Whether more held-out episodes may end in the next row than a report can still hold."""
        held_out = self._core.held_out
        return held_out is not None and held_out.finished - self._reported_episode >= KEEP // 2

    def _poll(self, timeout: float) -> bool:
        """Handle messages, waiting for the first; return whether there was one."""
        message = self._channel.receive(timeout)
        some = message is not None
        while message is not None:
            kind = message["type"]
            if kind == "published":
                self._credit = True
            elif kind == "stop":
                self._stopping = True
            elif kind == "park":
                self._parking = True  # once every row that is there is applied
            elif kind == "checkpoint":
                self._keeper.ask()
            elif kind == "release":
                self._keeper.ask(again=True)
            message = self._channel.receive(0)
        return some

    def _told_to_stop(self) -> bool:
        return self._stopping

    def _checkpoint_if_due(self) -> None:
        if self._keeper.due:
            self._checkpoint()

    def _checkpoint(self) -> None:
        self._heartbeat.beat("checkpointing")
        self._keeper.write()


def _die_with_parent() -> None:
    """Ask Linux to end this process when the gateway ends; the channel's end says it elsewhere."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end_with(sock: socket.socket) -> None:
    """End this process, whatever it is doing, when the other end of a socket is closed."""
    poll = select.poll()
    poll.register(sock, 0)  # a hang-up is told without being asked for
    poll.poll()
    os._exit(0)


def _take(lock: IO[str], waiting: Callable[[], None] = lambda: None) -> bool:
    """Take the folder's lock; the learner of a gateway that was killed has a moment to end."""
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                return False
            waiting()
            time.sleep(0.05)
        else:
            return True


def _in_words(error: Exception) -> str:
    short = f"{type(error).__name__}: {error}".partition("\n")[0]
    # Torch tells of it with an error of another class.
    without = isinstance(error, MemoryError) or "allocate memory" in str(error)
    return f"out of memory ({short})" if without else short


def main(arguments: list[str]) -> int:
    """Run the learner process; return its exit status."""
    folder, (fd, heart, gateway) = Path(arguments[0]), map(int, arguments[1:4])
    recovery_budget = float(arguments[4])
    configure_child(learner=folder.name)
    _die_with_parent()
    if os.getppid() != gateway:  # it ended before this process could ask to end with it
        return 0
    with contextlib.suppress(OSError):
        os.nice(5)  # inference goes before learning
    heartbeat = Heartbeat(heart)
    sock = socket.socket(fileno=fd)
    threading.Thread(target=_end_with, args=(sock,), daemon=True).start()
    channel = Channel(sock, heartbeat.beat)
    lock = (folder / "learner.lock").open("w")
    if not _take(lock, heartbeat.beat):
        channel.send({"type": "ending", "error": f"{folder}: another learner runs"})
        return 1
    try:
        created = JournalReader(folder / "journal.db").created()
        Host(folder, created, channel, heartbeat, recovery_budget).run()
    except Closed:
        return 0
    except (DataDirError, CheckpointError) as error:
        with contextlib.suppress(Closed):
            channel.send({"type": "failed", "error": str(error)})
        return 1
    except Exception as error:
        log.exception("the learner ends")
        with contextlib.suppress(Exception):  # where that is still possible
            channel.send({"type": "ending", "error": _in_words(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
