"""Bodies: which a route takes, how large, and how they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive, Scope

from jormungandr.errors import BodyTooLarge, Malformed, UnsupportedMediaType
from jormungandr.nesting import scan_json, scan_msgpack
from jormungandr.protocol import LIMITS
from jormungandr.wire import JSON, MSGPACK

__all__ = ["JSON", "JSON_BODY", "MSGPACK", "NO_BODY", "read_body"]

#: Media types that a route takes, and the bytes that a body of each may have.
JSON_BODY: Mapping[str, int] = {JSON: LIMITS["json_body_bytes"]}
NO_BODY: Mapping[str, int] = {}
#: Bytes from which a body is looked through beside the event loop.
LOOP_BYTES = 1 << 16


async def read_body(
    scope: Scope, receive: Receive, accepts: Mapping[str, int], scans: bool = True
) -> tuple[str, bytes]:
    """Return a request's media type and its body; both empty where the route takes none.

    Everything that its headers tell is checked before a byte of it is read.

    Args:
        scope: of the request.
        receive: likewise.
        accepts: media types, and the bytes that a body of each may have.
        scans: whether JSON is looked through here; otherwise whoever decodes it does that.

    Raises:
        UnsupportedMediaType: of another kind, or compressed.
        BodyTooLarge: over the limit of its kind, by what it declares or by what it has.
        TooDeep: nested too deeply.
        Malformed: a length that is none, or a body without its end.
    """
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers and name in (b"content-type", b"content-encoding", b"content-length"):
            raise Malformed(name.decode("latin-1"), "one such header", "several")
        headers[name] = value
    declared = headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > 20:
        raise Malformed("Content-Length", "a number", declared)
    if not accepts:
        if int(declared) or b"transfer-encoding" in headers:
            raise BodyTooLarge("body", "none: this route takes no body", "one", "send none")
        return "", b""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if kind not in accepts:
        expected = " or ".join(accepts)
        raise UnsupportedMediaType("Content-Type", expected, kind or "nothing", "send that header")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise UnsupportedMediaType("Content-Encoding", "none", headers[b"content-encoding"])
    limit = accepts[kind]
    if int(declared) > limit:
        raise BodyTooLarge("body", f"at most {limit} bytes", int(declared), "send fewer rows")
    body = await _read(receive, limit)
    scan = scan_json if kind == JSON else scan_msgpack
    if kind == JSON and not scans:
        return kind, body
    if len(body) < LOOP_BYTES:
        scan(body)
    else:
        await asyncio.to_thread(scan, body)
    return kind, body


async def _read(receive: Receive, limit: int) -> bytes:
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
