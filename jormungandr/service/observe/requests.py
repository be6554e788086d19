"""`Observed`: every request has an id, is counted and timed, and leaves one line in the log."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Mapping
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jormungandr.service.http.grants import Grant
from jormungandr.service.observe.logs import REQUEST_ID, event
from jormungandr.service.observe.meters import Meters

__all__ = ["Observed"]

log = logging.getLogger("jormungandr.access")

#: Ids that a client may give: they go into logs and headers as they are.
SANE = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: The methods there are; others are counted as one, for anybody can make some up.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Of requests that no route takes: who is not let in does not get that far.
UNROUTED = "none"
#: Of requests whose client went before there was an answer.
UNANSWERED = "none"


class Observed:
    """Stands before everything else.

    An id that the client gave in ``X-Request-Id`` is kept where it is sane, else one is made; every
    answer has it. Routes are counted and logged by their templates, never by what was asked for, so
    that there are only so many, and nothing that a client wrote ends in a log.

    Args:
        app: what stands behind.
        meters: that count.
        routes: templates by the `id` of their endpoints.
        quiet: templates whose requests are logged as details only: health checks.
    """

    def __init__(
        self,
        app: ASGIApp,
        meters: Meters,
        routes: Mapping[int, str],
        quiet: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._meters, self._routes, self._quiet = app, meters, routes, quiet
        # Unlike those of another start, and of another service that logs to the same place.
        self._start, self._made = secrets.token_hex(4), itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        name = self.named(_given(scope))
        scope["request_id"] = name
        status, size = UNANSWERED, 0

        async def reply(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = str(message["status"])
                own = (b"x-request-id", name.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            else:
                size += len(message.get("body", b""))
            await send(message)

        token = REQUEST_ID.set(name)
        self._meters.in_flight.add(1)
        try:
            await self._app(scope, receive, reply)
        except asyncio.CancelledError:
            # The server ends, and this client has not taken its answer in time.
            if status == UNANSWERED:
                raise
            log.info("an answer of %d bytes was left behind: its client does not read", size)
        finally:
            self._meters.in_flight.add(-1)
            route = self._routes.get(id(scope.get("endpoint")), UNROUTED)
            self.note(scope, route, status, size, perf_counter() - began)
            REQUEST_ID.reset(token)

    def named(self, given: bytes | None) -> str:
        """Return the id of a request: the one that its client gave, if that can be taken as it is.

        Args:
            given: its only ``X-Request-Id``, if there is one.
        """
        if given is not None and SANE.fullmatch(given) is not None:
            return given.decode("ascii")
        return f"{self._start}{next(self._made) & 0xFFFFFFFF:08x}"

    def note(self, scope: Scope, route: str, status: str, size: int, seconds: float) -> None:
        """Count a request that has its answer, and log it."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._meters.requests.observe(seconds, method, route, status)
        self._meters.response_bytes.add(size, route)
        level = logging.DEBUG if route in self._quiet else logging.INFO
        if log.isEnabledFor(level):
            grant = scope.get("grant")
            event(
                log,
                level,
                f"{method} {route} {status}",
                method=method,
                route=route,
                status=int(status) if status != UNANSWERED else None,
                ms=round(seconds * 1e3, 3),
                bytes=size,
                token=grant.name if isinstance(grant, Grant) else None,
            )


def _given(scope: Scope) -> bytes | None:
    """Return the id that the client gave, if it gave one."""
    found = [bytes(value) for name, value in scope["headers"] if name == b"x-request-id"]
    return found[0] if len(found) == 1 else None
