"""`Standing`: who is champion and who is tried, as the CONTROL rows of a journal say."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Set
from dataclasses import asdict
from typing import Any

from jormungandr.service.journal.decisions import (
    DECISIONS,
    CandidateRow,
    ChampionRow,
    Decision,
    Named,
    RollbackRow,
)

__all__ = ["Standing"]

#: Decisions shown.
HISTORY = 100
#: Champions, and candidates, whose files are kept.
KEEP_CHAMPIONS, KEEP_CANDIDATES = 8, 4


class Standing:
    """What the decisions so far come to; a function of them alone.

    Args:
        decisions: oldest first.
    """

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self.champion: ChampionRow | None = None
        self.candidate: CandidateRow | None = None
        #: Updates of the newest policy that was tried, or of the first champion.
        self.considered = -1
        #: A version that is about to be decided on.
        self.held: int | None = None
        self.counts: Counter[str] = Counter()
        self._history: deque[Decision] = deque(maxlen=HISTORY)
        #: The way to the present champion; a rollback goes back along it.
        self._path: list[int] = []
        #: Newest last, each version once.
        self._champions: dict[int, ChampionRow] = {}
        self._candidates: dict[int, CandidateRow] = {}
        for decision in decisions:
            self.take(decision)

    def take(self, decision: Decision) -> None:
        """Take the next decision."""
        self.counts[decision.kind] += 1
        self._history.append(decision)
        if isinstance(decision, CandidateRow):
            self.candidate = decision
            self.considered = max(self.considered, decision.update_count)
            self._candidates = _renewed(self._candidates, decision, KEEP_CANDIDATES)
            return
        self.candidate = None
        if isinstance(decision, ChampionRow):
            self.champion = decision
            if decision.previous is None:
                self.considered = max(self.considered, decision.update_count)
            self._champions = _renewed(self._champions, decision, KEEP_CHAMPIONS)
            self._walk(decision)

    def _walk(self, row: ChampionRow) -> None:
        if isinstance(row, RollbackRow) and row.version in self._path:
            del self._path[self._path.index(row.version) + 1 :]
        elif self._path[-1:] != [row.version]:
            self._path = [*self._path, row.version][-KEEP_CHAMPIONS:]

    @property
    def decided(self) -> dict[str, int]:
        """How many decisions of each kind there were."""
        return {kind: self.counts[kind] for kind in DECISIONS}

    @property
    def pinned(self) -> bool:
        """Whether the champion stays until an operator says otherwise."""
        return self.champion is not None and self.champion.pinned

    def earlier(self) -> ChampionRow | None:
        """Return the champion to roll back to; None when there was none before this one.

        After a rollback it is the one before that again: to go forward, promote.
        """
        found = [version for version in self._path[:-1] if version in self._champions]
        return self._champions[found[-1]] if found else None

    def named(self, version: int) -> Named | None:
        """Return what names a champion or candidate that is kept; None of any other version."""
        row = self._champions.get(version) or self._candidates.get(version)
        return None if row is None else row.named

    def digest(self, version: int) -> str | None:
        """Return the digest of such a policy."""
        named = self.named(version)
        return None if named is None else named.digest

    def was_champion(self, version: int) -> ChampionRow | None:
        """Return what names an earlier champion that is kept."""
        return self._champions.get(version)

    def pins(self) -> Set[int]:
        """Return the versions whose files are kept, however old."""
        held = () if self.held is None else (self.held,)
        return {*self._champions, *self._candidates, *held}

    def history(self) -> list[dict[str, Any]]:
        """Return the newest decisions as JSON-able values, oldest first."""
        return [{"kind": decision.kind, **asdict(decision)} for decision in self._history]


def _renewed(rows: dict[int, Any], row: Any, keep: int) -> dict[int, Any]:
    """Return rows by version with one at the end, the newest so many."""
    kept = {version: old for version, old in rows.items() if version != row.version}
    kept[row.version] = row
    return dict(list(kept.items())[-keep:])
