"""Admission again: a journal's rows, as they were decided, put through the ledger a second time.

What comes out is the ledger that the rows say there must be; `verify` compares it with the one that
is there, and `salvage` makes one where rows are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.admission import Admission
from jormungandr.columns import Columns
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.protocol import LIMITS, Receipt
from jormungandr.rows import ACCEPTED, Row, TransitionsRow
from jormungandr.service.journal.database import Created

__all__ = ["Readmission", "same_rows"]


@dataclass(frozen=True)
class _Decided(Admission):
    """The rules of a model, where what is stale has been decided before."""

    outcome: NDArray[np.uint8] | None = None

    def _plain(
        self, columns: Columns, draft: Draft, served: int, published: int
    ) -> tuple[Receipt, TransitionsRow] | None:
        """Leave a single one that was dropped to the rest: here nothing looks stale by itself."""
        assert self.outcome is not None
        if (self.outcome != ACCEPTED).any():
            return None
        return super()._plain(columns, draft, served, published)

    def _outcome(self, columns: Columns, served: int) -> NDArray[np.uint8]:
        assert self.outcome is not None
        return self.outcome

    def _allowance(self, outcome: NDArray[np.uint8], draft: Draft) -> None:
        """Let nothing pass that was not let pass before."""


class Readmission:
    """A ledger made from rows.

    Args:
        created: what the journal is of.
    """

    def __init__(self, created: Created) -> None:
        self._created = created
        self.store = MemoryStore()

    def add(self, row: Row) -> Sequence[Row]:
        """Take in the next row, and return what it would be journaled as.

        Raises:
            Conflict: (one of its classes) it contradicts the rows before it.
        """
        draft = Draft(self.store)
        draft.changed = replace(draft.counters, lsn=row.lsn - 1)
        spec, generation = self._created.spec, self._created.generation
        rows: Sequence[Row]
        if isinstance(row, TransitionsRow):
            rules = _Decided(spec, generation, row.outcome)
            newest = LIMITS["timestep_max"]
            _, rows = rules.transitions(row.columns, draft, served=0, published=newest)
        else:
            labels = list(zip(row.identities, row.label.tolist(), strict=True))
            _, rows = Admission(spec, generation).labels(labels, draft)
        self.store.apply(draft)
        return rows


def same_rows(row: Row, again: Sequence[Row]) -> bool:
    """Whether a row came out as itself: one row, of the same decisions."""
    if len(again) != 1 or type(again[0]) is not type(row):
        return False
    other: Any = again[0]
    if isinstance(row, TransitionsRow):
        return bool(
            np.array_equal(row.outcome, other.outcome)
            and np.array_equal(row.columns.label, other.columns.label)
            and np.array_equal(row.columns.digests(), other.columns.digests())
        )
    return row.identities == other.identities and all(
        np.array_equal(getattr(row, name), getattr(other, name))
        for name in ("label", "outcome", "split", "ordinal")
    )


def accepted(row: TransitionsRow) -> int:
    """Return how many of its transitions were accepted."""
    return int(np.count_nonzero(row.outcome == ACCEPTED))
