"""The journal: what makes it durable, what a row says, and a ledger that survives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jormungandr.admission import Admission, check_labels
from jormungandr.columns import columns
from jormungandr.errors import DataDirError, JormungandrError, StorageFull
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.rows import LabelsRow, TransitionsRow, row_digest
from jormungandr.service.journal import database
from jormungandr.service.journal import writer as module
from jormungandr.service.journal.database import Created, VersionRow
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.service.serving import LEDGER, QUIET, experience, identity

SPEC = ModelSpec.from_dict(QUIET)
ADMISSION = Admission(SPEC)
FULL = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a journal's database."""
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """A new journal."""
    opened = Journal(path, Created("m", 1, 0, SPEC))
    yield opened
    opened.close()


def draft(store: Any, call: Callable[[Draft], tuple[Any, Any]]) -> tuple[Draft, Any, Any]:
    """Admit something over a store."""
    changes = Draft(store)
    receipt, rows = call(changes)
    return changes, receipt, rows


def add(store: Any, transitions: list[Any], served: int = 0) -> Any:
    """Admit transitions into a journal or a store in memory, and return the receipt."""
    checked = columns(transitions, SPEC)
    changes, receipt, rows = draft(
        store, lambda d: ADMISSION.transitions(checked, d, served=served, published=9)
    )
    keep(store, changes, rows)
    return receipt


def label(store: Any, labels: list[Any]) -> Any:
    """Admit labels, and return the receipt."""
    checked = check_labels(labels, SPEC)
    changes, receipt, rows = draft(store, lambda d: ADMISSION.labels(checked, d))
    keep(store, changes, rows)
    return receipt


def keep(store: Any, changes: Draft, rows: Any) -> None:
    """Make an admission's changes permanent."""
    if isinstance(store, Journal):
        store.commit(changes, rows, [])
        store.merged(changes)
    else:
        store.apply(changes)


def change(path: Path, statement: str, *values: Any) -> None:
    """Change a database behind the journal's back."""
    connection = apsw.Connection(str(path))
    connection.execute(statement, values)
    connection.close()


# -- durability ---------------------------------------------------------------------------------


def pragma(connection: apsw.Connection, name: str) -> Any:
    """Return the value of a pragma."""
    (found,) = connection.execute(f"PRAGMA {name}").fetchone() or (None,)
    return found


@pytest.mark.parametrize("new", [True, False])
def test_every_commit_waits_for_the_disk(path: Path, new: bool) -> None:
    """The writing connection is in WAL mode with synchronous FULL, new and opened again."""
    journal = Journal(path, Created("m", 1, 0, SPEC))
    if not new:
        journal.close()
        journal = Journal(path)

    assert pragma(journal._writer, "journal_mode") == "wal"
    assert pragma(journal._writer, "synchronous") == FULL
    assert pragma(journal._writer, "wal_autocheckpoint") == 0
    journal.close()


def test_sqlite_is_current() -> None:
    """The SQLite that apsw brings has no WAL fault."""
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= (3, 51, 3)


def test_old_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SQLite that can corrupt a WAL is refused by name."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")

    with pytest.raises(DataDirError, match=r"SQLite: expected >= 3\.51\.3, got 3\.51\.2"):
        Journal(path, Created("m", 1, 0, SPEC))


def test_pragma_that_does_not_hold(journal: Journal) -> None:
    """A connection that will not sync is refused: a file in memory has no WAL."""
    with pytest.raises(DataDirError, match="PRAGMA journal_mode: expected wal"):
        database.make_durable(apsw.Connection(":memory:"))


def test_commit_is_seen_by_others(journal: Journal, path: Path) -> None:
    """What a commit returned for is there for another connection."""
    reader = JournalReader(path)
    assert reader.rows(0) == []
    add(journal, experience(1, 3))

    assert [row.lsn for row in reader.rows(0)] == [2]
    reader.close()


def test_no_room_for_the_index_of_the_wal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may come as an error of the WAL's index; it is one all the same."""

    def fail(row: Any) -> None:
        raise apsw.exception_for(apsw.SQLITE_IOERR_SHMSIZE)

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_write_row", fail)
        with pytest.raises(StorageFull):
            add(journal, experience(1, 3))
    assert add(journal, experience(1, 3)).accepted == 3


def test_failed_write_ends_the_process(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed sync the truth is on the disk alone, and only a restart reads it there."""

    class Ended(BaseException):
        pass

    def leave(status: int) -> None:
        raise Ended(status)

    def fail(row: Any) -> None:
        raise apsw.IOError("disk I/O error")

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(journal, "_write_row", fail)

    with pytest.raises(Ended, match="74"):
        add(journal, experience(1, 3))


# -- rows ---------------------------------------------------------------------------------------


def test_rows_come_back(journal: Journal, path: Path) -> None:
    """The learner reads what was admitted, in order, bit for bit."""
    sent = columns(experience(3, 4), SPEC)
    add(journal, experience(2, 4))
    label(journal, [{**identity("z", "e0", 0), "label": 1}])
    add(journal, experience(3, 4))
    reader = JournalReader(path)
    first, second, third = reader.rows(0)
    reader.close()

    assert isinstance(first, TransitionsRow)
    assert isinstance(second, LabelsRow)
    assert isinstance(third, TransitionsRow)
    assert [first.lsn, second.lsn, third.lsn] == [2, 3, 4]
    assert len(first.columns) == 8
    assert len(third.columns) == 4  # the other eight were known
    for name in ("observation", "next_observation", "reward", "action", "timestep", "label"):
        got = [getattr(row.columns, name) for row in (first, third)]
        assert np.concatenate(got).tobytes() == getattr(sent, name).tobytes()


def test_rows_after_a_position(journal: Journal, path: Path) -> None:
    """Reading goes on after any row, in portions."""
    for n in range(5):
        add(journal, experience(1, 2, actor_id=f"a{n}"))
    reader = JournalReader(path)

    assert [row.lsn for row in reader.rows(0, 3)] == [2, 3, 4]
    assert [row.lsn for row in reader.rows(4)] == [5, 6]
    assert reader.rows(6) == []
    reader.close()


def test_digest_covers_position_kind_and_payload(journal: Journal, path: Path) -> None:
    """The recorded digest is that of the row as it was written, control rows included."""
    add(journal, experience(2, 4))
    with_version = Draft(journal)
    journal.commit(with_version, [], [VersionRow(0, 0, 2, "abc", "def")])
    journal.merged(with_version)
    rows = journal._reader.execute("SELECT lsn, kind, payload, digest FROM journal").fetchall()

    assert [(row[0], row[1]) for row in rows] == [(1, "create"), (2, "transitions"), (3, "version")]
    for lsn, kind, payload, digest in rows:
        assert row_digest(lsn, kind, payload) == digest
        assert row_digest(lsn + 1, kind, payload) != digest


@pytest.mark.parametrize("at", [0, 7, 100, -1])
def test_flipped_byte(journal: Journal, path: Path, at: int) -> None:
    """A byte of a payload that is not what it was is refused, naming the row."""
    add(journal, experience(1, 3))
    add(journal, experience(2, 3))
    (payload,) = journal._reader.execute("SELECT payload FROM journal WHERE lsn = 3").fetchone()
    damaged = bytearray(payload)
    damaged[at] ^= 1
    change(path, "UPDATE journal SET payload = ? WHERE lsn = 3", bytes(damaged))
    reader = JournalReader(path)

    assert [row.lsn for row in reader.rows(0, 1)] == [2]
    with pytest.raises(DataDirError, match=r"journal\.db: row 3: expected its recorded SHA-256"):
        reader.rows(0)
    reader.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE journal SET digest = zeroblob(32) WHERE lsn = 2",
        "UPDATE journal SET kind = 'labels' WHERE lsn = 2",
        "UPDATE journal SET lsn = 9 WHERE lsn = 2",
    ],
)
def test_row_that_is_another(journal: Journal, path: Path, statement: str) -> None:
    """A row under another position, kind or digest is refused."""
    add(journal, experience(1, 3))
    change(path, statement)
    reader = JournalReader(path)

    with pytest.raises(DataDirError, match=r"row [29]: expected its recorded SHA-256"):
        reader.rows(0)
    reader.close()


def test_summary_columns(journal: Journal) -> None:
    """Plain SQL answers how many, whose, which splits and which versions."""
    rows = experience(2, 3, actor_id="b") + experience(1, 2, actor_id="a")
    rows[0]["policy_version"] = 4
    add(journal, rows)
    label(journal, [{**identity("c", "e0", t), "label": 0} for t in range(2)])
    found = journal._reader.execute(
        "SELECT kind, accepted_train, accepted_validation, stale_dropped, labels, actors,"
        " min_version, max_version FROM journal ORDER BY lsn"
    ).fetchall()

    assert found == [
        ("create", 0, 0, 0, 0, "[]", None, None),
        ("transitions", 5, 3, 0, 3, '["a","b"]', -1, 4),
        ("labels", 0, 0, 0, 2, '["c"]', None, None),
    ]


def test_summary_of_stale_transitions(path: Path) -> None:
    """What was dropped as stale is counted apart."""
    spec = ModelSpec.from_dict({**QUIET, "staleness": {"max_policy_lag": 1, "mode": "drop"}})
    journal = Journal(path, Created("m", 1, 0, spec))
    rows = [dict(row, policy_version=t) for t, row in enumerate(experience(1, 3))]
    changes, receipt, written = draft(
        journal,
        lambda d: Admission(spec).transitions(columns(rows, spec), d, served=2, published=2),
    )
    keep(journal, changes, written)
    found = journal._reader.execute(
        "SELECT accepted_train, stale_dropped FROM journal WHERE lsn = 2"
    ).fetchone()
    journal.close()

    assert (receipt.accepted, receipt.stale_dropped) == (2, 1)
    assert found == (2, 1)


def test_created(path: Path) -> None:
    """A journal says of itself which model it is of."""
    Journal(path, Created("m", 3, 17, SPEC)).close()
    reader = JournalReader(path)

    assert reader.created() == Created("m", 3, 17, SPEC)
    reader.close()


def test_another_format(path: Path) -> None:
    """A journal of a format to come is refused, not misread."""
    Journal(path, Created("m", 1, 0, SPEC)).close()
    change(path, "UPDATE meta SET value = '2' WHERE name = 'format'")

    with pytest.raises(DataDirError, match="format: expected 1, got 2"):
        Journal(path)


def test_versions(journal: Journal, path: Path) -> None:
    """Published versions are rows, with positions of their own."""
    rows = [VersionRow(v, v, 2, f"digest {v}", "file") for v in range(3)]
    for row in rows:
        changes = Draft(journal)
        journal.commit(changes, [], [row])
        journal.merged(changes)

    assert journal.versions() == rows
    assert journal.counters.lsn == 4
    assert journal.counters.data_lsn == 0
    journal.close()
    again = Journal(path)
    assert again.versions() == rows
    again.close()


# -- a full disk --------------------------------------------------------------------------------


def test_full_disk(journal: Journal, path: Path) -> None:
    """A commit that finds no room keeps nothing; when there is room again, all is as before."""
    add(journal, experience(1, 3))
    label(journal, [{**identity("z", "e0", 0), "label": 1}])
    counters = journal.counters
    pages = pragma(journal._writer, "page_count")
    pragma(journal._writer, f"max_page_count={pages}")
    many = experience(100, 20, actor_id="many")

    with pytest.raises(StorageFull, match="journal: expected room on the disk"):
        add(journal, many)
    assert not journal._writer.in_transaction
    assert journal.counters == counters
    reader = JournalReader(path)
    assert [row.lsn for row in reader.rows(0)] == [2, 3]
    reader.close()
    assert journal.episode(("many", "e0")) is None

    pragma(journal._writer, "max_page_count=1000000")
    assert add(journal, many).accepted == 2_000
    assert add(journal, experience(1, 3)).duplicate == 3


# -- the ledger ---------------------------------------------------------------------------------


def test_ledger_survives(journal: Journal, path: Path) -> None:
    """Identities, ends, splits, waiting labels and totals are there after a restart."""
    add(journal, experience(2, 3))
    label(journal, [{**identity("a", "e9", t), "label": 1} for t in range(3)])
    add(journal, [dict(experience(1, 3)[0], episode_id="e9", terminated=True)])
    counters = journal.counters
    journal.close()
    journal = Journal(path)

    assert journal.counters == counters
    assert journal.counters.pending == 2
    assert add(journal, experience(2, 3)).duplicate == 6
    assert label(journal, [{**identity("a", "e9", 0), "label": 1}]).duplicate == 1
    assert label(journal, [{**identity("a", "e9", 1), "label": 1}]).duplicate == 1
    for fields, code in (
        ({"timestep": 3}, "episode_closed"),
        ({"reward": 9.0}, "identity_conflict"),
        ({"split": "validation"}, "split_conflict"),
        ({"episode_id": "e9", "timestep": 1}, "episode_closed"),
    ):
        with pytest.raises(JormungandrError) as raised:
            add(journal, [{**experience(1, 3)[0], **fields}])
        assert raised.value.code == code
    with pytest.raises(JormungandrError, match=r"labels\[0\]\.label: expected 1"):
        label(journal, [{**identity("a", "e9", 2), "label": 0}])
    journal.close()


def test_waiting_labels_keep_their_order(path: Path) -> None:
    """After a restart the oldest waiting label is still the first to expire."""
    names = ["c", "a", "b"]
    journal = Journal(path, Created("m", 1, 0, SPEC))
    for name in names:
        label(journal, [{**identity(name, "e", t), "label": 0} for t in (1, 0)])
    expected = [(name, "e", t) for name in names for t in (1, 0)]
    assert [found for found, _ in journal.pending_oldest()] == expected
    journal.close()
    journal = Journal(path)

    assert [found for found, _ in journal.pending_oldest()] == expected
    journal.close()


@pytest.mark.parametrize("cache", [0, 20_000])
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(LEDGER, min_size=1, max_size=12))
def test_journal_is_the_ledger_in_memory(
    cache: int, steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is sent, in whatever order, with restarts between, is answered as in memory."""
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "CACHE", cache)
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    journal = Journal(path, Created("m", 1, 0, SPEC))
    store = MemoryStore(counters=journal.counters)
    for kind, items in steps:
        if kind == "restart":
            journal.close()
            journal = Journal(path)
            continue
        call = add if kind == "add" else label
        answers = []
        for target in (journal, store):
            try:
                answers.append(call(target, items))
            except JormungandrError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        assert journal.counters == store.counters
        assert list(journal.pending_oldest()) == list(store.pending_oldest())
    journal.close()
    patch.undo()


def test_a_journal_in_use_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery that cannot move the WAL, because somebody still reads it, is no recovery."""
    path = tmp_path / "journal.db"
    journal = Journal(path, Created("m", 1, 0, SPEC))
    other = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    cursor = other.execute("SELECT name FROM meta")
    next(cursor)  # a read that is still going on, from before what comes next
    journal.commit(draft := Draft(journal), [], [VersionRow(0, 0, 0, "", "")])
    journal.merged(draft)
    journal.close()
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0)
    with pytest.raises(DataDirError, match="nobody else has open"):
        Journal(path)
    cursor.close()
    other.close()
    Journal(path).close()
