"""A head that is known is taken for what the parser takes it for, and nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jormungandr.service.http import connection
from jormungandr.service.http.exchange import Exchange
from jormungandr.service.http.head import BYTES, HEADS, Head
from tests.edge.wire import run, wire

PATH = "/v1/models/m/inference"


def request(body: bytes, *, length: bytes | None = None, path: str = PATH, more: str = "") -> bytes:
    """Return the bytes of a request, its length in the middle of its head."""
    size = b"%d" % len(body) if length is None else length
    first = f"POST {path} HTTP/1.1\r\nHost: here\r\n".encode()
    rest = f"Authorization: Bearer one\r\nContent-Type: application/json\r\n{more}\r\n".encode()
    return first + b"Content-Length: " + size + b"\r\n" + rest + body


def scope_of(size: int) -> dict[str, Any]:
    """Return the scope of such a request."""
    return {
        "method": "POST",
        "path": PATH,
        "raw_path": PATH.encode(),
        "headers": [
            (b"host", b"here"),
            (b"content-length", b"%d" % size),
            (b"authorization", b"Bearer one"),
            (b"content-type", b"application/json"),
        ],
        "state": {"of": "the application"},
        "grant": "of that request alone",
    }


@pytest.fixture
def head() -> Head:
    """Return the head of a request with a body of four bytes."""
    found = Head.of(request(b"body"), scope_of(4))
    assert found is not None
    return found


@pytest.mark.parametrize("body", [b"", b"x", b"body", b"a longer body", b"\r\n\r\n", b"x" * 99_999])
def test_another_body(head: Head, body: bytes) -> None:
    """Of any length; scope and headers are those of the request, and its own."""
    found, again = (head.match(request(body)) for _ in range(2))

    assert found is not None
    assert again is not None
    expected = scope_of(len(body))
    del expected["grant"]
    assert found == (expected, body)
    found[0]["headers"].clear()
    found[0]["state"].clear()
    found[0]["grant"] = "another"
    assert again[0] == expected


def test_any_other_byte(head: Head) -> None:
    """Each byte of the head but the length's counts, and each byte there must be."""
    whole = request(b"body")
    size = len(whole) - 4
    place = whole.index(b"4")
    for at in range(size):
        for byte in (b"\0", b"\r", b" ", b"A", b"5", bytes([whole[at] ^ 0x20])):
            if byte != whole[at : at + 1]:
                assert head.match(whole[:at] + byte + whole[at + 1 :]) is None, (at, byte)
        assert at == place or head.match(whole[:at] + whole[at + 1 :]) is None
    for piece in (whole[:-1], whole + b"x", whole + whole, b"\r\n" + whole, whole[size:], b""):
        assert head.match(piece) is None


@pytest.mark.parametrize(
    "length", [b"", b"+4", b"-4", b" 4", b"4 ", b"0x4", b"4.0", b"4,4", b"\xb2"]
)
def test_a_length_that_is_none(head: Head, length: bytes) -> None:
    """It is for the parser to say what that is."""
    assert head.match(request(b"body", length=length)) is None
    assert head.match(request(b"x" * 1_000_000)) is None  # likewise one that is long


@pytest.mark.parametrize(
    "data",
    [
        request(b"body")[:-1],
        request(b"body") + b"x",
        b"\r\n" + request(b"body"),
        b"body",
        b"",
        request(b"body", path="/v1/models/other/inference"),
        request(b"body").replace(b"one", b"two"),
        request(b"body", more="X-More: 1\r\n"),
        request(b"body").replace(b"HTTP/1.1", b"HTTP/1.0"),
        request(b"other")[:-1],
    ],
)
def test_what_is_kept_says_what_was_parsed(data: bytes) -> None:
    """Whatever came in last, only bytes that say just that are kept."""
    assert Head.of(data, scope_of(4)) is None


@pytest.mark.parametrize(
    "more", ["Expect: 100-continue\r\n", "X-Long: " + BYTES * "x" + "\r\n", "Content-length: 4\r\n"]
)
def test_heads_that_are_not_kept(more: str) -> None:
    """One that waits for a word in between, one that is long, one with two lengths."""
    name, _, value = more.strip().encode().partition(b": ")
    scope = scope_of(4)
    scope["headers"].append((name.lower(), value))

    assert Head.of(request(b"body", more=more), scope) is None


# -- on a connection ------------------------------------------------------------------------------


class Kept:
    """Answers each body with its request; leaves bodies that begin with r to the application."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, bytes]] = []

    def expects(self, scope: Any) -> bool:
        """Wait for short bodies."""
        return True

    def __call__(self, exchange: Exchange) -> bool:
        """Answer at once."""
        own = {"state": None, "client": None, "server": None}
        self.seen.append(({**exchange.scope, **own}, exchange.body))
        if exchange.body.startswith(b"r"):
            return False
        exchange.scope["grant"] = exchange.body
        exchange.reply(200, b"content-length: %d\r\n" % len(exchange.body), exchange.body)
        return True


async def routed(scope: Any, receive: Any, send: Any) -> None:
    """Answer a body with its length."""
    body = (await receive())["body"]
    headers = [(b"content-length", b"%d" % len(b"%d" % len(body)))]
    await send({"type": "http.response.start", "status": 202, "headers": headers})
    await send({"type": "http.response.body", "body": b"%d" % len(body)})


def spoken(rng: random.Random) -> list[bytes]:
    """Return pieces of data: whole requests mostly, some in parts, some joined, some odd."""
    pieces: list[bytes] = []
    for _ in range(30):
        body = rng.choice([b"x", b"r", b"{}", b"\r\n\r\n"]) * rng.choice([1, 2, 7, 300])
        more = rng.choice(["", "", "", "X-Request-Id: me\r\n"])
        path = rng.choice([PATH, PATH, "/v1/models/n/experience/add"])
        whole = request(body, path=path, more=more)
        at = rng.choice([0, 0, 0, 0, 10, len(whole) - len(body), len(whole) - 1])
        pieces += [part for part in (whole[:at], whole[at:]) if part]
        if rng.random() < 0.1 and len(pieces) > 1:
            pieces[-2:] = [pieces[-2] + pieces[-1]]
        if rng.random() < 0.1:
            pieces.append(b"\r\n")
    if rng.random() < 0.5:
        pieces.append(rng.choice([b"POST\r\n\r\n", whole.replace(b"Host", b"H\0st")]))
    return pieces


def told(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """Return what was asked of `Kept`, and what the client was answered to all of that."""
    answers = b""
    kept = Kept()

    async def whole() -> None:
        nonlocal answers
        async with wire(routed, direct=kept) as opened:
            client = await opened.connect()
            await opened.until(lambda: opened.open)
            (link,) = opened.open
            for piece in pieces:
                link.data_received(piece)
                await opened.until(lambda: link._phase.value != "wait" or link._answered())
            if not link.transport.is_closing():
                link.data_received(request(b"end", more="Connection: close\r\n"))
            answers = await client.reader.read()

    run(whole())
    dated = [line for line in answers.split(b"\r\n") if not line.startswith(b"date: ")]
    return kept.seen, b"\r\n".join(dated)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_as_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that parses every head is asked, and answers, the same."""
    pieces = spoken(random.Random(seed))

    found = told(pieces)
    matched = []
    monkeypatch.setattr(Head, "match", lambda *given: matched.append(given))
    monkeypatch.setattr(connection, "HEADS", 0)

    assert told(pieces) == found
    assert matched == []
    assert len(found[0]) >= 30


def test_heads_are_known_from_the_second_request_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are kinds of requests; what is another each time is parsed each time."""
    parsed: list[bytes] = []
    parse = connection.Connection.on_headers_complete

    def noted(self: connection.Connection) -> None:
        parsed.append(self.url)
        parse(self)

    monkeypatch.setattr(connection.Connection, "on_headers_complete", noted)
    paths = [PATH, "/v1/models/m/experience/add", "/v1/models/m/labels/add"]

    told([request(b"x" * n, path=path) for n in range(1, 12) for path in paths])

    assert HEADS == 2
    assert [parsed.count(path.encode()) for path in paths] == [1 + 1, 1, 11]


def test_answers_come_in_order() -> None:
    """While a request waits for its answer, one behind it waits to be asked, known head or not."""
    waiting: list[Exchange] = []

    class Later:
        """Answers when the test says so."""

        def expects(self, scope: Any) -> bool:
            return True

        def __call__(self, exchange: Exchange) -> bool:
            waiting.append(exchange)
            return True

    def answer() -> None:
        one = waiting.pop(0)
        one.reply(200, b"content-length: %d\r\n" % len(one.body), one.body)

    async def whole() -> None:
        async with wire(routed, direct=Later()) as opened:
            client = await opened.connect()
            await opened.until(lambda: opened.open)
            (link,) = opened.open
            link.data_received(request(b"first"))
            for body in (b"second", b"third", b"fourth"):
                link.data_received(request(body))
                assert len(waiting) == 1
            for body in (b"first", b"second", b"third", b"fourth"):
                assert [one.body for one in waiting] == [body]
                answer()
                assert (await client.answer())[::2] == (200, body)
            assert waiting == []

            link.data_received(request(b"known"))
            link.data_received(request(b"behind"))
            assert [one.body for one in waiting] == [b"known"]
            link.data_received(b"no HTTP\r\n\r\n")
            answer()  # the last one, after that
            assert (await client.answer())[2] == b"known"
            await client.closed()

    run(whole())
