"""`jormungandr salvage`: what proves itself is kept, what is lost is named, nothing is in place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr.cli import main
from jormungandr.errors import DataDirError
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.wal_check import wal_path
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools.findings import Finding
from jormungandr.service.tools.rebuild import Rebuild
from jormungandr.service.tools.restore import EPOCH
from jormungandr.service.tools.salvage import salvage
from jormungandr.service.tools.verification import verify
from tests.faults.built import ROWS, build, contents
from tests.service.serving import Server, identity

MODEL = Path("models/m.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a server that ended well."""
    return build(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of it, for the test to damage."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def change(data_dir: Path, statement: str, *values: Any) -> None:
    """Change a journal behind everybody's back."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    connection.execute(statement, values)
    connection.close()


def saved(data_dir: Path) -> tuple[list[Finding], Path]:
    """Salvage a directory; return what was found, and where it is. It is whole again."""
    out = data_dir.with_name("out")
    found = list(salvage(data_dir, out))
    folder = out / MODEL
    after = [*verify(out, rebuild=False)]
    after += Rebuild(str(folder), str(folder / "journal.db"), "m", immutable=True, full=True).run()
    assert [str(f) for f in after if f.status == "damage"] == []
    return found, out


def lost(found: list[Finding]) -> list[str]:
    """Return what was lost."""
    return [f"{f.where}: {f.text}" for f in found if f.status == "damage"]


def data_rows(data_dir: Path) -> list[int]:
    """Return the positions of rows of transitions."""
    connection = apsw.Connection(str(data_dir / MODEL / "journal.db"))
    rows = connection.execute("SELECT lsn FROM journal WHERE kind = 'transitions' ORDER BY lsn")
    found = [int(lsn) for (lsn,) in rows.fetchall()]
    connection.close()
    return found


def test_of_what_is_whole(data: Path) -> None:
    """Nothing is lost, and every table is the same."""
    found, out = saved(data)
    before, after = contents(data / MODEL), contents(out / MODEL)
    for tables in (before, after):  # the order of waiting labels counts, their numbers do not
        tables["pending_label"] = [row[:5] for row in tables["pending_label"]]

    assert lost(found) == []
    assert after == before


@pytest.mark.parametrize("at", [1, 5, 9, 15])
@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_row(data: Path, at: int, how: str) -> None:
    """A damaged row is set aside by name; all others keep their place, and labels find theirs."""
    lsn = data_rows(data)[at]
    if how == "gone":
        change(data, "DELETE FROM journal WHERE lsn = ?", lsn)
    else:
        change(data, "UPDATE journal SET payload = zeroblob(50) WHERE lsn = ?", lsn)
    before = contents(data / MODEL)
    found, out = saved(data)
    after = contents(out / MODEL)
    text = " ".join(lost(found))

    assert len(lost(found)) == 1
    assert f"journal.db: row {lsn}: lost" in text
    assert "6 held-out" in text or "6 training" in text
    kept = {row[0]: row for row in before["journal"] if row[0] != lsn}
    assert {row[0]: row for row in after["journal"] if row[0] in kept} == kept
    for table in ("episode", "ledger"):
        assert after[table] == before[table]
    journal = Journal(out / MODEL / "journal.db")
    assert [row.skipped for row in journal.skips()] == [lsn]
    assert [row.version for row in journal.lineages()] == [EPOCH]
    journal.close()


def test_the_ledger(data: Path) -> None:
    """A damaged ledger, its totals and its sums are made again from the rows."""
    before = contents(data / MODEL)
    change(data, "UPDATE ledger SET slots = zeroblob(416) WHERE episode = 'e3'")
    change(data, "DELETE FROM episode WHERE episode = 'e4'")
    change(data, "UPDATE meta SET value = '{}' WHERE name = 'counters'")
    change(data, "UPDATE journal SET accepted_train = 77 WHERE lsn = 2")
    found, out = saved(data)
    after = contents(out / MODEL)

    assert lost(found) == []
    for table in ("meta", "journal", "episode", "ledger"):
        assert after[table] == before[table]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM meta WHERE name = 'actor:a'", "UPDATE meta SET checksum = 0"]
)
def test_tallies(data: Path, statement: str) -> None:
    """What was counted of an actor is counted again."""
    before = contents(data / MODEL)
    change(data, statement)
    found, out = saved(data)

    assert lost(found) == []
    assert contents(out / MODEL)["meta"] == before["meta"]


def test_files(data: Path) -> None:
    """A damaged checkpoint or policy stays behind, by name."""
    newest = max((data / MODEL / "checkpoints").iterdir())
    policy = max((data / MODEL / "policies").iterdir())
    for path in (newest / "state.json", policy):
        path.write_bytes(path.read_bytes() + b" ")
    found, out = saved(data)

    assert [newest.name in lost(found)[0], policy.name in lost(found)[1]] == [True, True]
    assert len(list((out / MODEL / "checkpoints").iterdir())) == 1
    assert len(list((out / MODEL / "policies").iterdir())) == 11


def test_a_log(tmp_path: Path) -> None:
    """Behind a damaged frame of the WAL, where SQLite stops, rows prove themselves too."""
    data = build(tmp_path / "data", killed=True)
    log = wal_path(data / MODEL / "journal.db")
    whole = log.read_bytes()
    log.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    found, out = saved(data)
    kept = data_rows(out)

    assert kept[-1] == 30
    assert len(lost(found)) <= 1


def test_what_cannot_be(data: Path) -> None:
    """Without the row that says what a model is, there is nothing to go by."""
    change(data, "UPDATE journal SET payload = zeroblob(50) WHERE lsn = 1")
    found = list(salvage(data, data.with_name("out")))

    assert lost(found) == [
        "models/m.1: lost: the row that says what it is, or one that says how it went on,"
        " is damaged"
    ]


def test_rows_that_were_dropped(data: Path) -> None:
    """Where retention took the first rows, the ledger of those is kept as it was known."""
    journal = Journal(data / MODEL / "journal.db")
    while journal.drop_rows(18, 1 << 20):
        pass
    journal.close()
    lsn = data_rows(data)[2]
    change(data, "UPDATE journal SET payload = zeroblob(50) WHERE lsn = ?", lsn)
    before = contents(data / MODEL)
    found, out = saved(data)
    after = contents(out / MODEL)

    assert len(lost(found)) == 1
    assert after["ledger"] == before["ledger"]
    assert after["episode"] == before["episode"]


def test_the_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes nowhere but to a new place, and not beside a server."""
    before = {p: p.read_bytes() for p in data.rglob("*") if p.is_file()}
    assert main(["salvage", str(data), str(tmp_path / "out"), "--model", "m"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 lost;")
    assert {p: p.read_bytes() for p in data.rglob("*") if p.is_file()} == before
    assert main(["salvage", str(data), str(tmp_path / "out")]) == 1
    assert "a place where nothing is" in capsys.readouterr().err

    directory = DataDir(data)
    with pytest.raises(DataDirError, match="expected no server"):
        list(salvage(data, tmp_path / "other"))
    directory.close()


@pytest.mark.slow
def test_served_again(data: Path) -> None:
    """A service goes on from what was salvaged: what was known is known, and policies go on."""
    lsn = data_rows(data)[5]
    change(data, "UPDATE journal SET payload = zeroblob(50) WHERE lsn = ?", lsn)
    _, out = saved(data)
    with Server(out) as server:
        endpoint = server.connect("m")
        assert endpoint.add(ROWS).duplicate == len(ROWS)
        more = [dict(row, **identity("z", "e", t)) for t, row in enumerate(ROWS[:3])]
        info = endpoint.wait(endpoint.add(more).lsn)
        assert info["policy_version"] >= EPOCH
        assert info["learner"]["state"] in ("running", "idle")
        endpoint.close()
    assert [f for f in verify(out, full=True) if f.status == "damage"] == []
