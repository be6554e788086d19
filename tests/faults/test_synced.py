"""What must not be forgotten by a power cut is synced: files, and the folders that name them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from jormungandr.cli import main
from jormungandr.durable import make_folder
from jormungandr.learner.core import Core
from jormungandr.service.child.keeper import KEEP, Keeper
from jormungandr.service.child.recovery import checkpoints, recover
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.tools.backup import backup
from jormungandr.service.tools.restore import restore
from jormungandr.service.tools.salvage import salvage
from jormungandr.service.tools.verification import verify
from tests.faults.built import BATCH, ROWS, Built, build

MODEL = Path("models/m.1")

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")


class Synced:
    """The places that were synced, by the names they had then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: set[Path] = set()
        sync = os.fsync

        def fsync(handle: int) -> None:
            sync(handle)
            self.names.add(Path(os.readlink(f"/proc/self/fd/{handle}")))

        patch.setattr(os, "fsync", fsync)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    """What is synced from here on."""
    return Synced(monkeypatch)


def test_new_folders(tmp_path: Path, synced: Synced) -> None:
    """Each of them is named in one that is synced."""
    make_folder(tmp_path / "a" / "b" / "c")

    assert synced.names == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}


def test_a_data_directory(tmp_path: Path, synced: Synced) -> None:
    """A model that was created is found again, whichever folders were new."""
    Built(tmp_path / "a" / "data").close()

    models = tmp_path / "a" / "data" / "models"
    assert {tmp_path, tmp_path / "a", models.parent, models} <= synced.names


def test_a_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a checkpoint, for which rows will be dropped."""
    built = Built(tmp_path / "data")
    built.add(ROWS[:BATCH])
    synced = Synced(monkeypatch)
    Keeper(built.folder, built.core).write()
    built.close()

    assert {built.folder, built.folder / "checkpoints"} <= synced.names


@pytest.mark.parametrize("command", ["backup", "restore", "salvage"])
def test_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Every file and folder is synced before the whole has its name, and then that."""
    data, out = build(tmp_path / "data"), tmp_path / "new" / "out"
    if command == "restore":
        list(backup(data, tmp_path / "backup"))
    synced = Synced(monkeypatch)
    calls: dict[str, Any] = {"backup": backup, "restore": restore, "salvage": salvage}
    list(calls[command](tmp_path / "backup" if command == "restore" else data, out))

    assert {tmp_path, out.parent} <= synced.names
    made = out.with_name(".out.tmp")
    due = {made, *(made / p.relative_to(out) for p in out.rglob("*") if p.name != "LOCK")}
    assert due - synced.names == set()


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:  # noqa: A002
    """One that takes the place of another is on the disk before it does."""
    if format == "parquet":
        pytest.importorskip("pyarrow")
    data, out = build(tmp_path / "data"), tmp_path / "out" / f"rows.{format}"
    out.parent.mkdir()
    out.write_text("before")
    synced = Synced(monkeypatch)
    assert main(["export-data", str(data), "m", str(out), "--overwrite"]) == 0

    made = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    assert {made, out.parent} <= synced.names


# -- what goes ----------------------------------------------------------------------------------


def test_a_checkpoint_that_is_half_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that is killed as it removes one leaves none that looks damaged."""
    data = build(tmp_path / "data")
    folder, remove = data / MODEL, shutil.rmtree

    def killed(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path).is_dir():
            next(Path(path).glob("*.safetensors")).unlink()
            raise KeyboardInterrupt

    reader = JournalReader(folder / "journal.db")
    core = recover(folder, reader)
    for row in reader.rows(core.progress.lsn):
        core.apply(row)
    reader.close()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            Keeper(folder, core).write()

    assert len(checkpoints(folder)) == KEEP
    found = [f for f in verify(data, rebuild=False) if f.status != "ok"]
    assert [(f.status, f.text) for f in found] == [
        ("gap", "left by a process that ended as it wrote")
    ]
    assert list(backup(data, tmp_path / "backup"))
    reader = JournalReader(folder / "journal.db")
    assert isinstance(recover(folder, reader), Core)
    reader.close()
    assert remove is shutil.rmtree
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == [
        p.name for p in checkpoints(folder)
    ]


def test_a_checkpoint_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its learner goes on."""
    built = Built(tmp_path / "data")

    def refuse(_: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError("not yours")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    for n in range(KEEP + 1):
        built.add(ROWS[n * BATCH : (n + 1) * BATCH])
        Keeper(built.folder, built.core).write()

    assert len(checkpoints(built.folder)) == KEEP
    monkeypatch.undo()
    built.close()
    DataDir(tmp_path / "data").close()
