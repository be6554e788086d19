"""The CONTROL rows of promotions: who is tried, who is served, who is not, and on what evidence.

Each is durable before anything of it is served. A policy is named by its version and by two
digests, of its content and of its file: a champion may be older than any VERSION row that a server
remembers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

__all__ = [
    "DECISIONS",
    "By",
    "CandidateRow",
    "ChampionRow",
    "Decision",
    "Named",
    "RefusalRow",
    "RollbackRow",
]

#: Who decided: the gate, on evidence; an operator; or the service, for want of another policy.
By: TypeAlias = Literal["gate", "operator", "service"]


class Named(NamedTuple):
    """What names a policy, as its VERSION row has it; `file` is the SHA-256 of its file."""

    version: int
    update_count: int
    digest: str
    file: str


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """A trial begins.

    Args:
        version, update_count, digest, file: of the policy that is tried, as its VERSION row has
            them.
        champion: the version that it is compared with.
        after: position in the journal from which on episodes that begin count.
    """

    kind: ClassVar[str] = "candidate"

    version: int
    update_count: int
    digest: str
    file: str
    champion: int
    after: int

    @property
    def named(self) -> Named:
        """The policy."""
        return Named(self.version, self.update_count, self.digest, self.file)


@dataclass(frozen=True, slots=True)
class ChampionRow:
    """A policy is served from here on; a trial that runs ends with it.

    Args:
        version, update_count, digest, file: of the policy.
        previous: the champion before it; None of the first.
        by: who decided.
        reason: in words.
        pinned: whether it stays until an operator says otherwise.
        evidence: as `jormungandr.trial.Evidence` has it; None where there was no trial.
    """

    kind: ClassVar[str] = "champion"

    version: int
    update_count: int
    digest: str
    file: str
    previous: int | None
    by: By
    reason: str
    pinned: bool = False
    evidence: dict[str, Any] | None = None

    @property
    def named(self) -> Named:
        """The policy."""
        return Named(self.version, self.update_count, self.digest, self.file)


@dataclass(frozen=True, slots=True)
class RollbackRow(ChampionRow):
    """An operator has an earlier champion served again; the fields are those of a `ChampionRow`."""

    kind: ClassVar[str] = "rollback"


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A trial ends, and the champion stays.

    Args:
        version: the candidate's.
        champion: that it was compared with.
        by, reason: who decided, and why.
        evidence: what there was of it.
    """

    kind: ClassVar[str] = "refusal"

    version: int
    champion: int
    by: By
    reason: str
    evidence: dict[str, Any]


#: A `RollbackRow` is a `ChampionRow` too.
Decision: TypeAlias = CandidateRow | ChampionRow | RefusalRow
#: By kind.
DECISIONS: dict[str, type[Decision]] = {
    row.kind: row for row in (CandidateRow, ChampionRow, RollbackRow, RefusalRow)
}
