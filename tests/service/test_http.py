"""HTTP: who is let in, the form of every error, and what a body may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from jormungandr.errors import Draining, InternalError
from jormungandr.service.app import create_app
from jormungandr.service.http.authentication import Authenticated
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.version import __version__
from tests.service.serving import BEARER, TOKEN

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
PATHS = [
    "/",
    "/v1",
    "/v1/info",
    "/v1/models",
    "/v1/models/m",
    "/v1/models/m/metrics",
    "/v1/models/m/experience/add",
    "/v1/models/m/labels/add",
    "/v1/models/m/inference",
    "/v1/models/unknown",
    "/v1/nothing",
    "/v1/health",
    "/v1/health/live/",
    "/V1/health/live",
    "/v1/health/live/more",
    "//v1/health/live",
    "/docs",
]
ADD, LABELS, INFERENCE = (
    f"/v1/models/m/{name}" for name in ("experience/add", "labels/add", "inference")
)


def error(response: Any) -> tuple[int, str]:
    """Return (status, code) of an answer that must be an error of our form."""
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"code", "message", "where", "expected", "got", "remedy"}
    assert response.headers["content-type"] == "application/json"
    return response.status_code, body["error"]["code"]


# -- authentication -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", METHODS)
def test_without_token(shared: Any, method: str, path: str) -> None:
    """Every path and method asks for the token, also those that do not exist."""
    response = shared.http.request(method, f"http://testserver{path}")

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if method != "HEAD":
        assert error(response) == (401, "unauthenticated")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Bearer another")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN[:-1]}")],
        [("Authorization", f"Bearer {TOKEN.upper()}")],
        [("Authorization", TOKEN)],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer another")],
        [("X-Authorization", f"Bearer {TOKEN}")],
        [("Cookie", f"token={TOKEN}")],
    ],
)
def test_wrong_token(shared: Any, headers: list[tuple[str, str]]) -> None:
    """Only the whole token under the right scheme, once, opens the door."""
    assert error(shared.http.get("/v1/info", headers=headers)) == (401, "unauthenticated")
    assert error(shared.http.delete("/v1/models/m", headers=headers)) == (401, "unauthenticated")


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN}"])
def test_right_token(shared: Any, given: str) -> None:
    """The scheme's case does not matter."""
    assert shared.http.get("/v1/info", headers={"Authorization": given}).status_code == 200


def test_token_in_the_query_is_none(shared: Any) -> None:
    """A token belongs in its header, where no log shows it."""
    assert error(shared.http.get(f"/v1/info?token={TOKEN}")) == (401, "unauthenticated")


@pytest.mark.parametrize(("path", "status"), [("live", "live"), ("ready", "ready")])
def test_health_is_open(shared: Any, path: str, status: str) -> None:
    """The health checks need no token, and say nothing but their status."""
    response = shared.http.get(f"/v1/health/{path}")

    assert (response.status_code, response.json()) == (200, {"status": status})


def test_not_ready(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that drains is not ready, and alive."""
    monkeypatch.setattr(shared.gateway, "state", "draining")
    response = shared.http.get("/v1/health/ready")

    assert (response.status_code, response.json()) == (503, {"status": "draining"})
    assert shared.http.get("/v1/health/live").status_code == 200


def test_paths_are_compared_as_they_are_routed() -> None:
    """A path that only looks like a health check gets no further than the door."""
    reached = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    door = Authenticated(inside, TOKEN)
    answers: list[int] = []
    for path in ("/v1/health/live", "/v1/health/live/../../info", "/v1/health/live;x", ""):
        scope = {"type": "http", "path": path, "headers": []}
        answers += asgi(door, scope)

    assert reached == ["/v1/health/live"]
    assert answers == [401, 401, 401]


def asgi(app: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> list[int]:
    """Run an ASGI application once and return the statuses that it sent."""
    statuses, waiting = [], list(messages)

    async def receive() -> dict[str, Any]:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    asyncio.run(app(scope, receive, send))
    return statuses


def test_websockets_are_not_spoken() -> None:
    """A WebSocket is not let in, whatever token it has."""

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    headers = [(b"authorization", f"Bearer {TOKEN}".encode())]

    assert asgi(Authenticated(inside, TOKEN), {"type": "websocket", "headers": headers}) == []


def test_no_token_lets_everybody_in(tmp_path: Any) -> None:
    """Without a token the application asks for none: for tests in memory."""
    with TestClient(create_app(tmp_path, token=None)) as http:
        assert http.get("/v1/info").status_code == 200


# -- the form of answers ------------------------------------------------------------------------


def test_info(shared: Any) -> None:
    """The service says its version, its protocol, its limits and what an answer is worth."""
    info = shared.request("GET", "/v1/info").json()

    assert (info["name"], info["version"], info["protocol"]) == ("jormungandr", __version__, 1)
    assert info["limits"] == {
        "json_body_bytes": 1_048_576,
        "columns_body_bytes": 8_388_608,
        "transitions_per_request": 4_096,
        "labels_per_request": 4_096,
        "observations_per_request": 4_096,
        "id_bytes": 128,
        "timestep_max": 9_007_199_254_740_991,
        "tags_per_episode": 8,
        "tag_key_bytes": 32,
        "tag_value_bytes": 64,
    }
    assert "synced" in info["durability"]


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/models/", "/v1/models/m/inference/"]
)
def test_unknown_path(shared: Any, path: str) -> None:
    """A path that does not exist is 404 in our form; a slash at the end makes another path."""
    assert error(shared.request("GET", path)) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/info", "GET, HEAD"),
        ("PUT", "/v1/models", "GET, HEAD, POST"),
        ("DELETE", "/v1/models", "GET, HEAD, POST"),
        ("POST", "/v1/models/m", "DELETE, GET, HEAD"),
        ("GET", ADD, "POST"),
        ("PUT", LABELS, "POST"),
        ("GET", INFERENCE, "POST"),
        ("POST", "/v1/health/live", "GET, HEAD"),
    ],
)
def test_wrong_method(shared: Any, method: str, path: str, allowed: str) -> None:
    """A method that a path does not have is 405, with those that it has."""
    response = shared.request(method, path)

    assert error(response) == (405, "method_not_allowed")
    assert response.headers["allow"] == allowed


@pytest.mark.parametrize("path", [ADD, LABELS, INFERENCE, "/v1/models"])
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-msgpack", "application/x-www-form-urlencoded", "json"]
)
def test_wrong_content_type(shared: Any, path: str, kind: str) -> None:
    """Only JSON is read: a form that a browser may send from anywhere is refused."""
    response = shared.request("POST", path, b"{}", Content_Type=kind)

    assert error(response) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_content_type_with_parameters(shared: Any, kind: str) -> None:
    """Parameters and case do not matter."""
    body = b'{"transitions": []}'

    assert shared.request("POST", ADD, body, Content_Type=kind).status_code == 200


def test_compressed_body(shared: Any) -> None:
    """A compressed body is refused before anything unpacks it."""
    response = shared.request("POST", ADD, b"\x1f\x8b", Content_Encoding="gzip")

    assert error(response) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", [ADD, LABELS, INFERENCE, "/v1/models"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}{}",
        b"{} x",
        b"[]",
        b"3",
        b"null",
        b'"text"',
        b"NaN",
        b'{"transitions": NaN}',
        b'{"transitions": [Infinity]}',
        b'{"transitions": 1e999}',
        b'{"transitions": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"transitions": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b"{'transitions': []}",
        b'{"transitions": [],}',
        b'{"transitions": ' + b"1" * 5_000 + b"}",
        b'{"transitions": [], "transitions": []}',
        b'{"a": [{"b": 1, "c": {"b": 1}, "b": 2}]}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed(shared: Any, path: str, body: bytes) -> None:
    """What is no JSON object, or has a name twice, is 400."""
    assert error(shared.request("POST", path, body)) == (400, "malformed")


@pytest.mark.parametrize("path", [ADD, LABELS, INFERENCE, "/v1/models"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 17,
        b"[" * 1_000_000,
        b'{"transitions": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"\\"":' * 17,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_too_deep(shared: Any, path: str, body: bytes) -> None:
    """What is nested beyond sense is refused before a parser sees it, whatever it is besides."""
    assert error(shared.request("POST", path, body)) == (400, "too_deep")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", {"model_id": "m", "spec": {}, "extra": 1}),
        (ADD, {"transitions": [], "extra": None}),
        (LABELS, {"labels": [], "transitions": []}),
        (INFERENCE, {"observations": [], "Deterministic": True}),
    ],
)
def test_unknown_field(shared: Any, path: str, body: dict[str, Any]) -> None:
    """A field that does not exist is refused, so that a typo is seen."""
    assert error(shared.request("POST", path, body)) == (422, "unknown_field")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", {"model_id": "m"}),
        ("/v1/models", {"spec": {}}),
        ("/v1/models", {"model_id": None, "spec": {}}),
        (ADD, {}),
        (ADD, {"transitions": None}),
        (LABELS, {}),
        (INFERENCE, {"deterministic": True}),
    ],
)
def test_missing_field(shared: Any, path: str, body: dict[str, Any]) -> None:
    """A field that is needed and is not there, or null, is named."""
    assert error(shared.request("POST", path, body)) == (422, "missing_field")


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/models", {"model_id": 3, "spec": {}}, "model_id"),
        ("/v1/models", {"model_id": "m", "spec": []}, "spec"),
        (ADD, {"transitions": {}}, "transitions"),
        (ADD, {"transitions": True}, "transitions"),
        (LABELS, {"labels": "x"}, "labels"),
        (INFERENCE, {"observations": 1.5}, "observations"),
        (INFERENCE, {"observations": [], "deterministic": 1}, "deterministic"),
        (INFERENCE, {"observations": [], "distribution": "yes"}, "distribution"),
        (INFERENCE, {"observations": [], "epsilon": True}, "epsilon"),
        (INFERENCE, {"observations": [], "epsilon": "0.1"}, "epsilon"),
    ],
)
def test_field_of_the_wrong_type(shared: Any, path: str, body: dict[str, Any], where: str) -> None:
    """A field of another type is named."""
    response = shared.request("POST", path, body)

    assert error(response) == (422, "invalid_type")
    assert response.json()["error"]["where"] == where


def test_null_option_is_absent(shared: Any) -> None:
    """Null for an optional field is the same as leaving it out."""
    body = {"observations": [[0, 0]], "deterministic": None, "epsilon": None, "distribution": None}

    assert shared.request("POST", INFERENCE, body).status_code == 200


@pytest.mark.parametrize("name", ["experience/add", "labels/add", "inference", "metrics"])
def test_unknown_model(shared: Any, name: str) -> None:
    """Everything about a model that does not exist is 404."""
    method = "GET" if name == "metrics" else "POST"
    body = None if name == "metrics" else {"transitions": []}

    assert error(shared.request(method, f"/v1/models/other/{name}", body)) == (404, "model_unknown")


@pytest.mark.parametrize(
    "query",
    [
        "applied_lsn=x",
        "applied_lsn=-1",
        "applied_lsn=nan",
        "applied_lsn=1e300",
        "applied_lsn=",
        "applied_lsn=1&wait=61",
        "applied_lsn=1&wait=-1",
        "applied_lsn=1&wait=inf",
        "applied_lsn=" + "9" * 5_000,
    ],
)
def test_bad_query(shared: Any, query: str) -> None:
    """A query parameter that is no number in its range is refused."""
    assert error(shared.request("GET", f"/v1/models/m?{query}")) == (422, "invalid_value")


@pytest.mark.parametrize("path", ["/v1/models/m?lsn=3", "/v1/info?verbose=1", "/v1/models?x"])
def test_unknown_query(shared: Any, path: str) -> None:
    """A query parameter that does not exist is refused, like a field."""
    assert error(shared.request("GET", path)) == (422, "unknown_field")


@pytest.mark.parametrize("query", ["wait=1&wait=1", "applied_lsn=1&wait=0&applied_lsn=2"])
def test_query_twice(shared: Any, query: str) -> None:
    """A query parameter that comes twice is refused, also with the same value."""
    assert error(shared.request("GET", f"/v1/models/m?{query}")) == (422, "invalid_value")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/info"),
        ("GET", "/v1/models/m"),
        ("DELETE", "/v1/models/other"),
        ("POST", "/v1/models/m/export?format=bundle"),
    ],
)
def test_body_where_none_is_taken(shared: Any, method: str, path: str) -> None:
    """A body that nobody would read is refused unread, and the connection closed."""
    response = shared.request(method, path, b"{}")

    assert error(response) == (413, "body_too_large")
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(
    "header", [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")], ids=lambda h: h[0]
)
def test_headers_that_contradict_themselves(shared: Any, header: tuple[str, str]) -> None:
    """What decides how a body is read comes once: which of two is meant is not guessed."""
    headers = [
        *BEARER.items(),
        ("Content-Type", "application/json"),
        ("Content-Encoding", "identity"),
        header,
    ]
    response = shared.http.post(ADD, content=b"{}", headers=headers)

    assert error(response) == (400, "malformed")


def test_too_many_rows(shared: Any) -> None:
    """More rows than the limit are refused whole; as many as the limit are read."""
    for path, name in ((ADD, "transitions"), (LABELS, "labels"), (INFERENCE, "observations")):
        body = {name: [[0]] * 4_097}
        response = shared.request("POST", path, body)
        assert error(response) == (413, "body_too_large")
        assert response.json()["error"]["where"] == name
        assert error(shared.request("POST", path, {name: [[0]] * 4_096}))[0] == 422


def test_too_large(shared: Any) -> None:
    """A body over the limit is refused by its declared length, and the connection closed."""
    response = shared.request("POST", ADD, b" " * 1_048_577)

    assert error(response) == (413, "body_too_large")
    assert response.headers["connection"] == "close"
    assert error(shared.request("POST", ADD, b" " * 1_048_576)) == (400, "malformed")


def test_inference_is_open_while_transitions_are_refused(shared: Any) -> None:
    """An error leaves nothing behind: the next request is answered as ever."""
    before = shared.connect("m").info()
    shared.request("POST", ADD, b"{")

    assert shared.request("POST", INFERENCE, {"observations": [[0, 0]]}).status_code == 200
    assert shared.connect("m").info() == before


# -- a route by itself --------------------------------------------------------------------------


def post(
    call: Callable[[Request], Any], *messages: dict[str, Any], length: bytes | None = None
) -> list[int]:
    """Post to a route of its own, in the given messages, and return the statuses."""
    headers = [(b"content-type", b"application/json")]
    if length is not None:
        headers.append((b"content-length", length))
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    return asgi(JsonRoute(call, needs=None, body=True), scope, *messages)


def part(size: int, more: bool) -> dict[str, Any]:
    """Return one message of a body."""
    return {"type": "http.request", "body": b" " * size, "more_body": more}


async def swallow(request: Request) -> tuple[int, Any]:
    """Answer with the size of what came."""
    return 200 + (len(request.body) > 0), None


def test_body_in_parts() -> None:
    """A body may come in parts."""
    assert post(swallow, part(10, True), part(0, True), part(5, False)) == [201]


def test_body_without_length_is_cut_at_the_limit() -> None:
    """Parts that add up to more than the limit are refused before the end comes."""
    assert post(swallow, part(1_000_000, True), part(48_577, True)) == [413]


def test_declared_length_is_enough() -> None:
    """A length over the limit is refused without reading any of it."""
    assert post(swallow, length=b"1048577") == [413]


@pytest.mark.parametrize("length", [b"x", b"-1", b"", b"1e3", b"9" * 5_000])
def test_length_that_is_no_number(length: bytes) -> None:
    """A length that is no number is 400."""
    assert post(swallow, length=length) == [400]


def test_client_that_goes_away() -> None:
    """A connection that ends within the body is no request."""
    assert post(swallow, part(10, True), {"type": "http.disconnect"}) == [400]


def test_our_own_fault(caplog: pytest.LogCaptureFixture) -> None:
    """An unforeseen error is 500 in our form: its trace goes to the log, not to the client."""
    sent = []

    async def call(_: Request) -> tuple[int, Any]:
        raise ZeroDivisionError("a secret")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x", "query_string": b"", "headers": []}

    async def never() -> Any:
        raise AssertionError

    asyncio.run(JsonRoute(call, needs=None)(scope, never, send))

    assert sent[0]["status"] == InternalError.status == 500
    assert b"internal_error" in sent[1]["body"]
    assert b"secret" not in sent[1]["body"]
    assert "a secret" in caplog.text


def test_server_that_waits_no_longer() -> None:
    """A request that a shutdown cuts off is told to come again, to whoever serves next."""
    sent: list[Any] = []

    async def call(_: Request) -> tuple[int, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    async def never() -> Any:
        raise AssertionError

    async def cut_off() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        task = asyncio.create_task(JsonRoute(call, needs=None)(scope, never, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(cut_off())

    assert sent[0]["status"] == 503
    assert dict(sent[0]["headers"])[b"retry-after"] in (b"1", b"2", b"3")
    assert b'"draining"' in sent[1]["body"]


def test_retry_after(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client may repeat says when; what is too large does not."""
    refusal = Draining("service", "one that stays")
    monkeypatch.setattr(shared.model("m").commits, "refusal", refusal)
    response = shared.request("POST", ADD, {"transitions": []})

    assert error(response) == (503, "draining")
    assert int(response.headers["retry-after"]) >= 1
    assert "retry-after" not in shared.request("POST", ADD, b" " * 1_048_577).headers
