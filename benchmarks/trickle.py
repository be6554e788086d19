"""Thousands of connections that trickle, and one client that does not.

    python benchmarks/trickle.py [--sockets 2000] [--seconds 10]

Prints how long each kind of connection was left open, and the 99th percentile of a healthy client's
latency while they are, over that without them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from jormungandr import RemoteLearner

#: Turns of the attack in a second, and connections that it opens in each.
TURNS, TURN = 20, 50
SPEC: dict[str, Any] = {"observation": {"shape": [4]}, "actions": 3}
HEAD = b"POST /v1/models/m/inference HTTP/1.1\r\nHost: localhost\r\n"
#: What each kind sends at once; then one byte a second.
KINDS = {
    "nothing": b"",
    "headers": b"POST /v1/models/m/inference HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "body": HEAD + b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
}


def attack(port: int, sockets: int, token: str) -> dict[str, list[float]]:
    """Open a thousand connections a second, trickle, and return when each was closed, by kind.

    Plain sockets in one loop: whoever attacks from the same machine should need little of it.
    """
    bearer = f"\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    opened: dict[socket.socket, tuple[str, float]] = {}
    selector, made, turn = selectors.DefaultSelector(), 0, 0
    while made < sockets or opened:
        for _ in range(min(TURN, sockets - made)):
            kind = list(KINDS)[made % len(KINDS)]
            link = socket.create_connection(("127.0.0.1", port))
            link.setblocking(False)
            link.send(KINDS[kind].replace(b"\r\n\r\n", bearer))
            opened[link] = kind, time.monotonic()
            selector.register(link, selectors.EVENT_READ)
            made += 1
        for key, _ in selector.select(0):
            link = cast(socket.socket, key.fileobj)
            kind, began = opened.pop(link)
            found[kind].append(time.monotonic() - began)
            selector.unregister(link)
            link.close()
        for link in list(opened)[turn % TURNS :: TURNS]:
            if opened[link][0] != "nothing":
                with contextlib.suppress(OSError):
                    link.send(b"x")
        turn += 1
        time.sleep(1 / TURNS)
    return found


def attacker(port: int, sockets: int, token: str, results: Any) -> None:
    """Attack from a process of its own, and report."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, sockets + 100)), hard))
    results.put(attack(port, sockets, token))


def latencies(learner: RemoteLearner, goes_on: Callable[[], bool]) -> list[float]:
    """Ask for actions, a hundred times a second at most, and return the seconds of each."""
    found = []
    while goes_on():
        began = time.perf_counter()
        learner.act([[0.0, 1.0, 2.0, 3.0]])
        found.append(time.perf_counter() - began)
        time.sleep(max(0.0, 0.01 - found[-1]))
    return found


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="without an attack")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jormungandr", "serve", "--data-dir", folder]
        command += ["--port", "0", "--max-connections-per-address", "4096"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().removeprefix("listening on ").strip()
                token = (Path(folder) / "operator-token").read_text().strip()
                report(url, token, arguments.sockets, arguments.seconds)
            finally:
                server.terminate()
    return 0


def report(url: str, token: str, sockets: int, seconds: float) -> None:
    """Measure without and with, and print."""
    with RemoteLearner(url, "m", token) as learner:
        learner.create(SPEC)
        learner.act([[0.0, 1.0, 2.0, 3.0]])
        end = time.monotonic() + seconds
        calm = latencies(learner, lambda: time.monotonic() < end)
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        port = int(url.rpartition(":")[2])
        attacking = context.Process(target=attacker, args=(port, sockets, token, results))
        attacking.start()
        stormy = latencies(learner, results.empty)
        closed = results.get()
        attacking.join()
    for kind, passed in closed.items():
        print(f"{kind:8} {len(passed):5} connections, closed after", end=" ")
        print(f"{min(passed):.1f} to {max(passed):.1f} s")
    for name, found in (("calm", calm), ("attacked", stormy)):
        p50, p99 = np.percentile(found, [50, 99]) * 1e3
        print(f"{name:8} {len(found):5} requests, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    print(f"p99 ratio {np.percentile(stormy, 99) / np.percentile(calm, 99):.2f}")


if __name__ == "__main__":
    sys.exit(main())
