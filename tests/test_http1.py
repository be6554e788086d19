"""`Link`: answers of every form, and what is none."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from jormungandr import http1
from jormungandr.http1 import Broken, Link
from jormungandr.transport import HttpTransport

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name:  a b \r\n\r\nok"


@contextmanager
def answering(
    *answers: bytes, close: bool = True, piece: int = 7
) -> Iterator[tuple[int, list[bytes]]]:
    """Answer requests with bytes as they are, a connection after another; yield port and heads."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    heard: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            # Whoever has heard enough closes before the end, or does not come again.
            with suppress(OSError), listener.accept()[0] as connection:
                connection.settimeout(30)
                heard.append(connection.recv(1 << 16))
                for i in range(0, len(answer), piece):
                    connection.sendall(answer[i : i + piece])
                if not close:
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        thread.join()
        listener.close()


def ask(
    answer: bytes, method: str = "GET", close: bool = True
) -> tuple[int, dict[str, str], bytes]:
    """Return what a link makes of an answer."""
    with answering(answer, close=close) as (port, _):
        link = Link("127.0.0.1", port, None, 30)
        try:
            found = link.request(method, "/v1/info", None, {}, 30)
            assert not link._buffer  # nothing is left over that the next answer would begin with
            return found
        finally:
            link.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (PLAIN, 200, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + PLAIN, 200, b"ok"),
        (b"HTTP/1.1 404 Not Found\r\nCONTENT-LENGTH: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, b""),
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n"
            b"0\r\nTrailer: 1\r\nAnother: 2\r\n\r\n",
            200,
            b"abc0123456789",
        ),
        (b"HTTP/1.1 200\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n", 200, b""),
    ],
)
def test_answers(answer: bytes, status: int, body: bytes) -> None:
    """Whole ones, in pieces as they may come; the connection stays open."""
    found = ask(answer, close=False)

    assert (found[0], found[2]) == (status, body)
    assert found[1].get("x-name", "a b") == "a b"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\ncontent-le", ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\n\r\n", ConnectionError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok", Broken),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nok", Broken),
        (b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\nok", Broken),
        (b"HTTP/1.1 200 OK\r\ncontent-length: \xb2\r\n\r\nok", Broken),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\nok", Broken),
        (b"HTTP/2 200\r\ncontent-length: 2\r\n\r\nok", Broken),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Broken),
        (b"HTTP/1.1 OK\r\n\r\n", Broken),
        (b"x" * 100_000, Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\no", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 9_000, Broken),
    ],
)
def test_no_answers(answer: bytes, error: type[Exception]) -> None:
    """What is none, or not all of one, is never taken for one."""
    with pytest.raises(error):
        ask(answer)


@pytest.mark.parametrize(
    "answer",
    [b"x" * 100_000, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 9_000],
)
def test_no_end(answer: bytes) -> None:
    """Of what goes on and on no more is kept than an answer may take."""
    with pytest.raises(Broken, match="without an end"):
        ask(answer, close=False)


def test_head_has_no_body() -> None:
    """What it would be long is said, and it does not come."""
    assert ask(PLAIN[:-2], "HEAD", close=False)[2] == b""


class Fake:
    """A socket, and the TLS around it, that only keep what is done with them."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.done.append((name, *given, *named.values()))

    def recv(self, _: int) -> bytes:
        """Return the same answer to everybody."""
        return PLAIN

    def wrap_socket(self, _: Any, server_hostname: str) -> Fake:
        """Note whose certificate is asked for."""
        self.done.append(("tls", server_hostname))
        return self


@pytest.mark.parametrize(
    ("host", "port", "tls", "where", "name"),
    [
        ("127.0.0.1", 8080, False, 8080, "127.0.0.1:8080"),
        ("a.example", None, False, 80, "a.example"),
        ("a.example", 80, False, 80, "a.example"),
        ("a.example", 443, False, 443, "a.example:443"),
        ("a.example", None, True, 443, "a.example"),
        ("a.example", 443, True, 443, "a.example"),
        ("a.example", 80, True, 80, "a.example:80"),
        ("::1", 8080, False, 8080, "[::1]:8080"),
        ("bücher.example", 1, True, 1, "xn--bcher-kva.example:1"),
    ],
)
def test_names(
    host: str, port: int | None, tls: bool, where: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it connects to, whom it trusts there, and what it calls the service."""
    fake: Any = Fake()
    asked: list[Any] = []
    monkeypatch.setattr(
        http1.socket, "create_connection", lambda *given: asked.append(given) or fake
    )
    link = Link(host, port, fake if tls else None, 9)
    link.request("POST", "/", None, {}, 7)
    link.close()

    assert asked == [((host, where), 9)]
    head = f"POST / HTTP/1.1\r\nHost: {name}\r\nAccept-Encoding: identity\r\n"
    assert fake.done == [
        ("setsockopt", socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        *([("tls", host)] if tls else []),
        ("settimeout", 7),
        ("sendall", f"{head}Content-Length: 0\r\n\r\n".encode()),
        ("close",),
    ]


def test_a_service_that_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is closed at once."""
    fake: Any = Fake()

    def refuse(*_: Any, **__: Any) -> None:
        raise ssl.SSLError("not trusted")

    fake.wrap_socket = refuse
    monkeypatch.setattr(http1.socket, "create_connection", lambda *_: fake)
    with pytest.raises(ssl.SSLError):
        Link("a.example", None, fake, 9)
    assert fake.done[-1] == ("close",)


@pytest.mark.parametrize(
    ("version", "kept", "ends"),
    [
        (b"1.1", b"x: y", False),
        (b"1.1", b"Connection: keep-alive", False),
        (b"1.1", b"Connection: Close", True),
        (b"1.0", b"x: y", True),
        (b"1.0", b"Connection: Keep-Alive", False),
    ],
)
def test_which_answer_is_the_last(version: bytes, kept: bytes, ends: bool) -> None:
    """By its version, and by what it says itself."""
    with answering(PLAIN.replace(b"1.1", version).replace(b"X-Name", kept + b"\r\nX")) as (port, _):
        link = Link("127.0.0.1", port, None, 30)
        link.request("GET", "/", None, {}, 30)
        link.close()
    assert link.ends is ends


def test_one_packet() -> None:
    """Head and body go together; the head says what a service has to know."""
    with answering(PLAIN) as (port, heard):
        link = Link("127.0.0.1", port, None, 30)
        link.request("POST", "/v1/x?y=1", b"body", {"Authorization": "Bearer t"}, 30)
        link.close()
    assert heard == [
        b"POST /v1/x?y=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept-Encoding: identity\r\n"
        b"Authorization: Bearer t\r\nContent-Length: 4\r\n\r\nbody" % port
    ]


@pytest.mark.parametrize(
    "answer",
    [
        PLAIN.replace(b"X-Name", b"Connection: close\r\nX-Name"),
        PLAIN.replace(b"1.1", b"1.0"),
    ],
)
def test_a_connection_that_ends(answer: bytes) -> None:
    """After an answer that is the last one, the next request opens another connection."""
    with answering(answer, PLAIN) as (port, heard):
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        for _ in range(2):
            assert transport.request("GET", "/", None, {}, 30).body == b"ok"
            assert len(transport._links) == len(heard) - 1  # the first one is gone
        transport.close()
    assert len(heard) == 2


@pytest.mark.parametrize("answer", [PLAIN, PLAIN + PLAIN.replace(b"\nok", b"\nno")])
def test_a_connection_that_was_closed_meanwhile(answer: bytes) -> None:
    """The request is sent again once, over another one; so is one after more than an answer."""
    with answering(answer, PLAIN, piece=1_000) as (port, heard):
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        for _ in range(2):
            assert transport.request("GET", "/", None, {}, 30).body == b"ok"
        transport.close()
    assert len(heard) == 2


def test_half_an_answer_is_a_connection_error() -> None:
    """And it is not asked for again here: whether it arrived is not known."""
    with answering(PLAIN[:-1]) as (port, heard):
        transport = HttpTransport(f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectionError):
            transport.request("GET", "/", None, {}, 30)
        transport.close()
    assert len(heard) == 1


def test_a_service_that_says_nothing() -> None:
    """A request ends with its time."""
    listener = socket.create_server(("127.0.0.1", 0))
    transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(TimeoutError):
        transport.request("GET", "/", None, {}, 0.05)
    transport.close()
    listener.close()


def test_an_answer_that_nobody_waited_for() -> None:
    """After Ctrl-C within a request, the next one gets its own answer, over another connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    main, left = threading.get_ident(), threading.Event()

    def serve() -> None:
        with listener.accept()[0] as first:
            first.recv(1 << 16)
            signal.pthread_kill(main, signal.SIGINT)
            left.wait(30)
            with suppress(ConnectionError):
                first.sendall(PLAIN.replace(b"\r\n\r\nok", b"\r\n\r\nno"))
            with suppress(TimeoutError), listener.accept()[0] as second:
                second.recv(1 << 16)
                second.sendall(PLAIN)

    thread = threading.Thread(target=serve)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")
    try:
        with pytest.raises(KeyboardInterrupt):
            transport.request("GET", "/", None, {}, 30)
        left.set()
        assert transport.request("GET", "/", None, {}, 30).body == b"ok"
    finally:
        left.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
        transport.close()
        listener.close()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/a b", {}),
        ("/\r\nX: y", {}),
        ("/\u00fc", {}),
        ("/", {"X": "a\r\nY: b"}),
        ("/", {"X": "a\rY: b"}),
    ],
)
def test_what_would_be_another_request(path: str, headers: dict[str, str]) -> None:
    """Spaces and ends of lines, where they mean something else, are refused and not sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link("127.0.0.1", listener.getsockname()[1], None, 30)
        with pytest.raises(ValueError, match=r"like|line"):
            link.request("GET", path, None, headers, 30)
        link.close()
