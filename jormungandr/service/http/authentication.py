"""Authentication: who asks is known before a request goes anywhere."""

from __future__ import annotations

import hmac
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from jormungandr.errors import Unauthenticated
from jormungandr.service.http.grants import OPERATOR
from jormungandr.service.http.route import answer

__all__ = ["OPEN_PATHS", "Authenticated"]

OPEN_PATHS = frozenset({"/v1/health/live", "/v1/health/ready"})


class Authenticated:
    """Deny by default: every path but the health checks needs the token, whatever the method.

    Args:
        app: what stands behind.
        token: the operator's; None leaves the door open (tests in memory, an explicit flag).
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._digest = None if token is None else sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and not self._known(scope):
            error = Unauthenticated(
                "Authorization",
                "Bearer and the service's token",
                "another" if _given(scope) else "nothing",
                "set JORMUNGANDR_TOKEN_FILE to the file that `jormungandr serve` names",
            )
            await answer(send, error.status, {"error": error.to_dict()}, error)
            return
        if scope["type"] not in ("http", "lifespan"):
            return  # no WebSockets here
        # Routes ask the grant; one that finds none lets nobody through.
        scope["grant"] = OPERATOR
        await self._app(scope, receive, send)

    def _known(self, scope: Scope) -> bool:
        if self._digest is None:
            return True
        given = _given(scope)
        if len(given) != 1:
            return False
        kind, _, token = given[0].partition(b" ")
        # Digests are compared, so that neither length nor content shows in the time it takes.
        same = hmac.compare_digest(sha256(token.strip()).digest(), self._digest)
        return same and kind.lower() == b"bearer"


def _given(scope: Scope) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == b"authorization"]
