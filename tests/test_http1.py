"""`Link`: answers of every form, and what is none."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from jormungandr.http1 import Broken, Link
from jormungandr.transport import HttpTransport

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Name:  a b \r\n\r\nok"


@contextmanager
def answering(*answers: bytes, close: bool = True) -> Iterator[tuple[int, list[bytes]]]:
    """Answer requests with bytes as they are, a connection after another; yield port and heads."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        for answer in answers:
            # Whoever has heard enough closes before the end.
            with listener.accept()[0] as connection, suppress(ConnectionError):
                connection.settimeout(30)
                heard.append(connection.recv(1 << 16))
                for i in range(0, len(answer), 7):  # in pieces
                    connection.sendall(answer[i : i + 7])
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
            return link.request(method, "/v1/info", None, {}, 30)
        finally:
            link.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (PLAIN, 200, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, 200, b"ok"),
        (b"HTTP/1.1 404 Not Found\r\nCONTENT-LENGTH: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, b""),
        (
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\nA\r\n0123456789\r\n"
            b"0\r\nTrailer: 1\r\n\r\n",
            200,
            b"abc0123456789",
        ),
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
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\nok", Broken),
        (b"HTTP/2 200\r\ncontent-length: 2\r\n\r\nok", Broken),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Broken),
        (b"HTTP/1.1 OK\r\n\r\n", Broken),
        (b"x" * 100_000, Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokay\r\n", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\no", Broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"0" * 9_000, Broken),
    ],
)
def test_no_answers(answer: bytes, error: type[Exception]) -> None:
    """What is none, or not all of one, is never taken for one."""
    with pytest.raises(error):
        ask(answer)


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
        transport.close()
    assert len(heard) == 2


@pytest.mark.parametrize("answer", [PLAIN, PLAIN + b"HTTP/1.1 500 No\r\n\r\n"])
def test_a_connection_that_was_closed_meanwhile(answer: bytes) -> None:
    """The request is sent again once, over another one; so is one after more than an answer."""
    with answering(answer, PLAIN) as (port, heard):
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
    main, left = threading.get_ident(), threading.Event()

    def serve() -> None:
        with listener.accept()[0] as first:
            first.recv(1 << 16)
            signal.pthread_kill(main, signal.SIGINT)
            left.wait(30)
            with suppress(ConnectionError):
                first.sendall(PLAIN.replace(b"\r\n\r\nok", b"\r\n\r\nno"))
            with listener.accept()[0] as second:
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
    [("/a b", {}), ("/\r\nX: y", {}), ("/\u00fc", {}), ("/", {"X": "a\r\nY: b"})],
)
def test_what_would_be_another_request(path: str, headers: dict[str, str]) -> None:
    """Spaces and ends of lines, where they mean something else, are refused and not sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = Link("127.0.0.1", listener.getsockname()[1], None, 30)
        with pytest.raises(ValueError, match=r"like|line"):
            link.request("GET", path, None, headers, 30)
        link.close()
