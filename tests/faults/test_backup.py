"""`jormungandr backup` and `restore`: of one moment, while a server runs, and no number twice."""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jormungandr import PolicySnapshot
from jormungandr.cli import main
from jormungandr.errors import DataDirError, PolicyVersionUnknown
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.decisions import ChampionRow
from jormungandr.service.journal.writer import Journal
from jormungandr.service.tools import backup as module
from jormungandr.service.tools.backup import backup
from jormungandr.service.tools.rebuild import Rebuild
from jormungandr.service.tools.restore import EPOCH, restore
from jormungandr.service.tools.verification import verify
from tests.faults.built import ROWS, Built, build
from tests.service.serving import SPEC, Server, experience, served

MODEL = Path("models/m.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a server that ended well."""
    return build(tmp_path_factory.mktemp("made") / "data")


def damages(data_dir: Path) -> list[str]:
    """Return what verify names, the learner run again too."""
    folder = data_dir / MODEL
    journal = str(folder / "journal.db")
    found = [*verify(data_dir, rebuild=False)]
    found += Rebuild(str(folder), journal, "m", immutable=True, full=True).run()
    return [str(f) for f in found if f.status == "damage"]


def versions(data_dir: Path) -> list[int]:
    """Return the versions that a journal records."""
    journal = Journal(data_dir / MODEL / "journal.db")
    found = [row.version for row in journal.versions()]
    journal.close()
    return found


def test_there_and_back(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is restored is what was there, and its policies go on under numbers of a new epoch."""
    assert main(["backup", str(made), str(tmp_path / "backup")]) == 0
    assert not (tmp_path / "backup" / "operator-token").exists()
    assert main(["restore", str(tmp_path / "backup"), str(tmp_path / "again")]) == 0
    out = capsys.readouterr().out

    assert "m.1: row 30, 2 checkpoints, 12 policies recorded" in out
    assert f"m.1: row 30, policies go on at {EPOCH}" in out
    assert damages(tmp_path / "again") == []
    assert versions(tmp_path / "again") == versions(made)
    names = ["checkpoints/00000000000000000028/tensors.safetensors", "policies"]
    assert (tmp_path / "again" / MODEL / names[0]).read_bytes() == (
        made / MODEL / names[0]
    ).read_bytes()
    journal = Journal(tmp_path / "again" / MODEL / "journal.db")
    (lineage,) = journal.lineages()
    assert (lineage.version, lineage.applied_lsn) == (EPOCH, 28)
    assert lineage.fingerprint == journal.created.fingerprint
    journal.close()
    DataDir(tmp_path / "again").close()


def test_of_a_killed_server(tmp_path: Path) -> None:
    """What is in the WAL alone is in the backup."""
    data = build(tmp_path / "data", killed=True)
    list(backup(data, tmp_path / "backup"))
    list(restore(tmp_path / "backup", tmp_path / "again"))

    assert versions(tmp_path / "again")[-1] == 64
    assert damages(tmp_path / "again") == []


def test_places(made: Path, tmp_path: Path) -> None:
    """Nothing is written over, and what is no directory of ours is no source."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataDirError, match="a place where nothing is"):
        list(backup(made, tmp_path / "full"))
    with pytest.raises(DataDirError, match="a data directory of a service, got none"):
        list(backup(tmp_path / "empty", tmp_path / "backup"))
    list(backup(made, tmp_path / "backup"))
    with pytest.raises(DataDirError, match="a place where nothing is"):
        list(restore(tmp_path / "backup", tmp_path / "full"))
    with pytest.raises(DataDirError, match=r"backup\.json: expected the manifest of a backup"):
        list(restore(made, tmp_path / "again"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["backup", "empty", "full"]
    assert list(restore(tmp_path / "backup", tmp_path / "empty"))


@pytest.mark.parametrize("how", ["flip", "less", "more", "manifest"])
def test_a_damaged_backup(made: Path, tmp_path: Path, how: str) -> None:
    """It is refused by the name of the file, and nothing is made of it."""
    source = tmp_path / "backup"
    list(backup(made, source))
    path = source / ("backup.json" if how == "manifest" else MODEL / "journal.db")
    if how == "less":
        path.unlink()
    elif how == "more":
        path = path.with_name("more")
        path.write_text("")
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    with pytest.raises(DataDirError, match=str(path)):
        list(restore(source, tmp_path / "again"))
    assert not (tmp_path / "again").exists()


def test_a_backup_that_was_asked(made: Path, tmp_path: Path) -> None:
    """What SQLite leaves beside a database that was read makes a backup no worse."""
    source = tmp_path / "backup"
    list(backup(made, source))
    assert main(["sql", str(source), "m", "SELECT count(*) FROM transitions"]) == 0
    assert main(["export-data", str(source), "m", str(tmp_path / "rows.csv")]) == 0
    assert (source / MODEL / "journal.db-shm").exists()
    list(restore(source, tmp_path / "again"))
    assert damages(tmp_path / "again") == []
    # One that holds something is of somebody who wrote.
    (source / MODEL / "journal.db-wal").write_bytes(b"x")
    with pytest.raises(DataDirError, match="files of the manifest only"):
        list(restore(source, tmp_path / "third"))


def test_a_backup_that_nobody_may_write_to(made: Path, tmp_path: Path) -> None:
    """It is restored to a directory that its owner may write to."""
    source = tmp_path / "backup"
    list(backup(made, source))
    paths = [source, *source.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        list(restore(source, tmp_path / "again"))
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)

    assert all(p.stat().st_mode & stat.S_IWUSR for p in (tmp_path / "again").rglob("*"))
    assert damages(tmp_path / "again") == []


def test_a_backup_is_not_served(made: Path, tmp_path: Path) -> None:
    """It would number policies as the lost ones were, and be a backup no more."""
    source = tmp_path / "backup"
    list(backup(made, source))
    before = sorted(source.rglob("*"))
    with pytest.raises(DataDirError, match="a data directory, got a backup; `jormungandr restore`"):
        DataDir(source)

    assert sorted(source.rglob("*")) == before
    assert list(restore(source, tmp_path / "again"))


def test_damage_is_not_copied(made: Path, tmp_path: Path) -> None:
    """A damaged directory has no backup; what there was of it is gone."""
    data = Path(shutil.copytree(made, tmp_path / "data"))
    path = data / MODEL / "policies" / "00000000000000000064.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")

    with pytest.raises(DataDirError, match=r"64\.safetensors.*nothing damaged is copied"):
        list(backup(data, tmp_path / "backup"))
    assert [p.name for p in tmp_path.iterdir()] == ["data"]


def test_a_checkpoint_that_goes_meanwhile(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a newer one takes its place, and rows go with it, the copy begins anew."""
    data = Path(shutil.copytree(made, tmp_path / "data"))
    copy: Callable[..., Any] = module._copy_journal
    calls = []

    def slow(source: Path, target: Path, live: bool) -> None:
        if not calls:
            newest = checkpoints(source.parent)[-1]
            newest.rename(newest.with_name(newest.name + ".again"))
            shutil.rmtree(checkpoints(source.parent)[0])
            journal = Journal(source)
            journal.drop_rows(28, 1 << 20)
            journal.close()
        calls.append(target)
        copy(source, target, live)

    monkeypatch.setattr(module, "_copy_journal", slow)
    list(backup(data, tmp_path / "backup"))

    assert len(calls) == 2
    assert [position(p) for p in checkpoints(tmp_path / "backup" / MODEL)] == [28]


def test_a_champion_that_comes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that is published and promoted between the files and the journal is in it."""
    built = Built(tmp_path / "data")
    copy: Callable[..., Any] = module._copy_journal

    def promoted(source: Path, target: Path, live: bool) -> None:
        assert live
        built.add(ROWS[:12])
        built.publish()
        (row,) = built.journal.versions()
        fields = (row.version, row.update_count, row.digest, row.file)
        built.control(ChampionRow(*fields, None, "service", "the first policy"))
        copy(source, target, live)

    monkeypatch.setattr(module, "_copy_journal", promoted)
    (line,) = backup(tmp_path / "data", tmp_path / "backup")
    built.close()

    assert line.endswith("0 checkpoints, 1 policies recorded")
    assert len(list((tmp_path / "backup" / MODEL / "policies").iterdir())) == 1
    list(restore(tmp_path / "backup", tmp_path / "again"))
    assert damages(tmp_path / "again") == []


def test_a_model_that_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that goes with its model, file by file, is not taken for a damaged one."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:12])
    built.publish()
    built.checkpoint()
    copy: Callable[..., Any] = shutil.copyfile

    def going(source: Path, target: Path) -> None:
        if not built.journal.deleted():
            built.journal.delete(7)
            source.unlink()
        copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", going)
    (line,) = backup(tmp_path / "data", tmp_path / "backup")
    built.close()
    monkeypatch.undo()

    assert line == "m.1: row 2, 0 checkpoints, 1 policies recorded"
    assert not (tmp_path / "backup" / MODEL / "policies").exists()
    assert list(restore(tmp_path / "backup", tmp_path / "again"))


def test_two_at_once(made: Path, tmp_path: Path) -> None:
    """A second backup to the same place leaves the first one's work alone, and says why."""
    first = backup(made, tmp_path / "backup")
    next(first)
    with pytest.raises(DataDirError, match=r"\.backup\.tmp: expected nobody else who makes it"):
        list(backup(made, tmp_path / "backup"))
    assert list(first) == []
    assert list(restore(tmp_path / "backup", tmp_path / "again"))

    place = tmp_path / "place"
    place.mkdir()
    first = restore(tmp_path / "backup", place)
    next(first)
    with pytest.raises(DataDirError, match=r"\.restoring: expected nobody else who makes it"):
        list(restore(tmp_path / "backup", place))
    assert list(first) == []
    assert damages(place) == []


def test_a_deleted_model(tmp_path: Path) -> None:
    """Created again after a restore, it begins past what may have been published meanwhile."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:12])
    built.publish()
    built.journal.delete(7)
    built.close()
    list(backup(tmp_path / "data", tmp_path / "backup"))
    (line,) = restore(tmp_path / "backup", tmp_path / "again")
    journal = Journal(tmp_path / "again" / MODEL / "journal.db")

    assert line == f"m.1: deleted; created again, it begins at policy {EPOCH}"
    assert journal.deleted() == EPOCH - 1
    journal.close()


def test_twice_restored(made: Path, tmp_path: Path) -> None:
    """A backup of what was restored begins another epoch."""
    list(backup(made, tmp_path / "b1"))
    list(restore(tmp_path / "b1", tmp_path / "d1"))
    list(backup(tmp_path / "d1", tmp_path / "b2"))
    (line,) = restore(tmp_path / "b2", tmp_path / "d2")

    assert line.endswith(str(2 * EPOCH))
    assert damages(tmp_path / "d2") == []


@pytest.mark.slow
def test_while_a_server_runs(tmp_path: Path) -> None:
    """Backups made under load are whole; an old one restored gives no number a second meaning."""
    rows = experience(60, 9)
    with Server(tmp_path / "data") as server:
        endpoint = server.connect("m")
        endpoint.create(SPEC)
        receipts: list[Any] = []

        def send() -> None:
            with server.connect("m") as sender:
                receipts.extend(sender.add(rows[at : at + 3]) for at in range(0, len(rows), 3))

        thread = threading.Thread(target=send)
        thread.start()
        endpoint.act([[0.0, 0.0]])
        for n in range(3):
            assert list(backup(tmp_path / "data", tmp_path / f"backup{n}"))
        thread.join()
        last = receipts[-1].lsn
        newest = endpoint.wait(last)["policy_version"]
        endpoint.close()
    lost = served(tmp_path / "data", "m.1")
    assert lost.version == newest
    for n in range(3):
        list(restore(tmp_path / f"backup{n}", tmp_path / f"again{n}"))
        assert damages(tmp_path / f"again{n}") == []

    # The first one, with everything sent since sent again.
    with Server(tmp_path / "again0") as server:
        endpoint = server.connect("m")
        known = endpoint.info()["accepted"]
        sent = [endpoint.add(rows[at : at + 3]) for at in range(0, len(rows), 3)]
        assert sum(r.duplicate for r in sent) == known["train"] + known["validation"]
        info = endpoint.wait(sent[-1].lsn)
        assert info["accepted"]["train"] + info["accepted"]["validation"] == len(rows)
        assert info["policy_version"] >= EPOCH
        beyond = info["policy_version"] + 10**6
        with pytest.raises(PolicyVersionUnknown):
            endpoint.add([{**rows[0], "episode_id": "new", "policy_version": beyond}])
        endpoint.close()
    again = served(tmp_path / "again0", "m.1")
    assert damages(tmp_path / "again0") == []
    assert not {p.stem for p in (tmp_path / "again0" / MODEL / "policies").iterdir()} & {
        p.stem for p in (tmp_path / "data" / MODEL / "policies").iterdir()
    } - {f"{v:020d}" for v in versions(tmp_path / "backup0")}
    _same_weights(lost, again)


def _same_weights(a: PolicySnapshot, b: PolicySnapshot) -> None:
    """The same rows in the same order made the same policy, under another number."""
    assert {k: w.tobytes() for k, w in a.weights.items()} == {
        k: w.tobytes() for k, w in b.weights.items()
    }
