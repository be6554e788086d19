"""What one request may make the service hold: forwards come in pieces, and replies have a bound."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner
from jormungandr import policy as policy_module
from jormungandr.errors import BodyTooLarge

WIDE = {"observation": {"shape": [2]}, "actions": 64, "c51": {"atoms": 101, "hidden": 8}}


@pytest.fixture(scope="module")
def learner() -> Learner:
    """A learner whose forward passes are mostly output."""
    return Learner(WIDE)


def observations(count: int) -> Any:
    """Return a batch."""
    return np.random.default_rng(0).standard_normal((count, 2)).astype(np.float32)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 300])
def test_pieces_are_the_whole(
    learner: Learner, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Forwards in pieces choose the same actions, of the same values."""
    whole = learner.act(observations(count), deterministic=True)
    monkeypatch.setattr(policy_module, "FORWARD_NUMBERS", 2 * 64 * 101)
    pieces = learner.act(observations(count), deterministic=True)

    assert pieces.indices.tolist() == whole.indices.tolist()
    np.testing.assert_allclose(pieces.expected_values, whole.expected_values, rtol=1e-5, atol=1e-6)


def test_memory_is_that_of_a_piece(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a forward does not grow with the observations in a request."""

    def peak() -> int:
        tracemalloc.start()
        learner.act(observations(512), deterministic=True)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    whole = peak()
    monkeypatch.setattr(policy_module, "FORWARD_NUMBERS", 16 * 64 * 101)

    assert whole > 512 * 64 * 101 * 4
    assert peak() < whole / 4


def test_a_reply_has_a_bound(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """More numbers than fit into a reply are refused before they are computed."""
    monkeypatch.setattr(policy_module, "REPLY_NUMBERS", 10 * 64 * 101)
    assert learner.act(observations(10), distribution=True).distribution is not None

    monkeypatch.setattr(policy_module.PolicySnapshot, "distribution", None)
    with pytest.raises(BodyTooLarge, match="observations x actions x atoms"):
        learner.act(observations(11), distribution=True)
    monkeypatch.setattr(policy_module, "REPLY_NUMBERS", 10 * 64)
    with pytest.raises(BodyTooLarge, match="observations x actions"):
        learner.act(observations(11))


def test_over_http(app: Any) -> None:
    """It is 413 there, the state is as before, and what fits is answered."""
    app.connect("wide").create(WIDE)
    app.publish("wide", Learner(WIDE))
    before = app.model("wide").info()
    body = {"observations": [[0.0, 0.0]] * 4_096, "distribution": True}
    refused = app.request("POST", "/v1/models/wide/inference", body)

    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    assert app.model("wide").info() == before
    fits = {**body, "distribution": False}
    assert app.request("POST", "/v1/models/wide/inference", fits).status_code == 200
