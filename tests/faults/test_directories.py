"""Data directories as operators treat them: shared, copied, put back, read-only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jormungandr.errors import DataDirError
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.wal_check import wal_path
from tests.faults.built import ROWS, Built, build
from tests.service.serving import SPEC, Server

ROOT = Path(__file__).parents[2]
MODEL = Path("models/m.1")


def serve(data_dir: Path) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to refuse."""
    command = [sys.executable, "-m", "jormungandr", "serve", "--data-dir", str(data_dir)]
    return subprocess.run(
        [*command, "--port", "0"], capture_output=True, text=True, timeout=60, check=False
    )


def content(folder: Path) -> dict[str, bytes]:
    """Return every file."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- one server ---------------------------------------------------------------------------------


def test_two_servers(tmp_path: Path) -> None:
    """The second says which process holds the directory, and touches nothing; -9 frees it."""
    first = Server(tmp_path / "data")
    with first.connect("m") as endpoint:
        endpoint.create(SPEC)
    before = {k: v for k, v in content(tmp_path / "data").items() if "stderr" not in k}
    second = serve(tmp_path / "data")

    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert f"expected no other server, got process {first.process.pid}, which holds" in line
    after = {k: v for k, v in content(tmp_path / "data").items() if "stderr" not in k}
    assert after == before
    assert first.kill() == -signal.SIGKILL
    with Server(tmp_path / "data") as third, third.connect("m") as endpoint:
        assert endpoint.info()["generation"] == 1


def test_the_lock_says_who(tmp_path: Path) -> None:
    """It is taken before it is written: whoever comes second reads the first one's number."""
    directory = DataDir(tmp_path)
    assert json.loads((tmp_path / "LOCK").read_text())["pid"] == os.getpid()
    for _ in range(2):
        with pytest.raises(DataDirError, match=f"process {os.getpid()}, which holds its LOCK"):
            DataDir(tmp_path)
    directory.close()
    (tmp_path / "LOCK").write_text("no JSON")
    DataDir(tmp_path).close()


# -- copies -------------------------------------------------------------------------------------


def test_a_moved_directory(tmp_path: Path) -> None:
    """Moved as a whole it is what it was, and is not looked through."""
    build(tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "moved")
    directory = DataDir(tmp_path / "moved")
    assert directory.lock.in_place
    directory.close()


def test_a_copied_directory(tmp_path: Path) -> None:
    """A copy is looked through before it is served, and only the first time."""
    shutil.copytree(build(tmp_path / "data"), tmp_path / "copy")
    for known in (False, True):
        directory = DataDir(tmp_path / "copy")
        assert directory.lock.in_place is known
        for _, journal in directory.journals():
            journal.close()
        assert directory.lock.in_place
        directory.close()


def test_a_copy_of_no_single_moment(tmp_path: Path) -> None:
    """Copied file by file while a server wrote, it is whole, or it is refused by name."""
    built = Built(tmp_path / "data")
    outcomes = set()
    for n in range(len(ROWS) // 6):
        copy = tmp_path / f"copy{n}"
        copy.mkdir()
        database = built.folder / "journal.db"
        (copy / MODEL).mkdir(parents=True)
        # The log first, as it was; then more is written and moved; then the database.
        early = n % 2 == 0
        files = [wal_path(database), database] if early else [database, wal_path(database)]
        shutil.copyfile(files[0], copy / MODEL / files[0].name)
        built.add(ROWS[6 * n : 6 * n + 6])
        built.publish()
        if n % 3 == 2:
            built.journal._writer.wal_checkpoint(mode=2)
            built.add([{**row, "episode_id": f"x{n}"} for row in ROWS[6 * n : 6 * n + 6]])
        shutil.copyfile(files[1], copy / MODEL / files[1].name)
        directory = DataDir(copy)
        refused = ""
        try:
            for _, journal in directory.journals():
                journal.close()
        except DataDirError as error:
            refused = str(error)
        directory.close()
        assert not refused or "journal.db" in refused
        outcomes.add(bool(refused))
    built.close()

    assert outcomes == {False, True}


def test_an_old_journal_put_back(tmp_path: Path) -> None:
    """One that is older than what was made from it is refused in one line, and nothing changes."""
    data = tmp_path / "data"
    built = Built(data)
    built.add(ROWS[:24])
    built.close()
    old = (data / MODEL / "journal.db").read_bytes()
    shutil.rmtree(data)
    build(data)
    (data / MODEL / "journal.db").write_bytes(old)
    done = serve(data)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "journal.db" in line
    assert "one that ends at row 2" in line
    assert (data / MODEL / "journal.db").read_bytes() == old
    assert len(list((data / MODEL / "checkpoints").iterdir())) == 2


# -- places that cannot be written --------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory on a volume that takes no writes."""
    place = tmp_path / "volume"
    place.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no mount here")
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        build(place / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "data"
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_volume(read_only: Path) -> None:
    """A server says so in one line; verify needs no more than to read."""
    done = serve(read_only)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "expected a directory that can be written" in line
    assert "Read-only file system" in line
    command = [sys.executable, "-m", "jormungandr", "verify", str(read_only)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    """The same, where the directory is somebody else's."""
    data = build(tmp_path / "data")
    data.chmod(0o500)
    (data / "LOCK").chmod(0o400)
    assert serve(data).returncode == 1
