"""`Retention`: keeps a journal within its budget of bytes.

Data rows go, oldest first and in small transactions between two commits, when the budget presses
and not before; never beyond the older of the two checkpoints kept, so that one that turns out to be
damaged costs time and no data. The ledger stays: what was sent before is known for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jormungandr.errors import StorageFull, Unavailable
from jormungandr.service.child.keeper import KEEP, RECOVERY_BUDGET
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.writer import Journal

__all__ = ["JOURNAL_MAX_BYTES", "Keeping", "Retention"]

log = logging.getLogger("jormungandr")

#: Bytes that a journal may take by default.
JOURNAL_MAX_BYTES = 10 << 30
#: Part of the budget that is freed beyond what presses, so that not every commit has to free some.
SLACK = 64
#: Part of the budget that rows may take which a checkpoint would release, before one is asked for.
HELD_BACK = 4
#: Bytes of payload dropped in one transaction.
TRANSACTION = 1 << 20
#: Seconds after which a checkpoint is asked for again.
PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a server keeps of its models.

    Args:
        journal_max_bytes: of one journal's database; None keeps every row.
        recovery_budget: seconds of work that a restarted learner may have to redo.
    """

    journal_max_bytes: int | None = JOURNAL_MAX_BYTES
    recovery_budget: float = RECOVERY_BUDGET


class Retention:
    """One model's; lives on the gateway's event loop.

    Args:
        folder: of the model.
        journal: of it.
        space: that must stay free on its volume.
        budget: `journal_max_bytes`; None lets no row go.
        learner: returns the process id of the learner, and the position that it has reported, 0
            before it has: only what a living learner has recovered from counts as kept.
        release: asks the learner for a checkpoint, also where there is one of its position.
        clock: in seconds.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        space: FreeSpace,
        budget: int | None,
        *,
        learner: Callable[[], tuple[int | None, int]],
        release: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._journal, self._space, self._budget = folder, journal, space, budget
        self._learner, self._release, self._clock = learner, release, clock
        self._used, self._first = journal.used_bytes(), journal.first()
        #: What there was when a checkpoint was asked for last, and when one last might have been.
        self._asked: Any = None
        self._seen: Any = None
        self._asked_at = self._looked_at = -PATIENCE

    @property
    def pressing(self) -> bool:
        """Whether the budget is spent, so that a new checkpoint should be looked at at once."""
        return self._budget is not None and self._used > self._budget - self._budget // SLACK

    def shortage(self) -> StorageFull | None:
        """Return the error of who wants to write data now; None while there is room."""
        if self._budget is None or self._used <= self._budget:
            return self._space.shortage()
        return StorageFull(
            "journal",
            f"at most {self._budget} bytes (journal_max_bytes)",
            self._used,
            "rows go when the learner has two newer checkpoints; raise --journal-max-bytes, or"
            " --keep-journal; nothing was kept",
        )

    async def step(self, on_writer: Callable[..., Awaitable[int]]) -> None:
        """Drop what has to go and may; after each commit, before the next.

        Args:
            on_writer: runs a call on the journal's thread.
        """
        self._used = self._journal.used_bytes()
        if self._budget is None or self._used <= self._budget * 3 // 4:
            return
        kept = self._kept()
        if self._used > self._budget:
            goal = self._budget - self._budget // SLACK
            while self._used > goal and kept:
                try:
                    if not await on_writer(self._journal.drop_rows, kept[0], TRANSACTION):
                        break
                except Unavailable as error:
                    log.warning("%s: no row dropped: %s", self._folder.name, error)
                    break
                self._used, self._first = self._journal.used_bytes(), self._journal.first()
        self._ask(kept)

    def _kept(self) -> list[int]:
        """Return the positions of the two checkpoints kept, or nothing while there are not two."""
        if not self._learner()[1]:
            return []
        found = [position(path) for path in checkpoints(self._folder)][-KEEP:]
        return found if len(found) == KEEP else []

    def _ask(self, kept: list[int]) -> None:
        """Ask for a checkpoint if rows that only wait for one take too much."""
        assert self._budget is not None
        now, (pid, applied) = self._clock(), self._learner()
        least = 0 if self._used > self._budget else self._budget // HELD_BACK
        there = (pid, [path.name for path in checkpoints(self._folder)])
        if there == self._asked and now - self._asked_at < PATIENCE:
            return
        if (there, applied, least) == self._seen and now - self._looked_at < PATIENCE:
            return
        self._seen, self._looked_at = (there, applied, least), now
        if self._journal.payload_bytes(kept[0] if kept else 0, applied) > least:
            self._asked, self._asked_at = there, now
            self._release()

    def info(self) -> dict[str, int | None]:
        """Return figures after the last commit: bytes used, first row kept, budget."""
        return {
            "bytes": self._used,
            "first_lsn": self._first,
            "max_bytes": self._budget,
        }
