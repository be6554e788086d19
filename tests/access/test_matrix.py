"""Who gets where: every route × method × token × spelling, and the guard that a route must have."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Mount, Route, WebSocketRoute

from jormungandr.errors import InternalError
from jormungandr.service.access.hosts import Hosts
from jormungandr.service.access.keyring import FileKeyring
from jormungandr.service.app import create_app
from jormungandr.service.http.grants import SCOPES
from jormungandr.service.http.guard import Guard, guarded
from jormungandr.service.http.route import JsonRoute
from tests.access.matrix import (
    METHODS,
    OWN_HOST,
    Bearer,
    allowed,
    bearers,
    deviations,
    filled,
    request,
    starlette,
)

ROOT = Path(__file__).parents[2]
#: What each route has needed since it was there; a change is a decision.
NEEDS = {
    ("GET", "/v1/health/live"): None,
    ("GET", "/v1/health/ready"): None,
    ("GET", "/metrics"): "observe",
    ("GET", "/v1/info"): "any",
    ("GET", "/v1/models"): "observe",
    ("POST", "/v1/models"): "operate",
    ("GET", "/v1/models/{model_id}"): "any",
    ("DELETE", "/v1/models/{model_id}"): "operate",
    ("GET", "/v1/models/{model_id}/metrics"): "observe",
    ("POST", "/v1/models/{model_id}/experience/add"): "ingest",
    ("POST", "/v1/models/{model_id}/labels/add"): "label",
    ("POST", "/v1/models/{model_id}/inference"): "act",
    ("POST", "/v1/models/{model_id}/export"): "operate",
}


def routes(data_dir: Path) -> list[Route]:
    """Return the routes of the application, of which there are some."""
    found = [
        r for r in starlette(create_app(data_dir, token="x" * 16)).routes if isinstance(r, Route)
    ]
    assert found
    return found


def test_matrix(tmp_path: Path) -> None:
    """Nobody arrives anywhere without a token that allows it, and everybody else does."""
    count, wrong = deviations(tmp_path / "data")

    assert wrong == []
    assert count > 20_000


@pytest.mark.slow
def test_matrix_without_assertions() -> None:
    """Under ``python -O``, which drops assertions, the same."""
    command = [sys.executable, "-O", "-m", "tests.access.matrix"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)

    assert said["wrong"] == []
    assert said["requests"] > 20_000


def test_matrix_of_the_endpoints_themselves(tmp_path: Path) -> None:
    """With the endpoints that are really there: 401 and 403 for whoever may not, else another."""
    known = bearers(tmp_path)
    keyring = FileKeyring(tmp_path, tmp_path / "operator-token")
    app = create_app(tmp_path, token=keyring, hosts=Hosts("127.0.0.1"))
    found = [r for r in starlette(app).routes if isinstance(r, Route)]

    async def run() -> list[Any]:
        wrong = []
        for route in found:
            path = filled(route)
            for bearer in known:
                for method in METHODS:
                    headers = ((b"host", OWN_HOST), *bearer.headers)
                    status, _, _ = await request(app, method, path, headers)
                    right = expected_status(found, bearer, method, path)
                    if (status if status in (401, 403, 405) else 0) != right:
                        wrong.append((method, path, bearer.name, status))
        return wrong

    assert asyncio.run(run()) == []


def expected_status(found: list[Route], bearer: Bearer, method: str, path: str) -> int:
    """Return the status of a refusal, 0 for what has arrived."""
    here = [r for r in found if r.path_regex.match(path)]
    mine = [r for r in here if method in (r.methods or ())]
    if bearer.scopes is None and any(r.endpoint.needs is not None for r in here):
        return 401
    if not mine:
        return 405
    return 0 if allowed(mine[0], bearer, path) else 403


def test_what_routes_need(tmp_path: Path) -> None:
    """The routes of the first release need what they needed then."""
    found = {
        (method, route.path): route.endpoint.needs
        for route in routes(tmp_path)
        for method in route.methods or ()
    }

    assert {key: found[key] for key in NEEDS} == NEEDS
    assert {path for (_, path), needs in found.items() if needs is None} == {
        "/v1/health/live",
        "/v1/health/ready",
    }


def test_every_route_has_its_guard(tmp_path: Path) -> None:
    """No route of the application leads past its guard."""
    assert all(isinstance(route.app, Guard) for route in routes(tmp_path))


# -- routes that others add ---------------------------------------------------------------------


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Answer, without a word about what it needs."""


class Endpoint:
    """An endpoint that answers whoever comes."""

    def __init__(self, needs: Any) -> None:
        self.needs = needs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer."""
        headers = [(b"x-route", b"arrived")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "route",
    [
        Route("/v1/new", bare, methods=["GET"]),
        Route("/v1/new", Endpoint("everything"), methods=["GET"]),
        Route("/v1/new", Endpoint(""), methods=["GET"]),
        Route("/v1/new", Endpoint(None), methods=["GET"]),
        Route("/v1/health/{more}", Endpoint(None), methods=["GET"]),
        Route("/v1/new", Endpoint("act")),
        Mount("/v1/new", Endpoint("act")),
        WebSocketRoute("/v1/new", Endpoint("act")),
    ],
)
def test_route_without_needs(route: Any) -> None:
    """A route that does not say who may use it, or is open, ends the start."""
    with pytest.raises(InternalError, match="route"):
        guarded([route])


@pytest.mark.parametrize("needs", [*SCOPES, "any"])
def test_an_endpoint_need_not_check_anything(needs: str) -> None:
    """What a route needs is asked before its endpoint; without a grant nobody gets in."""
    (route,) = guarded([Route("/v1/{model_id}/new", Endpoint(needs), methods=["POST"])])

    async def run() -> tuple[int, str | None, list[bytes]]:
        return await request(route, "POST", "/v1/m/new", ())

    assert asyncio.run(run())[:2] == (403, None)


def test_needs_of_a_json_route() -> None:
    """What a JSON route is made with is what its guard asks for."""

    async def call(_: Any) -> tuple[int, Any]:
        return 200, None

    (route,) = guarded([Route("/v1/new", JsonRoute(call, needs="policy"), methods=["GET"])])

    assert isinstance(route.app, Guard)
    assert route.app.needs == "policy"
