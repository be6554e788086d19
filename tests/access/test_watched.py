"""Files that are read again when they change."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from jormungandr.errors import DataDirError
from jormungandr.service.access import watched as module
from jormungandr.service.access.watched import Watched


class Reader:
    """Reads a file, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def __call__(self) -> str:
        """Return the text; one with a ``!`` cannot be read."""
        self.count += 1
        text = self.path.read_text() if self.path.exists() else "nothing"
        if "!" in text:
            raise DataDirError("file", "no exclamation mark", "one")
        return text


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be old enough to be believed."""
    monkeypatch.setattr(module, "YOUNG", 0)


@pytest.mark.usefixtures("old")
def test_read_when_it_changes(tmp_path: Path) -> None:
    """A file is read once, then when it is replaced, changed in place, removed, or made again."""
    path = tmp_path / "f"
    path.write_text("one")
    read = Reader(path)
    watched = Watched(path, read=read)

    assert [watched.get() for _ in range(3)] == ["one"] * 3
    assert read.count == 1
    (tmp_path / "g").write_text("two")
    (tmp_path / "g").replace(path)
    assert [watched.get(), watched.get()] == ["two", "two"]
    path.write_text("three")
    assert watched.get() == "three"
    path.unlink()
    assert watched.get() == "nothing"
    path.write_text("four")
    assert watched.get() == "four"
    assert read.count == 5


@pytest.mark.usefixtures("old")
def test_mode_and_times_count(tmp_path: Path) -> None:
    """A file whose mode has changed is looked at again, also when its time is put back."""
    path = tmp_path / "f"
    path.write_text("one")
    read = Reader(path)
    watched = Watched(path, read=read)
    before = path.stat()
    path.chmod(0o600)
    watched.get()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert watched.get() == "two"
    assert read.count == 3


@pytest.mark.parametrize("young", [0, 10**18])
def test_a_file_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, young: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before stays in force, and the log says why, once, however often it looks."""
    monkeypatch.setattr(module, "YOUNG", young)
    path = tmp_path / "f"
    path.write_text("one")
    watched = Watched(path, read=Reader(path))
    path.write_text("broken!")

    with caplog.at_level(logging.ERROR):
        assert [watched.get() for _ in range(5)] == ["one"] * 5
    assert [record.getMessage() for record in caplog.records] == [
        "file: expected no exclamation mark, got one; what was read before stays in force"
    ]
    path.write_text("whole again")
    assert watched.get() == "whole again"


def test_a_file_that_cannot_be_read_at_first(tmp_path: Path) -> None:
    """There is nothing to go on with: the error is the caller's."""
    (tmp_path / "f").write_text("broken!")

    with pytest.raises(DataDirError):
        Watched(tmp_path / "f", read=Reader(tmp_path / "f"))


def test_a_young_file_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file written a moment ago is read again: its times may not tell the next change."""
    path = tmp_path / "f"
    path.write_text("one")
    read = Reader(path)
    written = path.stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: written + module.YOUNG - 1)
    watched = Watched(path, read=read)
    assert [watched.get(), watched.get()] == ["one", "one"]
    assert read.count == 3

    monkeypatch.setattr(time, "time_ns", lambda: written + module.YOUNG)
    assert [watched.get(), watched.get()] == ["one", "one"]
    assert read.count == 4


@pytest.mark.usefixtures("old")
def test_two_files(tmp_path: Path) -> None:
    """Either of two files may be the one that changes."""
    for name in "ab":
        (tmp_path / name).write_text("x")
    paths = [tmp_path / "a", tmp_path / "b"]
    watched = Watched(*paths, read=lambda: "".join(path.read_text() for path in paths))
    (tmp_path / "b").write_text("yz")

    assert watched.get() == "xyz"
