"""Commits and syncs on a real server: what the kernel was asked, and syncs that take their time."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.faults.strace import Strace, needs_strace
from tests.service.serving import QUIET, Server, experience, until

pytestmark = needs_strace

#: Seconds that each sync is held.
HOLD = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model ``m`` whose learner runs and whose first policy is served."""
    with Server(tmp_path_factory.mktemp("data")) as running:
        endpoint = running.connect("m")
        endpoint.create(QUIET)
        endpoint.wait(endpoint.add(experience(1, 4, actor_id="first")).lsn)
        endpoint.act([[0, 0]])
        endpoint.close()
        yield running


# -- order --------------------------------------------------------------------------------------

OK = "HTTP/1.1 200"


def unsynced_replies(lines: list[str]) -> tuple[int, int]:
    """Return (replies of 200, those that went out before what they stand for was synced).

    One client sends one request after the other. At each reply every page that was written to the
    WAL must be synced, and at least one sync must have come back since the reply before. A call
    that another one interrupts in the listing counts where it came back if it is a sync, and where
    it began if it is a reply.
    """
    replies, wrong, written, synced = 0, 0, False, 0
    syncing: set[str] = set()
    for line in lines:
        pid, _, call = line.partition(" ")
        call = call.lstrip()
        if call.startswith("pwrite64(") and "journal.db-wal>" in call:
            written = True
        elif call.startswith(("fdatasync(", "fsync(")) and "journal.db-wal>" in call:
            if call.endswith("= 0"):
                written, synced = False, synced + 1
            else:
                assert call.endswith("<unfinished ...>"), call
                syncing.add(pid)
        elif "sync resumed>" in call and pid in syncing:
            assert call.endswith("= 0"), call
            syncing.discard(pid)
            written, synced = False, synced + 1
        elif call.startswith(("write(", "writev(", "sendto(", "sendmsg(")) and OK in call:
            replies += 1
            wrong += written or synced == 0
            synced = 0
    return replies, wrong


def test_no_reply_before_the_sync_of_its_commit(server: Server, tmp_path: Path) -> None:
    """Of fifty replies no byte goes out before the WAL with their rows is on the disk."""
    endpoint = server.connect("m")
    calls = "trace=fsync,fdatasync,pwrite64,write,writev,sendto,sendmsg"
    with Strace(server.process.pid, tmp_path, calls) as strace:
        for n in range(50):
            assert endpoint.add(experience(1, 4, actor_id=f"order{n}")).accepted == 4
        lines = strace.lines()
    endpoint.close()

    assert unsynced_replies(lines) == (50, 0)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["1 pwrite64(4</journal.db-wal>, ) = 1", "1 fdatasync(4</journal.db-wal>) = 0"], 0),
        (["1 pwrite64(4</journal.db-wal>, ) = 1"], 1),
        (["1 pwrite64(4</journal.db-wal>, ) = 1", "1 fdatasync(4</journal.db>) = 0"], 1),
        (
            [
                "1 pwrite64(4</journal.db-wal>, ) = 1",
                "1 fdatasync(4</journal.db-wal> <unfinished ...>",
                "2 recvfrom() = 1",
                "1 <... fdatasync resumed>) = 0",
            ],
            0,
        ),
        (
            [
                "1 pwrite64(4</journal.db-wal>, ) = 1",
                "1 fdatasync(4</journal.db-wal> <unfinished ...>",
            ],
            1,
        ),
        ([], 1),
    ],
)
def test_the_order_is_read_from_the_trace(lines: list[str], expected: int) -> None:
    """The reading itself: what it takes for a reply too early, and what not."""
    reply = '2 write(9<TCP:[127.0.0.1]>, "HTTP/1.1 200 OK", 15) = 15'

    assert unsynced_replies([*lines, reply]) == (1, expected)


# -- a sync that is held ------------------------------------------------------------------------


def raw_request(server: Server, rows: list[Any]) -> bytes:
    """Return the bytes of a request that adds transitions."""
    body = json.dumps({"transitions": rows}).encode()
    return (
        b"POST /v1/models/m/experience/add HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer "
        + server.token.encode()
        + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        + body
    )


@pytest.fixture(scope="module")
def held(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of requests that were sent while each sync of the server took two seconds."""
    found: dict[str, Any] = {"inference": 0}
    wal = server.data_dir / "models" / "m.1" / "journal.db-wal"
    address = urlsplit(server.url)
    endpoints = [server.connect("m", patience=60) for _ in range(4)]
    before = endpoints[0].info()
    hold = f"inject=fdatasync:delay_enter={int(HOLD * 1e6)}"

    def add(k: int, rows: list[Any]) -> Any:
        began = time.monotonic()
        receipt = endpoints[k].add(rows)
        return receipt, time.monotonic() - began

    folder = tmp_path_factory.mktemp("strace")
    with ThreadPoolExecutor(4) as pool, Strace(server.process.pid, folder, "trace=fdatasync", hold):
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.sendall(raw_request(server, experience(1, 4, actor_id="gone")))
            # The commit's pages, whose sync is held then; a policy or a seal may be written too.
            until(lambda: b"gone" in wal.read_bytes(), "the pages of the commit")
        # That client is gone; its commit is not done. Now two others send the same at once.
        found["during"] = endpoints[0].info()["journal_lsn"] - before["journal_lsn"]
        twins = [pool.submit(add, k, experience(1, 4, actor_id="twin")) for k in (1, 2)]
        while not all(twin.done() for twin in twins):
            endpoints[0].act([[0, 0]])
            found["inference"] += 1
        found["twins"] = [twin.result() for twin in twins]
        found["retry"] = endpoints[3].add(experience(1, 4, actor_id="gone"))
    after = endpoints[0].info()  # positions say less: a policy may be recorded between two requests
    found["new"] = after["accepted"]["train"] - before["accepted"]["train"]
    for endpoint in endpoints:
        endpoint.close()
    return found


def test_no_answer_while_the_sync_is_held(held: dict[str, Any]) -> None:
    """A receipt takes as long as the sync; actions and figures do not."""
    assert min(seconds for _, seconds in held["twins"]) >= HOLD
    assert held["inference"] >= 10
    assert held["during"] == 0


def test_same_identities_on_two_connections(held: dict[str, Any]) -> None:
    """One is accepted, the other is told so; both wait for the one commit."""
    receipts = [receipt for receipt, _ in held["twins"]]

    assert sorted((r.accepted, r.duplicate) for r in receipts) == [(0, 4), (4, 0)]
    assert receipts[0].lsn == receipts[1].lsn


def test_client_gone_before_the_commit(held: dict[str, Any]) -> None:
    """What a client sent before it went is kept, and known when it comes again."""
    assert (held["retry"].accepted, held["retry"].duplicate) == (0, 4)
    assert held["new"] == 8
