"""`PromotionCheck`: what was decided about promotions against the rows it was decided from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jormungandr.heldout import HeldOut, kept_episodes
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.service.journal.decisions import CandidateRow, ChampionRow, Decision
from jormungandr.service.promotion.standing import Standing
from jormungandr.service.tools.findings import Finding, gap, proven
from jormungandr.settings import Promotion
from jormungandr.trial import Evidence, Trial

__all__ = ["PromotionCheck"]


@dataclass
class PromotionCheck:
    """Decides again, from rows in the order of their positions.

    Args:
        rule: of the model's specification.
        gone: data rows up to here have been dropped.
    """

    rule: Promotion
    gone: int
    standing: Standing = field(default_factory=Standing)
    #: Decisions that came out the same, and positions of those that cannot be made again.
    again: int = 0
    unproven: list[int] = field(default_factory=list)
    _trial: Trial | None = None

    def __post_init__(self) -> None:
        self._held_out = HeldOut(kept_episodes(self.rule.min_episodes))
        self._number = 0

    def data(self, row: TransitionsRow) -> None:
        """Take in a row of transitions."""
        self._held_out.add(row.columns.take(row.outcome == ACCEPTED), row.lsn)
        if self._trial is not None:
            for episode in self._held_out.since(self._number):
                self._trial.take(episode)
        self._number = self._held_out.finished

    def decision(self, lsn: int, row: Decision, whole: bool) -> str | None:
        """Take in a decision; return what is wrong with it.

        Args:
            lsn: its position.
            row: what was decided.
            whole: whether all rows before it that are kept prove themselves.
        """
        fault = self._unfounded(row)
        if fault is None and whole:
            fault = self._succession(row) or self._decided(lsn, row)
        elif fault is None:  # who was champion or tried may have been in a row that is lost
            self.unproven.append(lsn)
        self.standing.take(row)
        self._trial = None
        if isinstance(row, CandidateRow):
            self._trial = Trial(row.version, row.champion, row.after, self.rule)
            for episode in self._held_out.since(0):
                self._trial.take(episode)
        return fault

    def _succession(self, row: Decision) -> str | None:
        """Return what does not follow on the decisions before it."""
        known = self.standing.champion
        champion = None if known is None else known.version
        before = row.previous if isinstance(row, ChampionRow) else row.champion
        if before != champion:
            return f"it says that {before} was champion, and {champion} was"
        return None

    @staticmethod
    def _unfounded(row: Decision) -> str | None:
        """Return what is wrong with a decision whatever was before it."""
        if isinstance(row, CandidateRow) or row.by != "gate":
            return None
        if row.evidence is None:
            return "decided on evidence, and there is none"
        if isinstance(row, ChampionRow) and not Evidence.from_dict(row.evidence).better:
            return "promoted on evidence that is not enough"
        return None

    def _decided(self, lsn: int, row: Decision) -> str | None:
        """Return what is wrong with the evidence of a decision."""
        if isinstance(row, CandidateRow) or row.by != "gate":
            return None
        candidate = self.standing.candidate
        if candidate is None or candidate.version != row.version:
            return "decided on evidence, and there was no trial of that policy"
        assert row.evidence is not None  # or it is unfounded
        evidence = Evidence.from_dict(row.evidence)
        again = None if self._trial is None else self._trial.verdict
        # A lapse counts all that ended since, also what began in rows that have been dropped.
        if self.gone > candidate.after or (self.gone and evidence.low is None):
            self.unproven.append(lsn)
        elif again is None or not self._same(evidence, again):
            return "its evidence is not what the rows before it say"
        else:
            self.again += 1
        return None

    def _same(self, evidence: Evidence, again: Evidence) -> bool:
        """Whether two are the same, to the last digits that a library of functions may turn."""
        mine, other = evidence.to_dict(), again.to_dict()
        if self.gone:  # episodes that began before what is left are not seen to end
            mine["seen"] = other["seen"]
        return mine.keys() == other.keys() and all(_close(mine[k], other[k]) for k in mine)

    def findings(self, where: str) -> Iterator[Finding]:
        """Yield what is proven, and what is not."""
        if self.again:
            yield proven(where, f"{self.again} promotions and refusals, as the rows say")
        for lsn in self.unproven:
            yield gap(f"{where}: row {lsn}", "rows that it follows on are not here")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)
