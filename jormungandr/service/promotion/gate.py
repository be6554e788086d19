"""`Gate`: hands out a model's policies, tries new ones, and promotes what has shown to be better.

Lives on the event loop. Whatever it decides is a CONTROL row first, and served after that: a
service that is killed between the two serves the same policy when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jormungandr.errors import (
    CheckpointError,
    InvalidValue,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionUnknown,
)
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
from jormungandr.service.promotion.loaded import Loaded
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.publication import Publication
from jormungandr.trial import Evidence, Trial

__all__ = ["ROLES", "Gate", "Wanted"]

log = logging.getLogger("jormungandr")

#: Policies that were asked for by their version, in memory.
LOADED = 4
#: Why a trial ends whose policy cannot be served any more.
LOST = "the candidate's file is damaged or gone"
#: Under which a policy can be asked for.
ROLES = ("latest", "champion", "candidate")
#: What is asked for: one of `ROLES`, a version, or None for what the model serves.
Wanted: TypeAlias = str | int | None


class Gate:
    """Which policies of one model are handed out.

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
        self._journal, self._commits, self._publication = journal, commits, publication
        self._changed, self.standing = changed, standing
        self.rule = journal.created.spec.promotion
        #: Held while something is decided.
        self.deciding = asyncio.Lock()
        self._seen = 0  # position of the row that ended the last episode that was looked at
        self._loaded = Loaded(self._load, LOADED)
        self.trial: Trial | None = None
        self.champion: PolicySnapshot | None = None
        self.candidate: PolicySnapshot | None = None
        if standing.champion is not None:
            self.champion = self._stored(standing.champion)
        if standing.candidate is not None:
            self._begin(standing.candidate, self._stored(standing.candidate))

    def _stored(self, row: ChampionRow | CandidateRow) -> PolicySnapshot | None:
        """Return a policy from its file; None, and a line in the log, where that is not whole."""
        return self._publication.shelf.whole(row.version, row.digest, row.file)

    def _begin(self, row: CandidateRow, policy: PolicySnapshot | None) -> None:
        self.candidate = policy
        self.trial = Trial(row.version, row.champion, row.after, self.rule)

    # -- what is handed out ---------------------------------------------------------------------

    @property
    def handed(self) -> PolicySnapshot | None:
        """The policy that is handed out to who asks for none; None while there is none."""
        return self.champion if self.rule.gated else self._publication.policy

    @property
    def handed_version(self) -> int:
        """Its version; that of the newest policy while there is none."""
        return self._publication.served if self.handed is None else self.handed.version

    @property
    def lost(self) -> int | None:
        """The champion whose file is damaged or gone, so that it cannot be served."""
        row = self.standing.champion
        return row.version if row is not None and self.champion is None else None

    @property
    def at_hand(self) -> PolicySnapshot:
        """The policy that is handed out, where there is one."""
        assert self.handed is not None  # whoever asks has waited for it
        return self.handed

    def role(self, wanted: str | None) -> str:
        """Return the role in which a policy is handed out."""
        return wanted or self.rule.serve

    def check(self, wanted: Wanted, where: str = "policy") -> None:
        """Refuse to look for what cannot be.

        Args:
            wanted: what is asked for.
            where: the name under which it is.

        Raises:
            InvalidValue: no role, or one that there is not without promotions.
        """
        if isinstance(wanted, str):
            roles = ROLES if self.rule.gated else ROLES[:1]
            if wanted not in roles:
                remedy = "" if wanted not in ROLES else "the model was created to serve the latest"
                expected = f"a version, or one of {list(roles)}"
                raise InvalidValue(where, expected, repr(wanted), remedy)

    async def version(self, version: int) -> PolicySnapshot:
        """Return a version: one that stands, or one whose file is kept.

        Raises:
            PolicyVersionUnknown: it was never published.
            PolicyGone: its file is no longer kept, or damaged.
        """
        for policy in (self._publication.policy, self.champion, self.candidate):
            if policy is not None and policy.version == version:
                return policy
        if not 0 <= version <= self._publication.highest:
            expected = f"one published, at most {self._publication.highest}"
            raise PolicyVersionUnknown("policy", expected, version)
        return await self._loaded.get(version)

    def _load(self, version: int) -> PolicySnapshot:
        """Read a version from its file; in a thread."""
        try:
            policy = PolicySnapshot.from_bytes(self._publication.read(version))
        except (OSError, CheckpointError):
            raise PolicyGone("policy", "a policy that is kept", version) from None
        if policy.digest() != self._publication.digest(version):
            raise PolicyGone("policy", "a policy that is kept", version, "its file is damaged")
        return policy

    def standing_in(self, wanted: str | None) -> PolicySnapshot | None:
        """Return the policy of a role; None before there is one.

        Without a candidate, the champion is it: there is nothing to be tried.

        Args:
            wanted: that was checked.

        Raises:
            PolicyNotReady: the champion is wanted, and lost.
        """
        if wanted == "latest":
            return self._publication.policy
        if wanted == "candidate" and self.candidate is not None:
            return self.candidate
        if self.handed is None and self.lost is not None:
            raise PolicyNotReady(
                "champion",
                f"the file of policy {self.lost}",
                "a damaged one, or none",
                "an operator may promote another one, or roll back",
            )
        return self.handed

    # -- what is decided ------------------------------------------------------------------------

    async def published(self) -> None:
        """Look at the policy that was published last."""
        if self.rule.gated:
            async with self.deciding:
                await self._next()

    async def hear(self, episodes: Sequence[HeldOutEpisode]) -> None:
        """Take held-out episodes that ended, in their order; each counts once."""
        if not self.rule.gated:
            return
        async with self.deciding:
            # What a row ended is reported at once, and again by a learner that was started again.
            for episode in (e for e in episodes if e.last > self._seen):
                if self.trial is not None and self.trial.take(episode) is not None:
                    await self._decide()
            self._seen = max(self._seen, episodes[-1].last if episodes else 0)
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
        self.trial = self.candidate = None

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
