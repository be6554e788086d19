"""What is written to files comes back, into a fresh object and into a fresh process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from jormungandr.errors import InvalidValue
from jormungandr.sb3 import C51, PrioritizedReplayBuffer
from tests.forked import Forks

Build = Callable[..., C51]
Walks = Callable[..., VecEnv]

PREDICT = """
import numpy as np
from jormungandr.sb3 import C51, C51Policy
folder = "."
x = np.load(f"{folder}/x.npy")
model = C51.load(f"{folder}/model.zip", device="cpu")
policy = C51Policy.load(f"{folder}/policy.pth", device="cpu")
actions = [each.predict(x, deterministic=True)[0] for each in (model, policy)]
np.save(f"{folder}/actions.npy", np.stack(actions))
"""


def observations() -> NDArray[np.float32]:
    """Return observations around those of the walk."""
    return (np.random.default_rng(0).normal(size=(300, 2)) * (30, 9) + (100, 2)).astype(np.float32)


def test_a_fresh_process_predicts_alike(model: Build, tmp_path: Path, forks: Forks) -> None:
    """Model and policy, saved and loaded elsewhere, choose the same actions."""
    learned = model(n_steps=2, double=True).learn(80)
    learned.save(tmp_path / "model.zip")
    learned.policy.save(str(tmp_path / "policy.pth"))
    np.save(tmp_path / "x.npy", observations())
    assert forks.run(PREDICT, tmp_path).returncode == 0
    expected = learned.predict(observations(), deterministic=True)[0].tolist()

    assert len(set(expected)) > 1
    assert np.load(tmp_path / "actions.npy").tolist() == [expected, expected]


def test_every_setting_comes_back(model: Build, walk: Walks, tmp_path: Path) -> None:
    """A loaded model has the settings, networks, optimizer and counters of the saved one."""
    learned = model(n_steps=3, double=True, alpha=0.3, beta_start=0.5, is_normalizer="buffer")
    learned.learn(60).save(tmp_path / "model")
    back = C51.load(tmp_path / "model", env=walk(2), device="cpu")
    names = [*(C51.__init__.__kwdefaults__ or {}), "n_steps", "gamma"]
    ours, theirs = learned.get_parameters(), back.get_parameters()
    replay = back.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)

    assert {n: getattr(back, n) for n in names} == {n: getattr(learned, n) for n in names}
    assert ours["policy"].keys() == theirs["policy"].keys()
    assert all(torch.equal(v, theirs["policy"][k]) for k, v in ours["policy"].items())
    assert str(ours["policy.optimizer"]) == str(theirs["policy.optimizer"])
    assert (back.num_timesteps, back._n_updates) == (learned.num_timesteps, learned._n_updates)
    assert (replay.n_steps, replay._priorities.spec.alpha, replay.size()) == (3, 0.3, 0)
    assert back.policy.moments is not None
    assert back.policy.moments.running().count == 2 * learned.num_timesteps


def test_loading_with_other_settings(model: Build, tmp_path: Path) -> None:
    """Settings given to `load` win, and what is built is built from them."""
    model(n_steps=3).save(tmp_path / "model")
    back = C51.load(tmp_path / "model", device="cpu", n_steps=1, alpha=0.0, policy_kwargs=KWARGS)
    replay = back.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)

    assert (replay.n_steps, replay._priorities.spec.alpha) == (1, 0.0)
    with pytest.raises(ValueError, match="policy kwargs do not equal"):
        C51.load(tmp_path / "model", policy_kwargs={"net_arch": [4]})


KWARGS = {"net_arch": [8, 8]}


@pytest.mark.parametrize("kind", [DQN, PPO])
def test_a_file_of_another_algorithm_is_refused(
    kind: type[BaseAlgorithm], walk: Walks, tmp_path: Path
) -> None:
    """By name, with what opens it; not by an argument that its policy does not know."""
    kind("MlpPolicy", walk(1), device="cpu").save(tmp_path / "other")

    with pytest.raises(InvalidValue, match=r"policy: expected MlpPolicy, .*DQN\.load"):
        C51.load(tmp_path / "other", device="cpu")


def test_exclude_and_include(model: Build, tmp_path: Path) -> None:
    """`exclude` leaves a setting out of the file, `include` puts it back."""
    learned = model(double=False)
    learned.save(tmp_path / "without", exclude=["double"])
    learned.save(tmp_path / "with", exclude=["double"], include=["double"])

    assert C51.load(tmp_path / "without", device="cpu").double is True
    assert C51.load(tmp_path / "with", device="cpu").double is False


def test_training_goes_on_from_files(model: Build, walk: Walks, tmp_path: Path) -> None:
    """Model and replay buffer loaded, it updates bit for bit as the saved one would have."""
    learned = model(seed=None, n_steps=2, learning_starts=0).learn(80)
    learned.save(tmp_path / "model")
    learned.save_replay_buffer(tmp_path / "replay")
    back = C51.load(tmp_path / "model", env=walk(2), device="cpu")
    back.load_replay_buffer(tmp_path / "replay.pkl")
    for each in (learned, back):
        each.set_logger(model().logger)
        each.train(5, 8)

    for a, b in zip(learned.q_net.parameters(), back.q_net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_loaded_buffer_serves_this_model(model: Build, tmp_path: Path) -> None:
    """It takes the model's n_steps and γ, and its newest transitions end their sums."""
    model(n_steps=3, gamma=0.5).learn(20).save_replay_buffer(tmp_path / "replay.pkl")
    other = model(n_steps=2, gamma=0.9)
    other.load_replay_buffer(tmp_path / "replay.pkl")
    replay = other.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)

    assert (replay.n_steps, replay.gamma) == (2, 0.9)
    assert replay._closed[replay.pos - 1].all()
    assert other.learn(8).num_timesteps == 8


def test_moments_travel_with_the_parameters(model: Build, walk: Walks) -> None:
    """`set_parameters` brings what runs too, so that training goes on from there."""
    learned = model().learn(60)
    other = model(walk(2))
    other.set_parameters(learned.get_parameters())
    other.learning_starts = 10**6
    other.learn(8)

    assert other.policy.moments is not None
    assert other.policy.moments.running().count == 2 * 60 + 2 * 8
