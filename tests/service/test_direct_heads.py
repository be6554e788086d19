"""A request whose head is known is looked at as any other: its token, its model, its room."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.errors import Unauthenticated
from jormungandr.service.http.connection import Connection
from jormungandr.service.http.grants import Grant
from jormungandr.spec import ModelSpec
from tests.edge.wire import wire
from tests.service.serving import QUIET

INFER = "/v1/models/m/inference"


class Ring:
    """A keyring whose tokens a test can take away."""

    def __init__(self) -> None:
        self.grants = {b"one": Grant("one", frozenset({"act"}))}
        self.asked = 0

    def grant(self, token: bytes) -> Grant:
        """Return what is there now."""
        self.asked += 1
        if token not in self.grants:
            raise Unauthenticated("Authorization", "a token", "another")
        return self.grants[token]


def request(token: str, observation: list[float]) -> bytes:
    """Return the bytes of a request."""
    body = json.dumps({"observations": [observation]}).encode()
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: testserver\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_everything_is_looked_at(
    open_app: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, though nothing of the head is parsed."""
    parsed = []
    parse = Connection.on_headers_complete

    def noted(self: Connection) -> None:
        parsed.append(self.url)
        parse(self)

    monkeypatch.setattr(Connection, "on_headers_complete", noted)
    ring = Ring()

    async def whole(service: Any, app: Any) -> list[Any]:
        found = []
        service.direct._access._keyring = ring
        async with wire(service, direct=service.direct) as opened:
            client = await opened.connect()

            async def ask(token: str, observation: list[float]) -> None:
                await client.send(request(token, observation))
                status, headers, body = await client.answer()
                told = json.loads(body)
                found.append((status, told.get("error", {}).get("code")))
                assert headers["x-request-id"]

            await ask("one", [1.0, 2.0])
            await ask("one", [1.25, -2.0])
            await ask("one", [1.0])  # what is wrong with it, the route says
            await ask("two", [1.0, 2.0])
            ring.grants[b"one"] = Grant("one", frozenset({"ingest"}))
            await ask("one", [1.0, 2.0])
            del ring.grants[b"one"]
            await ask("one", [1.0, 2.0])
            ring.grants[b"one"] = Grant("one", frozenset({"act"}))
            await ask("one", [0.0, 0.0])
            lane = app.gateway.lanes.inference
            monkeypatch.setattr(lane, "has_room", lambda *_: False)
            monkeypatch.setattr(lane, "_crowded", lambda _: True)
            await ask("one", [0.0, 0.0])
        return found

    with open_app(tmp_path) as app:
        app.connect("m").create(QUIET)
        app.publish("m", Learner(ModelSpec.from_dict(QUIET)))
        found = app.run(whole, app.http.app, app)

    assert [status for status, _ in found] == [200, 200, 422, 401, 403, 401, 200, 503]
    assert len(parsed) == 2  # of one token and of the other
    assert ring.asked >= len(found)
