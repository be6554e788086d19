"""``jormungandr serve`` from outside: its token file, its address, its directory."""

from __future__ import annotations

import http.client
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jormungandr import RemoteLearner
from jormungandr.cli import main
from jormungandr.errors import DataDirError, Unauthenticated
from jormungandr.service.datadir import DataDir
from jormungandr.spec import ModelSpec
from tests.service.serving import DEADLINE, QUIET, Server


def serve(data_dir: Path, *arguments: str) -> tuple[int, str, str]:
    """Run ``jormungandr serve`` until it ends by itself; return (status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "jormungandr", "serve", "--data-dir", str(data_dir), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests of this module share; it has no model that learns."""
    with Server(tmp_path_factory.mktemp("data")) as running:
        yield running


# -- the token ----------------------------------------------------------------------------------


def test_token_file_is_made(server: Server) -> None:
    """The first start makes a token of 256 bits, for its owner's eyes alone."""
    path = server.data_dir / "operator-token"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(server.token) == 43
    with server.connect("m") as endpoint:
        endpoint.create(QUIET)
    with RemoteLearner(server.url, "m", "another") as stranger, pytest.raises(Unauthenticated):
        stranger.info()


def test_open_token_file_ends_the_start(tmp_path: Path) -> None:
    """The server does not start with a token that others can read."""
    path = tmp_path / "token"
    path.write_text("swordfish-swordfish")
    path.chmod(0o644)
    status, out, err = serve(tmp_path / "data", "--port", "0", "--token-file", str(path))

    assert (status, out) == (1, "")
    assert err.startswith(f"jormungandr serve: {path}: expected mode 0600")
    assert err.count("\n") == 1


# -- the address --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", "", "127.0.0.1.x"])
def test_foreign_address_is_refused(tmp_path: Path, host: str) -> None:
    """An address that others can reach needs --insecure, and nothing is made without it."""
    status, out, err = serve(tmp_path / "data", "--port", "0", "--host", host)

    assert (status, out) == (1, "")
    assert err.startswith("jormungandr serve: --host: expected an address of this machine alone")
    assert "--insecure" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("port", ["-1", "65536", "70000"])
def test_port_that_does_not_exist(tmp_path: Path, port: str) -> None:
    """A port out of range is refused, rather than folded into it."""
    status, _, err = serve(tmp_path / "data", "--port", port)

    assert (status, err) == (1, f"jormungandr serve: --port: expected 0..65535, got {port}\n")


def test_port_in_use(server: Server, tmp_path: Path) -> None:
    """A port that is taken ends the start with a line that says so."""
    port = server.url.rpartition(":")[2]
    status, out, err = serve(tmp_path / "data", "--port", port)

    assert (status != 0, out) == (True, "")
    assert "--host, --port: expected an address that is free" in err
    assert "Traceback" not in err


# -- the directory ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("training.json", "the folder of a training"),
        ("seed-0/training.json", "the folder of a training"),
        ("manifest.json", "a checkpoint"),
    ],
)
def test_a_folder_of_a_policy_is_no_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, what: str
) -> None:
    """It is refused with what it is and what to do instead, and nothing is put into it."""
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("{}")
    before = sorted(tmp_path.iterdir())
    assert main(["serve", "--data-dir", str(tmp_path), "--port", "0"]) == 1

    error = capsys.readouterr().err
    assert "--data-dir: expected a new directory, or one of a service, got " in error
    assert f"{tmp_path}, {what}; a policy that is trained is not served" in error
    assert sorted(tmp_path.iterdir()) == before


def test_second_server(server: Server) -> None:
    """A directory has one server: the second ends at once, in one line, and touches nothing."""
    before = {path: path.stat().st_mtime_ns for path in server.data_dir.rglob("journal.db*")}
    status, out, err = serve(server.data_dir, "--port", "0")

    assert (status, out) == (1, "")
    assert err == (
        f"jormungandr serve: {server.data_dir}: expected no other server, got process"
        f" {server.process.pid}, which holds its LOCK; stop it, or use another directory\n"
    )
    assert {p: p.stat().st_mtime_ns for p in server.data_dir.rglob("journal.db*")} == before
    with server.connect("m") as endpoint:
        assert endpoint.create(QUIET)["model_id"] == "m"


def test_lock_is_free_after_close(tmp_path: Path) -> None:
    """The lock lasts as long as the server, and not longer."""
    first = DataDir(tmp_path)
    with pytest.raises(DataDirError):
        DataDir(tmp_path)
    first.close()
    DataDir(tmp_path).close()


def damage_nothing(folder: Path) -> None:
    """Leave a model's folder without a journal."""


def damage_random(folder: Path) -> None:
    """Put something else in the journal's place."""
    (folder / "journal.db").write_bytes(b"no database " * 500)


def damage_empty(folder: Path) -> None:
    """Leave an empty journal."""
    (folder / "journal.db").touch()


@pytest.mark.parametrize("damage", [damage_nothing, damage_random, damage_empty])
def test_damaged_journal(tmp_path: Path, damage: Any) -> None:
    """A model whose journal cannot be read ends the start in one line; it is not skipped."""
    folder = tmp_path / "models" / "m.1"
    folder.mkdir(parents=True)
    damage(folder)
    status, out, err = serve(tmp_path, "--port", "0")

    assert (status, out) == (1, "")
    assert err.startswith(f"jormungandr serve: {folder / 'journal.db'}: expected a journal")
    assert err.count("\n") == 1


@pytest.mark.parametrize("what", ["file", "below a file"])
def test_directory_that_cannot_be(tmp_path: Path, what: str) -> None:
    """What is no directory ends the start in one line."""
    path = tmp_path / "file"
    path.touch()
    status, _, err = serve(path if what == "file" else path / "data", "--port", "0")

    assert status == 1
    assert "expected a directory that can be written" in err
    assert err.count("\n") == 1


def test_creation_cut_short_is_swept(tmp_path: Path) -> None:
    """What a creation left behind that nobody was told of is removed at the next start."""
    junk = tmp_path / "models" / ".m.1"
    junk.mkdir(parents=True)
    (junk / "journal.db").touch()
    DataDir(tmp_path).close()

    assert not junk.exists()


#: ``serve`` with so many open files at first, and at most.
FEW_FILES = """
import resource, sys
from jormungandr.cli import main
soft, hard = int(sys.argv[1]), int(sys.argv[2])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard < 0 else hard
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
sys.exit(main(["serve", "--data-dir", sys.argv[3], "--port", "0"]))
"""


@pytest.fixture
def many_models(tmp_path: Path) -> Path:
    """A directory with sixteen models, whose journals take 80 files."""
    directory = DataDir(tmp_path / "data")
    directory.lock.settle()
    for n in range(16):
        directory.create(f"m{n}", 1, 0, ModelSpec.from_dict(QUIET))[1].close()
    directory.close()
    return tmp_path / "data"


def test_more_models_than_a_process_has_files_at_first(many_models: Path) -> None:
    """The limit that a process begins with is raised before the journals are opened."""
    command = [sys.executable, "-c", FEW_FILES, "64", "-1", str(many_models)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        assert it.stderr is not None
        line = it.stdout.readline()
        it.terminate()
        assert line.startswith("listening on "), it.stderr.read()


def test_more_models_than_a_process_may_have_files(many_models: Path) -> None:
    """Where it cannot be raised, the one line says what may be wrong besides the journal."""
    command = [sys.executable, "-c", FEW_FILES, "64", "64", str(many_models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "expected a journal that can be opened, got unable to open" in line
    assert "`ulimit -n`" in line


# -- the end ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_with_an_open_barrier(tmp_path: Path, sign: int) -> None:
    """Who waits at a barrier when the server is told to end is sent away, not left with a 500."""
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.create(QUIET)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        with socket.create_connection(address, DEADLINE) as waiting:
            head = "GET /v1/models/m?applied_lsn=9&wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            waiting.sendall(f"{head}Authorization: Bearer {server.token}\r\n\r\n".encode())
            endpoint.info()  # what came before it has been read when it is answered
            server.process.send_signal(sign)
            answer = http.client.HTTPResponse(waiting)
            answer.begin()

            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert b'"draining"' in answer.read()
            assert server.process.wait(DEADLINE) == 0
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_directory_is_the_owners_alone(tmp_path: Path) -> None:
    """One that `serve` makes is closed to others; one that is there stays as its owner made it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    theirs.chmod(0o755)
    for path, mode in ((tmp_path / "a" / "new", 0o700), (theirs, 0o755)):
        DataDir(path).close()
        assert path.stat().st_mode & 0o777 == mode
