"""`Model`: one model inside the gateway: what comes in, what is asked of it, and its end.

Everything here runs on the event loop. What comes in goes through `Commits`; what the learner makes
of it comes back through `Learning` and `Publication`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jormungandr.actors import Actors
from jormungandr.admission import Admission
from jormungandr.columns import Columns
from jormungandr.errors import (
    Backlog,
    Draining,
    JormungandrError,
    ModelUnknown,
    PolicyNotReady,
)
from jormungandr.failpoints import reached
from jormungandr.ledger import Draft, Identity
from jormungandr.policy import PolicySnapshot, streams
from jormungandr.protocol import InferenceReply, LabelReceipt, Receipt, Split
from jormungandr.questions import Question
from jormungandr.rows import Row
from jormungandr.service import figures
from jormungandr.service.addition import Addition
from jormungandr.service.asker import Asker
from jormungandr.service.child.places import Places
from jormungandr.service.child.process import PARK_AFTER
from jormungandr.service.datadir import LEARNED
from jormungandr.service.inference import Inference
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.writer import Journal
from jormungandr.service.learning import Learning
from jormungandr.service.load.lanes import Lanes
from jormungandr.service.observe.meters import Meters
from jormungandr.service.promotion.gate import Gate
from jormungandr.service.promotion.handing import Wanted
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.publication import Publication
from jormungandr.service.retention import Keeping, Retention
from jormungandr.tally import Arrival

__all__ = ["Model"]


#: Seconds an inference request waits for the first policy of a model.
FIRST_POLICY = 20.0


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
        self._meters = meters = meters or Meters()
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
        self._admission = Admission(self.spec, self.generation)
        self.actors = Actors(self.spec.replay.capacity, journal.counters.data_lsn)
        _, _, acting = streams(self.spec.seed)
        self._inference = Inference(
            self.spec, acting, lambda: self.gate.at_hand, lanes.forward, meters
        )
        if journal.counters.data_lsn > 0:
            self.learning.process.start()  # it may have rows to catch up with

    def _handed_out(self) -> None:
        self.learning.wake()  # whoever waits for another policy

    def _reported(self) -> None:
        if self.retention.pressing:
            self.commits.nudge()  # there may be a newer checkpoint

    # -- data in --------------------------------------------------------------------------------

    async def add(self, columns: Columns) -> Receipt:
        """Admit transitions; return when they are durable.

        Raises:
            Backlog: the learner is too far behind.
        """
        self.check_backlog()
        if self.commits.refusal is not None:
            raise self.commits.refusal.with_traceback(None)
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.put(columns, receipt)
        return await receipt

    def put(self, columns: Columns, asker: Asker) -> None:
        """Do what `add` does, for somebody who is told; while `is_open`."""
        addition = Addition(self, columns, asker)
        self.commits.put(addition.admit, addition, len(columns))

    def is_open(self) -> bool:
        """Whether transitions are admitted as they come: no backlog, no queue, no end."""
        behind = self.learning.behind
        room = behind is None or behind <= self.spec.pacing.max_backlog
        return room and self.commits.refusal is None and self.commits.is_open()

    def admit(self, columns: Columns, draft: Draft) -> tuple[Receipt, Sequence[Row]]:
        """Admit transitions into a draft of the ledger.

        Raises:
            Conflict: (one of its classes) naming an offending transition.
        """
        return self._admission.transitions(
            columns, draft, served=self.gate.handed_version, published=self.published_version
        )

    def admitted(self, columns: Columns, receipt: Receipt, came: Arrival | None) -> None:
        """Count transitions that are durable, and let the learner have them."""
        self.actors.note(came)
        self._meters.received(self.model_id, columns, receipt)
        self.learning.process.start()

    async def label(
        self, labels: Sequence[tuple[Identity, int]], split: Split | None = None
    ) -> LabelReceipt:
        """Admit labels, perhaps of one split alone; return when they are durable."""
        receipt: LabelReceipt = await self.commits.submit(
            lambda draft: self._admission.labels(labels, draft, split), items=len(labels)
        )
        self._meters.labelled(self.model_id, receipt)
        self.learning.process.start()  # a barrier on this receipt waits for it
        return receipt

    def check_backlog(self) -> None:
        """Refuse transitions that the learner would be too far behind with.

        Raises:
            Backlog: it is already.
        """
        behind, limit = self.learning.behind, self.spec.pacing.max_backlog
        if behind is not None and behind > limit:
            raise Backlog("model", f"a learner at most {limit} transitions behind", behind)

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

    async def policy_for(self, wanted: Wanted = None) -> PolicySnapshot:
        """Return the policy to act with, waiting for the first one of a new model.

        Args:
            wanted: a role, a version that is kept, or None for what the model serves.

        Raises:
            InvalidValue: there is no such role.
            PolicyVersionUnknown, PolicyGone: there never was that version, or it is not kept.
            PolicyNotReady: it has not come in time, or will not.
        """
        self.gate.check(wanted)
        if isinstance(wanted, int):
            return await self.gate.version(wanted)
        found = self.gate.standing_in(wanted)
        if found is None:
            self.learning.process.start()
            await self.learning.until(lambda: bool(self.gate.standing_in(wanted)), FIRST_POLICY)
            found = self.gate.standing_in(wanted)
        if found is None:
            expected, process = f"a policy within {FIRST_POLICY:g} s", self.learning.process
            why = f": {process.error}" if process.error else ""
            raise PolicyNotReady("model", expected, f"learner {process.state}{why}")
        return found

    async def newer_policy(
        self, version: int, seconds: float, wanted: str | None = None
    ) -> tuple[PolicySnapshot, bool]:
        """Return a policy once it is newer than `version`, or when the time is over; and whether.

        After a rollback a champion is older than the one before it: of what is promoted, any other
        version is a newer one.

        Raises:
            PolicyNotReady: there is none at all yet.
            JormungandrError: the model is being closed.
        """
        latest = self.gate.role(wanted) == "latest"

        def newer(found: PolicySnapshot | None) -> bool:
            if found is None:
                return False
            return found.version > version if latest else found.version != version

        if not newer(await self.policy_for(wanted)):
            await self.learning.until(lambda: newer(self.gate.standing_in(wanted)), seconds)
            if self.commits.refusal is not None:
                raise self.commits.refusal.with_traceback(None)
        found = await self.policy_for(wanted)
        return found, newer(found)

    async def act(
        self,
        observations: Any,
        *,
        deterministic: bool,
        epsilon: float | None,
        action_masks: list[Any] | None,
        distribution: bool,
        wanted: Wanted = None,
    ) -> InferenceReply:
        """Answer with the policy that is wanted, waiting for the first one of a new model."""
        policy = await self.policy_for(wanted)
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.journal.counters.train)
        return await self._inference.act(
            observations,
            deterministic=deterministic,
            epsilon=epsilon,
            action_masks=action_masks,
            distribution=distribution,
            # The one at hand when it is answered, unless another one is asked for.
            policy=None if wanted is None else policy,
        )

    def question(
        self,
        observations: list[list[int | float]],
        deterministic: bool,
        epsilon: float | None,
        action_masks: list[Any] | None,
    ) -> Question | None:
        """Return vectors as a question to the policy at hand; None where it is not as plain.

        Where there is no policy yet, something is wrong, or there is too much of it, `act` says so.
        """
        if self.gate.handed is None:
            return None
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.journal.counters.train)
        return self._inference.question(observations, deterministic, epsilon, action_masks)

    def ask(self, question: Question, asker: Asker) -> None:
        """Have a `question` answered soon, by the policy that is at hand then."""
        self._inference.ask(question, asker)

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
