"""Stable-Baselines3's DQN and sb3-contrib's QR-DQN: gradient steps, and one action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure

from benchmarks.speed.peer.data import experience

torch.set_num_threads(1)


class _Shown(gym.Env[Any, Any]):
    """An environment for its spaces alone."""

    def __init__(self, size: int, actions: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(actions)


def dqn(**given: Any) -> Callable[[int], object]:
    """Return gradient steps of DQN: uniform replay, a number for an action, Huber loss."""
    return _steps(DQN, {}, **given)


def qrdqn(*, atoms: int, **given: Any) -> Callable[[int], object]:
    """Return gradient steps of QR-DQN with as many quantiles as others have atoms."""
    from sb3_contrib import QRDQN

    return _steps(QRDQN, {"n_quantiles": atoms}, **given)


def act(*, size: int, actions: int, layers: list[int]) -> Callable[[int], object]:
    """Return `DQN.predict` of one observation, deterministic."""
    policy: dict[str, Any] = {"net_arch": layers}
    model = DQN("MlpPolicy", _Shown(size, actions), policy_kwargs=policy, buffer_size=10)
    seen = experience(64, size, actions)["observation"]

    def call(count: int) -> None:
        for i in range(count):
            model.predict(seen[i % 64], deterministic=True)

    return call


def _steps(
    kind: Any,
    more: dict[str, Any],
    *,
    size: int,
    actions: int,
    layers: list[int],
    batch: int,
    capacity: int,
) -> Callable[[int], object]:
    model = kind(
        "MlpPolicy",
        _Shown(size, actions),
        policy_kwargs={"net_arch": layers, **more},
        buffer_size=capacity,
        batch_size=batch,
        learning_rate=5e-4,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    buffer, held = model.replay_buffer, experience(capacity, size, actions)
    buffer.observations[:, 0], buffer.next_observations[:, 0] = (
        held["observation"],
        held["next_observation"],
    )
    buffer.actions[:, 0, 0], buffer.rewards[:, 0] = held["action"], held["reward"]
    buffer.dones[:, 0] = held["terminated"]
    buffer.full = True
    return lambda count: model.train(gradient_steps=count, batch_size=batch)
