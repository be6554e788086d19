"""Learning-rate schedules: a function of the completed updates, the same in every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec, settings
from jormungandr.errors import InvalidInput, InvalidType, InvalidValue
from jormungandr.learner.c51 import C51, Batch
from jormungandr.learner.closed_form import ClosedFormC51

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

LINEAR = {"kind": "linear", "updates": 8, "end": 0.25}
COSINE = {"kind": "cosine", "updates": 8, "end": 0.25}


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({}, {0: 1, 4: 1, 10**9: 1}),
        ({"updates": 8, "end": 0.0}, {0: 1, 4: 1, 8: 1}),
        (LINEAR, {0: 1, 2: 0.8125, 4: 0.625, 8: 0.25, 9: 0.25, 10**9: 0.25}),
        (COSINE, {0: 1, 2: 0.25 + 0.375 * (1 + 0.5**0.5), 4: 0.625, 8: 0.25, 9: 0.25}),
        ({"kind": "linear", "updates": 10, "end": 0.0}, {9: 0.1, 10: 0, 11: 0}),
    ],
    ids=["default", "constant", "linear", "cosine", "to nothing"],
)
def test_rate(small: Small, schedule: dict[str, Any], factors: dict[int, float]) -> None:
    """It begins at `lr`, reaches its end after `updates` exactly, and stays there."""
    c51 = small(c51={"lr": 0.5, "lr_schedule": schedule}).c51

    for updates, factor in factors.items():
        assert c51.rate(updates) == pytest.approx(0.5 * factor, rel=1e-12, abs=1e-15)
    assert c51.rate(0) == 0.5
    assert c51.rate(max(factors)) == 0.5 * factors[max(factors)]


@pytest.mark.parametrize(
    ("schedule", "where", "expected"),
    [
        ({"kind": "linear"}, "c51.lr_schedule.updates", "a number, for 'linear'"),
        ({"kind": "cosine", "end": 0.0}, "c51.lr_schedule.updates", "a number, for 'cosine'"),
        ({"kind": "linear", "updates": 0}, "c51.lr_schedule.updates", "1..2**63-1"),
        ({"kind": "linear", "updates": 2**63}, "c51.lr_schedule.updates", "1..2**63-1"),
        ({**LINEAR, "end": -0.1}, "c51.lr_schedule.end", "0..1"),
        ({**LINEAR, "end": 1.1}, "c51.lr_schedule.end", "0..1"),
        ({"kind": "step"}, "c51.lr_schedule.kind", "one of ['constant', 'linear', 'cosine']"),
        ({"rate": 1}, "c51.lr_schedule.rate", "one of ['kind', 'updates', 'end']"),
    ],
)
def test_refused(small: Small, schedule: dict[str, Any], where: str, expected: str) -> None:
    """A schedule that says too little, or something else, is refused with its path."""
    with pytest.raises(InvalidInput) as caught:
        small(c51={"lr_schedule": schedule})

    assert (caught.value.where, caught.value.expected) == (where, expected)


def test_refused_in_python() -> None:
    """Structs that are made directly check what JSON would."""
    with pytest.raises(InvalidValue, match=r"c51\.lr_schedule\.kind"):
        settings.LearningRate(kind="cos", updates=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"c51\.lr_schedule"):
        settings.C51(lr_schedule={"kind": "constant"})  # type: ignore[arg-type]


def batch(seed: int) -> Batch:
    """Return sixteen random transitions of the small model."""
    rng = np.random.default_rng(seed)
    return Batch(
        observation=rng.normal(size=(16, 2)).astype(np.float32),
        action=rng.integers(3, size=16),
        reward=rng.normal(size=16).astype(np.float32),
        next_observation=rng.normal(size=(16, 2)).astype(np.float32),
        discount=np.full(16, 0.9, dtype=np.float32),
        label=np.full(16, -1, dtype=np.int32),
    )


@pytest.mark.parametrize("schedule", [LINEAR, COSINE], ids=["linear", "cosine"])
@pytest.mark.parametrize("engine", [C51, ClosedFormC51])
def test_step_is_scaled(small: Small, engine: type[C51], schedule: dict[str, Any]) -> None:
    """Adam's step is proportional to the rate; its averages do not depend on it."""
    spec = small(auxiliary=None, c51={"lr": 0.01, "lr_schedule": schedule})
    steps: dict[int, Any] = {}
    for updates in (0, 2, 4, 100):
        algorithm = engine(spec, np.random.default_rng(0))
        before = algorithm.online.get_weights()
        algorithm.update(batch(0), updates)
        after = algorithm.state()
        steps[updates] = [after[f"online.{n}"] - before[n] for n in before]
        steps[updates].append(after["adam.value.weight.exp_avg"])

    for updates, found in steps.items():
        factor = spec.c51.lr_schedule.factor(updates)
        for moved, whole in zip(found[:-1], steps[0][:-1], strict=True):
            np.testing.assert_allclose(moved, factor * whole, atol=1e-7)
        assert np.array_equal(found[-1], steps[0][-1])
    assert np.abs(steps[0][-3]).max() > 0.005


def test_engines_agree(small: Small) -> None:
    """Over a whole schedule both engines give the same weights, to rounding."""
    spec = small(auxiliary=None, c51={"lr": 0.01, "lr_schedule": COSINE})
    one, other = (engine(spec, np.random.default_rng(0)) for engine in (C51, ClosedFormC51))
    for updates in range(12):
        one.update(batch(updates), updates)
        other.update(batch(updates), updates)

    expected = one.state()
    for name, array in other.state().items():
        np.testing.assert_allclose(array, expected[name], atol=2e-5, err_msg=name)


def test_learner_counts_completed_updates(
    small: Small, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skipped step is none, and a restored copy of the weights does not turn the clock back."""
    learner = Learner(small(c51={"lr_schedule": LINEAR}))
    asked: list[int] = []
    update = learner.algorithm.update

    def watched(rows: Batch, updates: int = 0) -> Any:
        asked.append(updates)
        return update(rows, updates)

    monkeypatch.setattr(learner.algorithm, "update", watched)
    learner.add([step(t) for t in range(20)])
    assert asked == list(range(8))
    learner.algorithm.online.value.bias.data.fill_(float("nan"))
    learner.add([step(t) for t in range(20, 30)])

    assert learner.progress.rollbacks == 1
    assert asked[8:] == [8, 8, 8, 9, 10]


@pytest.mark.parametrize("engine", ["closed_form", "autograd"])
def test_goes_on_bit_for_bit(
    small: Small, step: Step, state: State, tmp_path: Path, engine: str
) -> None:
    """Stopped on the way down and loaded, it ends where one that was not stopped ends."""
    learner = Learner(small(c51={"lr_schedule": {**COSINE, "updates": 20}, "engine": engine}))
    learner.add([step(t, reward=t % 2) for t in range(24)])
    learner.save(tmp_path / "c")
    loaded = Learner.load(tmp_path / "c")
    for one in (learner, loaded):
        one.add([step(t, reward=t % 3) for t in range(24, 60)])

    assert learner.update_count > 20
    assert state(loaded) == state(learner)


def test_end_of_nothing_stops_learning(small: Small, step: Step) -> None:
    """With `end` 0 the weights stay as they are after the last update, and versions go on."""
    schedule = {"kind": "linear", "updates": 4, "end": 0.0}
    learner = Learner(small(c51={"lr_schedule": schedule, "averaging": 0.0}))
    learner.add([step(t) for t in range(12)])
    assert learner.update_count == 4
    before = learner.algorithm.online.get_weights()
    learner.add([step(t) for t in range(12, 20)])

    assert learner.update_count == 8
    after = learner.algorithm.online.get_weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)
