"""The guard of each route: what its token must allow is asked where the request has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from jormungandr.errors import Forbidden, InternalError, NotFound
from jormungandr.service.http.authentication import OPEN_PATHS
from jormungandr.service.http.grants import NOBODY, Grant, Needs
from jormungandr.service.http.grants import Scope as TokenScope
from jormungandr.service.http.route import answer

__all__ = ["Guard", "guarded"]

_MISSING = object()


class Guard:
    """Asks the grant before an endpoint sees anything of a request.

    Args:
        endpoint: what answers; one whose `every_model` is true tells of all models in one answer,
            so the token has to be for all.
        needs: what the request's token must allow, of the model in the path where there is one;
            None lets everybody through.
    """

    def __init__(self, endpoint: ASGIApp, needs: Needs) -> None:
        self.endpoint, self.needs = endpoint, needs
        self._every_model: bool = getattr(endpoint, "every_model", False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 403 or 404."""
        if b"%" in scope.get("raw_path", b""):
            # No path of ours has to be encoded: one that is may look like another to a proxy.
            error = NotFound("path", "a path of protocol v1, not percent-encoded", scope["path"])
            await answer(send, error.status, {"error": error.to_dict()}, error)
            return
        if self.needs is not None:
            grant: Grant = scope.get("grant", NOBODY)
            try:
                grant.check(self.needs, scope.get("path_params", {}).get("model_id"))
                if self._every_model:
                    grant.check_every_model()
            except Forbidden as error:
                await answer(send, error.status, {"error": error.to_dict()}, error)
                return
        await self.endpoint(scope, receive, send)


def guarded(routes: Sequence[BaseRoute]) -> list[Route]:
    """Return the routes, each behind its guard.

    Raises:
        InternalError: one does not say what it needs, or is open and not in `OPEN_PATHS`; so a
            route that was added in a hurry ends the start instead of being open.
    """
    return [_guarded(route) for route in routes]


def _guarded(route: BaseRoute) -> Route:
    if not isinstance(route, Route) or route.methods is None:
        raise InternalError("routes", "a plain route with its methods", repr(route))
    needs: Any = getattr(route.endpoint, "needs", _MISSING)
    if needs is not None and needs not in (*get_args(TokenScope), "any"):
        expected = "an endpoint whose `needs` says what a token must allow"
        raise InternalError(f"route {route.path}", expected, "none" if needs is _MISSING else needs)
    if needs is None and route.path not in OPEN_PATHS:
        raise InternalError(f"route {route.path}", "a route that needs a token", "an open one")
    return Route(route.path, Guard(route.endpoint, needs), methods=sorted(route.methods))
