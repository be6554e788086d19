"""`Model`: one model inside the gateway: its parts, what it says of itself, and its end.

Everything here runs on the event loop. What comes in goes through `Intake` and `Commits`; what the
learner makes of it comes back through `Learning` and `Publication`, and is asked of `Answers`.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from jormungandr.errors import Draining, JormungandrError, ModelUnknown
from jormungandr.failpoints import reached
from jormungandr.policy import PolicySnapshot
from jormungandr.service import figures
from jormungandr.service.answers import Answers
from jormungandr.service.child.places import Places
from jormungandr.service.child.process import PARK_AFTER
from jormungandr.service.datadir import LEARNED
from jormungandr.service.intake import Intake
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.writer import Journal
from jormungandr.service.learning import Learning
from jormungandr.service.load.lanes import Lanes
from jormungandr.service.observe.meters import Meters
from jormungandr.service.promotion.gate import Gate
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.publication import Publication
from jormungandr.service.retention import Keeping, Retention

__all__ = ["Model"]


class Model:
    """One model of the service.

    Args:
        folder: of the model.
        journal: opened for writing.
        space: that must stay free.
        keeping: how much is kept.
        park_after: seconds of idleness after which the learner process ends.
        meters: count what is done; None counts for nobody.
        lanes: that its requests go through; None is some of its own.
        places: of learner processes; None gives it one of its own.

    Attributes:
        intake: where transitions and labels come in.
        answers: who hands out its policies, and acts with them.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        space: FreeSpace,
        keeping: Keeping = Keeping(),  # noqa: B008 - frozen
        *,
        park_after: float = PARK_AFTER,
        meters: Meters | None = None,
        lanes: Lanes | None = None,
        places: Places | None = None,
    ) -> None:
        self.folder, self.journal = folder, journal
        meters = meters or Meters()
        lanes = lanes or Lanes()
        created = journal.created
        self.spec, self.model_id = created.spec, created.model_id
        self.generation = created.generation
        self.retention = Retention(
            folder,
            journal,
            space,
            keeping.journal_max_bytes,
            learner=lambda: (self.learning.process.pid, self.learning.info.get("applied_lsn", 0)),
            # So that older rows are no longer needed.
            release=lambda: self.learning.tell("release"),
        )
        self.commits = Commits(
            journal,
            self.retention,
            # Of rows that were committed, also when nobody waits for an answer.
            lambda: self.learning.tell("doorbell"),
            lambda: self.retention.step(self.commits.on_writer),
            meters,
            relieved=lanes.turns.look,
        )
        standing = Standing(journal.decisions() if self.spec.promotion.gated else ())
        self.publication = Publication(
            folder, journal, self.commits, space, standing.pins, standing.digest
        )
        self.gate = Gate(
            journal,
            self.commits,
            self.publication,
            standing,
            self._handed_out,
        )
        self.learning = Learning(
            folder,
            journal,
            self.commits,
            self.publication,
            self.gate,
            keeping=keeping,
            park_after=park_after,
            reported=self._reported,
            meters=meters,
            places=places,
        )
        self.intake = Intake(
            journal, self.commits, self.learning, self.gate, self.publication, meters
        )
        self.answers = Answers(journal, self.commits, self.learning, self.gate, lanes, meters)
        if journal.counters.data_lsn > 0:
            self.learning.process.start()  # it may have rows to catch up with

    def _handed_out(self) -> None:
        self.learning.wake()  # whoever waits for another policy

    def _reported(self) -> None:
        if self.retention.pressing:
            self.commits.nudge()  # there may be a newer checkpoint

    # -- versions out ---------------------------------------------------------------------------

    @property
    def policy(self) -> PolicySnapshot | None:
        """The newest policy; None before there is one."""
        return self.publication.policy

    @property
    def served_version(self) -> int:
        """The newest version served; the first one's number until it is."""
        return self.publication.served

    @property
    def published_version(self) -> int:
        """The highest version there is a journaled row of."""
        return self.publication.highest

    # -- what it is -----------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return the model's specification and figures."""
        return figures.info(self)

    def metrics(self) -> dict[str, Any]:
        """Return the last update's figures and the evaluations so far."""
        return figures.metrics(self)

    async def wait(self, lsn: int, seconds: float) -> None:
        """Return when `lsn` is applied and the policy after it served, or the time is over.

        Raises:
            LearnerFailed: there is a row up to there that nobody is about to apply.
            Draining, ModelUnknown: the service or the model came to its end meanwhile.
        """
        learning, target = self.learning, min(lsn, self.journal.counters.data_lsn)
        if learning.settled_lsn < target:
            learning.process.start()
        await learning.until(lambda: learning.settled_lsn >= lsn, seconds)
        if learning.settled_lsn < lsn and self.commits.refusal is not None:
            raise self.commits.refusal.with_traceback(None)
        if learning.settled_lsn < target:
            learning.check()

    # -- the end --------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Refuse what is new, send away who waits, and let the learner write its checkpoint."""
        self.commits.refusal = Draining(
            "service", "a service that is not shutting down", "draining"
        )
        self.learning.wake()
        await self.learning.process.stop()

    async def stop(self) -> None:
        """Drain, answer what has come in, and close."""
        await self.drain()
        await self._finish()

    async def delete(self) -> None:
        """Answer what has come in, record the deletion, and drop everything but the record.

        Raises:
            StorageFull: there is no room for the record; the model goes on.
        """
        self.commits.refusal = ModelUnknown(self.model_id, "a model", "a deleted one")
        await self.learning.process.stop(at_once=True)
        await self.commits.join()
        try:
            reached("delete.before")
            await self.commits.on_writer(self.journal.delete, self.published_version)
            reached("delete.recorded")
        except JormungandrError:
            self.commits.refusal = None
            self.learning.begin_again()
            raise
        await self._finish()
        for name in LEARNED:
            await asyncio.get_running_loop().run_in_executor(
                None, shutil.rmtree, self.folder / name, True
            )
        reached("delete.done")

    async def _finish(self) -> None:
        await self.commits.join()
        self.learning.wake()
        await self.commits.close()
