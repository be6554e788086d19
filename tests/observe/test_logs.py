"""The log: one line per event, the id of the request on each, and nobody's secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.service.observe import logs
from tests.service.conftest import App
from tests.service.serving import BEARER, QUIET, TOKEN, experience

ADD = "/v1/models/m/experience/add"


class Lines(logging.Handler):
    """Keeps lines as a formatter makes them."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.addFilter(lambda record: not record.name.startswith("http"))  # the tests' client
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(self.format(record))

    def json(self) -> list[dict[str, Any]]:
        """Return them, each of which must be one line of JSON."""
        assert not any("\n" in line for line in self.lines)
        return [json.loads(line) for line in self.lines]


@pytest.fixture(params=["json", "text"])
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    """Everything that is logged, in one of the two formats, down to the last detail."""
    kind = logs.JsonFormatter if request.param == "json" else logs.TextFormatter
    yield from _listening(Lines(kind({})))


@pytest.fixture
def events() -> Iterator[Lines]:
    """Everything that is logged, as JSON."""
    yield from _listening(Lines(logs.JsonFormatter({})))


def _listening(handler: Lines) -> Iterator[Lines]:
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def access(events: Lines) -> list[dict[str, Any]]:
    """Return the lines about requests."""
    return [line for line in events.json() if line["logger"] == "jormungandr.access"]


# -- ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["a", "abc-123_X.9", "x" * 64])
def test_a_sane_id_is_kept(app: App, given: str) -> None:
    """A client's own id comes back, whatever the answer is."""
    for path in ("/v1/info", "/v1/nothing", "/v1/models/unknown", "/v1/health/live"):
        response = app.request("GET", path, X_Request_Id=given)
        assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\tb", 'a"b', "<a>", "é", "a,b", "a\\n"])
def test_other_ids_are_replaced(app: App, given: str) -> None:
    """What cannot go into a log as it is, is no id: one is made instead."""
    headers = [(b"X-Request-Id", given.encode("utf-8")), *BEARER.items()]
    made = app.http.get("/v1/info", headers=headers).headers["x-request-id"]

    assert made != given
    assert len(made) == 16
    assert int(made, 16) >= 0


def test_two_ids_are_none(app: App) -> None:
    """Of several ids none is believed."""
    headers = [("X-Request-Id", "one"), ("X-Request-Id", "two"), *BEARER.items()]

    assert app.http.get("/v1/info", headers=headers).headers["x-request-id"] not in ("one", "two")


def test_every_answer_has_one(app: App) -> None:
    """Answers and errors of every kind have an id, each another one."""
    app.connect("m").create(QUIET)
    found = [
        app.http.get("/v1/info"),
        app.request("GET", "/v1/info"),
        app.request("GET", "/v1/nothing"),
        app.request("PUT", "/v1/info"),
        app.request("POST", ADD, b"{"),
        app.request("POST", ADD, {"transitions": [{}]}),
        app.request("GET", "/metrics"),
        app.request("DELETE", "/v1/models/m"),
    ]
    ids = {response.headers["x-request-id"] for response in found}

    assert len(ids) == len(found)
    assert [r.status_code for r in found] == [401, 200, 404, 405, 400, 422, 200, 204]


# -- lines --------------------------------------------------------------------------------------


def test_a_line_for_each_request(app: App, events: Lines) -> None:
    """It says who asked for what, how it ended, how long it took and how much came back."""
    app.connect("m").create(QUIET)
    response = app.request("POST", ADD, {"transitions": experience(1, 2)}, X_Request_Id="mine")
    line = access(events)[-1]

    assert (
        line.items()
        >= {
            "level": "info",
            "message": "POST /v1/models/{model_id}/experience/add 200",
            "request_id": "mine",
            "method": "POST",
            "route": "/v1/models/{model_id}/experience/add",
            "status": 200,
            "bytes": len(response.content),
            "token": "operator",
        }.items()
    )
    assert line["ms"] > 0
    assert line["time"].endswith("Z")


def test_refused_and_lost(app: App, events: Lines) -> None:
    """Who is not let in has no name, and what is not routed no route."""
    app.http.get("/v1/info")
    app.request("GET", "/v1/nothing")
    app.http.get("/v1/health/live")
    first, second, third = access(events)

    assert (first["status"], first["token"], first["route"]) == (401, None, "none")
    assert (second["status"], second["token"], second["route"]) == (404, "operator", "none")
    assert (third["status"], third["level"]) == (200, "debug")


def test_a_500_is_found_by_its_id(app: App, events: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace has the id that the client was given, and says so; the client sees no trace."""
    app.connect("m").create(QUIET)
    monkeypatch.setattr(app.model("m"), "info", lambda: 1 / 0)
    response = app.request("GET", "/v1/models/m")
    ident = response.headers["x-request-id"]
    traces = [line for line in events.json() if "exception" in line]

    assert response.status_code == 500
    assert ident in response.json()["error"]["remedy"]
    assert "ZeroDivisionError" not in response.text
    assert [(t["request_id"], t["level"]) for t in traces] == [(ident, "error")]
    assert "ZeroDivisionError" in traces[0]["exception"]


def test_no_token_and_no_body(app: App, lines: Lines) -> None:
    """Neither tokens, nor what is sent, nor paths as they were sent get into the log."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))
    secret = "hunter2-and-more-characters"
    row = {**experience(1, 1)[0], "actor_id": f"{secret}-actor", "observation": [0.123456, 9.87654]}
    app.request("POST", ADD, {"transitions": [row]})
    app.request("POST", ADD, {"transitions": [{**row, "reward": secret}]})
    app.request("POST", ADD, f'{{"transitions": [{{"{secret}'.encode())
    app.request("POST", "/v1/models/m/inference", {"observations": [[0.123456, 9.87654]]})
    app.http.get(f"/v1/{secret}?token={secret}", headers={"Authorization": f"Bearer {secret}"})
    app.request("GET", f"/v1/models/{secret}")
    app.http.get(f"/v1/{secret}", headers={"Cookie": secret, "X-Other": secret})
    logged = "\n".join(lines.lines)

    assert lines.lines
    for word in (TOKEN, secret, "0.123456", "9.87654"):
        assert word not in logged


def test_one_event_is_one_line(lines: Lines) -> None:
    """What others sent cannot end a line, nor write one of its own."""
    logging.getLogger("jormungandr").warning("met %s", "a\nb\r\nERROR all is lost")

    assert len(lines.lines) == 1
    assert len(lines.lines[0].splitlines()) == 1


def test_fields_of_an_event(events: Lines) -> None:
    """An event has fields of its own; what JSON does not have is written as text."""
    logs.event(logging.getLogger("jormungandr"), logging.INFO, "so", many=3, what=set)

    assert events.json()[-1]["many"] == 3
    assert events.json()[-1]["what"] == "<class 'set'>"


def test_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are told how the service logs, and write the name of their model."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setenv(logs.VARIABLE, "text")
    logs.configure("json", "warning")
    (first,) = root.handlers
    assert isinstance(first.formatter, logs.JsonFormatter)
    logs.configure_child(learner="m.1")
    (second,) = root.handlers
    line = second.format(logging.makeLogRecord({"msg": "so"}))

    assert json.loads(line)["learner"] == "m.1"
