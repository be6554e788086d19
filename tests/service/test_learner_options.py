"""Dueling, noisy, annealed, averaged models in a service: the same learning, the same acting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner
from tests.service.serving import SPEC, Server, experience, served

ROWS = experience(12, 9)
OPTIONS: dict[str, Any] = {
    "dueling": True,
    "noisy": True,
    "averaging": 0.5,
    "lr": 0.01,
    "lr_schedule": {"kind": "cosine", "updates": 60, "end": 0.2},
}
#: Noise alone explores.
MODEL: dict[str, Any] = {
    **SPEC,
    "c51": {**SPEC["c51"], **OPTIONS},
    "exploration": {"start": 0.0, "end": 0.0, "transitions": 1},
}
X = np.random.default_rng(0).normal(size=(6, 2), scale=2).astype(np.float32)


def test_acts_as_a_learner_in_process_does(app: Any) -> None:
    """The gateway draws the noise, in NumPy, draw for draw as a learner in one process."""
    app.connect("m").create(MODEL)
    learner = Learner(MODEL)
    learner.add(ROWS[:40])
    app.publish("m", learner)
    endpoint = app.connect("m")

    replies = [endpoint.act(X, distribution=True) for _ in range(3)]
    assert replies == [learner.act(X, distribution=True) for _ in range(3)]
    assert len({str(reply.expected_values) for reply in replies}) == 3
    deterministic = endpoint.act(X, deterministic=True)
    assert deterministic.expected_values == learner.snapshot().values(X).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["autograd", "closed_form"])
def test_killed_and_recovered_bit_for_bit(tmp_path: Path, engine: str) -> None:
    """After kill -9 on the way down a schedule, the policy is that of an unbroken learner."""
    spec = {**MODEL, "c51": {**MODEL["c51"], "noisy": engine == "autograd", "engine": engine}}
    learner = Learner(spec)
    learner.add(ROWS)
    half = len(ROWS) // 2
    server = Server(tmp_path)
    try:
        with server.connect("m") as endpoint:
            endpoint.create(spec)
            endpoint.wait(endpoint.add(ROWS[:half]).lsn)
            endpoint.add(ROWS[half : half + 7])
    finally:
        server.kill()

    with Server(tmp_path) as again, again.connect("m") as endpoint:
        info = endpoint.wait(endpoint.add(ROWS[half + 7 :]).lsn)
        assert info["update_count"] == learner.update_count > 60
    assert served(tmp_path, "m.1").to_bytes() == learner.snapshot().to_bytes()
