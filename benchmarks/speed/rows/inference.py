"""One observation over HTTP: how soon, how many, and what a learner beside it changes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.kit import Kit
from benchmarks.speed.load import Connection, loaded, percentile
from benchmarks.speed.peers import PeersMissing
from benchmarks.speed.rows.beside import Beside
from benchmarks.speed.rows.models import specification
from benchmarks.speed.service import Bare, Service
from benchmarks.speed.timing import Case, Contender, Kind
from jormungandr import Learner, PolicySnapshot

__all__ = ["BODY", "PATH", "arrays", "bare", "inference", "median"]

BODY = json.dumps({"observations": [[0.12, -0.34, 0.56, 0.78]]}).encode()
PATH = "/v1/models/m/inference"
PACE = 500.0
FRAMEWORKS = ("Starlette echo", "FastAPI echo")
#: Learns all the time once it is given what to learn from.
SPEC = specification(
    pacing={"learning_starts": 1_000, "updates_per_transition": 1.0, "max_backlog": 10_000_000}
)


def inference(kit: Kit) -> Iterator[Case]:
    """Yield answers one at a time, many at a time, and both beside a learner."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(kit.room("inference")))
        learner = stack.enter_context(service.connect("m"))
        learner.create(SPEC)
        learner.act([[0.0, 0.0, 0.0, 0.0]])
        echo = stack.enter_context(Bare("echo"))
        others, absent = _frameworks(kit, stack)
        forward = stack.enter_context(bare(kit.room("weights.npz"), Learner(SPEC).snapshot()))
        asked = [
            ("ours", service.port, service.request(PATH, BODY)),
            ("bare ASGI echo", echo.port, echo.request(BODY)),
            ("bare ASGI + forward", forward.port, forward.request(BODY)),
            *others,
        ]
        yield Case(
            "http-one",
            "inference over HTTP, one JSON row, one connection, p50",
            "µs",
            [_contender(n, median(port, request, kit.long / 8)) for n, port, request in asked],
            absent,
        )
        for connections in (8, 64):
            yield Case(
                f"http-{connections}",
                f"inference over HTTP, one JSON row, {connections} connections",
                "requests/s",
                [
                    _contender(n, _rate(port, request, connections, kit.long / 2))
                    for n, port, request in asked
                ],
                absent,
            )
        beside = Beside(learner)
        yield _busy(kit, asked, beside)
        yield from _paced(kit, *asked[0][1:], beside)


def _frameworks(
    kit: Kit, stack: contextlib.ExitStack
) -> tuple[list[tuple[str, int, bytes]], dict[str, str]]:
    """Start what answers by way of a framework; return it, and by name why one is absent."""
    started = stack.enter_context(Bare("starlette"))
    starlette, fastapi = FRAMEWORKS
    found, absent = [(starlette, started.port, started.request(BODY))], {}
    try:
        started = stack.enter_context(Bare("fastapi", python=kit.peers.python()))
        found.append((fastapi, started.port, started.request(BODY)))
    except (PeersMissing, RuntimeError) as error:
        absent[fastapi] = str(error)
    return found, absent


def bare(path: Path, policy: PolicySnapshot) -> Bare:
    """Return a bare server with the network of a policy, its weights in a file."""
    np.savez(path, *arrays(policy))
    return Bare("forward", path)


def arrays(policy: PolicySnapshot) -> list[NDArray[np.float32]]:
    """Return weights and biases, layer by layer, what normalises, and the support."""
    found = []
    for name in ("hidden.0", "hidden.1", "value"):
        weight = np.ascontiguousarray(policy.weights[f"{name}.weight"].T)
        found += [weight, policy.weights[f"{name}.bias"]]
    scale = 1 / np.sqrt(policy.var + 1e-8)
    return found + [a.astype(np.float32) for a in (policy.mean, scale, policy.support)]


def _busy(kit: Kit, asked: list[tuple[str, int, bytes]], beside: Beside) -> Case:
    found = []
    for name, port, request in (asked[0], asked[2]):
        for connections in (8, 64):
            measure = _rate(port, request, connections, kit.long / 2)
            sample = beside.learning(measure, kit.long / 2 + 0.5)
            found.append(_contender(f"{name}, {connections} connections", sample))
    title = "inference over HTTP, one JSON row, beside a learner that is busy"
    return Case("http-busy", title, "requests/s", found)


def _paced(kit: Kit, port: int, request: bytes, beside: Beside) -> Iterator[Case]:
    def late() -> float:
        return 1e3 * loaded(port, request, kit.long, rate=PACE).p99

    yield Case(
        "http-paced",
        f"inference over HTTP, {PACE:.0f} requests a second by a schedule, p99",
        "ms",
        [
            _contender("ours, alone", late),
            _contender("ours, beside a learner", beside.learning(late, kit.long + 0.5)),
        ],
    )

    def kept() -> float:
        alone = beside.rate(lambda: time.sleep(kit.long))
        return beside.rate(lambda: loaded(port, request, kit.long, rate=PACE)) / alone

    sample = beside.learning(kept, 2 * kit.long + 1)
    title = f"updates a second while {PACE:.0f} requests a second are answered"
    yield Case("http-kept", title, "of its rate", [_contender("ours", sample)])


def _contender(name: str, sample: Callable[[], float]) -> Contender:
    about = {
        "ours": "`jormungandr serve`: token, checks, exploration, probability, meters",
        "bare ASGI echo": "uvicorn, uvloop and httptools; a fixed answer",
        "Starlette echo": "the same, with a route of Starlette's",
        "FastAPI echo": "the same, with a route of FastAPI's and a model of the body",
        "bare ASGI + forward": "the same, msgspec, and the network in NumPy; no checks, no token",
    }[name.partition(",")[0]]
    kind: Kind = "limit"
    if name.startswith("ours"):
        kind = "ours"
    elif name in FRAMEWORKS:
        kind = "peer"
    return Contender(name, kind, sample, about)


def median(port: int, request: bytes, seconds: float) -> Callable[[], float]:
    """Return what sends one request after another, and tells the median in microseconds.

    Args:
        port: of the server.
        request: the bytes.
        seconds: that it lasts; at least one request.
    """

    def sample() -> float:
        link, end = Connection(port), time.perf_counter() + seconds
        taken: list[float] = []
        while (began := time.perf_counter()) < end or not taken:
            status = link.ask(request)
            taken.append(time.perf_counter() - began)
            if status != 200:
                raise RuntimeError(f"answered {status}")
        link.socket.close()
        return 1e6 * percentile(taken, 0.5)

    return sample


def _rate(port: int, request: bytes, connections: int, seconds: float) -> Callable[[], float]:
    return lambda: loaded(port, request, seconds, connections=connections).rate
