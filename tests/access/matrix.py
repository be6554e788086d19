"""Every route × method × token × spelling of its path; ``python -O -m tests.access.matrix`` too.

The routes are the application's own, so a new one is covered by itself. Behind its guard, each has
an endpoint that only says which one it is: whoever is answered by it has got in.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.routing import Route

from jormungandr.service.access.hosts import Hosts
from jormungandr.service.access.keyring import FileKeyring
from jormungandr.service.access.operator_token import read_token
from jormungandr.service.access.tokens import Tokens
from jormungandr.service.app import create_app
from jormungandr.service.http.authentication import OPEN_PATHS
from jormungandr.service.http.grants import SCOPES
from jormungandr.service.http.guard import Guard

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "get")
#: Who tries every spelling of a path; the others try the right one.
SPELLERS = {"none", "wrong", "revoked", "operator", "elsewhere", "act"}
OWN_HOST = b"127.0.0.1:8000"
#: With which an endpoint of the matrix answers.
ARRIVED = 299


@dataclass(frozen=True)
class Bearer:
    """Who asks: headers, what they may do (None is nothing), and with ids that begin with what."""

    name: str
    headers: tuple[tuple[bytes, bytes], ...]
    scopes: frozenset[str] | None = None
    models: str = ""


def starlette(app: Any) -> Starlette:
    """Return the application with the routes, behind whatever stands before it."""
    while not isinstance(app, Starlette):
        inner = [
            value for value in vars(app).values() if callable(value) and hasattr(value, "__dict__")
        ]
        app = next(value for value in inner if isinstance(value, Starlette) or vars(value))
    return app


def bearers(data_dir: Path) -> list[Bearer]:
    """Make tokens of every kind in a data directory, and return who may bear them."""
    (data_dir / "models").mkdir(parents=True)
    FileKeyring(data_dir, data_dir / "operator-token")
    operator = read_token(data_dir / "operator-token")
    tokens = Tokens(data_dir)

    def bearer(name: str, token: str, *more: Any) -> Bearer:
        return Bearer(name, ((b"authorization", f"Bearer {token}".encode()),), *more)

    found = [
        Bearer("none", ()),
        bearer("wrong", "jrm_" + "A" * 43),
        bearer("empty", ""),
        bearer("longer", operator + "x"),
        bearer("shorter", operator[:-1]),
        Bearer("other scheme", ((b"authorization", f"Basic {operator}".encode()),)),
        Bearer("cookie", ((b"cookie", f"token={operator}".encode()),)),
        Bearer(
            "two of them",
            (
                (b"authorization", f"Bearer {operator}".encode()),
                (b"authorization", f"Bearer {operator}".encode()),
            ),
        ),
        bearer("operator", operator, frozenset(SCOPES)),
        bearer("everything", tokens.create("everything", SCOPES), frozenset(SCOPES)),
        bearer("elsewhere", tokens.create("x", SCOPES, models=["n*"]), frozenset(SCOPES), "n"),
        bearer("revoked", tokens.create("revoked", SCOPES)),
        bearer("expired", tokens.create("expired", SCOPES, seconds=0)),
        bearer("digest", tokens.list()[0].sha256),
    ]
    tokens.revoke("revoked")
    for scope in SCOPES:
        token = tokens.create(scope, [scope], models=["m*"])
        found.append(bearer(scope, token, frozenset({scope}), "m"))
    return found


def spellings(path: str) -> Iterator[str]:
    """Yield a path as it is, then in ways that some server or proxy takes for the same."""
    yield path
    yield f"{path}/"
    yield f"/{path}"
    yield path.replace("/", "//")
    yield path.replace("/v1", "/./v1")
    yield path.replace("/v1/", "/v1/x/../")
    yield path.replace("/v1/", "/v1/%2e%2e/v1/")
    yield f"/v1/health/live/..{path}"
    yield f"/v1/health/live/%2e%2e/%2e%2e/%2e%2e{path}"
    yield f"/v1/health/live;{path}"
    yield f"/v1/health/live%3F{path}"
    yield f"/v1/health/live%00{path}"
    yield path.upper()
    yield path[:1] + path[1:].replace("/", "%2F")
    yield path[:1] + path[1:].replace("/", "%2f", 1)
    yield path.replace("/", "\\")
    yield path.replace("v", "%76", 1)
    yield path.replace("v1", "v%31", 1)
    yield path.replace("v1", "v%2531", 1)
    yield path.replace("v1", "ｖ1", 1)
    yield f"{path}%00"
    yield f"{path}%0A"
    yield f"{path}%20"
    yield f"{path};x=1"
    yield f"{path}.json"
    yield f"{path}/."
    yield f"{path}/%2e%2e"
    yield f"{path}?format=bundle&token=x"
    yield path[1:]


async def request(
    app: Any, method: str, target: str, headers: tuple[tuple[bytes, bytes], ...]
) -> tuple[int, str | None, list[bytes]]:
    """Send a request as uvicorn does; return (status, route that it arrived at, header names)."""
    raw, _, query = target.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }
    status, names, arrived = 0, [], None

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status, names, arrived
        if message["type"] == "http.response.start":
            status, names = message["status"], [name.lower() for name, _ in message["headers"]]
            arrived = dict(message["headers"]).get(b"x-route", b"").decode() or None

    await app(scope, receive, send)
    return status, arrived, names


def mark(route: Route) -> None:
    """Put an endpoint behind the guard of a route that only says which one it is."""
    assert isinstance(route.app, Guard)
    name = label(route).encode()

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"x-route", name)]
        await send({"type": "http.response.start", "status": ARRIVED, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    route.app.endpoint = endpoint


def label(route: Route) -> str:
    """Return what a route is called here."""
    return f"{' '.join(sorted(route.methods or ()))} {route.path}"


def filled(route: Route) -> str:
    """Return the path of a route, about model ``m``."""
    path = route.path.replace("{model_id}", "m")
    for name in route.param_convertors:
        path = path.replace(f"{{{name}}}", "1").replace(f"{{{name}:int}}", "1")
    return path


def allowed(route: Route, bearer: Bearer, path: str) -> bool:
    """Say whether a bearer may use a route, in words of our own."""
    needs = route.endpoint.needs
    if needs is None:
        return True
    if bearer.scopes is None or not (needs == "any" or needs in bearer.scopes):
        return False
    if route.path == "/metrics":  # figures of all models in one text
        return bearer.models == ""
    found = re.search("^/v1/models/([^/]+)", path)
    return found is None or found[1].startswith(bearer.models)


def expected(routes: list[Route], bearer: Bearer, method: str, target: str) -> set[Any]:
    """Return what may come out: statuses, or the name of the route that is arrived at."""
    path = unquote(target.partition("?")[0])
    if path not in OPEN_PATHS and bearer.scopes is None:
        return {401}
    # A path is what it is, letter by letter; Starlette's pattern also ends before a newline.
    here = [route for route in routes if route.path_regex.match(path)]
    if not here:
        return {404}
    mine = [route for route in here if method in (route.methods or ())]
    if not mine:
        return {405}
    if "%" in target.partition("?")[0]:  # no path of ours has to be encoded
        return {404}
    return {label(mine[0])} if allowed(mine[0], bearer, path) else {403}


def deviations(data_dir: Path) -> tuple[int, list[str]]:
    """Try everything; return how many requests there were, and what should not have been."""
    known = bearers(data_dir)
    keyring = FileKeyring(data_dir, data_dir / "operator-token")
    app = create_app(data_dir, token=keyring, hosts=Hosts("127.0.0.1"))
    routes = [route for route in starlette(app).routes if isinstance(route, Route)]
    for route in routes:
        mark(route)
    found, count = [], 0
    paths = {filled(route) for route in routes}
    targets = sorted({spelling for path in paths for spelling in spellings(path)})

    async def run() -> None:
        nonlocal count
        for target, method, bearer in product(targets, METHODS, known):
            if target not in paths and bearer.name not in SPELLERS:
                continue
            headers = ((b"host", OWN_HOST), *bearer.headers)
            status, arrived, names = await request(app, method, target, headers)
            count += 1
            right = expected(routes, bearer, method, target)
            cors = [name for name in names if name.startswith(b"access-control-")]
            if (arrived or status) not in right or cors:
                found.append(
                    f"{method} {target} with {bearer.name}: {status} {arrived}, not {right}"
                )

    asyncio.run(run())
    return count, found


if __name__ == "__main__":
    if sys.flags.optimize < 1:
        raise SystemExit("this is for python -O")
    with tempfile.TemporaryDirectory() as folder:
        total, wrong = deviations(Path(folder) / "data")
    print(json.dumps({"requests": total, "wrong": wrong[:20]}))
