"""Contenders train as they say, and stop at every pause."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

import jormungandr_envs
from benchmarks.learning.baselines import Baseline
from benchmarks.learning.contenders import CONTENDERS
from benchmarks.learning.pauses import paused
from benchmarks.learning.runs import perform
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.zoo import ZOO
from tests.learning_benchmark.made import SHORT

ENTRIES = [
    (who, env_id)
    for who in CONTENDERS
    for env_id in ("OUSpread-v0", "CartPole-v1")
    if CONTENDERS[who].settings(dataclasses.replace(SHORT, env_id=env_id)) is not None
]


@pytest.mark.parametrize(("who", "env_id"), ENTRIES)
def test_everyone_trains_and_hands_over_a_policy_at_every_pause(who: str, env_id: str) -> None:
    """Pauses come at the steps asked for, with a policy that acts on a batch."""
    task = dataclasses.replace(SHORT, env_id=env_id)
    pauses = CONTENDERS[who].train(task, 0)
    seen = np.stack([task.make().observation_space.sample() for _ in range(5)])

    acted = [(at, act(seen).shape, noted["updates"]) for at, act, noted in pauses]

    assert [(at, shape) for at, shape, _ in acted] == [(48, (5,)), (96, (5,))]
    assert all(updates >= 0 for _, _, updates in acted)


def test_training_again_gives_the_same_scores() -> None:
    """A run is a function of its seed, on either side."""
    for who in ("ours, preset", "SB3 DQN"):
        one, two = (perform("t", SHORT, CONTENDERS[who], 3, "x") for _ in range(2))
        assert one.evaluations == two.evaluations
        assert one.evaluations["steps"] == [48, 96]


def test_updates_are_gradient_steps() -> None:
    """Of PPO too, which counts passes over a rollout: 2 x 10 of 32 batches; of DQN as it counts."""
    task = dataclasses.replace(SHORT, env_id="CartPole-v1", steps=4_098, every=4_098)
    made = {"PPO": Baseline("x", "PPO"), "DQN": Baseline("y", "DQN")}
    counts = {
        name: [noted["updates"] for _, _, noted in b.train(task, 0)] for name, b in made.items()
    }

    assert counts == {"PPO": [2 * 10 * 32], "DQN": [(4_098 - 100) // 4]}


def test_tuned_settings_enter_where_they_were_tuned() -> None:
    """On the short task, and not on the long one in the same environment."""
    for who in ("SB3 DQN, tuned", "QR-DQN, tuned"):
        assert CONTENDERS[who].settings(TASKS["ou-1344"]) is not None
        assert CONTENDERS[who].settings(TASKS["ou"]) is None


class Captured(Exception):
    """What an algorithm was made with."""


@pytest.mark.parametrize("algorithm", ["DQN", "QRDQN"])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_exploration_takes_as_many_steps_as_in_the_zoo(
    algorithm: str, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Zoo's fraction of its own steps: 16 % of 50,000, 12 % of 100,000, 20 % of 120,000."""
    given: dict[str, Any] = {}

    def kind(self: Baseline) -> Any:
        def make(*args: Any, **kwargs: Any) -> None:
            given.update(kwargs)
            raise Captured

        return make

    monkeypatch.setattr(Baseline, "_kind", kind)
    task = next(task for task in TASKS.values() if task.env_id == env_id)
    with pytest.raises(Captured):
        next(Baseline("x", algorithm, ZOO[algorithm]).train(task, 0))
    steps = {"CartPole-v1": 8_000, "Acrobot-v1": 12_000, "MountainCar-v0": 24_000}
    assert given["exploration_fraction"] * task.steps == pytest.approx(steps[env_id])
    assert "exploration_steps" not in given


def test_a_linear_schedule_falls_to_nothing() -> None:
    """``lin_x`` is x times the share of the run that remains; SB3 calls it with that."""
    seen: list[float] = []
    table = {"CartPole-v1": {"learning_rate": "lin_2e-3", "n_envs": 4, "n_steps": 16}}
    baseline = Baseline("x", "PPO", table)
    task = dataclasses.replace(SHORT, env_id="CartPole-v1", steps=128, every=64)
    for _, act, _ in baseline.train(task, 0):
        seen.append(act.__closure__[0].cell_contents.lr_schedule(0.25))  # type: ignore[attr-defined]
    assert seen == [5e-4, 5e-4]


def test_settings_are_handed_out_as_copies() -> None:
    """QRDQN writes into the ``policy_kwargs`` that it is given."""
    task = dataclasses.replace(SHORT, env_id="CartPole-v1")
    contender = CONTENDERS["QR-DQN, RL Zoo"]
    contender.changes(task)["policy_kwargs"]["optimizer_class"] = object

    assert contender.changes(task)["policy_kwargs"] == {"net_arch": [256, 256], "n_quantiles": 10}


class Model:
    """Learns by calling back at every step, and breaks at one of them."""

    def __init__(self, breaks_at: int) -> None:
        self.breaks_at, self.num_timesteps, self.logger = breaks_at, 0, None

    def learn(self, steps: int, callback: Any) -> None:
        """Take the steps."""
        for _ in range(steps):
            self.num_timesteps += 1
            callback.num_timesteps = self.num_timesteps
            if self.num_timesteps == self.breaks_at:
                raise ZeroDivisionError
            callback._on_step()


def test_an_error_in_training_comes_out() -> None:
    """Training runs in a thread of its own: what is raised there is raised here, in its place."""
    pauses = paused(Model(breaks_at=5), 10, 2)
    assert [next(pauses), next(pauses)] == [2, 4]
    with pytest.raises(ZeroDivisionError):
        next(pauses)


def test_training_stops_when_nobody_wants_more() -> None:
    """At a pause, with its thread."""
    model, before = Model(breaks_at=100), threading.active_count()
    pauses = paused(model, 10, 2)
    assert next(pauses) == 2
    pauses.close()
    assert model.num_timesteps == 2
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("env_id", "feature", "high"),
    [("CartPole-v1", 2, 1), ("MountainCar-v0", 1, 2), ("Acrobot-v1", 5, 2)],
)
def test_a_score_is_the_return_of_an_episode_with_its_seed(
    env_id: str, feature: int, high: int
) -> None:
    """As one environment at a time plays it: from 1,000,000 on, each to its own end."""
    task = dataclasses.replace(SHORT, env_id=env_id)

    def act(seen: Any) -> Any:
        return np.where(seen[:, feature] > 0, high, 0)

    expected = []
    for i in range(task.episodes):
        env, total, over = task.make(), 0.0, False
        seen, _ = env.reset(seed=1_000_000 + i)
        while not over:
            seen, reward, terminated, truncated, _ = env.step(int(act(seen[None])[0]))
            total, over = total + float(reward), terminated or truncated
        expected.append(total)

    assert len(set(expected)) > 1
    assert task.score(act).tolist() == expected


def test_the_score_of_ouspread_is_the_gap_closed_on_paths_of_its_own() -> None:
    """On average 1 for the optimal policy, and another number for every path."""
    task = dataclasses.replace(SHORT, episodes=200)
    optimal = task.score(jormungandr_envs.optimal_policy().act)

    assert optimal.mean() == pytest.approx(1.0, abs=1e-9)
    assert len(set(optimal.tolist())) == 200
