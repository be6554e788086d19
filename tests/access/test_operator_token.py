"""The operator's token file: who may read it, and what may be in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jormungandr.errors import DataDirError
from jormungandr.service.access.operator_token import make_token, read_token
from jormungandr.service.access.private import write_private


def put(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Write a file with a mode."""
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_token_is_made(tmp_path: Path) -> None:
    """A token is 256 random bits, another one each time, for its owner alone under any umask."""
    before = os.umask(0)
    try:
        for name in "ab":
            make_token(tmp_path / name)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert len(read_token(tmp_path / "a")) == 43
    assert read_token(tmp_path / "a") != read_token(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_token_is_kept(tmp_path: Path) -> None:
    """A file that is there is not touched."""
    path = put(tmp_path / "token", b"swordfish-swordfish\n")
    make_token(path)

    assert path.read_bytes() == b"swordfish-swordfish\n"


def test_token_of_ones_own(tmp_path: Path) -> None:
    """An operator's own token is taken as it is, without the newline of its editor."""
    assert read_token(put(tmp_path / "t", b"swordfish-swordfish\r\n")) == "swordfish-swordfish"


def test_token_by_a_link(tmp_path: Path) -> None:
    """A link is followed: that is how secrets are mounted; the file's own mode counts."""
    (tmp_path / "link").symlink_to(put(tmp_path / "t", b"swordfish-swordfish"))

    assert read_token(tmp_path / "link") == "swordfish-swordfish"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601, 0o620])
def test_token_that_others_can_use(tmp_path: Path, mode: int) -> None:
    """A token that others can read or change is refused, with the command that helps."""
    path = put(tmp_path / "t", b"swordfish-swordfish", mode)

    with pytest.raises(DataDirError, match=r"expected mode 0600 or less, got .*; chmod 600 "):
        read_token(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"a token with spaces inside",
        "café-café-café-café".encode(),
        b"swordfish\x00swordfish",
        b"swordfish\nswordfish",
        b"too-short",
        b"x" * 5_000,
    ],
)
def test_token_that_is_none(tmp_path: Path, content: bytes) -> None:
    """What is empty, guessable, endless, or cannot go into a header is refused, and not shown."""
    path = put(tmp_path / "t", content)

    with pytest.raises(DataDirError) as raised:
        read_token(path)

    assert "swordfish" not in str(raised.value)
    assert "too-short" not in str(raised.value)


def test_no_regular_file(tmp_path: Path) -> None:
    """A folder or a pipe is refused at once; nobody waits for what a pipe would say."""
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("folder", "pipe", "missing"):
        with pytest.raises(DataDirError):
            read_token(tmp_path / name)


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be synced leaves the old one as it was; the next attempt works."""
    path = put(tmp_path / "t", b"old")

    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(DataDirError, match="No space left"):
            write_private(path, b"new")
    assert path.read_bytes() == b"old"

    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["t"]
