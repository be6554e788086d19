"""One request into an ASGI application, as a server hands it over, without a client in between."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tests.service.serving import TOKEN

OPERATOR = (b"authorization", f"Bearer {TOKEN}".encode())


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of an answer that must be an error of our form."""
        body = json.loads(self.body)
        assert list(body) == ["error"], body
        assert set(body["error"]) == {"code", "message", "where", "expected", "got", "remedy"}
        return self.status, body["error"]["code"]


async def ask(
    app: Any,
    method: str,
    target: str,
    body: bytes | None = None,
    kind: str = "application/json",
    headers: tuple[tuple[bytes, bytes], ...] = (OPERATOR,),
) -> Answer:
    """Send a request whose target goes out as it is, and return what is answered."""
    raw, _, query = target.partition("?")
    own = [(b"host", b"testserver"), *headers]
    if body is not None:
        own += [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": own,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "state": {},
    }
    waiting = [{"type": "http.request", "body": body or b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))
