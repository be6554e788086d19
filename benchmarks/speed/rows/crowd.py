"""Crowds: what connections and models cost those beside them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.speed.kit import Kit
from benchmarks.speed.load import loaded
from benchmarks.speed.rows.inference import BODY, PATH, bare, median
from benchmarks.speed.rows.models import specification
from benchmarks.speed.service import Service, resident
from benchmarks.speed.timing import Case, Contender
from jormungandr import Learner

__all__ = ["crowd"]

#: Models that are there before the next figures are taken; a learner starts for each, and rests.
MODELS = (1, 10, 100)
#: Nothing happens for longer than this before a learner gives its place to another.
PARK = "2"


def crowd(kit: Kit) -> Iterator[Case]:
    """Yield requests by connections, and by models."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(kit.room("crowd"), "--park-after", PARK))
        learner = stack.enter_context(service.connect("m"))
        learner.create(specification())
        learner.act([[0.0, 0.0, 0.0, 0.0]])
        limit = stack.enter_context(
            bare(kit.room("crowd.npz"), Learner(specification()).snapshot())
        )
        request = service.request(PATH, BODY)
        found = []
        for count in (1, 10, 100, 1_000):
            for name, kind, port, body in (
                ("ours", "ours", service.port, request),
                ("bare ASGI + forward", "limit", limit.port, limit.request(BODY)),
            ):

                def sample(port: int = port, body: bytes = body, count: int = count) -> float:
                    return loaded(port, body, kit.long / 4, connections=count).rate

                about = "one JSON row a request, each connection one request after another"
                found.append(Contender(name, kind, sample, about, count))  # type: ignore[arg-type]
        title = "inference over HTTP, one JSON row, by connections"
        yield Case("growth-connections", title, "requests/s", found)
        yield _models(kit, service, request)


def _models(kit: Kit, service: Service, request: bytes) -> Case:
    """Return the latency of one model's requests, and the gateway's memory, by models at rest."""
    made = [1]
    weights: dict[str, Any] = {}
    p50 = median(service.port, request, kit.long / 8)
    small = specification(layers=(8,), capacity=1_000)

    def among(count: int) -> float:
        while made[0] < count:
            with service.connect(f"m{made[0]}") as other:
                other.create(small)
                other.act([[0.0, 0.0, 0.0, 0.0]])
            made[0] += 1
        if str(count) not in weights:
            time.sleep(2 * float(PARK) if count > 1 else 0)  # the last learners come to rest
            weights[str(count)] = round(resident(service.process.pid), 1)
        return p50()

    found = [
        Contender("ours", "ours", lambda n=n: among(n), "the p50 of one model's requests", n)  # type: ignore[misc]
        for n in ((1, 3) if kit.quick else MODELS)
    ]
    title = "inference over HTTP, one connection, p50, by models in the service"
    return Case(
        "growth-models",
        title,
        "µs",
        found,
        noted=lambda: {"MiB of the gateway by models": weights},
        rounds=1,
    )
