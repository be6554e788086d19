"""HTTP in small: a JSON route as a bare ASGI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
    Malformed,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    UnknownField,
    UnsupportedMediaType,
)
from jormungandr.protocol import LIMITS
from jormungandr.service.http.grants import NOBODY, Grant, Needs
from jormungandr.wire import encode

__all__ = ["JsonRoute", "Request", "answer", "number"]

log = logging.getLogger("jormungandr")


@dataclass(frozen=True, slots=True)
class Request:
    """What a route sees: path parameters, query, the body as bytes, and who asks."""

    path: dict[str, str]
    query: dict[str, str]
    body: bytes
    grant: Grant


Call = Callable[[Request], Awaitable[tuple[int, Any]]]


class JsonRoute:
    """Decode, one call, encode; every error becomes its JSON form.

    Args:
        call: returns (status, body); a body of None is no body.
        needs: what the request's token must allow, of the model in the path where there is one;
            None for a route that is open to all.
        body: whether the route takes one.
        query: names of the query parameters it knows.
    """

    def __init__(
        self, call: Call, *, needs: Needs, body: bool = False, query: tuple[str, ...] = ()
    ) -> None:
        self._call, self.needs, self._body, self._query = call, needs, body, query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            path, grant = scope.get("path_params", {}), scope.get("grant", NOBODY)
            if self.needs is not None:  # before anything of the request is read
                grant.check(self.needs, path.get("model_id"))
            body = await self._read(scope, receive) if self._body else b""
            query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            for name in query:
                if name not in self._query:
                    raise UnknownField(f"query.{name}", f"only {list(self._query)}", name)
            request = Request(path, query, body, grant)
            status, content = await self._call(request)
        except JormungandrError as error:
            await answer(send, error.status, {"error": error.to_dict()}, error)
        except asyncio.CancelledError:
            # The server shuts down and waits no longer; whoever asked may ask the next one.
            going = Draining("service", "a service that is not shutting down", "draining")
            await answer(send, going.status, {"error": going.to_dict()}, going)
        except Exception:
            # The trace is for the log alone: a client learns nothing of our insides.
            log.exception("%s %s", scope["method"], scope["path"])
            fault = InternalError("service", "no fault of its own", "", "see the service's log")
            await answer(send, fault.status, {"error": fault.to_dict()}, fault)
        else:
            await answer(send, status, content)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":
            got = kind.decode("latin-1") or "nothing"
            raise UnsupportedMediaType("Content-Type", "application/json", got, "send that header")
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise UnsupportedMediaType("Content-Encoding", "none", headers[b"content-encoding"])
        limit = LIMITS["json_body_bytes"]
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 20:
            raise Malformed("Content-Length", "a number", declared)
        if int(declared) > limit:
            raise BodyTooLarge("body", f"at most {limit} bytes", int(declared), "send fewer rows")
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Malformed("body", "a whole body", "the end of the connection")
            size += len(message.get("body", b""))
            if size > limit:
                raise BodyTooLarge("body", f"at most {limit} bytes", "more", "send fewer rows")
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(parts)


async def answer(
    send: Send, status: int, content: Any, error: JormungandrError | None = None
) -> None:
    """Send a JSON answer."""
    body, headers = b"", []
    if content is not None:  # a 204 has no content, and says no length
        body = encode(content)
        headers.append((b"content-length", str(len(body)).encode()))
        headers.append((b"content-type", b"application/json"))
    if isinstance(error, TooManyRequests | Unavailable):
        headers.append((b"retry-after", b"1"))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyTooLarge):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
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
