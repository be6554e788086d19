"""Where backup, restore, salvage and verify may write, and which models they are asked about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jormungandr.cli import main
from jormungandr.errors import DataDirError, ModelUnknown
from jormungandr.service.datadir import DataDir
from jormungandr.service.tools.backup import backup
from jormungandr.service.tools.restore import restore
from jormungandr.service.tools.salvage import salvage
from jormungandr.service.tools.verification import verify
from tests.faults.built import ROWS, Built, build
from tests.faults.test_directories import content
from tests.faults.volumes import Volume

MODEL = Path("models/m.1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a server that ended well."""
    return build(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A volume of one mebibyte with room for a few pages."""
    volume = Volume(tmp_path / "volume", 1)
    (volume.path / "filler").write_bytes(bytes((1 << 20) - 40_960))
    yield volume.path
    volume.unmount()


# -- in what is read ----------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["out", "models/out", "models/m.1/out"])
@pytest.mark.parametrize("command", [backup, salvage])
def test_not_in_the_directory_itself(made: Path, tmp_path: Path, command: Any, inside: str) -> None:
    """A copy inside of what is copied would become a part of it: a model without a journal, say."""
    data = Path(shutil.copytree(made, tmp_path / "data"))
    before = content(data)
    with pytest.raises(DataDirError, match="a place outside of"):
        list(command(data, data / inside))
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(DataDirError, match="a place outside of"):
        list(command(data, tmp_path / "link" / inside))

    assert content(data) == before


def test_not_in_the_backup(made: Path, tmp_path: Path) -> None:
    """A directory restored into its backup would damage that one."""
    list(backup(made, tmp_path / "backup"))
    with pytest.raises(DataDirError, match="a place outside of"):
        list(restore(tmp_path / "backup", tmp_path / "backup" / "data"))

    assert list(restore(tmp_path / "backup", tmp_path / "data"))


# -- a place that is there ----------------------------------------------------------------------


def test_an_empty_directory_is_filled(made: Path, tmp_path: Path) -> None:
    """It stays the one it is, with its owner and mode: it may be a volume of its own."""
    list(backup(made, tmp_path / "backup"))
    place = tmp_path / "place"
    (place / "lost+found").mkdir(parents=True)
    place.chmod(0o700)
    before = place.stat()
    assert list(restore(tmp_path / "backup", place))

    assert (place.stat().st_ino, place.stat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(p.name for p in place.iterdir()) == ["LOCK", "lost+found", "models"]
    DataDir(place).close()


def test_a_volume_is_filled(made: Path, tmp_path: Path) -> None:
    """Also one that cannot be removed and made again."""
    list(backup(made, tmp_path / "backup"))
    volume = Volume(tmp_path / "volume", 16)
    try:
        assert list(restore(tmp_path / "backup", volume.path))
        assert [f for f in verify(volume.path, rebuild=False) if f.status == "damage"] == []
    finally:
        volume.unmount()


def test_what_was_left_unfinished_makes_room(made: Path, tmp_path: Path) -> None:
    """A restore that was killed half-way leaves an empty directory empty."""
    list(backup(made, tmp_path / "backup"))
    place = tmp_path / "place"
    restoring = restore(tmp_path / "backup", place)
    place.mkdir()
    next(restoring)
    left = {p.name: content(p) for p in place.iterdir()}
    restoring.close()
    shutil.rmtree(place)
    for name, files in left.items():
        for path, data in files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(data)
        assert name == ".restoring"
    # Served as an empty one, it would take models anew, and their numbers from 0 on.
    with pytest.raises(DataDirError, match="a restore that did not end; run it again"):
        DataDir(place)
    assert [p.name for p in place.iterdir()] == [".restoring"]

    assert list(restore(tmp_path / "backup", place))
    assert sorted(p.name for p in place.iterdir()) == ["LOCK", "models"]


# -- no room ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["backup", "salvage"])
def test_no_room_for_a_copy(
    made: Path, full: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the place, and nothing is left in it."""
    assert main([command, str(made), str(full / "out")]) == 1

    assert f"{full / 'out'}: expected a place that can be written" in capsys.readouterr().err
    assert [p.name for p in full.iterdir()] == ["filler"]


def test_no_room_for_what_is_restored(
    made: Path, tmp_path: Path, full: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same."""
    list(backup(made, tmp_path / "backup"))
    assert main(["restore", str(tmp_path / "backup"), str(full / "out")]) == 1

    assert f"{full / 'out'}: expected a place that can be written" in capsys.readouterr().err
    assert [p.name for p in full.iterdir()] == ["filler"]


@pytest.mark.parametrize("command", ["backup", "salvage", "restore", "fill"])
def test_any_room_that_is_too_little(
    made: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it ends, in a copy, a transaction or an index, the same line says so.

    Nothing is left, and where there is room for all of it, all of it is there.
    """
    volume = Volume(tmp_path / "volume", 1)
    filler, place = volume.path / "filler", volume.path / "out"
    source = made
    if command in ("restore", "fill"):
        source = tmp_path / "backup"
        list(backup(made, source))
    if command == "fill":  # a place that is there, and empty
        place.mkdir()
    words = ["restore" if command == "fill" else command, str(source), str(place)]
    refused = 0
    try:
        for free in range(8, 1024, 8):
            filler.write_bytes(bytes((1 << 20) - free * 1024))
            if main(words) == 0:
                break
            refused += 1
            lines = capsys.readouterr().err.splitlines()
            assert len(lines) == 1
            assert f"{place}: expected a place that can be written, got " in lines[0]
            assert len(lines[0]) < 400
            kept = {"filler", "out"} if command == "fill" else {"filler"}
            assert {p.name for p in volume.path.iterdir()} == kept
            assert command != "fill" or not list(place.iterdir())
        assert refused > 20
        assert (place / "models" / "m.1" / "journal.db").is_file()
    finally:
        volume.unmount()


@pytest.mark.parametrize("command", ["verify", "backup", "salvage"])
def test_no_room_for_a_copy_of_the_wal(
    tmp_path: Path,
    full: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is read through a copy in TMPDIR says where there is no room for it."""
    data = build(tmp_path / "data", killed=True)
    monkeypatch.setattr("tempfile.tempdir", str(full))
    out = [] if command == "verify" else [str(tmp_path / "out")]
    assert main([command, str(data), *out]) == 1

    assert f"journal.db: expected room for a copy in {full}" in capsys.readouterr().err
    assert [p.name for p in full.iterdir()] == ["filler"]


def test_a_check_that_could_not_be_done(
    made: Path,
    full: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A learner that could not be run again to its end is no success, and no damage."""
    monkeypatch.setenv("TMPDIR", str(full))
    assert main(["verify", str(made)]) == 1

    out = capfd.readouterr().out
    assert "NOT DONE" in out
    assert out.endswith("1 checks could not be done\n")


# -- which model --------------------------------------------------------------------------------


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """A directory in which the model ``m`` was deleted and created again, and an ``m-2`` is."""
    directory = tmp_path / "data"
    built = Built(directory)
    built.add(ROWS[:12])
    built.journal.delete(7)
    built.close()
    for name, model_id, generation in (("m.2", "m", 2), ("m-2.1", "m-2", 1)):
        other = DataDir(directory)
        _, journal = other.create(model_id, generation, 8, built.spec)
        journal.close()
        other.close()
        assert (directory / "models" / name).is_dir()
    return directory


@pytest.mark.parametrize(
    ("model", "folders"),
    [
        (None, {"m.1", "m.2", "m-2.1"}),
        ("m", {"m.1", "m.2"}),
        ("m.1", {"m.1"}),
        ("m.2", {"m.2"}),
        ("m-2", {"m-2.1"}),
    ],
)
def test_models_by_name(twice: Path, tmp_path: Path, model: str | None, folders: set[str]) -> None:
    """An id is all its generations, ``id.generation`` that one."""
    found = {f.where.split("/")[1] for f in verify(twice, model, rebuild=False)}
    list(salvage(twice, tmp_path / "out", model))

    assert found == folders
    assert {p.name for p in (tmp_path / "out" / "models").iterdir()} == folders


@pytest.mark.parametrize("model", ["", "*", "m*", "m.", "m.3", "m.01", "[m]", "../data", "m.1/"])
def test_no_such_model(twice: Path, tmp_path: Path, model: str) -> None:
    """A name is a name and no pattern, and what is not there is not found whole."""
    with pytest.raises(ModelUnknown):
        list(verify(twice, model))
    with pytest.raises(ModelUnknown):
        list(salvage(twice, tmp_path / "out", model))

    assert not (tmp_path / "out").exists()


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """A start sweeps creations that were cut short, and nothing else that has a dot in front."""
    data = build(tmp_path / "data")
    for name in (".m.2", ".snapshot", ".DS_Store.d"):
        (data / "models" / name).mkdir()
        (data / "models" / name / "file").write_text("")
    (data / "models" / ".DS_Store").write_text("")
    directory = DataDir(data)
    for _, journal in directory.journals():
        journal.close()
    directory.close()

    names = sorted(p.name for p in (data / "models").iterdir())
    assert names == [".DS_Store", ".DS_Store.d", ".snapshot", "m.1"]
    stray = [str(f) for f in verify(data, rebuild=False) if "does not belong" in f.text]
    assert len(stray) == 3
