"""Moving the WAL: beside the commits, bounded, and whoever reads is not in the way for long."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr.ledger import Draft
from jormungandr.service.journal import mover as module
from jormungandr.service.journal.database import Created, SkipRow
from jormungandr.service.journal.mover import WalMover
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.service.serving import QUIET, until

PAGE = 4096
PAGES, LIMIT = 50, 200


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    """A new journal, whose WAL is moved early."""
    monkeypatch.setattr(module, "WAL_PAGES", PAGES)
    monkeypatch.setattr(module, "WAL_LIMIT", LIMIT)
    opened = Journal(tmp_path / "journal.db", Created("m", 1, 0, ModelSpec.from_dict(QUIET)))
    yield opened
    opened.close()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The mode of each move that was made, and the name of its thread."""
    made = []
    checkpoint = WalMover._checkpoint

    def noted(self: WalMover, mode: int) -> int:
        made.append((mode, threading.current_thread().name))
        return checkpoint(self, mode)

    monkeypatch.setattr(WalMover, "_checkpoint", noted)
    return made


def write(journal: Journal, size: int = 2_000) -> None:
    """Commit something of a size."""
    draft = Draft(journal)
    journal.commit(draft, [], [SkipRow(0, "-" * size)])
    journal.merged(draft)


def wal_pages(journal: Journal) -> int:
    """Return the size of the WAL."""
    return Path(f"{journal.path}-wal").stat().st_size // PAGE


def idle(journal: Journal) -> bool:
    """Whether nothing is being moved."""
    return not journal._wal._moving


def test_wal_stays_small(journal: Journal, moves: list[Any]) -> None:
    """Commit by commit it is moved at its first bound, and begins anew; never by the writer."""
    sizes = []
    for _ in range(150):
        write(journal, 8_000)
        until(lambda: idle(journal), "a move")
        sizes.append(wal_pages(journal))

    assert max(sizes) <= PAGES + 20
    assert sum(after < before for before, after in itertools.pairwise(sizes)) >= 5
    assert {mode for mode, _ in moves} == {apsw.SQLITE_CHECKPOINT_PASSIVE}
    assert all(name.startswith("wal") for _, name in moves)


def test_wal_is_bounded_under_load_and_reading(journal: Journal, moves: list[Any]) -> None:
    """Commits without a pause, read without a pause: it goes little beyond its second bound."""
    done = threading.Event()

    def read() -> None:
        reader = JournalReader(journal.path)
        while not done.is_set():
            reader.rows(0)
        reader.close()

    reading = threading.Thread(target=read)
    reading.start()
    largest = 0
    for _ in range(400):
        write(journal, 8_000)
        largest = max(largest, wal_pages(journal))
    done.set()
    reading.join()
    until(lambda: idle(journal), "the last move")
    written = journal.path.stat().st_size // PAGE

    assert written > 2 * LIMIT
    assert largest < 3 * LIMIT
    assert apsw.SQLITE_CHECKPOINT_TRUNCATE in {mode for mode, _ in moves}


def test_a_move_holds_no_commit(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the WAL is moved, however long that takes, commits go on."""
    held, begun = threading.Event(), threading.Event()

    def slow(_: WalMover, mode: int) -> int:
        begun.set()
        assert held.wait(60)
        return 10**9

    monkeypatch.setattr(WalMover, "_checkpoint", slow)
    for _ in range(LIMIT):
        write(journal, 100)

    assert begun.is_set()
    assert journal.counters.lsn == 1 + LIMIT
    held.set()


def test_a_reader_in_the_way(
    journal: Journal,
    moves: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who reads for long makes the WAL grow, stops no commit, and is named in the log."""
    monkeypatch.setattr(module, "READER_TIMEOUT", 1)
    other = apsw.Connection(str(journal.path), flags=apsw.SQLITE_OPEN_READONLY)
    cursor = other.execute("SELECT * FROM journal, meta")
    next(cursor)
    while wal_pages(journal) < 3 * LIMIT:
        write(journal, 20_000)
    until(lambda: idle(journal), "the last move")
    # Not at every commit: each try holds commits for a moment.
    assert 1 <= caplog.text.count("somebody reads it") < 20
    assert len(moves) < 80

    cursor.close()
    other.close()
    while wal_pages(journal) >= PAGES:
        write(journal)
        until(lambda: idle(journal), "a move")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (apsw.IOError("disk I/O error"), [74]),
        (apsw.FullError("database or disk is full"), []),
        (apsw.CorruptError("malformed"), []),
    ],
)
def test_what_a_failed_move_does(
    journal: Journal,
    error: Exception,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failed sync ends the process; a full disk is tried again later."""
    ended: list[int] = []

    def fail(_: WalMover, mode: int) -> int:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "_exit", ended.append)
        patch.setattr(WalMover, "_checkpoint", fail)
        for _ in range(PAGES):
            write(journal)
        until(lambda: idle(journal) and caplog.text, "a failed move")
    assert ended[:1] == expected
    assert str(error) in caplog.text
    for _ in range(2 * PAGES):
        write(journal)
        until(lambda: idle(journal), "a move")
    assert wal_pages(journal) < 3 * PAGES
