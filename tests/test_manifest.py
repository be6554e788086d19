"""Folders with a manifest: what is written verifies, and what was changed afterwards does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from jormungandr import manifest
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.manifest import read_folder, seal, unseal, write_folder

NAME, KIND = "about.json", "thing-1"
FILES = {"a.bin": b"\x00\x01", "b.txt": "ü".encode()}


def sealed(files: dict[str, bytes] = FILES, **entries: Any) -> dict[str, bytes]:
    """Return files with their manifest."""
    return {**files, NAME: seal({"format": KIND, **entries}, files)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest."""
    write_folder(tmp_path / "thing", sealed(words="größer"), [NAME])
    return tmp_path / "thing"


def test_what_is_written_is_read(folder: Path) -> None:
    """Entries and files come back, and nothing else is left beside the folder."""
    entries, files = read_folder(folder, NAME, KIND)

    assert (entries["format"], entries["words"], files) == (KIND, "größer", FILES)
    assert [path.name for path in folder.parent.iterdir()] == ["thing"]


def test_digests_are_as_documented() -> None:
    """A file's entry is its size and SHA-256; the last entry is the manifest's with zeros there."""
    data = sealed(zeros="0" * 64)[NAME]
    entries = json.loads(data)

    assert list(entries)[-1] == "sha256"
    assert entries["files"]["a.bin"] == {"bytes": 2, "sha256": sha256(b"\x00\x01").hexdigest()}
    digest = entries["sha256"].encode()
    assert sha256(data.replace(digest, b"0" * 64)).hexdigest().encode() == digest


@pytest.mark.parametrize("name", ["a.bin", "b.txt", NAME])
def test_every_changed_byte_is_noticed(folder: Path, name: str) -> None:
    """Whatever byte of whatever file changes, the error names the file."""
    whole = (folder / name).read_bytes()
    for i in range(len(whole)):
        (folder / name).write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])

        with pytest.raises(CheckpointError, match=name):
            read_folder(folder, NAME, KIND)


@pytest.mark.parametrize("name", ["a.bin", NAME])
def test_missing_file_is_named(folder: Path, name: str) -> None:
    """A file that is gone is named."""
    (folder / name).unlink()

    with pytest.raises(CheckpointError, match=name):
        read_folder(folder, NAME, KIND)


def test_other_format(folder: Path) -> None:
    """A folder of another kind is refused, and the message says which it is."""
    with pytest.raises(CheckpointError, match="format: expected thing-2, got thing-1"):
        read_folder(folder, NAME, "thing-2")


def test_unlisted_and_missing_files() -> None:
    """Of files that came together, all are listed, and all that are listed came."""
    data = sealed()[NAME]

    with pytest.raises(CheckpointError, match=r"an entry for c\.bin"):
        unseal(NAME, data, {**FILES, "c.bin": b""}, KIND)
    with pytest.raises(CheckpointError, match=r"the file b\.txt"):
        unseal(NAME, data, {"a.bin": FILES["a.bin"]}, KIND)


@pytest.mark.parametrize("name", ["../a.bin", "/etc/passwd", "..", "", ".hidden", "a/b", "a\\b"])
def test_name_that_leads_elsewhere(name: str) -> None:
    """A manifest cannot name a file outside of its folder."""
    files = {name: b""}

    with pytest.raises(CheckpointError, match="names like"):
        unseal(NAME, seal({"format": KIND}, files), files, KIND)


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: entries.pop("sha256"),
        lambda entries: entries.pop("files"),
        lambda entries: entries.update(sha256=""),
        lambda entries: entries.update(files=["a.bin"]),
        lambda entries: entries["files"].update({"a.bin": {"bytes": 2}}),
        lambda entries: entries["files"]["a.bin"].update(sha256=7),
    ],
)
def test_manifest_of_another_form(change: Callable[[dict[str, Any]], Any]) -> None:
    """A manifest that lacks what every one has is refused as such."""
    entries = json.loads(sealed()[NAME])
    change(entries)

    with pytest.raises(CheckpointError, match="expected a manifest"):
        unseal(NAME, json.dumps(entries).encode(), FILES, KIND)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"null", b'{"files": 1}'])
def test_no_manifest(data: bytes) -> None:
    """Other bytes are no manifest."""
    with pytest.raises(CheckpointError, match="expected a manifest"):
        unseal(NAME, data, {}, KIND)


def test_only_a_folder_of_ours_is_replaced(tmp_path: Path, folder: Path) -> None:
    """An earlier one goes, files and all; a stranger's folder and a file stay as they are."""
    write_folder(folder, sealed({"c.bin": b"3"}), [NAME])
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "c.bin"]
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]

    empty = tmp_path / "empty"
    empty.mkdir()
    write_folder(empty, sealed(), [NAME])
    assert read_folder(empty, NAME, KIND)[1] == FILES

    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "file").write_text("mine")
    for place in (stranger, stranger / "file"):
        with pytest.raises(InvalidValue, match=NAME):
            write_folder(place, sealed(), [NAME])
    assert (stranger / "file").read_text() == "mine"


def test_failure_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up in the middle leaves the old folder, and no other."""
    write, written = manifest.write_synced, []

    def full(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(manifest, "write_synced", full)
    with pytest.raises(OSError, match="No space"):
        write_folder(folder, sealed({"c.bin": b"3"}), [NAME])

    assert read_folder(folder, NAME, KIND)[1] == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["thing"]


def test_rename_that_fails_puts_the_old_folder_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the new folder cannot take the name, the old one has it again."""
    rename = Path.rename

    def refuses(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuses)
    with pytest.raises(OSError, match="Input/output"):
        write_folder(folder, sealed({"c.bin": b"3"}), [NAME])

    assert read_folder(folder, NAME, KIND)[1] == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["thing"]
