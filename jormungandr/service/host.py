"""The learner process of one model: read the journal, apply, publish, checkpoint.

Started by the gateway with ``python -m jormungandr.service.host FOLDER FD``. It owns nothing that
is not in the journal or a checkpoint: killed at any moment, the next one catches up to the same
bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import IO

import msgspec

from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.service.channel import Channel, Closed
from jormungandr.service.database import Created
from jormungandr.service.reader import JournalReader
from jormungandr.service.recovery import checkpoints, recover

log = logging.getLogger("jormungandr.host")

#: Shortest time between two published policies, in seconds, unless the learner has drained.
PUBLISH_INTERVAL = 0.05
#: Shortest time between two reports of a busy learner, in seconds.
REPORT_INTERVAL = 0.1
#: Seconds of updates that a restart may have to redo before a checkpoint is written.
RECOVERY_BUDGET = 20.0
#: Seconds to wait for an earlier learner of the same folder to end.
LOCK_TIMEOUT = 20.0
#: Rows read per SELECT.
ROWS = 64
KEEP_CHECKPOINTS = 2


class Host:
    """The loop around one `Core`.

    Args:
        folder: of the model: journal.db, checkpoints/.
        created: what the journal's first row says.
        channel: to the gateway.
    """

    def __init__(self, folder: Path, created: Created, channel: Channel) -> None:
        self._folder, self._channel = folder, channel
        self._reader = JournalReader(folder / "journal.db")
        self._core = recover(folder, created)
        self._stopping = False
        self._credit = True  # whether the gateway has dealt with the last policy sent
        self._sent_version = -1
        self._sent_at = self._reported_at = 0.0
        self._reported_evaluation = -1
        self._work = 0.0  # seconds of applying since the last checkpoint
        self._checkpoint_lsn = self._core.progress.lsn
        self._checkpoint_error: str | None = None

    def run(self) -> None:
        """Serve until told to stop, or until the gateway is gone."""
        self._report()
        while not self._stopping:
            rows = self._reader.rows(self._core.progress.lsn, ROWS)
            for row in rows:
                began = time.monotonic()
                self._core.apply(row, self._after_update)
                self._work += time.monotonic() - began
                self._poll(0)
                if self._told_to_stop():
                    break
                self._checkpoint_if_due()
                if time.monotonic() - self._reported_at > REPORT_INTERVAL:
                    self._report()
            if not rows:
                self._drained()
        self._checkpoint()
        self._report()

    def _drained(self) -> None:
        """Publish what is newest, report, and sleep until something comes."""
        version = self._core.served_version
        while self._sent_version != version and not self._stopping:
            if self._credit:
                self._publish()
            else:
                self._poll(None)
        self._checkpoint_if_due()
        self._report()
        # A row that was committed after the last SELECT rings the bell: nothing is missed.
        self._poll(None)

    def _after_update(self) -> None:
        self._poll(0)
        if self._credit and time.monotonic() - self._sent_at > PUBLISH_INTERVAL:
            self._publish()

    def _publish(self) -> None:
        snapshot = self._core.snapshot()
        if snapshot.version == self._sent_version:
            return
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
        self._channel.send(
            {
                "type": "state",
                "info": self._core.info(),
                "metrics": self._core.metrics(),
                "evaluations": [msgspec.to_builtins(e) for e in fresh],
                "checkpoint_error": self._checkpoint_error,
            }
        )
        self._reported_at = time.monotonic()

    def _poll(self, timeout: float | None) -> None:
        """Handle messages; with a timeout of None, wait for one."""
        message = self._channel.receive(timeout)
        while message is not None:
            kind = message["type"]
            if kind == "published":
                self._credit = True
            elif kind == "stop":
                self._stopping = True
            elif kind == "checkpoint":
                self._work = RECOVERY_BUDGET  # written at the next row end
            message = self._channel.receive(0)

    def _told_to_stop(self) -> bool:
        return self._stopping

    def _checkpoint_if_due(self) -> None:
        if self._work >= RECOVERY_BUDGET:
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Write the state at a row end, unless it is written already or is that of a new model."""
        lsn = self._core.progress.lsn
        self._work = 0.0
        if lsn in (0, self._checkpoint_lsn):
            return
        folder = self._folder / "checkpoints"
        try:
            folder.mkdir(exist_ok=True)
            self._core.save(folder / f"{lsn:020d}")
        except OSError as error:
            # The journal has everything: a restart takes longer, and nothing is lost.
            self._checkpoint_error = str(error)
            log.error("checkpoint not written: %s", error)
            return
        self._checkpoint_lsn, self._checkpoint_error = lsn, None
        for old in checkpoints(self._folder)[:-KEEP_CHECKPOINTS]:
            shutil.rmtree(old)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the gateway ends; the channel's end says it elsewhere."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _take(lock: IO[str]) -> bool:
    """Take the folder's lock; the learner of a gateway that was killed has a moment to end."""
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        else:
            return True


def main(arguments: list[str]) -> int:
    """Run the learner process; return its exit status."""
    folder, fd = Path(arguments[0]), int(arguments[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    parent = os.getppid()
    _die_with_parent()
    if os.getppid() != parent:
        return 0
    with contextlib.suppress(OSError):
        os.nice(5)  # inference goes before learning
    channel = Channel(socket.socket(fileno=fd))
    lock = (folder / "learner.lock").open("w")
    if not _take(lock):
        channel.send({"type": "failed", "error": f"{folder}: another learner runs"})
        return 1
    try:
        created = JournalReader(folder / "journal.db").created()
        Host(folder, created, channel).run()
    except Closed:
        return 0
    except (DataDirError, CheckpointError) as error:
        with contextlib.suppress(Closed):
            channel.send({"type": "failed", "error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
