"""`Keeper`: writes a model's checkpoints when they are due, and keeps the two newest."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jormungandr.durable import make_folder
from jormungandr.failpoints import reached
from jormungandr.service.child.recovery import AGAIN, checkpoints, position

__all__ = ["RECOVERY_BUDGET", "Keeper"]

log = logging.getLogger("jormungandr.host")

#: Seconds that a restart may need until it is where it was.
RECOVERY_BUDGET = 20.0
#: Checkpoints kept: one may turn out to be damaged.
KEEP = 2
#: Seconds from which on writing a checkpoint counts as long.
LONG = 1.0


class Keeper:
    """What to keep of one learner, and when; in its process.

    A checkpoint is due at the end of a row when starting, what would have to be redone, and the
    longest row so far on top, would take more than the budget. A single row may hold more work than
    that. One that takes long to write waits for at least as much work, so that half of the time is
    for learning.

    Args:
        folder: of the model.
        core: the `Core`; only read.
        budget: seconds.
        clock: in seconds.
        starting: seconds that this process needed to start and to load its state; counted up to
            half of the budget.

    Attributes:
        error: why the last checkpoint could not be written; None when it could.
        count: checkpoints written.
    """

    def __init__(
        self,
        folder: Path,
        core: Any,
        budget: float = RECOVERY_BUDGET,
        clock: Callable[[], float] = time.monotonic,
        starting: float = 0.0,
    ) -> None:
        self._folder, self._core, self._clock = folder, core, clock
        self._budget = budget - min(starting, budget / 2)
        self._work = self._longest = self._writing = 0.0
        self._asked = self._again = False
        found = checkpoints(folder)
        self._written = position(found[-1]) if found else 0
        self.error: str | None = None
        self.count = 0

    def worked(self, seconds: float) -> None:
        """Count the work of one row."""
        self._work += seconds
        self._longest = max(self._longest, seconds)

    def ask(self, *, again: bool = False) -> None:
        """Have a checkpoint written at the next row's end.

        Args:
            again: also where there is one of that position: the older one then goes, and with it
                the need for the rows since.
        """
        self._asked, self._again = True, self._again or again

    @property
    def due(self) -> bool:
        """Whether a checkpoint should be written now."""
        spent = self._work > 0 and self._work + self._longest >= self._budget
        return self._asked or (spent and self._work >= self._writing)

    def write(self) -> None:
        """Write the state at a row's end, unless it is written already or that of a new model."""
        again, self._asked, self._again, self._work = self._again, False, False, 0.0
        lsn = self._core.progress.lsn
        if lsn == 0 or (lsn == self._written and not again):
            return
        folder = self._folder / "checkpoints"
        path = folder / f"{lsn:020d}"
        if path.exists():
            path = path.with_name(path.name + AGAIN)
        if path.exists():
            return
        began = self._clock()
        try:
            make_folder(folder)  # rows are dropped because of what is in it
            self._core.save(path)
        except OSError as error:
            # The journal has everything: a restart takes longer, and nothing is lost.
            self.error = str(error)
            log.error("checkpoint not written: %s", error)
            return
        took = self._clock() - began
        self._writing = took if took > LONG else 0.0
        self._written, self.error, self.count = lsn, None, self.count + 1
        reached("checkpoint.drop")
        for old in checkpoints(self._folder)[:-KEEP]:
            _drop(old)


def _drop(checkpoint: Path) -> None:
    """Remove a checkpoint; half removed it must not pass for one, to whoever looks or copies."""
    going = checkpoint.with_name(f".{checkpoint.name}.tmp")
    try:
        shutil.rmtree(going, ignore_errors=True)
        checkpoint.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        log.error("%s: not removed: %s", checkpoint, error)
