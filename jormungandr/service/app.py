"""The ASGI application: routes of protocol v1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jormungandr.admission import check_labels
from jormungandr.columns import Columns, columns
from jormungandr.encoding import count
from jormungandr.errors import (
    BodyTooLarge,
    JormungandrError,
    MethodNotAllowed,
    NotFound,
)
from jormungandr.ledger import Identity
from jormungandr.nesting import scan_json
from jormungandr.packed import unpack
from jormungandr.protocol import LIMITS
from jormungandr.service import descriptions as docs
from jormungandr.service.access.hosts import Hosts
from jormungandr.service.access.keyring import Keyring
from jormungandr.service.checkpoints import ask_for_checkpoint, stored_checkpoints
from jormungandr.service.child.process import PARK_AFTER
from jormungandr.service.direct import Direct
from jormungandr.service.export import Exporter, ExportRoute
from jormungandr.service.gateway import Gateway
from jormungandr.service.http.authentication import OPEN_PATHS, Authenticated
from jormungandr.service.http.body import JSON_BODY
from jormungandr.service.http.doc import Doc
from jormungandr.service.http.grants import Needs
from jormungandr.service.http.guard import guarded
from jormungandr.service.http.route import Call, JsonRoute, Request, number
from jormungandr.service.journal.space import FREE_SPACE_FLOOR
from jormungandr.service.load.limits import Limits
from jormungandr.service.observe.events import EventsRoute
from jormungandr.service.observe.meters import Meters
from jormungandr.service.observe.requests import Observed
from jormungandr.service.observe.routes import MetricsRoute
from jormungandr.service.observe.scrape import scrape
from jormungandr.service.openapi import openapi_route
from jormungandr.service.policy_route import PolicyRoute
from jormungandr.service.promotion.routes import promotion_routes
from jormungandr.service.retention import Keeping
from jormungandr.spec import ModelSpec
from jormungandr.typed_rows import typed_rows
from jormungandr.version import __version__
from jormungandr.wire import MSGPACK, decode_object, encode, fields

__all__ = ["Service", "create_app"]

#: What transitions may come as, and the bytes of each.
BULK = {**JSON_BODY, MSGPACK: LIMITS["columns_body_bytes"]}
#: What has the same names as MessagePack and as JSON.
SMALL = {**JSON_BODY, MSGPACK: LIMITS["json_body_bytes"]}
#: Longest time a barrier request is held open, in seconds.
LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class Service:
    """The service as an ASGI application, and what a server around it needs of it.

    Args:
        app: the application; its lifespan opens and closes the data directory.
        meters: that count what it does.
        drain: refuses what is new; returns when checkpoints are written.
        routes: every path, each behind its guard.
        direct: answers the plainest requests faster than the application would; the same.
    """

    app: ASGIApp
    meters: Meters
    drain: Callable[[], Awaitable[None]]
    routes: Sequence[Route]
    direct: Direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self.app(scope, receive, send)


def create_app(
    data_dir: str | Path,
    *,
    token: str | Keyring | None,
    hosts: Hosts | None = None,
    free_space_floor: int = FREE_SPACE_FLOOR,
    park_after: float = PARK_AFTER,
    keeping: Keeping = Keeping(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Service:
    """Return the service; nothing is opened before its lifespan begins.

    Args:
        data_dir: where everything is kept; one server at a time.
        token: that requests must bear, or the keyring that knows several; None asks for none.
        hosts: the names under which it answers; None is any name.
        free_space_floor: free bytes of its volume below which no data is taken; 0 sets no floor.
        park_after: seconds of idleness after which the learner process of a model ends.
        keeping: how much is kept of each model.
        limits: how much is taken on.
    """
    meters = Meters()
    gateway = Gateway(
        Path(data_dir),
        free_space_floor=free_space_floor,
        park_after=park_after,
        keeping=keeping,
        meters=meters,
        limits=limits,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    routes = [
        *_routes(gateway, Exporter(Path(data_dir) / "exports")),
        *_observing(gateway, meters, Path(data_dir)),
    ]
    app = Starlette(
        routes=guarded([*routes, openapi_route(routes)]),
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    table = [route for route in app.routes if isinstance(route, Route)]
    paths = {id(route.endpoint): route.path for route in table}
    access = Authenticated(app, token, hosts)
    observed = Observed(access, meters, paths, quiet=OPEN_PATHS)
    direct = Direct(gateway, access, observed, meters)
    return Service(observed, meters, gateway.drain, table, direct)


def _observing(gateway: Gateway, meters: Meters, data_dir: Path) -> list[Route]:
    async def checkpoints(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])
        return 200, {"checkpoints": stored_checkpoints(model.folder)}

    async def checkpoint(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])
        wait = number(request, "wait", 0, LONGEST_WAIT, 0)
        done, error = await ask_for_checkpoint(model, wait)
        found = stored_checkpoints(model.folder)
        return (200 if done else 202), {"checkpoints": found, "done": done, "error": error}

    one = "/v1/models/{model_id}"
    text = MetricsRoute(lambda: scrape(gateway, meters, data_dir))
    return [
        Route("/metrics", text, methods=["GET"]),
        _at("GET", f"{one}/checkpoints", checkpoints, "observe", docs.CHECKPOINTS),
        _at("POST", f"{one}/checkpoints", checkpoint, "operate", docs.CHECKPOINT, query=("wait",)),
        Route(f"{one}/events", EventsRoute(gateway.model), methods=["GET"]),
    ]


def _routes(gateway: Gateway, exporter: Exporter) -> list[Route]:
    lanes = gateway.lanes

    async def live(_: Request) -> tuple[int, Any]:
        return 200, {"status": "live"}

    async def ready(_: Request) -> tuple[int, Any]:
        return (200 if gateway.state == "ready" else 503), {"status": gateway.state}

    async def info(_: Request) -> tuple[int, Any]:
        return 200, {
            "name": "jormungandr",
            "version": __version__,
            "protocol": 1,
            "limits": LIMITS,
            "durability": "every acknowledged row is synced to the disk first (SQLite, FULL)",
        }

    async def create(request: Request) -> tuple[int, Any]:
        given = fields(decode_object(request.body), {"model_id": str, "spec": dict}, {})
        request.grant.check("operate", given["model_id"])
        new, model = await gateway.create(given["model_id"], given["spec"])
        return (201 if new else 200), model.info()

    async def models(request: Request) -> tuple[int, Any]:
        found = gateway.models()
        return 200, {"models": [m for m in found if request.grant.allows_model(m["model_id"])]}

    async def show(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])
        lsn = int(number(request, "applied_lsn", 0, LIMITS["timestep_max"], 0))
        wait = number(request, "wait", 0, LONGEST_WAIT, 0)
        if lsn:
            with lanes.waits.enter(request.grant.name):
                await model.wait(lsn, wait)
        return 200, model.info()

    async def delete(request: Request) -> tuple[int, Any]:
        await gateway.delete(request.path["model_id"])
        return 204, None

    async def metrics(request: Request) -> tuple[int, Any]:
        return 200, gateway.model(request.path["model_id"]).metrics()

    async def add(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])

        def decode(body: bytes) -> Columns:
            if request.kind == MSGPACK:
                found = unpack(body, model.spec, model.generation)
            else:
                found = _row_columns(body, model.spec)
            request.grant.check_rows(found)
            return found

        model.intake.check_backlog()
        found = await lanes.decoded(request, decode, model.commits.is_open)
        return 200, await model.intake.add(found)

    async def label(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])

        def decode(body: bytes) -> list[tuple[Identity, int]]:
            given = fields(decode_object(body, request.kind), {"labels": list}, {})
            _at_most(len(given["labels"]), "labels")
            found = check_labels(given["labels"], model.spec)
            request.grant.check_actors({actor_id for (actor_id, _, _), _ in found})
            return found

        labels = await lanes.decoded(request, decode, model.commits.is_open)
        return 200, await model.intake.label(labels, request.grant.split)

    async def inference(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])

        def decode(body: bytes) -> dict[str, Any]:
            given = fields(
                decode_object(body, request.kind),
                {"observations": list | dict},
                {
                    "deterministic": bool,
                    "epsilon": float | int,
                    "action_masks": list,
                    "distribution": bool,
                    "policy": str | int,
                },
            )
            _at_most(count(given["observations"], model.spec.observation), "observations")
            return given

        given = await lanes.asked(request, decode)
        rows = count(given["observations"], model.spec.observation)
        lanes.rates.rows(request.grant.name, rows)
        return 200, await model.answers.act(
            given["observations"],
            deterministic=given.get("deterministic", False),
            epsilon=given.get("epsilon"),
            action_masks=given.get("action_masks"),
            distribution=given.get("distribution", False),
            wanted=given.get("policy"),
        )

    one = "/v1/models/{model_id}"
    rows, asked = lanes.ingestion, lanes.inference
    return [
        _at("GET", "/v1/health/live", live, None, docs.LIVE),
        _at("GET", "/v1/health/ready", ready, None, docs.READY),
        _at("GET", "/v1/info", info, "any", docs.INFO),
        _at("POST", "/v1/models", create, "operate", docs.CREATE, body=True),
        _at("GET", "/v1/models", models, "observe", docs.MODELS),
        _at("GET", one, show, "any", docs.SHOW, query=("applied_lsn", "wait")),
        _at("DELETE", one, delete, "operate", docs.DELETE),
        _at("GET", f"{one}/metrics", metrics, "observe", docs.METRICS),
        _at(
            "POST",
            f"{one}/experience/add",
            add,
            "ingest",
            docs.ADD,
            body=BULK,
            lane=rows,
            scans=False,
        ),
        _at("POST", f"{one}/labels/add", label, "label", docs.LABEL, body=SMALL, lane=rows),
        _at("POST", f"{one}/inference", inference, "act", docs.INFERENCE, body=SMALL, lane=asked),
        Route(f"{one}/export", ExportRoute(gateway.model, exporter), methods=["POST"]),
        Route(f"{one}/policy", PolicyRoute(gateway.model, lanes.waits), methods=["GET"]),
        *promotion_routes(gateway.model),
    ]


def _row_columns(body: bytes, spec: ModelSpec) -> Columns:
    """Return transitions in JSON as columns, or say what is wrong with them."""
    typed = typed_rows(body, spec)
    if typed is not None:
        with suppress(JormungandrError):  # the general way says what is wrong
            return columns(typed, spec)
    scan_json(body)
    given = fields(decode_object(body), {"transitions": list}, {})
    _at_most(len(given["transitions"]), "transitions")
    return columns(given["transitions"], spec)


def _at(method: str, path: str, call: Call, needs: Needs, doc: Doc, **options: Any) -> Route:
    return Route(path, JsonRoute(call, needs=needs, doc=doc, **options), methods=[method])


def _at_most(rows: int, name: str) -> None:
    limit = LIMITS[f"{name}_per_request"]
    if rows > limit:
        raise BodyTooLarge(name, f"at most {limit}", rows, "send fewer at a time")


async def _http_error(request: StarletteRequest, raised: Exception) -> StarletteResponse:
    """Turn the router's own 404 and 405 into our form."""
    status = raised.status_code if isinstance(raised, HTTPException) else 500
    path = request.scope["path"]
    error: JormungandrError = NotFound("path", "a path of protocol v1", path)
    headers = {}
    if status == MethodNotAllowed.status:
        here = [r for r in request.app.routes if r.path_regex.match(path)]
        allowed = ", ".join(sorted(method for route in here for method in route.methods))
        error = MethodNotAllowed("method", f"one of {allowed}", request.method)
        headers["allow"] = allowed
    body = encode({"error": error.to_dict()})
    return StarletteResponse(body, status, headers, media_type="application/json")
