"""SIGTERM under load: not ready at once, what was acknowledged is stored, an end in time."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.serving import QUIET, SPEC, Server, experience, gone, until

pytestmark = pytest.mark.slow

#: Seconds in which a server that was told to end has ended.
IN_TIME = 30.0


class Sender(threading.Thread):
    """Sends episode after episode, and remembers what was acknowledged and what was answered."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(daemon=True)
        self._address, self._token, self._name = address(server), server.token, name
        self.acknowledged: list[dict[str, Any]] = []
        self.answers: set[tuple[int, str]] = set()

    def run(self) -> None:
        """Send until the server is gone."""
        connection = http.client.HTTPConnection(*self._address, timeout=IN_TIME)
        with contextlib.suppress(OSError, http.client.HTTPException):
            for n in range(10_000):
                rows = [
                    {**row, "episode_id": f"{n}", "actor_id": self._name}
                    for row in experience(1, 4, seed=n)
                ]
                status, content = ask(connection, self._token, "POST", ADD, {"transitions": rows})
                self.answers.add((status, content.get("error", {}).get("code", "")))
                if status == 200:
                    self.acknowledged += rows
        connection.close()


ADD = "/v1/models/m/experience/add"


def address(server: Server) -> tuple[str, int]:
    """Return where a server listens."""
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def ask(
    connection: http.client.HTTPConnection, token: str, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Return (status, content) of an answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    data = answer.read()
    return answer.status, json.loads(data) if data else None


@contextlib.contextmanager
def serving(data_dir: Path, *arguments: str) -> Iterator[Server]:
    """Run a server; however the test ends, so does it."""
    server = Server(data_dir, *arguments)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def loaded(server: Server, senders: int = 4) -> Iterator[list[Sender]]:
    """Have several actors send to a model that learns."""
    with server.connect("m") as endpoint:
        endpoint.create(SPEC)
    threads = [Sender(server, f"actor-{k}") for k in range(senders)]
    for thread in threads:
        thread.start()
    until(lambda: all(thread.acknowledged for thread in threads), "an acknowledgement of each")
    yield threads
    for thread in threads:
        thread.join(IN_TIME)
        assert not thread.is_alive()


def all_stored(data_dir: Path, senders: list[Sender]) -> None:
    """Start again, and send everything acknowledged once more: all of it is known."""
    with Server(data_dir) as server, server.connect("m") as endpoint:
        for sender in senders:
            for k in range(0, len(sender.acknowledged), 1_000):
                rows = sender.acknowledged[k : k + 1_000]
                assert endpoint.add(rows).duplicate == len(rows)


def test_under_load(tmp_path: Path) -> None:
    """Requests are answered 200 or 503 `draining` to the end; what was acknowledged is stored."""
    with serving(tmp_path) as server:
        with loaded(server) as senders:
            server.process.terminate()
            assert server.process.wait(IN_TIME) == 0
        assert {answer for s in senders for answer in s.answers} <= {(200, ""), (503, "draining")}
        folder = tmp_path / "models" / "m.1" / "checkpoints"
        assert [path for path in folder.iterdir() if path.name.isdigit()]
        assert "Traceback" not in (tmp_path / "stderr").read_text()
    all_stored(tmp_path, senders)


def test_not_ready_first(tmp_path: Path) -> None:
    """From the signal on it is not ready and takes no data, and goes on acting and telling."""
    with Server(tmp_path, "--drain-grace", "3") as server:
        with server.connect("m") as endpoint:
            endpoint.create(QUIET)
            endpoint.act([[0.0, 0.0]])
        server.process.terminate()

        def new() -> http.client.HTTPConnection:
            return http.client.HTTPConnection(*address(server), timeout=IN_TIME)

        def ready() -> tuple[int, Any]:
            with contextlib.closing(new()) as connection:
                return ask(connection, "", "GET", "/v1/health/ready")

        until(lambda: ready() == (503, {"status": "draining"}), "not ready")
        with contextlib.closing(new()) as connection:
            body = {"transitions": experience(1, 2)}
            status, content = ask(connection, server.token, "POST", ADD, body)
            assert (status, content["error"]["code"]) == (503, "draining")
            create = {"model_id": "other", "spec": QUIET}
            status, content = ask(connection, server.token, "POST", "/v1/models", create)
            assert (status, content["error"]["code"]) == (503, "draining")
            path, seen = "/v1/models/m/inference", {"observations": [[0.0, 0.0]]}
            assert ask(connection, server.token, "POST", path, seen)[0] == 200
            assert ask(connection, server.token, "GET", "/v1/models/m")[0] == 200
            assert ask(connection, server.token, "GET", "/v1/health/live")[0] == 200
        assert server.process.wait(IN_TIME) == 0


def test_second_signal(tmp_path: Path) -> None:
    """A second signal ends the server at once, not as if all were well; nothing is lost."""
    with serving(tmp_path, "--drain-grace", "600") as server, loaded(server) as senders:
        server.process.terminate()
        codes = {"draining"}
        until(lambda: any(codes & {c for _, c in s.answers} for s in senders), "draining")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(IN_TIME) == 128 + signal.SIGINT
    all_stored(tmp_path, senders)


def _barrier(server: Server) -> bytes:
    return _request(server, "GET /v1/models/m?applied_lsn=9&wait=60")


def _policy(server: Server) -> bytes:
    return _request(server, "GET /v1/models/m/policy?newer_than=0&wait=60")


def _events(server: Server) -> bytes:
    return _request(server, "GET /v1/models/m/events")


def _half_a_head(server: Server) -> bytes:
    return _request(server, "GET /v1/info")[:-2]


def _half_a_body(server: Server) -> bytes:
    head = _request(server, "POST /v1/models/m/inference")[:-2]
    return head + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


def _many_that_nobody_reads(server: Server) -> bytes:
    return _request(server, "GET /metrics") * 2_000


def _request(server: Server, line: str) -> bytes:
    authorization = f"Authorization: Bearer {server.token}"
    return f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "slow", [_barrier, _policy, _events, _half_a_head, _half_a_body, _many_that_nobody_reads]
)
def test_who_waits_does_not_delay_it(tmp_path: Path, slow: Any) -> None:
    """Neither a barrier, nor a stream, nor a client that sends or reads slowly keeps it."""
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.create(QUIET)
        with socket.socket() as waiting:
            waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            waiting.connect(address(server))
            waiting.setblocking(False)
            waiting.send(slow(server))
            endpoint.info()
            began = time.monotonic()
            server.process.terminate()
            # Half of what is allowed: this is no measurement, but far from a minute's wait.
            assert server.process.wait(IN_TIME / 2) == 0
            assert time.monotonic() - began < IN_TIME / 2
    assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_a_learner_that_does_not_end(tmp_path: Path) -> None:
    """One that is stopped in the middle of things is killed; the end comes in time all the same."""
    with serving(tmp_path) as server:
        with server.connect("m") as endpoint:
            endpoint.create(SPEC)
            rows = experience(8, 4)
            receipt = endpoint.add(rows)
            learner = endpoint.wait(receipt.lsn)["learner"]["pid"]
            os.kill(learner, signal.SIGSTOP)
            server.process.terminate()
            assert server.process.wait(IN_TIME) == 0
        assert gone(learner)
    with Server(tmp_path) as again, again.connect("m") as endpoint:
        assert endpoint.add(rows).duplicate == len(rows)
        assert endpoint.wait(receipt.lsn)["transitions"] == {"train": 24, "validation": 8}


def test_a_loop_that_does_not_turn() -> None:
    """Whatever is in the way, the process ends when its time is over, not as if all were well."""
    code = """
import time, uvicorn
from jormungandr.service import draining
async def app(scope, receive, send): pass
async def drain(): time.sleep(600)
draining.LIMIT = 0.5
class Server(draining.DrainingServer):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("up", flush=True)
Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None), drain).run()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "up\n"
        one.terminate()
        assert one.wait(IN_TIME) == 1


def test_ended_as_it_starts(tmp_path: Path) -> None:
    """A signal that comes with the first line of output ends the server like any other."""
    assert Server(tmp_path).terminate() == 0
