"""`Progress`: how far a state machine has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jormungandr.columns import TRAIN, VALIDATION
from jormungandr.learner.support import CLIPPED_AVERAGING
from jormungandr.rows import SkippedRow

__all__ = ["Progress"]


@dataclass
class Progress:
    """Counters of the state machine; each is part of a checkpoint.

    Args:
        lsn: last row applied.
        version: newest policy version.
        updates: updates completed.
        skipped: due updates skipped for want of a batch.
        non_finite: updates skipped for a non-finite loss or gradient.
        non_finite_run: how many of those in a row.
        rollbacks: restorations of the good copy.
        since_copy: finite updates since the good copy was made.
        diverged_version: version of the restored policy while it is the one to serve, else -1.
        diverged_updates: updates completed when it was restored.
        latched: training transitions applied when the policy to serve was made.
        unlabelled: labels that found their item gone.
        lineages: lineage rows passed.
        quarantined: rows that were set aside.
        gaps: (split, first ordinal, transitions) of those that never came because of it.
        clipped_low, clipped_high: running average of the target mass clipped at each end.
        widened: times that a support which fits itself has moved.
    """

    lsn: int = 0
    version: int = 0
    updates: int = 0
    skipped: int = 0
    non_finite: int = 0
    non_finite_run: int = 0
    rollbacks: int = 0
    since_copy: int = 0
    diverged_version: int = -1
    diverged_updates: int = 0
    latched: int = 0
    unlabelled: int = 0
    lineages: int = 0
    quarantined: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    widened: int = 0

    @property
    def diverged(self) -> bool:
        """Whether the last good policy is served because training went non-finite."""
        return self.diverged_version >= 0

    @property
    def served_version(self) -> int:
        """The version to act with: the newest, or the restored one while it is diverged."""
        return self.diverged_version if self.diverged else self.version

    def set_aside(self, row: SkippedRow, came: Mapping[int, int]) -> None:
        """Take in that a row was set aside, and what its transitions leave open.

        Args:
            row: what is left of it.
            came: transitions of each split that did come.
        """
        self.quarantined += 1
        for split, count in ((TRAIN, row.train), (VALIDATION, row.validation)):
            if count:
                earlier = sum(n for s, _, n in self.gaps if s == split)
                self.gaps.append([split, came[split] + earlier, count])

    def own_ordinal(self, split: int, ordinal: int) -> int | None:
        """Return how many transitions of a split came before one; None when it never came.

        Args:
            split: of the transition.
            ordinal: how many were accepted before it, with those of rows that were set aside.
        """
        missing = 0
        for gap, first, count in self.gaps:
            if gap == split and ordinal >= first:
                if ordinal < first + count:
                    return None
                missing += count
        return ordinal - missing

    def average_clipped(self, low: float, high: float) -> None:
        """Take in the fractions of an update's target mass that were clipped at each end."""
        self.clipped_low += CLIPPED_AVERAGING * (low - self.clipped_low)
        self.clipped_high += CLIPPED_AVERAGING * (high - self.clipped_high)
