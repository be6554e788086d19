"""Rows that were set aside, and are dropped to make room: nobody is told that the learner lags."""

from __future__ import annotations

from pathlib import Path

import pytest

from jormungandr.service.child.quarantine import Quarantine
from jormungandr.service.journal.database import SkipRow
from jormungandr.service.journal.writer import Journal
from tests.faults.built import BATCH, ROWS, Built


@pytest.mark.parametrize("recorded", [True, False])
def test_counts_of_a_row_that_is_gone(tmp_path: Path, recorded: bool) -> None:
    """What was accepted with it stays known, by its SKIP row or as long as it is there."""
    built = Built(tmp_path / "data")
    for at in range(0, 3 * BATCH, BATCH):
        built.add(ROWS[at : at + BATCH])
    before = Quarantine(built.journal)
    row = SkipRow(2, "it ended the learner", 6 * recorded)
    built.control(row)
    before.add(row)
    kept = Quarantine(built.journal).train
    built.journal.drop_rows(3, 1 << 20)
    built.close()
    journal = Journal(built.folder / "journal.db")
    after = Quarantine(journal)
    journal.close()

    assert before.train == kept == 6
    assert after.positions == [2]
    assert after.train == 6 * recorded
