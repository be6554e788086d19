"""The generator of load: it counts what it is told, and sends no identity twice."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from benchmarks.speed.load import MARK, Connection, closed, loaded, paced, percentile

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 16\r\n\r\n" + MARK


@contextlib.contextmanager
def server(answer: Callable[[int], bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Answer the n-th request with bytes; yield the port, and the bodies as they come."""
    bodies: list[bytes] = []
    lock = threading.Lock()

    def serve(link: socket.socket) -> None:
        held = b""
        with link, contextlib.suppress(OSError):
            while got := link.recv(1 << 16):
                held += got
                while len(held) >= len(REQUEST):
                    with lock:
                        bodies.append(held[len(REQUEST) - 16 : len(REQUEST)])
                        said = answer(len(bodies))
                    held = held[len(REQUEST) :]
                    link.sendall(said)

    def accept(listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listening.accept()
                threading.Thread(target=serve, args=(link,), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=accept, args=(listening,), daemon=True).start()
    try:
        yield listening.getsockname()[1], bodies
    finally:
        listening.close()


def status(code: int, body: bytes = b"{}") -> bytes:
    """Return an answer."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)


def test_closed_counts_answers_and_sends_no_identity_twice() -> None:
    """Several connections at once, and every request is another one."""
    with server(lambda n: status(429 if n == 3 else 200)) as (port, bodies):
        told = closed(port, REQUEST, 3, 0.2)

    assert told.answers["429"] == 1
    assert told.answers["200"] + 1 == len(bodies)
    assert len(set(bodies)) == len(bodies)
    assert MARK not in bodies
    assert told.rate == pytest.approx(told.answers["200"] / told.seconds)


def test_paced_sends_what_is_due() -> None:
    """So many requests a second for so long, however soon they are answered."""
    with server(lambda _: status(200)) as (port, bodies):
        told = paced(port, REQUEST, 500, 0.1)

    assert told.answers == {"200": 50}
    assert len(bodies) == 50
    assert 0 < told.p50 <= told.p99


def test_a_generator_in_a_process_of_its_own() -> None:
    """It is told the same things, and tells them."""
    with server(lambda _: status(200, json.dumps([1] * 50).encode())) as (port, bodies):
        told = loaded(port, REQUEST, 0.1, rate=200)

    assert told.answers == {"200": 20}
    assert len(bodies) == 20


def test_an_answer_may_come_in_pieces() -> None:
    """The status is known once the whole answer is there, whatever its header's letters."""
    with server(lambda _: b"") as (port, _):
        link = Connection(port)
        mine, theirs = socket.socketpair()
        link.socket.close()
        link.socket = mine
        whole = b"HTTP/1.1 201 X\r\ncontent-length: 4\r\n\r\nabcd"
        for i, byte in enumerate(whole):
            theirs.send(bytes([byte]))
            assert link.receive() == (201 if i == len(whole) - 1 else None)
        theirs.close()
        with pytest.raises(ConnectionError):
            link.receive()
        mine.close()


def test_percentiles() -> None:
    """The value that a share of all does not exceed."""
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
