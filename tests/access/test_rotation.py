"""Tokens change while a real server is asked all the time; ``jormungandr token`` beside it."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from jormungandr.errors import DataDirError
from jormungandr.service.access.operator_token import read_token
from jormungandr.service.access.private import write_private
from jormungandr.service.access.tokens import FILE, Tokens
from tests.service.serving import DEADLINE, Server, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests of this module share."""
    with Server(tmp_path_factory.mktemp("data")) as running:
        yield running


def command(data_dir: Path, *arguments: str) -> tuple[int, str, str]:
    """Run ``jormungandr token``; return (status, stdout, stderr)."""
    line = [sys.executable, "-m", "jormungandr", "token", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE, check=False)
    return done.returncode, done.stdout, done.stderr


def status(server: Server, token: str, path: str = "/v1/info", **headers: str) -> int:
    """Ask on a connection of its own; return the status."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=DEADLINE)
    try:
        given = {"Authorization": f"Bearer {token}", **headers}
        connection.request("GET", path, headers=given)
        return connection.getresponse().status
    finally:
        connection.close()


def test_command_beside_a_server(server: Server) -> None:
    """A token is printed once, alone; the server knows it at once, and not once it is revoked."""
    code, out, err = command(server.data_dir, "create", "desk", "--scope", "actor")
    token = out.strip()
    assert (code, out) == (0, f"{token}\n")
    assert token not in err
    assert status(server, token) == 200
    assert status(server, token, "/v1/models") == 403

    assert command(server.data_dir, "revoke", "desk")[:2] == (0, "revoked desk\n")
    assert status(server, token) == 401
    assert token not in (server.data_dir / "stderr").read_text()


def test_rotation_under_load(server: Server) -> None:
    """While tokens come and go and files break, whoever has a good token is answered every time."""
    steady = Tokens(server.data_dir).create("steady", ["observe"])
    over, counts, wrong = threading.Event(), [0] * 4, []

    def ask(worker: int) -> None:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=DEADLINE
        )
        token = steady if worker % 2 else "jrm_" + "x" * 43
        while not over.is_set():
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != (200 if worker % 2 else 401):
                wrong.append(answer.status)
            counts[worker] += 1
        connection.close()

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    file, tokens = server.data_dir / "operator-token", Tokens(server.data_dir)
    try:
        before = read_token(file)
        for n in range(20):
            now = f"operators-token-number-{n}"
            write_private(file, now.encode())
            assert (status(server, now), status(server, before)) == (200, 401)
            before = now
            passing = tokens.create(f"passing-{n}", ["act"])
            assert status(server, passing) == 200
            tokens.revoke(f"passing-{n}")
            assert status(server, passing) == 401
        whole = (server.data_dir / FILE).read_bytes()
        write_private(server.data_dir / FILE, whole[:-9])
        file.chmod(0o644)
        assert status(server, before) == 200
        until(lambda: min(counts) > 50, "fifty answers for each")
    finally:
        over.set()
        for worker in workers:
            worker.join()
    write_private(server.data_dir / FILE, whole)
    file.chmod(0o600)
    said = (server.data_dir / "stderr").read_text()

    assert wrong == []
    assert "tokens.json: expected a file of `jormungandr token`" in said
    assert "operator-token: expected mode 0600" in said
    assert said.count("stays in force") == 2
    assert not [secret for secret in (before, steady, passing) if secret in said]
    with pytest.raises(DataDirError):
        Tokens(server.data_dir / "elsewhere")
