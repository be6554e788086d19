"""`Handing`: which policies of one model are handed out, and to whom. Lives on the event loop."""

from __future__ import annotations

from typing import TypeAlias

from jormungandr.errors import (
    CheckpointError,
    InvalidValue,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionUnknown,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.service.journal.decisions import CandidateRow, ChampionRow
from jormungandr.service.promotion.loaded import Loaded
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.publication import Publication
from jormungandr.settings import Promotion

__all__ = ["ROLES", "Handing", "Wanted"]

#: Policies that were asked for by their version, in memory.
LOADED = 4
#: Under which a policy can be asked for.
ROLES = ("latest", "champion", "candidate")
#: What is asked for: one of `ROLES`, a version, or None for what the model serves.
Wanted: TypeAlias = str | int | None


class Handing:
    """The policies that stand, and those that are asked for by their version.

    Args:
        rule: of the model's specification.
        publication: of its policies.
        standing: what the journal says was decided.
    """

    def __init__(self, rule: Promotion, publication: Publication, standing: Standing) -> None:
        self.rule, self.standing, self._publication = rule, standing, publication
        self._loaded = Loaded(self._load, LOADED)
        self.champion: PolicySnapshot | None = None
        self.candidate: PolicySnapshot | None = None
        if standing.champion is not None:
            self.champion = self._stored(standing.champion)
        if standing.candidate is not None:
            self.candidate = self._stored(standing.candidate)

    def _stored(self, row: ChampionRow | CandidateRow) -> PolicySnapshot | None:
        """Return a policy from its file; None, and a line in the log, where that is not whole."""
        return self._publication.shelf.whole(row.version, row.digest, row.file)

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
