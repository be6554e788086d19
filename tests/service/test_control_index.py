"""CONTROL rows are found by an index: old journals get it, and what it holds is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from jormungandr.errors import DataDirError
from jormungandr.ledger import Draft
from jormungandr.service.journal.database import CONTROL, Created, VersionRow, control_rows
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools.verification import check_model
from jormungandr.spec import ModelSpec
from tests.service.serving import QUIET, connect, experience, memory

CREATED = Created("m", 1, 0, ModelSpec.from_dict(QUIET))


def version(number: int) -> VersionRow:
    """Return the row of a policy."""
    return VersionRow(number, number, 0, "0" * 64, "0" * 64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal of three policies."""
    path = tmp_path / "journal.db"
    journal = Journal(path, CREATED)
    for n in range(3):
        journal.commit(draft := Draft(journal), [], [version(n)])
        journal.merged(draft)
    journal.close()
    return path


def altered(path: Path, *statements: str) -> None:
    """Change a journal by hand."""
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def plan(path: Path) -> Iterator[str]:
    """Yield how SQLite would find CONTROL rows."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    asked: list[str] = []
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda found: asked.append(found["sql"]))
    control_rows(connection, path, "version")
    connection.trace_v2(0, None)
    (statement,) = asked
    for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", ("version", -1)):
        yield str(row[3])
    connection.close()


def test_control_rows_are_found_by_their_index(path: Path) -> None:
    """A start does not read every row to find the few that are no data."""
    assert list(plan(path)) == ["SEARCH journal USING INDEX control (kind=?)"]


def test_a_journal_of_before(path: Path) -> None:
    """One without the index is read as ever, and has it when a server has opened it."""
    altered(path, "DROP INDEX control", "DELETE FROM meta WHERE name = 'controls'")
    assert list(plan(path)) == ["SCAN journal"]
    journal = Journal(path)
    assert [row.version for row in journal.versions()] == [0, 1, 2]
    journal.commit(draft := Draft(journal), [], [version(3)])
    journal.merged(draft)
    journal.close()

    assert list(plan(path)) == ["SEARCH journal USING INDEX control (kind=?)"]
    again = Journal(path)
    assert [row.version for row in again.versions()] == [0, 1, 2, 3]
    again.close()


def test_an_index_that_leaves_one_out(path: Path) -> None:
    """An entry that is missing ends the start: a version number would be given twice."""
    altered(path, "UPDATE journal SET kind = 'labels' WHERE lsn = 4")
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    assert len(control_rows(connection, path, "version")) == 2  # it is not seen here
    connection.close()

    with pytest.raises(DataDirError, match="index control: expected 4 CONTROL rows, got 3"):
        Journal(path)


def test_the_count_goes_with_the_rows(path: Path) -> None:
    """Deletions are counted; a commit without CONTROL rows counts none."""
    journal = Journal(path)
    journal.commit(draft := Draft(journal), [], [])
    journal.merged(draft)
    journal.delete(2)
    journal.close()

    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute(f"SELECT count(*) FROM journal WHERE {CONTROL}").fetchone()
    meta = connection.execute("SELECT value FROM meta WHERE name = 'controls'").fetchone()
    assert (rows, meta) == ((5,), (b"5",))
    connection.close()
    Journal(path).close()


@pytest.mark.parametrize("without", [False, True], ids=["as it is", "of before"])
def test_verify_takes_both(tmp_path: Path, without: bool) -> None:
    """`verify` finds nothing wrong with a journal that has the index, or has none yet."""
    with memory(tmp_path) as http:
        connect(http, "m").create(QUIET)
        connect(http, "m").add(experience(1, 4))
    if without:
        altered(
            tmp_path / "models" / "m.1" / "journal.db",
            "DROP INDEX control",
            "DELETE FROM meta WHERE name = 'controls'",
        )

    findings = list(check_model(tmp_path / "models" / "m.1"))
    assert [str(finding) for finding in findings if finding.status == "damage"] == []
    assert len(findings) > 3
