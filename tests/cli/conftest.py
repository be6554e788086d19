"""A game whose best return is its length, and a policy that balances a pole, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jormungandr import ModelSpec, PolicySnapshot


class Coins(gymnasium.Env[np.ndarray[Any, Any], int]):
    """Call one of three sides of a coin that is seen: one point for each right call.

    Args:
        length: steps of an episode; None is no end.
        masked: whether the side that comes up two further is not allowed, and said so.
        broken: what the reward is instead.
        render_mode: ``rgb_array`` shows the side as a stripe.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        length: int | None = 6,
        masked: bool = False,
        broken: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.length, self.masked, self.broken = length, masked, broken
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 3, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.seeds: list[int | None] = []
        self.called: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Throw the first coin."""
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.steps = 0
        return self._shown()

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        """Pay for the call and throw the next coin."""
        self.called.append(action)
        reward = float(action == self.side) if self.broken is None else self.broken
        self.steps += 1
        return (*self._shown()[:1], reward, self.steps == self.length, False, self.info)

    def render(self) -> np.ndarray[Any, Any]:
        """Return a picture of the side."""
        frame = np.zeros((8, 12, 3), dtype=np.uint8)
        frame[:, 4 * self.side : 4 * self.side + 4] = 200
        return frame

    def _shown(self) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        self.side = int(self.np_random.integers(3))
        mask = np.arange(3) != (self.side + 2) % 3
        self.info = {"action_mask": mask.astype(np.int8)} if self.masked else {}
        return np.array([self.side, self.steps], dtype=np.float32), self.info


class JudgedCoins(Coins):
    """The same, with a reference policy: always right."""

    def reference_action(self, observation: np.ndarray[Any, Any]) -> int:
        """Return the side that is seen."""
        return int(observation[0])


@pytest.fixture(scope="session", autouse=True)
def coins() -> Iterator[None]:
    """Register the game's variants."""
    variants: dict[str, tuple[Any, dict[str, Any]]] = {
        "Coins-v0": (Coins, {}),
        "JudgedCoins-v0": (JudgedCoins, {}),
        "MaskedCoins-v0": (Coins, {"masked": True}),
        "EndlessCoins-v0": (Coins, {"length": None}),
        "BrokenCoins-v0": (Coins, {"broken": float("nan")}),
    }
    for name, (entry, kwargs) in variants.items():
        unchecked = name == "BrokenCoins-v0"  # Gymnasium's check would warn of it
        gymnasium.register(id=name, entry_point=entry, kwargs=kwargs, disable_env_checker=unchecked)
    yield
    for name in variants:
        del gymnasium.registry[name]


def by_hand(
    observation: int, rows: list[list[float]], bias: list[float], **fields: Any
) -> PolicySnapshot:
    """Return a policy whose action a has the value σ(relu(rows[a] · observation + bias[a])).

    Args:
        observation: its elements.
        rows: (actions, observation).
        bias: (actions,).
        **fields: of the specification.
    """
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": [observation], "normalize": False},
            "actions": len(rows),
            "c51": {"atoms": 2, "support": [0, 1], "hidden": len(rows)},
            **fields,
        }
    )
    actions = len(spec.action_set)
    value = np.zeros((2 * actions, actions), dtype=np.float32)
    value[1::2] = np.eye(actions)  # the upper atom's logit; the lower one's is 0
    weights = {
        "hidden.0.weight": np.array(rows, dtype=np.float32),
        "hidden.0.bias": np.array(bias, dtype=np.float32),
        "hidden.1.weight": np.eye(actions, dtype=np.float32),
        "hidden.1.bias": np.zeros(actions, np.float32),
        "value.weight": value,
        "value.bias": np.zeros(2 * actions, np.float32),
    }
    mean, var = np.zeros(observation), np.ones(observation)
    return PolicySnapshot(spec, 7, 7, 100, weights, mean, var)


@pytest.fixture
def balancer(tmp_path: Path) -> str:
    """Return the path of a policy for CartPole that pushes the cart to where the pole falls."""
    path = tmp_path / "balancer.safetensors"
    path.write_bytes(by_hand(4, [[0, 0, -1, -1], [0, 0, 1, 1]], [0, 0]).to_bytes())
    return str(path)


@pytest.fixture
def caller() -> Callable[..., PolicySnapshot]:
    """``caller(action_repeat=2)``: a policy for Coins that calls the side it sees.

    Side s is worth 1 - s, ½ and s - 1 to the three actions, where that is positive.
    """
    return lambda **fields: by_hand(2, [[-1, 0], [0, 0], [1, 0]], [1, 0.5, -1], **fields)
