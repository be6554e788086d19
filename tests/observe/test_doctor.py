"""`doctor`: each check is made to fail, and says what is there and what to do."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from jormungandr.cli import main
from jormungandr.service.access.operator_token import make_token
from jormungandr.service.diagnosis import directory, installation, running
from jormungandr.service.diagnosis.examination import examine, exit_status
from jormungandr.service.diagnosis.finding import EXIT_CODES, Finding
from jormungandr.service.diagnosis.running import RunningService
from jormungandr.service.lock import Lock
from jormungandr.transport import Response
from tests.service.conftest import App
from tests.service.serving import QUIET, TOKEN, InMemory, experience

CHECKS = list(EXIT_CODES)[:10]


def only(found: Iterator[Finding]) -> tuple[str, str]:
    """Return (status, measured) of the one finding there is; bad ones have a remedy."""
    (finding,) = found
    assert finding.check in CHECKS
    assert finding.remedy or finding.status in ("ok", "skip")
    return finding.status, finding.measured


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of nobody's concern but its owner's."""
    path = tmp_path / "data"
    (path / "models").mkdir(parents=True)
    path.chmod(0o700)
    make_token(path / "operator-token")
    return path


# -- the command --------------------------------------------------------------------------------


def test_ten_checks(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are ten, in order, each with an exit status of its own; a good place passes."""
    monkeypatch.setattr(installation, "check_torch", lambda: [Finding("torch", "ok", "here")])
    monkeypatch.delenv("JORMUNGANDR_URL", raising=False)
    monkeypatch.setattr(directory, "_sync_times", lambda _: (0.001, 0.002))
    status = main(["doctor", "--json", "--data-dir", str(data)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert [finding["check"] for finding in found] == CHECKS
    assert len(set(EXIT_CODES.values())) == len(EXIT_CODES)
    assert {f["check"]: f["status"] for f in found if f["status"] != "ok"}.items() <= {
        ("service", "skip"),
        ("learners", "skip"),
        ("disk", "warn"),
        ("limits", "warn"),
    }
    assert status == 0


def test_the_first_that_fails(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with the status of the first check that failed; later ones still run."""
    monkeypatch.setattr(installation, "check_torch", lambda: [Finding("torch", "ok", "here")])
    (data / "operator-token").chmod(0o644)
    service = RunningService("http://127.0.0.1:9", None, Answers({}))
    found = list(examine(data, None, service))

    assert [finding.check for finding in found] == CHECKS
    assert [finding.check for finding in found if finding.status == "fail"] == ["token", "service"]
    assert exit_status(found) == EXIT_CODES["token"]


def test_a_check_that_breaks_is_a_finding(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a check did not expect is what it found, and the others go on."""

    def broken(_: Path) -> Iterator[Finding]:
        raise OSError("no more")
        yield

    monkeypatch.setattr(installation, "check_torch", lambda: [Finding("torch", "ok", "here")])
    monkeypatch.setattr(directory, "check_disk", broken)
    found = {finding.check: finding for finding in examine(data, None, None)}

    assert (found["disk"].status, found["journals"].status) == ("fail", "ok")
    assert "no more" in found["disk"].measured


def test_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For people there are lines, remedies below them, and a sum; nobody's token is in them."""
    monkeypatch.setattr(installation, "check_torch", lambda: [Finding("torch", "ok", "here")])
    monkeypatch.setenv("JORMUNGANDR_TOKEN", TOKEN)
    with socket.socket() as taken:  # bound and not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        status = main(["doctor", "--url", f"http://127.0.0.1:{taken.getsockname()[1]}"])
    said = capsys.readouterr().out

    assert status == EXIT_CODES["service"]
    assert "fail  service" in said
    assert "1 failed" in said
    assert TOKEN not in said


# -- the installation ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "said"),
    [(None, "apsw is missing"), ("3.40.1.0", "apsw 3.40.1.0 is not >=3.51.3.0")],
)
def test_packages(monkeypatch: pytest.MonkeyPatch, version: str | None, said: str) -> None:
    """A package that is missing or too old is named."""
    real = importlib.metadata.version

    def fake(name: str) -> str:
        if name != "apsw":
            return real(name)
        if version is None:
            raise importlib.metadata.PackageNotFoundError
        return version

    assert only(installation.check_packages())[0] == "ok"
    monkeypatch.setattr(importlib.metadata, "version", fake)

    assert only(installation.check_packages()) == ("fail", said)


def test_sqlite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old SQLite, or a volume that takes no database, is named."""
    assert only(installation.check_sqlite(tmp_path))[0] == "ok"
    assert list(tmp_path.iterdir()) == []
    assert only(installation.check_sqlite(tmp_path / "none"))[0] == "fail"
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    assert only(installation.check_sqlite(tmp_path)) == ("fail", "SQLite 3.51.2")


def test_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A torch that cannot be imported is named with what it says."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'ImportError: libgomp' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    assert only(installation.check_torch()) == ("fail", "ImportError: libgomp")


@pytest.mark.slow
def test_torch_as_it_is() -> None:
    """The torch that is installed here is imported."""
    status, measured = only(installation.check_torch())

    assert status in ("ok", "warn")
    assert "torch 2." in measured


@pytest.mark.parametrize(("files", "status"), [(100, "fail"), (1_000, "warn"), (8_000, "ok")])
def test_limits(files: int, status: str) -> None:
    """Too few file descriptors are seen, in a process that has them."""
    code = (
        "import resource; _, hard = resource.getrlimit(resource.RLIMIT_NOFILE);"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, hard));"
        "from jormungandr.service.diagnosis.installation import check_limits;"
        "print([f.status for f in check_limits()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == f"['{status}']\n"


# -- the directory ------------------------------------------------------------------------------


def test_directory(data: Path, tmp_path: Path) -> None:
    """A directory that is missing, or open to others, is named; a server's lock is seen."""
    assert only(directory.check_directory(data)) == ("ok", "mode 0700; no server uses it")
    lock = Lock(data)
    assert f"process id {os.getpid()}" in only(directory.check_directory(data))[1]
    lock.close()
    data.chmod(0o755)
    assert only(directory.check_directory(data))[0] == "warn"
    data.chmod(0o777)
    assert only(directory.check_directory(data))[0] == "fail"
    assert only(directory.check_directory(tmp_path / "none"))[0] == "fail"


def test_directory_that_cannot_be_written(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this user cannot write is named; root can, so the refusal is made."""
    if os.geteuid() == 0:

        def refuse(**_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(directory.tempfile, "TemporaryFile", refuse)
    else:
        data.chmod(0o500)

    assert only(directory.check_directory(data))[0] == "fail"


def test_token(data: Path, tmp_path: Path) -> None:
    """A token that others can read, or that is none, is named, and not shown."""
    file = data / "operator-token"
    secret = file.read_text().strip()
    assert only(directory.check_token(file))[0] == "ok"
    file.chmod(0o644)
    status, measured = only(directory.check_token(file))
    assert (status, secret in measured) == ("fail", False)
    file.chmod(0o600)
    file.write_text("short")
    assert only(directory.check_token(file))[0] == "fail"
    assert only(directory.check_token(tmp_path / "none"))[0] == "skip"


def test_disk(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little space, a file system over the network or in memory, and odd syncs are named."""
    monkeypatch.setattr(directory, "_kind", lambda _: "ext4")
    monkeypatch.setattr(directory, "_sync_times", lambda _: (0.001, 0.002))

    def volume(free: int, inodes: int = 100) -> None:
        fields = {"f_bavail": free // 4096, "f_frsize": 4096, "f_favail": inodes, "f_files": 1_000}
        monkeypatch.setattr(directory.os, "statvfs", lambda _: SimpleNamespace(**fields))

    volume(100 << 30)
    assert only(directory.check_disk(data))[0] == "ok"
    for seconds in (0.05, 0.000001):
        monkeypatch.setattr(directory, "_sync_times", lambda _, s=seconds: (s, s))
        assert only(directory.check_disk(data))[0] == "warn"
    monkeypatch.setattr(directory, "_sync_times", lambda _: (0.001, 0.002))
    for kind, status in (("tmpfs", "warn"), ("nfs4", "fail"), ("xfs", "ok")):
        monkeypatch.setattr(directory, "_kind", lambda _, k=kind: k)
        assert only(directory.check_disk(data))[0] == status
    volume(500 << 20)
    assert only(directory.check_disk(data))[0] == "warn"
    volume(10 << 20)
    assert only(directory.check_disk(data)) == ("fail", "0.01 GiB free, xfs")
    volume(100 << 30, inodes=0)
    assert only(directory.check_disk(data))[0] == "fail"
    assert only(directory.check_disk(data / "none"))[0] == "skip"


def test_a_full_disk(tmp_path: Path) -> None:
    """A small file system in memory is seen for what it is; where none can be mounted, /proc is."""
    if not Path("/proc/self/mounts").exists():
        pytest.skip("no /proc")
    assert directory._kind(Path("/proc/self")) == "proc"
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        assert only(directory.check_disk(tmp_path)) == ("fail", "0.00 GiB free, tmpfs")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_journals(app: App) -> None:
    """A row that is not as it was written is named, beside a server."""
    endpoint = app.connect("m")
    endpoint.create(QUIET)
    endpoint.add(experience(2, 4))
    assert only(directory.check_journals(app.path)) == (
        "ok",
        "1 journals, 1 newest rows match their digests",
    )
    connection = apsw.Connection(str(app.path / "models" / "m.1" / "journal.db"))
    connection.execute("UPDATE journal SET digest = zeroblob(32) WHERE kind = 'transitions'")
    connection.close()
    status, measured = only(directory.check_journals(app.path))

    assert status == "fail"
    assert "SHA-256" in measured


def test_journal_that_is_none(data: Path) -> None:
    """A file that is no database is named."""
    folder = data / "models" / "m.1"
    folder.mkdir()
    (folder / "journal.db").write_bytes(b"no database " * 500)

    assert only(directory.check_journals(data))[0] == "fail"


# -- the service --------------------------------------------------------------------------------


class Answers:
    """A transport that answers with what it was given, by path; without an entry, not at all."""

    def __init__(self, found: dict[str, Response]) -> None:
        self._found = found

    def request(self, _: str, path: str, *__: Any) -> Response:
        """Answer."""
        if path not in self._found:
            raise ConnectionRefusedError(111, "Connection refused")
        return self._found[path]

    def close(self) -> None:
        """Nothing to close."""


def answer(content: Any, status: int = 200, when: float | None = None) -> Response:
    """Return an answer of a service whose clock says `when`."""
    date = formatdate(time.time() if when is None else when, usegmt=True)
    return Response(status, {"date": date}, json.dumps(content).encode())


def running_at(app: App, token: str | None) -> RunningService:
    """Return an application in memory as a service."""
    return RunningService("http://memory", token, InMemory(app.http))


def test_service(app: App) -> None:
    """A service that is ready and knows the token is well; with another token it is not."""
    assert only(running.check_service(running_at(app, TOKEN)))[0] == "ok"
    for token in ("another-token-altogether", None):
        status, measured = only(running.check_service(running_at(app, token)))
        assert status == "fail"
        assert "unauthenticated" in measured
        assert "another-token" not in measured


def test_service_that_is_not_ready(app: App) -> None:
    """One that starts or drains says so."""
    app.gateway.state = "draining"
    status, measured = only(running.check_service(running_at(app, TOKEN)))
    app.gateway.state = "ready"

    assert (status, "draining" in measured) == ("fail", True)


@pytest.mark.parametrize("behind", [-60.0, 60.0])
def test_clocks(behind: float) -> None:
    """A clock that is a minute off is named, and another version."""
    from jormungandr.version import __version__

    ready = answer({"status": "ready"}, when=time.time() - behind)
    info = answer({"version": __version__})
    found = Answers({"/v1/health/ready": ready, "/v1/info": info})
    status, measured = only(running.check_service(RunningService("http://x", "t", found)))
    assert (status, "60 s" in measured or "59 s" in measured) == ("warn", True)

    other = {"/v1/health/ready": answer({"status": "ready"}), "/v1/info": answer({"version": "9"})}
    assert only(running.check_service(RunningService("http://x", "t", Answers(other))))[0] == "warn"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_another_service(body: bytes) -> None:
    """What answers otherwise is taken for another service."""
    found = {"/v1/health/ready": Response(404, {}, body)}
    status, _ = only(running.check_service(RunningService("http://x", "t", Answers(found))))

    assert status == "fail"


def test_learners(app: App) -> None:
    """A learner that failed is a failure, one that diverged and a warning are to be looked at."""
    app.connect("m").create(QUIET)
    service = running_at(app, TOKEN)
    assert only(running.check_learners(service)) == ("ok", "1 models, 0 rows not applied yet")
    process = app.model("m").learning.process
    process.state = "restarting"
    assert only(running.check_learners(service))[0] == "warn"
    process.state = "failed"
    assert only(running.check_learners(service))[0] == "fail"
    process.state = "running"
    app.model("m").learning.checkpoint_error = "no space"
    status, measured = only(running.check_learners(service))
    assert (status, "checkpoint_failed" in measured) == ("warn", True)
    assert only(running.check_learners(running_at(app, "another-token-altogether")))[0] == "skip"
