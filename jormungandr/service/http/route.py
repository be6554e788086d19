"""HTTP in small: a JSON route as a bare ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from jormungandr.errors import (
    BodyTooLarge,
    Draining,
    InternalError,
    InvalidValue,
    JormungandrError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnknownField,
)
from jormungandr.service.http.body import JSON_BODY, NO_BODY, read_body
from jormungandr.service.http.doc import Doc
from jormungandr.service.http.grants import NOBODY, Grant, Needs
from jormungandr.service.load.again import retry_after
from jormungandr.service.load.lane import Held, Lane
from jormungandr.wire import encode

__all__ = ["Call", "JsonRoute", "Request", "answer", "failure", "headers_of", "number"]

log = logging.getLogger("jormungandr")


@dataclass(frozen=True, slots=True)
class Request:
    """What a route sees: path parameters, query, the body as bytes, and who asks.

    `kind` is the body's media type, one of those that the route takes; "" without a body. `held` is
    the request in its lane, where the route has one.
    """

    path: dict[str, str]
    query: dict[str, str]
    body: bytes
    grant: Grant
    kind: str = ""
    held: Held | None = None


Call = Callable[[Request], Awaitable[tuple[int, Any]]]


class JsonRoute:
    """Decode, one call, encode; every error becomes its JSON form.

    Args:
        call: returns (status, body); a body of None is no body.
        needs: what the request's token must allow, of the model in the path where there is one;
            None for a route that is open to all.
        body: the media types it takes, with the most bytes of each; True is JSON, False is none.
        query: names of the query parameters it knows.
        doc: what the OpenAPI document says of it.
        lane: that its requests are counted in until they are answered.
        scans: whether JSON is looked through, for how deep it is, before the call has it.
    """

    def __init__(
        self,
        call: Call,
        *,
        needs: Needs,
        body: bool | Mapping[str, int] = False,
        query: tuple[str, ...] = (),
        doc: Doc | None = None,
        lane: Lane | None = None,
        scans: bool = True,
    ) -> None:
        self._scans = scans
        self._call, self.needs, self.query, self.doc = call, needs, query, doc
        chosen = body if isinstance(body, Mapping) else JSON_BODY if body else NO_BODY
        self.accepts: Mapping[str, int] = chosen
        self._lane = lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            path, grant = scope.get("path_params", {}), scope.get("grant", NOBODY)
            if self.needs is not None:  # before anything of the request is read
                grant.check(self.needs, path.get("model_id"))
            query = self._read_query(scope["query_string"])
            if self._lane is None:
                kind, body = await read_body(scope, receive, self.accepts, self._scans)
                status, content = await self._call(Request(path, query, body, grant, kind))
            else:
                await self._lane.knock(grant.name)
                with self._lane.enter(grant.name, path.get("model_id", ""), receive) as held:
                    kind, body = await read_body(scope, held, self.accepts, self._scans)
                    request = Request(path, query, body, grant, kind, held)
                    status, content = await self._call(request)
        except asyncio.CancelledError:
            # The server shuts down and waits no longer; whoever asked may ask the next one.
            going = Draining("service", "a service that is not shutting down", "draining")
            await answer(send, going.status, {"error": going.to_dict()}, going)
        except Exception as error:
            fault = failure(error, scope.get("request_id", "unknown"))
            await answer(send, fault.status, {"error": fault.to_dict()}, fault)
        else:
            await answer(send, status, content)

    def _read_query(self, given: bytes) -> dict[str, str]:
        query: dict[str, str] = {}
        if not given:
            return query
        for name, value in parse_qsl(given.decode("latin-1"), keep_blank_values=True):
            if name not in self.query:
                raise UnknownField(f"query.{name}", f"only {list(self.query)}", name)
            if name in query:
                raise InvalidValue(f"query.{name}", "one value", "several", "send it once")
            query[name] = value
        return query


def failure(error: Exception, request_id: str) -> JormungandrError:
    """Return what a client is told of an error; of one of our own, only where it is in the log."""
    if isinstance(error, JormungandrError):
        return error
    # The trace is for the log alone: a client learns nothing of our insides.
    log.error("a request was not answered, for a fault of our own", exc_info=error)
    remedy = f"see the service's log at request_id {request_id}"
    return InternalError("service", "no fault of its own", "", remedy)


def headers_of(body: bytes, error: JormungandrError | None = None) -> list[tuple[bytes, bytes]]:
    """Return the headers of a JSON answer."""
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    if error is not None:
        headers += _headers_of(error)
    return headers


def _headers_of(error: JormungandrError) -> list[tuple[bytes, bytes]]:
    headers = []
    if isinstance(error, TooManyRequests | Unavailable):
        headers.append((b"retry-after", str(retry_after(error)).encode()))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyTooLarge):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    return headers


async def answer(
    send: Send, status: int, content: Any, error: JormungandrError | None = None
) -> None:
    """Send a JSON answer; a content of None is none, as of a 204, which says no length."""
    body = b"" if content is None else encode(content)
    headers = [] if content is None else headers_of(body, error)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def number(request: Request, name: str, low: float, high: float, default: float) -> float:
    """Return a query parameter as a number in a range."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise InvalidValue(f"query.{name}", f"a number in {low:g}..{high:g}", repr(text))
    return value
