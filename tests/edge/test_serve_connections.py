"""`jormungandr serve`: the limits of connections hold in the real server, with its real clock."""

from __future__ import annotations

import json
import selectors
import socket
import time
import urllib.request
from pathlib import Path

import pytest

from tests.service.serving import DEADLINE, QUIET, Server, until

#: What connections that will not go on begin with; a third of them each.
BEGINNINGS = [
    b"",
    b"POST /v1/models/m/inference HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n",
]


def port(server: Server) -> int:
    """Return the port that a server listens on."""
    return int(server.url.rpartition(":")[2])


def turned_away(server: Server) -> float:
    """Return how many connections of one address too many the figures tell; 0 without an answer."""
    asked = urllib.request.Request(f"{server.url}/metrics")
    asked.add_header("Authorization", f"Bearer {server.token}")
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:  # the server may not have seen yet that another one has gone
        return 0
    name = 'jormungandr_http_turned_away_total{reason="connections_per_address"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.slow
def test_trickling_connections(tmp_path: Path) -> None:
    """Every connection that trickles is closed, by the server; who does not is answered on."""
    with Server(tmp_path) as server, server.connect("m") as learner:
        learner.create(QUIET)
        learner.act([[0.0, 1.0]])
        selector, waiting, said = selectors.DefaultSelector(), set(), []
        for n in range(300):
            link = socket.create_connection(("127.0.0.1", port(server)))
            beginning = BEGINNINGS[n % 3]
            if b"%s" in beginning:
                beginning %= server.token.encode()
            link.sendall(beginning)
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ)
            waiting.add(link)
        end = time.monotonic() + DEADLINE
        while waiting:
            assert time.monotonic() < end, f"{len(waiting)} connections are still open"
            learner.act([[0.0, 1.0]])
            for key, _ in selector.select(0.1):
                link = key.fileobj
                assert isinstance(link, socket.socket)
                said.append(link.recv(100)[:12])
                selector.unregister(link)
                waiting.remove(link)
                link.close()
        assert said == [b"HTTP/1.1 408"] * 300
        learner.act([[0.0, 1.0]])


def test_connections_per_address(tmp_path: Path) -> None:
    """One connection too many is told so; those that were there go on."""
    server = Server(tmp_path, "--max-connections-per-address", "3")
    with server, server.connect("m") as learner:
        learner.create(QUIET)
        links = [socket.create_connection(("127.0.0.1", port(server))) for _ in range(2)]
        with socket.create_connection(("127.0.0.1", port(server))) as refused:
            refused.settimeout(DEADLINE)
            answer = b"".join(iter(lambda: refused.recv(4_096), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "overloaded"
        assert learner.info()["model_id"] == "m"
        links.pop().close()
        until(lambda: turned_away(server) >= 1, "a figure of it")
        for link in links:
            link.close()


@pytest.mark.parametrize("option", ["--max-connections", "--max-connections-per-address"])
def test_no_connections_at_all(tmp_path: Path, option: str) -> None:
    """A cap of none is refused at the start."""
    with pytest.raises(AssertionError, match=option):
        Server(tmp_path, option, "0")
