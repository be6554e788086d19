"""Policies of averaged weights: what the average is, and that it is kept with everything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

ENGINES = ["autograd", "closed_form"]


@pytest.fixture(params=ENGINES)
def averaged(request: pytest.FixtureRequest, small: Small) -> ModelSpec:
    """A model that acts with an average."""
    return small(c51={"averaging": 0.5, "engine": request.param})


def test_average_is_of_the_weights_so_far(averaged: ModelSpec, step: Step) -> None:
    """By the recursion, from the weights after each update; at first little of the old is kept."""
    learner = Learner(averaged)
    expected = learner.algorithm.online.get_weights()
    for t in range(30):
        before = learner.update_count
        learner.add([step(t)])
        assert learner.update_count - before <= 1
        if learner.update_count > before:
            n = learner.update_count
            kept = min(0.5, n / (n + 10))
            for name, newest in learner.algorithm.online.get_weights().items():
                expected[name] = kept * expected[name] + (1 - kept) * newest

    served = learner.snapshot().weights
    assert learner.update_count > 10
    for name, weights in expected.items():
        np.testing.assert_allclose(served[name], weights, atol=1e-6)
    online = learner.algorithm.online.get_weights()
    assert any(not np.allclose(served[name], online[name]) for name in served)


def test_held_out_loss_is_of_what_is_served(averaged: ModelSpec, step: Step) -> None:
    """The evaluation names a version, and measures the weights which that version has."""
    learner = Learner(averaged)
    learner.add([step(t) for t in range(30)])
    learner.add([step(t, episode_id="v", split="validation") for t in range(9)])
    measured = learner.evaluate()
    other = Learner(averaged)
    other.algorithm.restore(learner.algorithm.state())
    other.algorithm.online.set_weights(learner.snapshot().weights)
    other.algorithm.average = None
    other._latched = learner._latched
    other.validation = learner.validation

    expected = other.evaluate()

    assert measured is not None
    assert expected is not None
    assert measured.validation_loss == expected.validation_loss


def test_average_survives_a_restart(
    averaged: ModelSpec, step: Step, state: State, tmp_path: Path
) -> None:
    """Saved and loaded, it goes on bit for bit."""
    learner = Learner(averaged)
    learner.add([step(t) for t in range(30)])
    learner.save(tmp_path / "c")
    loaded = Learner.load(tmp_path / "c")
    for one in (learner, loaded):
        one.add([step(t) for t in range(30, 50)])

    assert state(loaded) == state(learner)
    assert loaded.snapshot().digest() == learner.snapshot().digest()


def test_average_goes_back_with_the_rest(averaged: ModelSpec, step: Step) -> None:
    """A rollback serves the average of the good copy, which no bad step has touched."""
    learner = Learner(averaged)
    learner.add([step(t) for t in range(30)])
    learner.algorithm.online.value.bias.data.fill_(float("nan"))
    t = 30
    while not learner.diverged:
        learner.add([step(t)])
        t += 1

    good = learner._good[0]
    for name, weights in learner.snapshot().weights.items():
        assert np.array_equal(weights, good[f"average.{name}"])
        assert np.isfinite(weights).all()
