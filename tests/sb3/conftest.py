"""A small environment, a small C51 on it, and transitions in Stable-Baselines3's replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from jormungandr.sb3 import C51

SMALL: dict[str, Any] = {
    "learning_rate": 1e-2,
    "buffer_size": 64,
    "learning_starts": 8,
    "batch_size": 8,
    "target_update_interval": 20,
    "v_min": -2.0,
    "v_max": 2.0,
    "atoms": 11,
    "policy_kwargs": {"net_arch": [8, 8]},
    "device": "cpu",
    "seed": 0,
}


class Walk(gym.Env[NDArray[np.float32], np.int64]):
    """Two numbers far from 0 and 1; an episode terminates at step 5, or truncates at step 3.

    Which of the two is drawn with the episode. The reward is the action's distance from 1.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(3)

    def _observe(self) -> NDArray[np.float32]:
        near = np.array([100.0, self.now])
        return self.np_random.normal(near, (3.0, 0.1)).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.now, self.truncates = 0, bool(self.np_random.random() < 0.5)
        return self._observe(), {}

    def step(
        self, action: np.int64
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Go on."""
        self.now += 1
        truncated = self.truncates and self.now == 3
        return self._observe(), -abs(float(action) - 1.0), self.now == 5, truncated, {}


@pytest.fixture(scope="session")
def walk() -> Callable[..., VecEnv]:
    """``walk(2)``: two copies of the environment, as Stable-Baselines3 wants them."""

    def build(n_envs: int = 1) -> VecEnv:
        return make_vec_env(Walk, n_envs=n_envs, seed=0)

    return build


@pytest.fixture(scope="session")
def model(walk: Callable[..., VecEnv]) -> Callable[..., C51]:
    """``model(double=True)``: a small C51 that has learned nothing, settings overridden."""

    def build(env: Any = None, policy: Any = "MlpPolicy", **settings: Any) -> C51:
        built = C51(policy, walk(2) if env is None else env, **{**SMALL, **settings})
        built.set_logger(Logger(folder=None, output_formats=[]))
        return built

    return build


@pytest.fixture(scope="session")
def logged() -> Callable[[C51], dict[str, float]]:
    """``logged(model)``: what has been recorded since the last dump."""
    return lambda model: dict(model.logger.name_to_value)


@pytest.fixture(autouse=True)
def global_streams() -> None:
    """Give every test the same global streams, which Stable-Baselines3 draws from."""
    np.random.seed(0)
    torch.manual_seed(0)
