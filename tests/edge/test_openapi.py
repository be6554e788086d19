"""The OpenAPI document: made of the route table, committed, and true of what is answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from jormungandr import Learner
from jormungandr.errors import BY_CODE, InternalError
from jormungandr.service.app import create_app
from jormungandr.service.bodies import Error, ModelInfo, ModelMetrics, Models, ServiceInfo
from jormungandr.service.http.doc import Doc, Query
from jormungandr.service.http.route import JsonRoute
from jormungandr.service.openapi import document
from tests.edge.asgi import ask
from tests.service.serving import QUIET, experience

COMMITTED = Path(__file__).parents[2] / "docs" / "openapi.json"
#: Groups of errors, which are never raised themselves, and what never leaves the service.
ELSEWHERE = {"invalid_input", "conflict", "too_many_requests", "checkpoint_invalid", "data_dir"}


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The document, as it would be written down now."""
    found = json.loads(msgspec.json.encode(document(create_app("unused", token=None).routes)))
    assert isinstance(found, dict)
    return found


def operations(doc: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and operation."""
    for path, methods in doc["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def test_committed(made: dict[str, Any]) -> None:
    """docs/openapi.json is what the routes say: `python -m jormungandr.service.openapi`."""
    assert json.loads(COMMITTED.read_text()) == made


def test_served(shared: Any, made: dict[str, Any]) -> None:
    """The service answers with it, to any token and to nobody without one."""
    app = shared.http.app
    answer = shared.run(ask, app, "GET", "/v1/openapi.json")

    assert (answer.status, json.loads(answer.body)) == (200, made)
    nobody = shared.run(lambda: ask(app, "GET", "/v1/openapi.json", headers=()))
    assert nobody.error == (401, "unauthenticated")


def test_every_route(made: dict[str, Any]) -> None:
    """The document has every route and method, and no other."""
    routes = {
        (route.path, method)
        for route in create_app("unused", token=None).routes
        for method in (route.methods or set()) - {"HEAD"}
    }

    assert {(path, method) for path, method, _ in operations(made)} == routes


def test_every_error(made: dict[str, Any]) -> None:
    """Every code that the service may answer with is somewhere in it, under its status."""
    found: dict[str, set[str]] = {}
    for _, _, operation in operations(made):
        for status, response in operation["responses"].items():
            for code in codes(response):
                found.setdefault(code, set()).add(status)
    for response in made["components"]["responses"].values():
        for code in codes(response):
            found.setdefault(code, set()).add(str(BY_CODE[code].status))

    assert set(BY_CODE) - set(found) == ELSEWHERE
    assert found == {code: {str(BY_CODE[code].status)} for code in found}


def codes(response: Any) -> Iterator[str]:
    """Yield the codes that a response lists."""
    if isinstance(response, dict):
        yield from response["enum"] if list(response) == ["enum"] else ()
        for inner in response.values():
            yield from codes(inner)
    elif isinstance(response, list):
        for inner in response:
            yield from codes(inner)


def test_references(made: dict[str, Any]) -> None:
    """Every reference in it leads somewhere, and operations have names of their own."""

    def follow(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                target: Any = made
                for part in value["$ref"].removeprefix("#/").split("/"):
                    target = target[part]
            for inner in value.values():
                follow(inner)
        elif isinstance(value, list):
            for inner in value:
                follow(inner)

    follow(made)
    names = [operation["operationId"] for _, _, operation in operations(made)]
    assert len(set(names)) == len(names)


def test_needs(made: dict[str, Any]) -> None:
    """An operation names the scope that its token must have; the health checks need none."""
    needs = {(path, method): operation["security"] for path, method, operation in operations(made)}

    assert needs["/v1/health/live", "GET"] == []
    assert needs["/v1/info", "GET"] == [{"token": []}]
    assert needs["/v1/models/{model_id}/inference", "POST"] == [{"token": ["act"]}]
    assert [key for key, value in needs.items() if value == []] == [
        ("/v1/health/live", "GET"),
        ("/v1/health/ready", "GET"),
    ]


@pytest.mark.parametrize(
    "doc",
    [None, Doc("x", {200: None}), Doc("x", {200: None}, query={"b": Query("b", {})})],
    ids=["none", "nothing", "another"],
)
def test_a_route_without_a_description(doc: Doc | None) -> None:
    """A route that does not say what it is, or not all of its query, ends the making of it."""

    async def call(_: Any) -> Any:
        raise AssertionError

    route = Route("/v1/new", JsonRoute(call, needs="any", query=("a",), doc=doc), methods=["GET"])

    with pytest.raises(InternalError, match="/v1/new"):
        document([route])


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/info", ServiceInfo),
        ("/v1/models", Models),
        ("/v1/models/m", ModelInfo),
        ("/v1/models/m/metrics", ModelMetrics),
        ("/v1/models/none", Error),
    ],
)
def test_answers_are_what_it_says(app: Any, path: str, kind: Any) -> None:
    """An answer has the fields of its struct, of their types, before and after there is data."""
    learner = Learner(QUIET)
    app.connect("m").create(QUIET)
    for rows in ([], experience(2, 3)):
        if rows:
            learner.add(rows)
            app.connect("m").add(rows)
        app.publish("m", learner)
        body = shared_body(app, path)
        found = msgspec.convert(body, kind)
        assert set(body) - set(kind.__struct_fields__) <= {"applied"}, path
        assert found is not None


def shared_body(app: Any, path: str) -> dict[str, Any]:
    """Return what the service answers, as builtins."""
    found = json.loads(app.run(ask, app.http.app, "GET", path).body)
    assert isinstance(found, dict)
    return found
