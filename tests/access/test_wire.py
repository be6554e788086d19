"""Odd request lines and Host headers, as bytes to a real server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from jormungandr.service.access.operator_token import read_token
from tests.service.serving import DEADLINE, Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests of this module share."""
    with Server(tmp_path_factory.mktemp("data")) as running:
        yield running


TARGETS = [
    b"//v1/info",
    b"/v1//info",
    b"/./v1/info",
    b"/v1/health/live/../../info",
    b"/v1/health/live/%2e%2e/%2e%2e/info",
    b"/v1/health/live%2f..%2f..%2finfo",
    b"/v1/health/live%00/../../info",
    b"/v1/health/live;/v1/info",
    b"/v1/health/live?/../../info#/v1/info",
    b"/v1/info?/v1/health/live",
    b"/v1/info#/v1/health/live",
    b"/V1/INFO",
    b"/v1/info/",
    b"/v1/inf%6f",
    b"/v1/inf%6F",
    b"http://127.0.0.1/v1/info",
    b"http://evil.example/v1/info",
    b"http://127.0.0.1/v1/health/live/../../info",
    b"*",
    b"/v1/info\\",
]


def raw(server: Server, data: bytes) -> bytes:
    """Send bytes on a connection of their own; return the head and body of the one answer."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), DEADLINE) as connection:
        connection.sendall(data)
        found = b""
        while more := connection.recv(65_536):
            found += more
        return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS"])
def test_targets_without_a_token(server: Server, method: bytes, target: bytes) -> None:
    """However a request line is written, nothing but a health check is answered without a token."""
    head = method + b" " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    found = raw(server, head + b"Content-Length: 0\r\n\r\n")
    code = int(found.split(b" ", 2)[1])

    assert code in (400, 401) or (
        target.startswith(b"/v1/health/live?") and code in (200, 405, 422)
    )
    assert b"durability" not in found


@pytest.mark.parametrize(
    ("lines", "allowed"),
    [
        (b"Host: 127.0.0.1\r\n", {200}),
        (b"Host: LOCALHOST:80\r\n", {200}),
        (b"Host: evil.example\r\n", {403}),
        (b"Host: 127.0.0.1.evil.example\r\n", {403}),
        (b"Host: evil.example\r\nX-Forwarded-Host: 127.0.0.1\r\n", {403}),
        (b"Host: 127.0.0.1\r\nHost: evil.example\r\n", {400}),
        (b"Host: 127.0.0.1, evil.example\r\n", {400}),
        (b"Host: 127.0.0.1@evil.example\r\n", {400}),
        (b"Host:\r\n", {400}),
        (b"", {400}),
    ],
)
def test_hosts_on_the_wire(server: Server, lines: bytes, allowed: set[int]) -> None:
    """A Host header that is another's, or none, is refused with the right token too."""
    token = read_token(server.data_dir / "operator-token").encode()
    head = b"GET /v1/info HTTP/1.1\r\nAuthorization: Bearer " + token + b"\r\n"
    found = raw(server, head + lines + b"Connection: close\r\n\r\n")

    assert int(found.split(b" ", 2)[1]) in allowed
    assert token not in found
