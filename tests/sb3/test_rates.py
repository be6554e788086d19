"""`AnnealedRate`: the learner's curves over the steps of `learn`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jormungandr.errors import InvalidValue
from jormungandr.sb3 import C51, AnnealedRate
from jormungandr.settings import LearningRate

Build = Callable[..., C51]


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_curve_is_the_learners(kind: Any) -> None:
    """At every share of the way what a model's schedule gives there, and no less past its end."""
    rate = AnnealedRate(0.5, kind, end=0.2)
    schedule = LearningRate(kind=kind, updates=100, end=0.2)

    for updates in range(101):
        expected = 0.5 * schedule.factor(updates)
        assert rate(1 - updates / 100) == pytest.approx(expected, rel=1e-12)
    assert (rate(1.0), rate(0.0), rate(-0.3)) == (0.5, 0.1, 0.1)


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"end": 1.5}, {"kind": "step"}])
def test_refused(wrong: dict[str, Any]) -> None:
    """Numbers outside their range, and curves there are none of."""
    with pytest.raises(InvalidValue, match=r"c51\.lr"):
        AnnealedRate(**{"lr": 0.1, **wrong})


def test_learning_with_it(model: Build, tmp_path: Path) -> None:
    """The optimizer's rate falls during `learn`, and the file remembers the curve."""
    learned = model(learning_rate=AnnealedRate(0.01, end=0.0))
    rates: list[float] = []
    learned.learn(
        80, callback=lambda *_: rates.append(learned.policy.optimizer.param_groups[0]["lr"]) or True
    )
    learned.save(tmp_path / "model.zip")
    again = C51.load(tmp_path / "model.zip", device="cpu")

    assert rates[0] == 0.01
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.001
    assert again.learning_rate == AnnealedRate(0.01, end=0.0)


def test_plain_rates_are_as_they_were(model: Build) -> None:
    """A number is constant, and Stable-Baselines3's own schedules are what they are there."""
    constant = model(learning_rate=0.01).learn(80)
    halved = model(learning_rate=lambda remaining: 0.01 if remaining > 0.5 else 0.005).learn(80)

    assert constant.policy.optimizer.param_groups[0]["lr"] == 0.01
    assert halved.policy.optimizer.param_groups[0]["lr"] == 0.005
