"""Authentication: who asks is known before a request goes anywhere."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jormungandr.errors import Forbidden, Malformed, Unauthenticated
from jormungandr.service.access.hosts import Hosts
from jormungandr.service.access.keyring import Keyring, OneToken, unknown
from jormungandr.service.http.grants import NOBODY, OPERATOR, Grant
from jormungandr.service.http.route import answer

__all__ = ["OPEN_PATHS", "Authenticated"]

#: What is answered without a token. A probe knows neither token nor name, so none is asked for.
OPEN_PATHS = frozenset({"/v1/health/live", "/v1/health/ready"})


class Authenticated:
    """Deny by default: every path but the health checks needs a token, whatever the method.

    What a token allows is asked once more where the request arrives: see `guarded`.

    Args:
        app: what stands behind.
        token: the operator's, or a keyring; None leaves the door open (tests in memory).
        hosts: the names under which the service answers; None is any name.
    """

    def __init__(
        self, app: ASGIApp, token: str | Keyring | None, hosts: Hosts | None = None
    ) -> None:
        self._app, self._hosts = app, hosts
        self._keyring = OneToken(token) if isinstance(token, str) else token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through with its grant, or answer 400, 401 or 403."""
        if scope["type"] == "http":
            try:
                scope["grant"] = self.grant(scope)
            except (Malformed, Unauthenticated, Forbidden) as error:
                await answer(send, error.status, {"error": error.to_dict()}, error)
                return
            send = self._while_known(scope, send)
        elif scope["type"] != "lifespan":
            return  # no WebSockets here
        await self._app(scope, receive, send)

    def _while_known(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that ends an answer without an end when its token is no good any more."""
        endless = ended = False

        async def sending(message: Message) -> None:
            nonlocal endless, ended
            if ended:
                return
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                endless = not any(name == b"content-length" for name, _ in headers)
            elif endless and message.get("more_body"):
                try:
                    self.grant(scope)
                except Unauthenticated:
                    ended, message = True, {"type": "http.response.body", "body": b""}
            await send(message)

        return sending

    def grant(self, scope: Scope) -> Grant:
        """Return what a request may do.

        Raises:
            Malformed, Forbidden: it means another host.
            Unauthenticated: nobody is known by what it bears.
        """
        # The very string that is routed by, which nothing has been put in front of.
        if scope["path"] in OPEN_PATHS and not scope.get("root_path"):
            return NOBODY
        if self._hosts is not None:
            self._hosts.check(scope["headers"])
        if self._keyring is None:
            return OPERATOR
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            raise unknown("several" if given else "nothing")
        kind, _, token = given[0].partition(b" ")
        if kind.lower() != b"bearer":
            raise unknown("another scheme")
        return self._keyring.grant(token.strip())
