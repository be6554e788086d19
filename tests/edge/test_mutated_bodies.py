"""A hundred thousand mutated bodies: no fault of ours, and nothing changes that was refused.

``BODIES`` in the environment is another number of them, ``SEED`` another draw; `make soak` takes a
million.
"""

from __future__ import annotations

import http.client
import json
import os
import random
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from tests.edge.asgi import ask
from tests.edge.mutation import MODEL, SEEDS, mutated
from tests.service.serving import QUIET, Server

COUNT, SEED = int(os.environ.get("BODIES", "100000")), int(os.environ.get("SEED", "0"))
#: What is answered to a body of whatever kind.
FINE = {200, 201, 400, 404, 409, 413, 415, 422}
#: Of so many bodies, before and after one it is looked at everything that a model says of itself.
LOOK = 50


def state(app: Any) -> tuple[Any, ...]:
    """Return what no refused body may change: the ledger's totals, versions, models."""
    model = app.model("m")
    counters = model.journal.counters
    totals = tuple(getattr(counters, f.name) for f in fields(counters))
    return totals, model.served_version, model.published_version, len(app.gateway._models)


async def campaign(app: Any, count: int, seed: int) -> Counter[int]:
    """Send mutated bodies into an application; count the answers by status."""
    rng, statuses, accepted = random.Random(seed), Counter[int](), 0
    model = app.model("m")
    for n in range(count):
        path, kind, body = mutated(rng)
        case = (seed, n, path, kind, body)
        before, whole = state(app), model.info() if n % LOOK == 0 else None
        answer = await ask(app.http.app, "POST", path, body, kind)
        statuses[answer.status] += 1
        assert answer.status in FINE, (case, answer)
        if answer.status >= 400:
            assert len(answer.error) == 2
            assert state(app) == before, (case, answer)
            assert whole is None or model.info() == whole, case
        elif answer.status == 201:
            made = json.loads(answer.body)["model_id"]
            gone = await ask(app.http.app, "DELETE", f"/v1/models/{made}")
            assert (gone.status, state(app)) == (204, before), case
        elif path.endswith("/add"):
            accepted += json.loads(answer.body).get("accepted", 0)
    assert model.journal.counters.accepted == accepted
    return statuses


@pytest.mark.parametrize(("path", "kind", "body"), SEEDS)
def test_seeds_are_valid(app: Any, path: str, kind: str, body: bytes) -> None:
    """What is mutated was taken before it was."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))

    assert app.run(ask, app.http.app, "POST", path, body, kind).status == 200


def test_some_mutated_bodies(app: Any) -> None:
    """The first few thousand of them, and not all are refused for the same reason."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))

    assert set(app.run(campaign, app, 4_000, 1)) >= {200, 400, 409, 413, 422}


@pytest.mark.slow
def test_mutated_bodies(app: Any) -> None:
    """All of them."""
    app.connect("m").create(QUIET)
    app.publish("m", Learner(QUIET))

    print(app.run(campaign, app, COUNT, SEED))


@pytest.mark.slow
def test_a_server_that_is_sent_mutated_bodies(tmp_path: Path) -> None:
    """Over the wire: the same process answers all of them, and the next sound request."""
    rng = random.Random(2)
    with Server(tmp_path) as server, server.connect("m") as learner:
        learner.create(QUIET)
        host = server.url.removeprefix("http://")
        link = http.client.HTTPConnection(host, timeout=30)
        for n in range(2_000):
            path, kind, body = mutated(rng)
            headers = {"Authorization": f"Bearer {server.token}", "Content-Type": kind}
            link.request("POST", path, body, headers)
            answer = link.getresponse()
            assert (answer.status in FINE, len(answer.read()) > 0) == (True, True), (n, body)
            if answer.status == 201:
                link.request("DELETE", answer.headers.get("location", path), headers=headers)
                link.getresponse().read()
        link.close()
        assert server.process.poll() is None
        assert learner.info()["model_id"] == MODEL.rpartition("/")[2]
