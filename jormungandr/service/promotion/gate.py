"""`Gate`: tries new policies of a model, and promotes what has shown to be better.

Lives on the event loop. Whatever it decides is a CONTROL row first, and served after that: a
service that is killed between the two serves the same policy when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from jormungandr.failpoints import reached
from jormungandr.heldout import HeldOutEpisode
from jormungandr.policy import PolicySnapshot
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.decisions import (
    By,
    CandidateRow,
    ChampionRow,
    Decision,
    Named,
    RefusalRow,
)
from jormungandr.service.journal.writer import Journal
from jormungandr.service.promotion.handing import Handing
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.publication import Publication
from jormungandr.trial import Evidence, Trial

__all__ = ["Gate"]

log = logging.getLogger("jormungandr")

#: Why a trial ends whose policy cannot be served any more.
LOST = "the candidate's file is damaged or gone"


class Gate(Handing):
    """Decides which policies of one model are handed out.

    Args:
        journal: of the model.
        commits: the way into it.
        publication: of its policies.
        standing: what the journal says was decided.
        changed: called when what is handed out may be another policy.
    """

    def __init__(
        self,
        journal: Journal,
        commits: Commits,
        publication: Publication,
        standing: Standing,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(journal.created.spec.promotion, publication, standing)
        self._journal, self._commits, self._changed = journal, commits, changed
        #: Held while something is decided.
        self.deciding = asyncio.Lock()
        self._seen = 0  # position of the row that ended the last episode that was looked at
        self.trial: Trial | None = None
        #: Up to where a trial of before the start has to be counted again; None once it is.
        self._uncounted: int | None = None
        if standing.candidate is not None:
            self._begin(standing.candidate, self.candidate)
            self._uncounted = journal.counters.lsn

    def _begin(self, row: CandidateRow, policy: PolicySnapshot | None) -> None:
        self.candidate = policy
        self.trial = Trial(row.version, row.champion, row.after, self.rule)

    async def published(self) -> None:
        """Look at the policy that was published last."""
        if self.rule.gated:
            async with self.deciding:
                await self._next()

    async def hear(self, episodes: Sequence[HeldOutEpisode], applied: int) -> None:
        """Take held-out episodes that ended, in their order; each counts once.

        Args:
            episodes: that the learner had not reported.
            applied: position of the row up to which it has reported them all.
        """
        if not self.rule.gated:
            return
        async with self.deciding:
            # What a row ended is reported at once, and again by a learner that was started again.
            for episode in (e for e in episodes if e.last > self._seen):
                if self.trial is not None and self.trial.take(episode) is not None:
                    await self._decide()
            self._seen = max(self._seen, episodes[-1].last if episodes else 0)
            if self._uncounted is not None and applied >= self._uncounted:
                self._uncounted = None
            if self.trial is not None and self.trial.verdict is not None:
                await self._decide()  # of which there could be no record before
            await self._next()

    async def _decide(self) -> None:
        """End the trial as its evidence says."""
        row, trial = self.standing.candidate, self.trial
        assert row is not None
        assert trial is not None
        assert trial.verdict is not None
        evidence = trial.verdict
        if not evidence.better:
            await self.refuse("gate", evidence.reason)
        elif self.candidate is None:
            await self.refuse("service", f"{LOST}, although {evidence.reason}")
        else:
            await self.serve(ChampionRow, row.named, self.candidate, "gate", evidence.reason)

    async def _next(self) -> None:
        """Make the first policy champion, and try the newest when it is time."""
        policy, row = self._publication.policy, self._publication.row
        if policy is None or row is None:
            return
        named = Named(row.version, row.update_count, row.digest, row.file)
        if self.standing.champion is None:
            await self.serve(ChampionRow, named, policy, "service", "the first policy")
        if self.trial is not None and self.candidate is None:
            await self.refuse("service", LOST)
        champion = self.standing.champion
        due = self.standing.considered + self.rule.candidate_every
        if champion is None or champion.pinned or self.trial is not None or self.lost is not None:
            return
        if policy.version == champion.version or row.update_count < due:
            return
        # Taken before its row is written: what is committed meanwhile may have been played so.
        after = self._journal.counters.lsn
        candidate = CandidateRow(*named, champion.version, after)
        if await self._record(candidate):
            self._begin(candidate, policy)
            log.info("%s: policy %d is tried", self._journal.created.model_id, row.version)

    async def refuse(self, by: By, reason: str) -> bool:
        """Record that the candidate is refused."""
        row, evidence = self.standing.candidate, self.evidence()
        assert row is not None
        assert evidence is not None
        refusal = RefusalRow(row.version, row.champion, by, reason, evidence.to_dict())
        if not await self._record(refusal):
            return False
        self._end()
        return True

    async def serve(
        self,
        kind: type[ChampionRow],
        named: Named,
        policy: PolicySnapshot,
        by: By,
        reason: str,
        pinned: bool = False,
    ) -> bool:
        """Record that a policy is champion, then serve it."""
        before, evidence = self.standing.champion, self.evidence()
        decision = kind(
            *named,
            None if before is None else before.version,
            by,
            reason,
            pinned,
            None if evidence is None else evidence.to_dict(),
        )
        if not await self._record(decision):
            return False
        self.champion = policy
        self._end()
        name = self._journal.created.model_id
        log.info("%s: policy %d is served (%s): %s", name, named.version, kind.kind, reason)
        self._changed()
        return True

    def _end(self) -> None:
        self.trial = self.candidate = self._uncounted = None

    async def _record(self, decision: Decision) -> bool:
        """Make a decision durable, and take note of it."""
        if not await self._commits.record(decision):
            return False
        reached("promotion.row")
        self.standing.take(decision)
        return True

    def evidence(self) -> Evidence | None:
        """Return what the trial that runs has come to; None without one."""
        return None if self.trial is None else self.trial.evidence()

    def shown(self) -> Evidence | None:
        """Return the same; None too while it is counted again after a start, of which part is told.

        The episodes are in the journal: the learner reads them again, and reports them.
        """
        return None if self._uncounted is not None else self.evidence()
