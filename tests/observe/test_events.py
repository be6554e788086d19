"""Events of a model, as they happen; checkpoints, as they are asked for."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.errors import Draining
from jormungandr.service.http.grants import OPERATOR
from jormungandr.service.observe import events as module
from jormungandr.service.observe.events import EventsRoute
from tests.service.conftest import App
from tests.service.serving import DEADLINE, QUIET, SPEC, Server, experience, until


def parsed(text: bytes) -> list[tuple[str, Any]]:
    """Return the (event, content) of a stream, as the standard has it."""
    found = []
    for block in text.decode().split("\n\n")[:-1]:
        fields = [line.partition(":") for line in block.split("\n")]
        named = {name: value.removeprefix(" ") for name, _, value in fields}
        if "event" in named:
            found.append((named["event"], json.loads(named["data"])))
        else:
            assert named == {"": "beat"}
            found.append(("", "beat"))
    return found


class Stream:
    """A stream of a route, read in this process as it is written."""

    def __init__(self, app: App, model_id: str = "m") -> None:
        self._app, self.sent = app, b""
        self.status: int | None = None
        self.slow = False
        self.route = EventsRoute(app.gateway.model)
        self._scope = {
            "type": "http",
            "method": "GET",
            "query_string": b"",
            "headers": [],
            "path_params": {"model_id": model_id},
            "grant": OPERATOR,
        }

    async def _start(self) -> None:
        self._gone = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(
            self.route(self._scope, self._receive, self._send)
        )

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        while self.slow:
            await asyncio.sleep(0.001)
        self.sent += message.get("body", b"")

    def open(self) -> Stream:
        """Begin to read."""
        self._app.run(self._start)
        return self

    def named(self, name: str) -> list[Any]:
        """Return what the events of a name held so far."""
        return [content for event, content in parsed(self.sent) if event == name]

    def until(self, name: str, many: int = 1) -> list[Any]:
        """Return them once there are so many."""
        until(lambda: len(self.named(name)) >= many, f"{many} of {name}")
        return self.named(name)

    async def _hang_up(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self._task, DEADLINE)

    def hang_up(self) -> None:
        """Go away; the route must end by that."""
        self._app.run(self._hang_up)

    @property
    def ended(self) -> bool:
        """Whether the route has ended."""
        return self._task.done()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than a service does."""
    monkeypatch.setattr(module, "PERIOD", 0.002)


@pytest.fixture
def stream(app: App) -> Iterator[Stream]:
    """A stream of a model that has a policy."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))
    found = Stream(app).open()
    yield found
    found.slow = False
    if not found.ended:
        found.hang_up()


def test_it_begins_with_what_is(stream: Stream) -> None:
    """Who connects learns the present state first, without having to ask."""
    assert stream.until("policy") == [{"policy_version": 0, "update_count": 0}]
    assert stream.until("learner") == [{"state": "idle", "error": None}]
    assert stream.until("warnings") == [{"warnings": []}]
    assert stream.status == 200


def test_changes(app: App, stream: Stream) -> None:
    """A policy, an evaluation, a learner's state and a warning are told when they change."""
    stream.until("warnings")
    learner = Learner(SPEC)
    learner.add(experience(8, 4))
    evaluations = learner.metrics()["evaluations"]
    hear = app.model("m").learning
    hear.evaluations = {e["policy_version"]: e for e in evaluations[:1]}
    stream.until("evaluation")
    hear.evaluations = {e["policy_version"]: e for e in evaluations}
    assert stream.until("evaluation", len(evaluations)) == evaluations
    hear.process.state = "failed"
    assert stream.until("learner", 2)[-1]["state"] == "failed"
    hear.checkpoint_error = "no space"
    assert "checkpoint_failed" in stream.until("warnings", 2)[-1]["warnings"][0]


def test_a_slow_reader_gets_the_newest(app: App, stream: Stream) -> None:
    """While nobody reads nothing piles up: afterwards there is the newest state, once."""
    stream.until("warnings")
    stream.slow = True
    process = app.model("m").learning.process
    for state in ("idle", "restarting", "parked", "starting"):
        process.state = state
        app.run(asyncio.sleep, 0.02)
    stream.slow = False
    until(lambda: stream.named("learner")[-1]["state"] == "starting", "the newest state")

    assert len(stream.named("learner")) <= 3  # the one that waited to be sent, and the newest


def test_a_comment_shows_that_it_lives(
    app: App, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without changes there is a comment once in a while."""
    monkeypatch.setattr(module, "BEAT", 0.01)

    assert stream.until("", 3) == ["beat"] * 3


def test_it_ends(app: App, stream: Stream) -> None:
    """It ends with its client, and when service or model come to their end, which it says."""
    stream.until("warnings")
    other = Stream(app).open()
    other.until("warnings")
    other.hang_up()
    assert not other.named("end")
    app.model("m").commits.refusal = Draining("service", "one that stays", "another")
    until(lambda: stream.ended, "its end")
    app.model("m").commits.refusal = None

    assert stream.named("end") == [{"code": "draining"}]


def test_there_are_only_so_many(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more stream than the service holds is refused; one that has ended makes room."""
    monkeypatch.setattr(module, "STREAMS", 0)
    app.connect("m").create(QUIET)
    response = app.request("GET", "/v1/models/m/events")

    assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
    assert app.request("GET", "/v1/models/unknown/events").status_code == 404
    assert app.http.get("/v1/models/m/events").status_code == 401


def test_no_checkpoint_yet(app: App) -> None:
    """A model that has applied nothing has none; who asks is told in time."""
    app.connect("m").create(QUIET)
    response = app.request("GET", "/v1/models/m/checkpoints")
    assert (response.status_code, response.json()) == (200, {"checkpoints": []})
    response = app.request("POST", "/v1/models/m/checkpoints")

    assert (response.status_code, response.json()["done"]) == (202, False)
    assert app.request("POST", "/v1/models/m/checkpoints?wait=61").status_code == 422
    assert app.request("GET", "/v1/models/none/checkpoints").status_code == 404


@pytest.mark.slow
def test_from_outside(tmp_path: Path) -> None:
    """A service tells of what its learner does, and has it write down where it is."""
    with Server(tmp_path) as server, server.connect("m") as endpoint:
        endpoint.create(SPEC)
        reading = http.client.HTTPConnection(*_address(server), timeout=DEADLINE)
        headers = {"Authorization": f"Bearer {server.token}"}
        reading.request("GET", "/v1/models/m/events", headers=headers)
        answer = reading.getresponse()
        assert answer.getheader("content-type") == "text/event-stream"
        receipt = endpoint.add(experience(8, 4))
        endpoint.wait(receipt.lsn)
        version = endpoint.info()["policy_version"]
        found = _until(answer, lambda name, told: told.get("policy_version") == version)
        assert {name for name, _ in found} >= {"policy", "learner", "warnings"}

        asking = http.client.HTTPConnection(*_address(server), timeout=DEADLINE)
        asking.request("POST", "/v1/models/m/checkpoints?wait=60", headers=headers)
        reply = asking.getresponse()
        written = json.loads(reply.read())
        assert (reply.status, written["done"], written["error"]) == (200, True, None)
        (kept,) = written["checkpoints"]
        assert (kept["lsn"], kept["bytes"] > 1_000) == (receipt.lsn, True)
        asking.request("GET", "/v1/models/m/checkpoints", headers=headers)
        assert json.loads(asking.getresponse().read())["checkpoints"] == [kept]
        lines = {
            'jormungandr_checkpoints_total{model="m"} 1',
            f'jormungandr_checkpoint_lsn{{model="m"}} {receipt.lsn}',
            'jormungandr_learner_state{model="m",state="idle"} 1',
            "jormungandr_http_connections 3",
        }

        def figures() -> str:
            asking.request("GET", "/metrics", headers=headers)
            return asking.getresponse().read().decode()

        until(lambda: lines <= set(figures().splitlines()), "figures of an idle learner")
        assert 'jormungandr_loss{model="m"}' in figures()
        endpoint.delete()
        found = _until(answer, lambda name, _: name == "end")
        assert found[-1] == ("end", {"code": "model_unknown"})
        reading.close()
        asking.close()


def _until(
    answer: http.client.HTTPResponse, last: Callable[[str, Any], bool]
) -> list[tuple[str, Any]]:
    """Return events of a stream up to the one that is asked for."""
    end, text, found = time.monotonic() + DEADLINE, b"", []
    while not found or not last(*found[-1]):
        assert time.monotonic() < end, f"not among {found}"
        line = answer.readline()
        assert line, f"the stream ended after {found}"
        text += line
        if text.endswith(b"\n\n"):
            found += parsed(text)
            text = b""
    return found


def _address(server: Server) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rpartition(":")[2])
