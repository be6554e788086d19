"""Under which names a service answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jormungandr.errors import Forbidden, InvalidValue, Malformed
from jormungandr.service.access.hosts import Hosts, is_loopback
from jormungandr.service.http.authentication import OPEN_PATHS, Authenticated
from jormungandr.service.http.grants import OPERATOR
from tests.access.matrix import request

LOOPBACK = ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]:8000"]
REBOUND = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io"]


def headers(*hosts: str) -> list[tuple[bytes, bytes]]:
    """Return Host headers."""
    return [(b"host", host.encode("latin-1")) for host in hosts]


@pytest.mark.parametrize("host", LOOPBACK)
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "0.0.0.0", "learner.example.org"])
def test_loopback_names(bound: str, host: str) -> None:
    """Whatever it listens on, a service answers under the names of its own machine."""
    Hosts(bound).check(headers(host))


@pytest.mark.parametrize("host", [*REBOUND, "10.0.0.1", "[2001:db8::1]", "0.0.0.0", "localhost."])
def test_other_names(host: str) -> None:
    """Nothing is answered under a name that a page's site may have, or an address not bound."""
    with pytest.raises(Forbidden, match="Host: expected a name of this service"):
        Hosts("127.0.0.1").check(headers(host))


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", ""])
def test_every_address(bound: str) -> None:
    """On every address, it answers under any address, and under names only that it was given."""
    hosts = Hosts(bound, ["Learner.example.org"])
    for host in (
        "10.0.0.1:8000",
        "[2001:DB8:0::1]",
        "learner.example.org:443",
        "LEARNER.EXAMPLE.ORG",
    ):
        hosts.check(headers(host))
    for host in REBOUND:
        with pytest.raises(Forbidden):
            hosts.check(headers(host))


def test_bound_address() -> None:
    """On one address it answers under that one, however it is written."""
    Hosts("10.0.0.1").check(headers("10.0.0.1:8000"))
    Hosts("2001:db8::1").check(headers("[2001:DB8:0:0::1]:8000"))
    with pytest.raises(Forbidden):
        Hosts("10.0.0.1").check(headers("10.0.0.2"))


@pytest.mark.parametrize(
    "given",
    [
        [],
        [""],
        ["localhost", "localhost"],
        ["localhost:"],
        ["localhost:x"],
        ["localhost:8000:8000"],
        ["localhost, evil.example"],
        ["localhost/"],
        ["http://localhost"],
        ["user@localhost"],
        ["[::1"],
        ["::1"],
        ["[localhost]"],
        ["[127.0.0.1.]"],
        ["loc\xe4lhost"],
        [" localhost"],
        ["localhost\x00.evil.example"],
        ["x" * 300],
    ],
)
def test_no_name(given: list[str]) -> None:
    """What is no host, or more than one, is malformed."""
    with pytest.raises(Malformed, match="Host"):
        Hosts("0.0.0.0", ["localhost"]).check(headers(*given))


@pytest.mark.parametrize(
    "name", ["", "*", "*.example.org", "a b", "example.org:8000", "a/b", "[::1]"]
)
def test_names_that_are_none(name: str) -> None:
    """A name that no Host header could have is refused at the start."""
    with pytest.raises(InvalidValue, match="--allowed-host"):
        Hosts("127.0.0.1", [name])


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_own_addresses(host: str, own: bool) -> None:
    """Only loopback addresses are this machine's own."""
    assert is_loopback(host) is own


def test_before_the_token() -> None:
    """A name is refused before a token is looked at; probes of the health checks need neither."""
    reached: list[Any] = []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        reached.append((scope["path"], scope["grant"].name))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    door = Authenticated(inside, "t" * 16, Hosts("127.0.0.1"))
    good = ((b"authorization", b"Bearer " + b"t" * 16),)
    evil = ((b"host", b"evil.example"),)

    async def run() -> list[int]:
        tried = [("/v1/info", (*evil, *good)), ("/v1/info", evil), ("/v1/info", good)]
        tried += [(path, evil) for path in sorted(OPEN_PATHS)]
        tried += [("/v1/info", (*good, (b"host", b"localhost")))]
        return [(await request(door, "GET", path, given))[0] for path, given in tried]

    assert asyncio.run(run()) == [403, 403, 400, 200, 200, 200]
    assert reached == [
        ("/v1/health/live", "nobody"),
        ("/v1/health/ready", "nobody"),
        ("/v1/info", OPERATOR.name),
    ]
