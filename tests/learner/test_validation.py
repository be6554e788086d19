"""The held-out store: a bounded ring that keeps transitions whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.columns import columns
from jormungandr.learner.validation import ValidationStore

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


def filled(small: Small, step: Step, count: int, chunk: int) -> ValidationStore:
    """Return a store of four slots after `count` transitions with rewards 0, 1, 2, …."""
    store = ValidationStore(4, (2,))
    rows = columns([step(t, reward=float(t), label=t % 2) for t in range(count)], small())
    for at in range(0, count, chunk):
        store.add(rows.take(np.arange(at, min(at + chunk, count))))
    return store


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_ring_keeps_the_newest(small: Small, step: Step, chunk: int) -> None:
    """However they come, the newest `capacity` transitions are held."""
    store = filled(small, step, 11, chunk)

    assert (len(store), store.size, store.added) == (4, 4, 11)
    assert store.all()["reward"].tolist() == [8.0, 9.0, 10.0, 7.0]
    assert store.all()["action"].tolist() == [2, 0, 1, 1]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_steps_of_an_episode_are_told_by_a_number(small: Small, step: Step, chunk: int) -> None:
    """It is the same however the steps came, and another for another actor's or episode's."""
    names = [("a", "e"), ("b", "e"), ("a", "f"), ("a", "e"), ("b", "e"), ("a", "e")]
    rows = columns([step(t, actor_id=a, episode_id=e) for t, (a, e) in enumerate(names)], small())
    store = ValidationStore(4, (2,))
    for at in range(0, len(names), chunk):
        store.add(rows.take(np.arange(at, min(at + chunk, len(names)))))
    held = store.in_order()

    assert held["timestep"].tolist() == [2, 3, 4, 5]
    f, e, b, again = held["episode"].tolist()
    assert e == again
    assert len({f, e, b}) == 3


def test_label_by_ordinal(small: Small, step: Step) -> None:
    """A label goes to the transition of that ordinal while it is held, and nowhere else."""
    store = filled(small, step, 6, 1)
    before = store.all()["label"].copy()
    for ordinal in (0, 1, 6, 100):
        store.set_label(ordinal, 9)
    assert np.array_equal(store.all()["label"], before)
    store.set_label(2, 5)

    assert store.all()["label"].tolist() == [0, 1, 5, 1]


@pytest.mark.parametrize("count", [0, 3, 6])
def test_state_round_trip(small: Small, step: Step, count: int) -> None:
    """A restored store goes on where it was."""
    store = filled(small, step, count, 1)
    back = ValidationStore(4, (2,))
    back.restore(store.state())
    more = columns([step(9)], small())
    store.add(more)
    back.add(more)

    for name, array in store.state().items():
        assert array.tobytes() == back.state()[name].tobytes(), name


def test_loss_is_over_the_whole_store(small: Small, step: Step) -> None:
    """The reported loss is the mean over every held-out transition, in chunks or not."""
    learner = Learner(small(validation={"capacity": 6000}, pacing={"learning_starts": 10**6}))
    rng = np.random.default_rng(0)
    rows = [
        step(t, split="validation", observation=x, reward=float(x[0]), terminated=False)
        for t, x in enumerate(rng.normal(size=(5000, 2)))
    ]
    learner.add(rows)
    parts = []
    for at in range(0, 5000, 100):
        part = Learner(learner.spec)
        part.add(rows[at : at + 100])
        result = part.evaluate()
        assert result is not None
        parts.append(result.validation_loss)
    whole = learner.evaluate()

    assert whole is not None
    assert whole.transitions == 5000
    assert whole.validation_loss == pytest.approx(np.mean(parts), rel=1e-6)


def test_terminated_masks_the_bootstrap_and_truncated_does_not(small: Small, step: Step) -> None:
    """The target of an end of the task is its reward; a cut-off has its successor's value too."""
    losses, snapshot = {}, Learner(small()).snapshot()
    for end in ("terminated", "truncated", "neither"):
        learner = Learner(small())
        learner.add([step(0, split="validation", **({} if end == "neither" else {end: True}))])
        result = learner.evaluate()
        assert result is not None
        losses[end] = result.validation_loss

    # A reward of 0.5 lies a quarter of the way between the atoms 0.4 and 0.8.
    log_p = np.log(snapshot.distribution(np.array([[0.0, 1.0]]))[0, 0])
    assert losses["terminated"] == pytest.approx(-(0.75 * log_p[6] + 0.25 * log_p[7]), rel=1e-5)
    assert losses["truncated"] == losses["neither"] != losses["terminated"]
