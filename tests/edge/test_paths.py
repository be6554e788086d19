"""Paths: an id is its grammar, literally; what only looks like another path is none."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.edge.asgi import ask

NOTHING = [(404, "model_unknown"), (404, "not_found"), (405, "method_not_allowed")]

TRICKS = [
    "%6d",  # m, encoded
    "m%2f",
    "%2fm",
    "m%2finference",
    "m%2Fexperience%2Fadd",
    "%2e",
    "%2e%2e",
    "..%2fm",
    "m%2f..%2fm",
    "m%00",
    "%00",
    "m%0a",
    "m%0d%0aX-A:%20b",
    "m%20",
    "m;x",
    "m%3fwait=1",
    "m%23",
    "m%5c",
    "m%ff",
    "%c0%ae%c0%ae",
    "m%E2%80%8B",
    "M",
    "m.",
    ".m",
    "m*",
    "{model_id}",
    "%7Bmodel_id%7D",
    "m" * 64,
    "m" * 5_000,
    "%",
    "%zz",
    quote("模型"),
]
ROUTES = [
    ("GET", ""),
    ("DELETE", ""),
    ("GET", "/metrics"),
    ("GET", "/checkpoints"),
    ("GET", "/policy"),
    ("POST", "/experience/add"),
    ("POST", "/labels/add"),
    ("POST", "/inference"),
    ("POST", "/checkpoints"),
    ("POST", "/export?format=bundle"),
]
#: A body that each route would take.
BODIES = {
    "/experience/add": b'{"transitions": []}',
    "/labels/add": b'{"labels": []}',
    "/inference": b'{"observations": [[0, 0]]}',
}


@pytest.mark.parametrize(("method", "rest"), ROUTES, ids=lambda part: part)
def test_ids_are_literal(shared: Any, method: str, rest: str) -> None:
    """Nothing but the id's own letters finds a model, and no trick is a fault of the service's."""
    before = shared.model("m").info()
    for trick in TRICKS:
        target = f"/v1/models/{trick}{rest}"
        answer = shared.run(ask, shared.http.app, method, target, BODIES.get(rest))
        assert answer.error in NOTHING, (trick, answer)
    assert shared.model("m").info() == before
    assert shared.run(ask, shared.http.app, "GET", "/v1/models/m").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/m/../m",
        "/v1/./models/m",
        "/v1//models/m",
        "//v1/models/m",
        "/v1/models/m/",
        "/v1/models/m/inference/",
        "/v1/models/m/inference/../../../info",
        "/v1/models/m/%69nference",
        "/v1/%6dodels",
        "/v1/%69nfo",
        "/%76%31/info",
    ],
)
def test_paths_are_literal(shared: Any, path: str) -> None:
    """No path is another one's spelling."""
    for method in ("GET", "POST", "DELETE"):
        assert shared.run(ask, shared.http.app, method, path).error in NOTHING


@pytest.mark.parametrize(
    "model_id",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "A",
        "ä",
        "a b",
        "a\x00",
        "a\n",
        "-a",
        "_a",
        "a.b",
        "a" * 64,
        "%61",
    ],
)
def test_ids_of_new_models(shared: Any, model_id: str) -> None:
    """A model is made under an id of the grammar, or not at all."""
    body = {"model_id": model_id, "spec": {"observation": {"shape": [1]}, "actions": 2}}
    response = shared.request("POST", "/v1/models", body)

    assert (response.status_code, response.json()["error"]["code"]) == (422, "invalid_value")
    assert [m["model_id"] for m in shared.gateway.models()] == ["m"]
