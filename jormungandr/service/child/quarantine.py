"""`Quarantine`: the rows of a model that ended its learner again and again, and were set aside."""

from __future__ import annotations

from jormungandr.service.journal.database import SkipRow
from jormungandr.service.journal.writer import Journal

__all__ = ["Quarantine"]


class Quarantine:
    """What the journal says of rows that no learner applies.

    Args:
        journal: of the model.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows = {row.skipped: row for row in reversed(journal.skips())}
        self.train = sum(map(self._accepted, self._rows.values()))

    @property
    def positions(self) -> list[int]:
        """Of the rows, in order."""
        return sorted(self._rows)

    def may(self, lsn: int) -> bool:
        """Whether a position is that of a data row that is not set aside yet."""
        return lsn not in self._rows and self._journal.accepted_train(lsn) is not None

    def add(self, row: SkipRow) -> None:
        """Take over a row that is recorded."""
        self._rows[row.skipped] = row
        self.train += self._accepted(row)

    def _accepted(self, row: SkipRow) -> int:
        """Return the training transitions that a row which is set aside has been counted with."""
        return row.train or self._journal.accepted_train(row.skipped) or 0

    def warnings(self) -> list[str]:
        """Return what the operator should know."""
        return [
            f"row_quarantined: row {lsn} ended the learner again and again ({row.reason}) and is"
            " set aside; its transitions are in the journal, and nothing learns from them"
            for lsn, row in sorted(self._rows.items())
        ]
