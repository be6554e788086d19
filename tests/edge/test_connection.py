"""Connections: deadlines, caps, strict HTTP; over real sockets, with a clock that tests turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jormungandr.service.http.body import JSON
from jormungandr.service.http.route import JsonRoute, Request
from jormungandr.service.http.watch import ConnectionLimits, Watch
from tests.edge.wire import DEADLINE, GET, Client, Wire, run, wire

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
TIMEOUT, MALFORMED, LARGE = (408, "request_timeout"), (400, "malformed"), (413, "body_too_large")


class App:
    """Answers with what it was asked; `hold` lets requests wait."""

    def __init__(self) -> None:
        self.hold: asyncio.Event | None = None
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""

        async def call(request: Request) -> tuple[int, Any]:
            self.seen.append(scope["path"])
            if self.hold is not None:
                await self.hold.wait()
            return 200, {"path": scope["path"], "bytes": len(request.body)}

        body = {JSON: 1_000_000} if scope["method"] == "POST" else False
        await JsonRoute(call, needs=None, body=body)(scope, receive, send)


async def check_alive(opened: Wire, client: Client | None = None) -> None:
    """A request is answered as ever."""
    other = client or await opened.connect()
    await other.send(GET % b"alive")
    assert (await other.answer())[0] == 200
    if client is None:
        await other.leave()
        await opened.until(lambda: all(not c.transport.is_closing() for c in opened.open))


# -- the headers' deadline ----------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nX-A", b"\r\n\r\n"])
def test_headers_that_do_not_end(sent: bytes) -> None:
    """Ten seconds after it came, a connection without a whole head is closed."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(sent)
            await opened.until(lambda: opened.open)
            await opened.heard(len(sent))
            await opened.pass_time(10)
            assert len(opened.watch) == 1
            await opened.pass_time(0.1)
            assert await client.error() == TIMEOUT
            await client.closed()
            assert opened.watch.refused == {"head": 1}
            await check_alive(opened)

    run(test())


def test_headers_that_trickle() -> None:
    """One byte after another wins no time."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await opened.until(lambda: opened.open)
            for n, byte in enumerate(b"GET / HTTP"):
                await client.send(bytes([byte]))
                await opened.heard(n + 1)
                await opened.pass_time(1)
            await opened.pass_time(0.1)
            assert await client.error() == TIMEOUT
            await client.closed()

    run(test())


def test_further_request_has_its_own_ten_seconds() -> None:
    """They begin with its first byte; between requests a connection may be idle for 75."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await check_alive(opened, client)
            await opened.pass_time(74.9)
            await check_alive(opened, client)
            await opened.pass_time(74.9)
            await client.send(b"GET / HT")
            await opened.heard(8)
            await opened.pass_time(9.9)
            assert len(opened.watch) == 1
            await opened.pass_time(0.2)
            assert await client.error() == TIMEOUT
            await client.closed()

    run(test())


def test_idle() -> None:
    """After 75 seconds without a request a connection is closed, without a word."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await check_alive(opened, client)
            await opened.pass_time(75.1)
            await client.closed()

    run(test())


def test_empty_lines_are_no_sign_of_life() -> None:
    """Empty lines before a request, which a parser skips, do not keep a connection open."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await check_alive(opened, client)
            for size in (2, 4, 6):
                await client.send(b"\r\n")
                await opened.heard(size)
                await opened.pass_time(3.4)
            assert await client.error() == TIMEOUT
            await client.closed()

    run(test())


def test_the_service_may_take_its_time() -> None:
    """What a request waits for in the service counts against nobody."""

    async def test() -> None:
        app = App()
        async with wire(app) as opened:
            app.hold = asyncio.Event()
            client = await opened.connect()
            await client.send(GET % b"slow")
            await opened.until(lambda: app.seen)
            await opened.pass_time(1_000)
            app.hold.set()
            assert (await client.answer())[0] == 200
            await check_alive(opened, client)

    run(test())


# -- the body's deadline ------------------------------------------------------------------------


def test_body_that_trickles() -> None:
    """Less than 1 KiB a second, ten seconds of grace aside, is 408."""

    async def test() -> None:
        app = App()
        async with wire(app) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 100\r\n\r\n")
            await opened.until(lambda: [c._phase.value for c in opened.open] == ["body"])
            for size in range(1, 11):
                await client.send(b" ")
                await opened.heard(size)
                await opened.pass_time(1)
            assert len(opened.watch) == 1
            await opened.pass_time(0.1)
            assert await client.error() == TIMEOUT
            await client.closed()
            assert (opened.watch.refused, app.seen) == ({"body": 1}, [])
            await check_alive(opened)

    run(test())


def test_body_that_takes_too_long() -> None:
    """Thirty seconds are the end for a body of any rate."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 900000\r\n\r\n")
            await opened.until(lambda: [c._phase.value for c in opened.open] == ["body"])
            for step in range(1, 31):
                await client.send(b" " * 5_000)
                await opened.heard(5_000 * step)
                await opened.pass_time(1)
            assert len(opened.watch) == 1
            await opened.pass_time(0.1)
            assert await client.error() == TIMEOUT
            await client.closed()

    run(test())


def test_whole_bodies_are_read() -> None:
    """A body may come in pieces, chunked or not, and another request after it."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 6\r\n\r\n")
            await opened.until(lambda: [c._phase.value for c in opened.open] == ["body"])
            await client.send(b"{  ")
            await opened.heard(3)
            await opened.pass_time(9)
            await client.send(b"  }")
            assert b'"bytes":6' in (await client.answer())[2]
            chunks = b"2\r\n{}\r\n3\r\n   \r\n0\r\n\r\n"
            await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            assert b'"bytes":5' in (await client.answer())[2]
            await check_alive(opened, client)

    run(test())


def test_body_that_the_service_does_not_read_yet() -> None:
    """Time in which the service takes nothing more from a client counts against nobody."""

    async def test() -> None:
        held = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await held.wait()
            await App()(scope, receive, send)

        async with wire(app) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 900000\r\n\r\n" + b" " * 100_000)
            await opened.until(lambda: [c.flow.read_paused for c in opened.open] == [True])
            await opened.pass_time(1_000)
            held.set()
            await client.send(b" " * 800_000)
            assert (await client.answer())[0] == 200

    run(test())


def test_body_that_stops_while_it_is_answered() -> None:
    """An answer that has begun is cut off, and nothing is put into it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"10")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def test() -> None:
        async with wire(app) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 100\r\n\r\n")
            await client.reader.readuntil(b"\r\n\r\n12345")
            await opened.pass_time(30.1)
            await client.closed()

    run(test())


# -- what is too large --------------------------------------------------------------------------


def test_ten_gigabytes_declared() -> None:
    """A declared length over the limit is refused before anything of the body is read."""

    async def test() -> None:
        app = App()
        async with wire(app) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 10737418240\r\n\r\n")
            assert await client.error() == LARGE
            await client.closed()
            assert app.seen == []
            await opened.pass_time(5.1)
            await opened.until(lambda: not opened.open)

    run(test())


def test_the_answer_to_a_body_that_is_too_large_is_read() -> None:
    """Whoever sends all of it before it reads finds the answer, and no reset."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Content-Length: 8000000\r\n\r\n" + b" " * 8_000_000)
            assert await client.error() == LARGE
            await client.closed()

    run(test())


async def endless(client: Client) -> None:
    """Send one chunk after another."""
    while True:
        await client.send(b"10000\r\n" + b" " * 65_536 + b"\r\n")


def test_endless_chunks() -> None:
    """Chunks without end are refused at the limit, and read away for a while only."""

    async def test() -> None:
        async with wire(App(), ConnectionLimits(linger_bytes=3_000_000)) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            sending = asyncio.ensure_future(endless(client))
            await opened.until(lambda: opened.watch._addresses == {})
            await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(sending.exception(), ConnectionError)
            await check_alive(opened)

    run(test())


@pytest.mark.parametrize(
    "body",
    [
        b"1\r\n \r\n" * 50_000,  # six bytes for one
        b"1;" + b"x" * 200_000,  # an extension without end
    ],
    ids=["tiny", "extension"],
)
def test_chunks_that_are_mostly_chunking(body: bytes) -> None:
    """What a client sends besides a body's bytes is bounded."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            await opened.until(lambda: [c._phase.value for c in opened.open] == ["body"])
            await client.send(body)
            assert await client.error() == MALFORMED
            await client.closed()

    run(test())


def test_answer_before_the_body() -> None:
    """A body that comes after its answer is read away, and the connection goes on."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(HEAD.replace(b"json", b"text") + b"Content-Length: 10\r\n\r\n")
            assert await client.error() == (415, "unsupported_media_type")
            await client.send(b"0123456789")
            await check_alive(opened, client)
            await client.send(HEAD.replace(b"json", b"text") + b"Content-Length: 10\r\n\r\n1")
            assert await client.error() == (415, "unsupported_media_type")
            await opened.pass_time(5.1)
            await client.closed()

    run(test())


# -- strict HTTP --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        HEAD + b"Content-Length: +2\r\n\r\n{}",
        HEAD + b"Content-Length: -2\r\n\r\n{}",
        HEAD + b"Content-Length: 0x2\r\n\r\n{}",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Trailer: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/9\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 64 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 16_400 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 300_000,
        b"GET /" + b"y" * 16_400 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"y" * 300_000,
    ],
    ids=lambda head: repr(head[-40:]),
)
def test_not_strict(head: bytes) -> None:
    """What two readers could take for two things is 400, and the end of the connection."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(head)
            assert await client.error() == MALFORMED
            await client.closed()
            await check_alive(opened)

    run(test())


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_upgrades_are_not_made(upgrade: bytes) -> None:
    """The request is answered in HTTP/1.1, and nothing after it is."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            lines = b"Connection: Upgrade\r\nUpgrade: %s\r\n\r\n" % upgrade
            await client.send((GET % b"a")[:-2] + lines + b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n")
            _, headers, body = await client.answer()
            assert (headers["connection"], body) == ("close", b'{"path":"/a","bytes":0}')
            await client.closed()

    run(test())


# -- several requests at once -------------------------------------------------------------------


def test_pipelining() -> None:
    """Requests sent without waiting are answered in their order."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(b"".join(GET % b"%d" % n for n in range(50)))
            for n in range(50):
                assert (await client.answer())[2] == b'{"path":"/%d","bytes":0}' % n
            await check_alive(opened, client)

    run(test())


def test_too_many_at_once() -> None:
    """So many requests ahead of their answers that they would fill the memory are not taken."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(GET % b"a" * 1_000)
            assert (await client.answer())[0] == 200
            await client.closed()
            await check_alive(opened)

    run(test())


@pytest.mark.parametrize(
    "bad",
    [b"garbage\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"GET / HT"],
    ids=["garbage", "chunk", "head"],
)
@pytest.mark.parametrize("before", [1, 2])
def test_a_bad_request_after_a_good_one(bad: bytes, before: int) -> None:
    """The request that is being answered gets its answer, whole; then the connection ends."""

    async def test() -> None:
        app = App()
        async with wire(app) as opened:
            app.hold = asyncio.Event()
            client = await opened.connect()
            await client.send(b"".join(GET % b"%d" % n for n in range(before)) + bad)
            await opened.until(lambda: app.seen)
            await opened.pass_time(0)
            opened.open[0].flow.resume_reading()  # a queue of requests stops reading, and time
            await opened.pass_time(11)
            app.hold.set()
            _, headers, body = await client.answer()
            assert (headers["connection"], body) == ("close", b'{"path":"/0","bytes":0}')
            await client.closed()
            await check_alive(opened)
            assert app.seen == ["/0", "/alive"]

    run(test())


def test_a_request_without_its_body_after_a_good_one() -> None:
    """Its own time begins when the answer before it is sent."""

    async def test() -> None:
        app = App()
        async with wire(app) as opened:
            app.hold = asyncio.Event()
            client = await opened.connect()
            await client.send(GET % b"0" + HEAD + b"Content-Length: 5\r\n\r\n")
            await opened.until(lambda: app.seen)
            await opened.pass_time(100)
            app.hold.set()
            assert (await client.answer())[2] == b'{"path":"/0","bytes":0}'
            await opened.pass_time(9.9)
            assert len(opened.watch) == 1
            await opened.pass_time(0.2)
            assert await client.error() == TIMEOUT
            await client.closed()

    run(test())


# -- those who go, and those who do not read -----------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD + b"Content-Length: 9\r\n\r\n{", GET % b"a"])
def test_a_client_that_goes(sent: bytes) -> None:
    """Wherever a client is when it goes, its connection and its request are gone with it."""

    async def test() -> None:
        async with wire(App()) as opened:
            client = await opened.connect()
            await client.send(sent)
            await opened.until(lambda: opened.open)
            await client.leave()
            await opened.until(lambda: not opened.open)
            assert opened.watch._addresses == {}

    run(test())


def test_a_client_that_goes_with_requests_in_a_row() -> None:
    """The request that is being answered learns of it, not only the newest one."""
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        told.append(scope["path"])

    async def test() -> None:
        async with wire(app) as opened:
            client = await opened.connect()
            await client.send(GET % b"0" + GET % b"1")
            await opened.until(lambda: opened.open and opened.open[0].pipeline)
            opened.open[0].flow.resume_reading()  # a queue of requests stops reading
            await client.leave()
            await opened.until(lambda: told == ["/0"])

    run(test())


def test_looks_come_to_everybody() -> None:
    """However many connections there are, each of them is looked at, some in each turn."""

    class Looked:
        def __init__(self) -> None:
            self.looks = 0

        def look(self, now: float) -> None:
            self.looks += 1

    async def test() -> None:
        watch, all_of_them = Watch(pause=0.0), [Looked() for _ in range(200)]
        for one in all_of_them:
            assert watch.admit(one, "")
        async with asyncio.timeout(DEADLINE):
            while not all(one.looks for one in all_of_them):
                await asyncio.sleep(0)
        for one in all_of_them:
            watch.release(one)

    run(test())


async def large(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more than any buffer between two ends holds."""
    headers = [(b"content-length", b"33554432")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b" " * 33_554_432})


def test_an_answer_that_nobody_reads() -> None:
    """A client that takes less than 1 KiB a second of its answer is given up."""

    async def test() -> None:
        async with wire(large) as opened:
            client = await opened.connect()
            client.reader._limit = 1  # type: ignore[attr-defined]  # so that it does not read on
            await client.send(GET % b"a")
            transport = await _waiting(opened)
            await opened.pass_time(0)
            await opened.pass_time(30)
            assert not transport.is_closing()
            await opened.pass_time(0.1)
            assert transport.is_closing()
            assert opened.watch.refused == {"answer": 1}

    run(test())


def test_an_answer_that_is_read_slowly() -> None:
    """A client that keeps reading gets its whole answer, however long it takes."""

    async def test() -> None:
        async with wire(large) as opened:
            client = await opened.connect()
            client.reader._limit = 1  # type: ignore[attr-defined]
            await client.send(GET % b"a")
            transport = await _waiting(opened)
            left = transport.get_write_buffer_size()
            while left:
                await opened.pass_time(31)
                while transport.get_write_buffer_size() > max(left - 65_536, 0):
                    await client.reader.read(65_536)
                left = transport.get_write_buffer_size()
            await opened.pass_time(31)
            assert not transport.is_closing()

    run(test())


async def _waiting(opened: Wire) -> Any:
    """Wait until an answer waits to be read; return its transport."""
    await opened.until(lambda: opened.open and opened.open[0]._real is not None)
    transport: Any = opened.open[0]._real
    await opened.until(transport.get_write_buffer_size)
    return transport


# -- caps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ConnectionLimits(connections=3), "connections"),
        (ConnectionLimits(connections_per_address=3), "connections_per_address"),
    ],
)
def test_one_connection_too_many(limits: ConnectionLimits, reason: str) -> None:
    """It is told 503 and closed; those that are open notice nothing; one that goes makes room."""

    async def test() -> None:
        async with wire(App(), limits) as opened:
            clients = [await opened.connect() for _ in range(3)]
            await opened.until(lambda: len(opened.open) == 3)
            for _ in range(5):
                refused = await opened.connect()
                status, headers, _ = await refused.answer()
                assert (status, headers["retry-after"]) == (503, "1")
                await refused.closed()
            assert opened.watch.refused == {reason: 5}
            for client in clients:
                await check_alive(opened, client)
            await clients[0].leave()
            await opened.until(lambda: len(opened.open) == 2)
            await check_alive(opened)

    run(test())


def test_addresses_are_counted_apart() -> None:
    """One address that has all it may have takes nothing from another."""

    async def test() -> None:
        async with wire(App(), ConnectionLimits(connections_per_address=2)) as opened:
            for _ in range(2):
                await opened.connect()
            await opened.until(lambda: len(opened.open) == 2)
            await check_alive(opened, await opened.connect("127.0.0.2"))
            assert (await (await opened.connect()).answer())[0] == 503

    run(test())
