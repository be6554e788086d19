"""`Intake`: transitions and labels on their way into one model's journal.

Everything here runs on the event loop; what is durable is the learner's to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jormungandr.actors import Actors
from jormungandr.admission import Admission
from jormungandr.columns import Columns
from jormungandr.errors import Backlog
from jormungandr.ledger import Draft, Identity
from jormungandr.protocol import LabelReceipt, Receipt, Split
from jormungandr.rows import Row
from jormungandr.service.addition import Addition
from jormungandr.service.asker import Asker
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.writer import Journal
from jormungandr.service.learning import Learning
from jormungandr.service.observe.meters import Meters
from jormungandr.service.promotion.gate import Gate
from jormungandr.service.publication import Publication
from jormungandr.tally import Arrival

__all__ = ["Intake"]


class Intake:
    """What comes into one model.

    Args:
        journal: where it goes.
        commits: that make it durable.
        learning: is told that there is something to learn from.
        gate: knows the version that is handed out.
        publication: knows the highest version there is.
        meters: count what came.

    Attributes:
        actors: who sent what, of late.
    """

    def __init__(
        self,
        journal: Journal,
        commits: Commits,
        learning: Learning,
        gate: Gate,
        publication: Publication,
        meters: Meters,
    ) -> None:
        created = journal.created
        self._spec, self._model_id = created.spec, created.model_id
        self._commits, self._learning = commits, learning
        self._gate, self._publication, self._meters = gate, publication, meters
        self._admission = Admission(created.spec, created.generation)
        self.actors = Actors(created.spec.replay.capacity, journal.counters.data_lsn)

    async def add(self, columns: Columns) -> Receipt:
        """Admit transitions; return when they are durable.

        Raises:
            Backlog: the learner is too far behind.
        """
        self.check_backlog()
        if self._commits.refusal is not None:
            raise self._commits.refusal.with_traceback(None)
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.put(columns, receipt)
        return await receipt

    def put(self, columns: Columns, asker: Asker) -> None:
        """Do what `add` does, for somebody who is told; while `is_open`."""
        addition = Addition(self, columns, asker)
        self._commits.put(addition.admit, addition, len(columns))

    def is_open(self) -> bool:
        """Whether transitions are admitted as they come: no backlog, no queue, no end."""
        behind = self._learning.behind
        room = behind is None or behind <= self._spec.pacing.max_backlog
        return room and self._commits.refusal is None and self._commits.is_open()

    def check_backlog(self) -> None:
        """Refuse transitions that the learner would be too far behind with.

        Raises:
            Backlog: it is already.
        """
        behind, limit = self._learning.behind, self._spec.pacing.max_backlog
        if behind is not None and behind > limit:
            raise Backlog("model", f"a learner at most {limit} transitions behind", behind)

    def admit(self, columns: Columns, draft: Draft) -> tuple[Receipt, Sequence[Row]]:
        """Admit transitions into a draft of the ledger.

        Raises:
            Conflict: (one of its classes) naming an offending transition.
        """
        served, published = self._gate.handed_version, self._publication.highest
        return self._admission.transitions(columns, draft, served=served, published=published)

    def admitted(self, columns: Columns, receipt: Receipt, came: Arrival | None) -> None:
        """Count transitions that are durable, and let the learner have them."""
        self.actors.note(came)
        self._meters.received(self._model_id, columns, receipt)
        self._learning.process.start()

    async def label(
        self, labels: Sequence[tuple[Identity, int]], split: Split | None = None
    ) -> LabelReceipt:
        """Admit labels, perhaps of one split alone; return when they are durable."""
        receipt: LabelReceipt = await self._commits.submit(
            lambda draft: self._admission.labels(labels, draft, split), items=len(labels)
        )
        self._meters.labelled(self._model_id, receipt)
        self._learning.process.start()  # a barrier on this receipt waits for it
        return receipt
