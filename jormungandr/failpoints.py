"""Places at which a test can end this process as a power cut would.

``JORMUNGANDR_FAILPOINTS=commit.written`` ends the process with SIGKILL when it gets there,
``commit.written:3`` when it gets there the third time, ``apply.begin@7`` when it gets there with
row 7, ``checkpoint.file!`` stops it there (SIGSTOP) as a hang would; several are separated by
commas. Read once, at import. Without the variable a place costs one look into an empty dict.
"""

from __future__ import annotations

import os
import signal

__all__ = ["NAMES", "VARIABLE", "parsed", "reached"]

VARIABLE = "JORMUNGANDR_FAILPOINTS"

#: Every place there is; each says what has happened when it is reached.
NAMES = (
    # A commit group: gateway.
    "admit.request",  # a request is admitted into the group; nothing is written
    "commit.before",  # the group is admitted; its transaction has not begun
    "commit.written",  # rows and ledger are written; COMMIT comes next
    "commit.durable",  # COMMIT has returned; the ledger in memory does not know
    "commit.merged",  # the ledger knows; nobody has an answer
    "wal.before",  # the WAL has grown; nothing of it is moved yet
    "wal.after",  # it has been moved
    # A policy: gateway.
    "publish.written",  # its file is synced under a temporary name
    "publish.file",  # the file has its name; the VERSION row comes next
    "publish.row",  # the VERSION row is durable
    "publish.serving",  # all is recorded; nobody is served it yet
    # A promotion: gateway.
    "promotion.row",  # a decision about promotions is durable; nothing follows from it yet
    # A checkpoint: learner process.
    "checkpoint.file",  # one more of its files is synced
    "checkpoint.manifest",  # the manifest is synced
    "checkpoint.rename",  # its folder is synced, and has its temporary name still
    "checkpoint.renamed",  # it has its name
    "checkpoint.drop",  # older ones go next
    # Rows that go when journal_max_bytes presses: gateway.
    "retention.before",
    "retention.after",
    # The way back: gateway, then learner process.
    "recovery.wal",  # the WAL is moved; the journal is not read yet
    "recovery.checkpoint",  # a checkpoint is loaded; the rows after it come next
    "recovery.lineage",  # a lineage row is durable; the learner has not heard of it
    # Reading on, in recovery and after it: learner process.
    "apply.begin",  # a row, of the position given, comes next
    "apply.row",  # one more row is applied, with the updates due in it
    "apply.update",  # one more update is made, inside a row
    # A model: gateway.
    "create.journal",  # its journal is durable under a temporary name
    "create.renamed",  # it has its name, which is not synced yet
    "create.done",  # it is durable; nobody has an answer
    "delete.before",  # its learner has ended; nothing is recorded
    "delete.recorded",  # the record is durable; files lie about
    "delete.done",  # the files are gone; nobody has an answer
)


def parsed(text: str) -> dict[str, int]:
    """Return how often each place named in `text`, ``name[@value][!]``, may still be reached.

    Raises:
        ValueError: there is no place of that name, or it is to be reached less than once.
    """
    wanted = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, times = part.partition(":")
        if name.removesuffix("!").partition("@")[0] not in NAMES:
            raise ValueError(f"{VARIABLE}: {name!r} is none of {', '.join(NAMES)}")
        if not (times or "1").isdecimal() or int(times or 1) < 1:
            raise ValueError(f"{VARIABLE}: {part!r} has no number from 1 on after its colon")
        wanted[name] = int(times or 1)
    return wanted


_left = parsed(os.environ.get(VARIABLE, ""))


def reached(name: str, value: int | None = None) -> None:
    """End or stop this process here if the environment says so."""
    if not _left:
        return
    for place in (name, f"{name}@{value}"):
        for key, number in ((place, signal.SIGKILL), (f"{place}!", signal.SIGSTOP)):
            if key in _left:
                _left[key] -= 1
                if _left[key] == 0:
                    os.kill(os.getpid(), number)
