"""`Learning`: a model's learner as the gateway knows it: its process, and what that has said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jormungandr.errors import LearnerFailed
from jormungandr.heldout import HeldOutEpisode
from jormungandr.service.child.channel import Garbage
from jormungandr.service.child.messages import as_state, longest
from jormungandr.service.child.places import Places
from jormungandr.service.child.process import LearnerProcess
from jormungandr.service.child.quarantine import Quarantine
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.database import SkipRow
from jormungandr.service.journal.writer import Journal
from jormungandr.service.observe.meters import Meters
from jormungandr.service.promotion.gate import Gate
from jormungandr.service.publication import Publication
from jormungandr.service.retention import Keeping

__all__ = ["Learning"]

log = logging.getLogger("jormungandr")

#: Evaluations remembered.
KEEP_EVALUATIONS = 1_000


class Learning:
    """The learner of one model, and what it has said; lives on the event loop.

    Args:
        folder: of the model.
        journal: of it.
        commits: the way into the journal.
        publication: of what it makes.
        gate: that hands it out.
        keeping: how much work a restart may have to redo.
        park_after: seconds of idleness after which its process ends.
        reported: called after each report.
        meters: count evaluations.
        places: that its process waits for one of; None gives it one of its own.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        commits: Commits,
        publication: Publication,
        gate: Gate,
        *,
        keeping: Keeping,
        park_after: float,
        reported: Callable[[], None],
        meters: Meters,
        places: Places | None,
    ) -> None:
        self._folder, self._journal, self._commits = folder, journal, commits
        self._publication, self._gate, self._keeping = publication, gate, keeping
        self._park_after, self._reported, self._meters = park_after, reported, meters
        self._places = places
        self._model_id = journal.created.model_id
        self.quarantine = Quarantine(journal)
        self.info: dict[str, Any] = {}  # the last report
        self.metrics: dict[str, Any] = {}
        self.returns: dict[str, Any] = {}  # by split
        self.evaluations: dict[int, dict[str, Any]] = {}  # by policy version
        self.checkpoint_error: str | None = None
        self.checkpoints = 0  # written by its process
        self.settled_lsn = 0  # applied, and the policy after it is served
        self._changed = asyncio.Event()
        self.process = self._new_process()

    def _new_process(self) -> LearnerProcess:
        spec = self._journal.created.spec
        return LearnerProcess(
            self._folder,
            spec.threads,
            self.hear,
            on_row=self._quarantined,
            on_failure=self.wake,
            places=self._places,
            park_after=self._park_after,
            longest=longest(spec),
            recovery_budget=self._keeping.recovery_budget,
        )

    # -- what it is told ------------------------------------------------------------------------

    def tell(self, kind: str) -> None:
        """Send it a message without content, and start it if it does not run."""
        self.process.start()
        self.process.send(kind)

    def begin_again(self) -> None:
        """Start another one in place of one that was stopped."""
        self.process = self._new_process()
        self.process.start()

    # -- what it says ---------------------------------------------------------------------------

    @property
    def behind(self) -> int | None:
        """Training transitions that it has yet to apply; None before it has reported."""
        applied = self.info.get("transitions")
        if applied is None:
            return None
        return self._journal.counters.train - self.quarantine.train - int(applied["train"])

    async def hear(self, message: dict[str, Any]) -> None:
        """Take a message of the learner process.

        Raises:
            Garbage: it is none that a learner sends.
        """
        try:
            await self._handle(message)
        except Garbage:
            raise
        except Exception:
            log.exception("%s: a message of the learner was not handled", self._model_id)
        # A busy learner reports before its newest policy is recorded: that one is waited for.
        if self.info and self._publication.served >= self.info["policy_version"]:
            self.settled_lsn = max(self.settled_lsn, self.info["applied_lsn"])
        self.wake()

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "policy":
            try:
                await self._publication.policy_made(message)
                await self._gate.published()
            finally:  # also where it failed: the next one is welcome
                self.process.send("published")
        elif message["type"] == "lineage":
            await self._publication.lineage(message)
            self.process.send("lineage")
        elif message["type"] == "state":
            episodes = self._note(message)
            self._reported()
            await self._gate.hear(episodes, int(message["info"]["applied_lsn"]))
        else:
            raise Garbage(f"a message of type {message['type'][:50]!r}")

    def _note(self, message: dict[str, Any]) -> list[HeldOutEpisode]:
        """Take over a report; return the held-out episodes in it."""
        report = as_state(message)
        before, now = self.info.get("applied_lsn", -1), report.info["applied_lsn"]
        if now > before:
            self.process.progressed()
        if now >= before:  # a learner that was started again has to catch up first
            self.info = report.info
        self.checkpoint_error, self.checkpoints = report.checkpoint_error, report.checkpoints
        self.metrics = report.metrics
        self.returns = msgspec.to_builtins(report.returns)
        known = self.evaluations.keys()
        new = [e for e in report.evaluations if e.policy_version not in known]
        self._meters.evaluations.add(len(new), self._model_id)
        for evaluation in report.evaluations:
            self.evaluations[evaluation.policy_version] = msgspec.to_builtins(evaluation)
        for old in list(self.evaluations)[:-KEEP_EVALUATIONS]:
            del self.evaluations[old]
        return report.episodes

    async def _quarantined(self, lsn: int, reason: str) -> bool:
        """Set aside a row that has ended the learner again and again; return whether it is."""
        row = SkipRow(lsn, reason, self._journal.accepted_train(lsn) or 0)
        if not self.quarantine.may(lsn) or not await self._commits.record(row):
            return False
        self.quarantine.add(row)
        log.error("%s: row %d is set aside: %s", self._model_id, lsn, reason)
        self.wake()
        return True

    # -- waiting for it -------------------------------------------------------------------------

    def wake(self) -> None:
        """Let everybody who waits for a change look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Return when something holds, or nothing more is to be expected, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds() and self._commits.refusal is None and not self.failed:
                    await self._changed.wait()

    @property
    def failed(self) -> bool:
        """Whether it was given up for now."""
        return self.process.state == "failed"

    def check(self) -> None:
        """Refuse to wait for a learner that was given up.

        Raises:
            LearnerFailed: with what it ended of.
        """
        if self.failed:
            remedy = "data is kept and the last policy served; see the service's log"
            raise LearnerFailed("learner", "one that runs", self.process.error or "", remedy)
