"""Load: connections that send one request after another, or by a schedule; raw sockets, no more."""

from __future__ import annotations

import json
import math
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass

from benchmarks.speed.peers import ROOT

__all__ = ["MARK", "Told", "closed", "loaded", "paced", "percentile"]

#: Stands in a request for the identity that each request has of its own.
MARK = b"0123456789abcdef"
#: Seconds after which a connection that was refused comes again.
PATIENCE = 0.05


@dataclass(frozen=True)
class Told:
    """What the connections were told.

    Args:
        answers: how often each status.
        seconds: from the first request to the last answer.
        p50, p99: of the seconds that an answer took; by a schedule, from when it was due.
    """

    answers: dict[str, int]
    seconds: float
    p50: float
    p99: float

    @property
    def rate(self) -> float:
        """Requests a second that were answered with 200."""
        return self.answers.get("200", 0) / self.seconds


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._held = b""

    def send(self, request: bytes) -> None:
        """Send a request."""
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """Read what is there; return the status once an answer is whole."""
        got = self.socket.recv(1 << 18)
        if not got:
            raise ConnectionError("the server has closed the connection")
        self._held += got
        head = self._held.find(b"\r\n\r\n")
        if head < 0:
            return None
        at = self._held.lower().find(b"content-length:", 0, head)
        length = int(self._held[at + 15 : self._held.find(b"\r\n", at)]) if at >= 0 else 0
        if len(self._held) < head + 4 + length:
            return None
        status = int(self._held[9:12])
        self._held = b""  # nothing was asked before this was answered
        return status

    def ask(self, request: bytes) -> int:
        """Send a request, and wait for the answer."""
        self.send(request)
        while (status := self.receive()) is None:
            pass
        return status


class Fresh:
    """Requests, each with an identity that no other has."""

    def __init__(self, request: bytes) -> None:
        self._request, self._number = request, time.time_ns() // 1_000 << 12
        self._marked = MARK in request

    def __call__(self) -> bytes:
        """Return the next one; of the same length."""
        if not self._marked:
            return self._request
        self._number += 1
        return self._request.replace(MARK, f"{self._number:016x}".encode())


def closed(port: int, request: bytes, connections: int, seconds: float) -> Told:
    """Send from so many connections, the next one as soon as the last is answered."""
    fresh, answers, taken = Fresh(request), Counter[str](), []
    links = [Connection(port) for _ in range(connections)]
    poll = select.epoll()
    by_number = {link.socket.fileno(): link for link in links}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    clock = time.perf_counter
    sent: dict[int, float] = {}
    later: list[tuple[float, int]] = []
    began = now = clock()
    end = began + seconds
    for number, link in by_number.items():
        sent[number] = clock()
        link.send(fresh())
    while sent or later:
        for number, _ in poll.poll(PATIENCE / 5 if later else 5):
            status = by_number[number].receive()
            if status is None:
                continue
            now = clock()
            answers[str(status)] += 1
            taken.append(now - sent.pop(number))
            if now >= end:
                continue
            if status == 200:
                sent[number] = now
                by_number[number].send(fresh())
            else:
                later.append((now + PATIENCE, number))
        if later:
            now = clock()
            while later and (later[0][0] <= now or now >= end):
                _, number = later.pop(0)
                if now < end:
                    sent[number] = now
                    by_number[number].send(fresh())
    for link in links:
        link.socket.close()
    return _told(answers, now - began, taken)


def paced(port: int, request: bytes, rate: float, seconds: float) -> Told:
    """Send from one connection by a schedule; a late answer makes those behind it late."""
    fresh, answers, taken = Fresh(request), Counter[str](), []
    link, clock = Connection(port), time.perf_counter
    began = clock()
    for n in range(int(rate * seconds)):
        due = began + n / rate
        while (left := due - clock()) > 0:
            time.sleep(left)
        answers[str(link.ask(fresh()))] += 1
        taken.append(clock() - due)
    link.socket.close()
    return _told(answers, clock() - began, taken)


def percentile(values: list[float], q: float) -> float:
    """Return the value that a share q of all, 0..1, do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def _told(answers: Counter[str], seconds: float, taken: list[float]) -> Told:
    return Told(dict(answers), seconds, percentile(taken, 0.5), percentile(taken, 0.99))


def loaded(
    port: int, request: bytes, seconds: float, *, connections: int = 1, rate: float | None = None
) -> Told:
    """Run a generator in a process of its own: it must not take turns with what it measures.

    Args:
        port: of the server, on this machine.
        request: with `MARK` where each has to be another one.
        seconds: that it runs.
        connections: that send one request after another.
        rate: instead, requests a second by a schedule.

    Raises:
        RuntimeError: it failed.
    """
    given = {"port": port, "seconds": seconds, "connections": connections, "rate": rate}
    command = [sys.executable, "-m", "benchmarks.speed.load", json.dumps(given)]
    done = subprocess.run(command, input=request, capture_output=True, cwd=ROOT, check=False)
    if done.returncode:
        words = done.stderr.decode().strip().rpartition("\n")[2]
        raise RuntimeError(f"the generator of load failed: {words}")
    return Told(**json.loads(done.stdout))


def main() -> None:
    """Run as a process: the request as input, and the rest as JSON."""
    request, given = sys.stdin.buffer.read(), json.loads(sys.argv[1])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, given["connections"] + 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    print(json.dumps(asdict(_driven(request, **given))))


def _driven(
    request: bytes, *, port: int, seconds: float, connections: int, rate: float | None
) -> Told:
    if rate is not None:
        return paced(port, request, rate, seconds)
    return closed(port, request, connections, seconds)


if __name__ == "__main__":
    main()
