"""The two routes of promotions: what was decided so far, and what an operator decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from starlette.routing import Route

from jormungandr.errors import (
    Draining,
    InvalidType,
    InvalidValue,
    MissingField,
    ModelGone,
    PolicyGone,
    PolicyNotReady,
    PolicyVersionUnknown,
    UnknownField,
)
from jormungandr.service.http.doc import Doc
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.service.model import Model
from jormungandr.service.promotion.operator import Order, obey, order
from jormungandr.trial import Evidence

__all__ = ["promotion_routes"]


class Standing(msgspec.Struct):
    """Who is champion, who is tried with what so far, and what was decided."""

    serve: Literal["latest", "champion"]
    champion: Annotated[int, msgspec.Meta(ge=0)] | None
    candidate: Annotated[int, msgspec.Meta(ge=0)] | None
    pinned: bool
    evidence: Evidence | None  # with a candidate, None while it is counted again after a start
    decisions: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    history: list[dict[str, Any]]


_SHOW = Doc("Who is champion, who is tried, and what was decided", {200: Standing})
_DECIDE = Doc(
    "Promote, roll back, refuse, pin",
    {200: Standing},
    body=Order,
    errors=(
        MissingField,
        UnknownField,
        InvalidType,
        InvalidValue,
        PolicyVersionUnknown,
        PolicyGone,
        PolicyNotReady,
        ModelGone,
        Draining,
    ),
    text="The decision is durable, and served, when the answer comes.",
)


def promotion_routes(find: Callable[[str], Model]) -> list[Route]:
    """Return the routes.

    Args:
        find: returns the model of an id.
    """

    async def show(request: Request) -> tuple[int, Any]:
        return 200, _standing(find(request.path["model_id"]))

    async def decide(request: Request) -> tuple[int, Any]:
        model = find(request.path["model_id"])
        await obey(model, order(request.body))
        return 200, _standing(model)

    path = "/v1/models/{model_id}/promotion"
    shown = JsonRoute(show, needs="observe", doc=_SHOW)
    decided = JsonRoute(decide, needs="operate", doc=_DECIDE, body=True)
    return [Route(path, shown, methods=["GET"]), Route(path, decided, methods=["POST"])]


def _standing(model: Model) -> Standing:
    gate, evidence = model.gate, model.gate.shown()
    standing = gate.standing
    return Standing(
        serve=gate.rule.serve,
        champion=None if standing.champion is None else standing.champion.version,
        candidate=None if standing.candidate is None else standing.candidate.version,
        pinned=standing.pinned,
        evidence=evidence,
        decisions=standing.decided,
        history=standing.history(),
    )
