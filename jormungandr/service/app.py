"""The ASGI application: routes of protocol v1."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route
from starlette.types import ASGIApp

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
from jormungandr.protocol import LIMITS
from jormungandr.service.child.process import PARK_AFTER
from jormungandr.service.decoding import Decoder
from jormungandr.service.export import Exporter, ExportRoute
from jormungandr.service.gateway import Gateway
from jormungandr.service.http.authentication import Authenticated
from jormungandr.service.http.route import JsonRoute, Request, number
from jormungandr.service.journal.space import FREE_SPACE_FLOOR
from jormungandr.service.retention import Keeping
from jormungandr.version import __version__
from jormungandr.wire import decode_object, encode, fields

__all__ = ["create_app"]

#: Longest time a barrier request is held open, in seconds.
LONGEST_WAIT = 60.0


def create_app(
    data_dir: str | Path,
    *,
    token: str | None,
    free_space_floor: int = FREE_SPACE_FLOOR,
    park_after: float = PARK_AFTER,
    keeping: Keeping = Keeping(),  # noqa: B008 - frozen
) -> ASGIApp:
    """Return the service as an ASGI application; its lifespan opens and closes the data directory.

    Args:
        data_dir: where everything is kept; one server at a time.
        token: that requests must bear; None asks for none.
        free_space_floor: free bytes of its volume below which no data is taken; 0 sets no floor.
        park_after: seconds of idleness after which the learner process of a model ends.
        keeping: how much is kept of each model.
    """
    gateway = Gateway(
        Path(data_dir),
        free_space_floor=free_space_floor,
        park_after=park_after,
        keeping=keeping,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = Starlette(
        routes=_routes(gateway, Exporter(Path(data_dir) / "exports")),
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    return Authenticated(app, token)


def _routes(gateway: Gateway, exporter: Exporter) -> list[Route]:
    decoded = Decoder()

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
            given = fields(decode_object(body), {"transitions": list}, {})
            _at_most(len(given["transitions"]), "transitions")
            found = columns(given["transitions"], model.spec)
            request.grant.check_rows(found)
            return found

        return 200, await model.add(await decoded(decode, request.body))

    async def label(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])

        def decode(body: bytes) -> list[tuple[Identity, int]]:
            given = fields(decode_object(body), {"labels": list}, {})
            _at_most(len(given["labels"]), "labels")
            found = check_labels(given["labels"], model.spec)
            request.grant.check_actors({actor_id for (actor_id, _, _), _ in found})
            return found

        return 200, await model.label(await decoded(decode, request.body))

    async def inference(request: Request) -> tuple[int, Any]:
        model = gateway.model(request.path["model_id"])
        given = fields(
            decode_object(request.body),
            {"observations": list | dict},
            {
                "deterministic": bool,
                "epsilon": float | int,
                "action_masks": list,
                "distribution": bool,
            },
        )
        _at_most(count(given["observations"], model.spec.observation), "observations")
        return 200, await model.act(
            given["observations"],
            deterministic=given.get("deterministic", False),
            epsilon=given.get("epsilon"),
            action_masks=given.get("action_masks"),
            distribution=given.get("distribution", False),
        )

    one = "/v1/models/{model_id}"
    return [
        Route("/v1/health/live", JsonRoute(live, needs=None), methods=["GET"]),
        Route("/v1/health/ready", JsonRoute(ready, needs=None), methods=["GET"]),
        Route("/v1/info", JsonRoute(info, needs="any"), methods=["GET"]),
        Route("/v1/models", JsonRoute(create, needs="operate", body=True), methods=["POST"]),
        Route("/v1/models", JsonRoute(models, needs="observe"), methods=["GET"]),
        Route(one, JsonRoute(show, needs="any", query=("applied_lsn", "wait")), methods=["GET"]),
        Route(one, JsonRoute(delete, needs="operate"), methods=["DELETE"]),
        Route(f"{one}/metrics", JsonRoute(metrics, needs="observe"), methods=["GET"]),
        Route(f"{one}/experience/add", JsonRoute(add, needs="ingest", body=True), methods=["POST"]),
        Route(f"{one}/labels/add", JsonRoute(label, needs="label", body=True), methods=["POST"]),
        Route(f"{one}/inference", JsonRoute(inference, needs="act", body=True), methods=["POST"]),
        Route(f"{one}/export", ExportRoute(gateway.model, exporter), methods=["POST"]),
    ]


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
