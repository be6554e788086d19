"""The tasks, and how a policy is scored on one: greedily, on seeds that no training sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import jormungandr_envs

__all__ = ["TASKS", "Act", "Task"]

Floats = NDArray[np.float64]
#: Greedy actions (B,) of observations (B, D).
Act = Callable[[NDArray[Any]], NDArray[np.int64]]

#: Evaluation episodes have these seeds and those after them; training seeds are below 1,000.
HELD_OUT = 1_000_000


@dataclass(frozen=True)
class Task:
    """One task.

    Args:
        env_id: of the environment.
        steps: of training.
        every: training steps between evaluations.
        episodes: of each evaluation.
        marks: steps at which results are reported.
        solved: score that counts as solved, None where that is no word for it.
    """

    env_id: str
    steps: int
    every: int
    episodes: int
    marks: tuple[int, ...]
    solved: float | None = None

    def make(self) -> gymnasium.Env[Any, Any]:
        """Return an environment to train in."""
        return gymnasium.make(self.env_id)

    def score(self, act: Act) -> Floats:
        """Return a score per held-out episode: its return, or on OUSpread the gap closed.

        On OUSpread each episode is compared with the reference policy on the same path, and the
        difference divided by what the optimal policy gains on average over the reference there.
        """
        if self.env_id == "OUSpread-v0":
            return self._gap(act)
        return self._returns(act)

    def _returns(self, act: Act) -> Floats:
        registered = gymnasium.spec(self.env_id)
        fast = registered.vector_entry_point is not None
        envs = gymnasium.make_vec(
            self.env_id, self.episodes, "vector_entry_point" if fast else "sync"
        )
        seen, _ = envs.reset(seed=[HELD_OUT + i for i in range(self.episodes)])
        total, going = np.zeros(self.episodes), np.ones(self.episodes, dtype=np.bool_)
        while going.any():
            seen, reward, terminated, truncated, _ = envs.step(act(seen))
            total += np.where(going, reward, 0.0)
            going &= ~(terminated | truncated)
        envs.close()
        return total

    def _gap(self, act: Act) -> Floats:
        played = jormungandr_envs.paired_returns(act, self.episodes, HELD_OUT)
        gap = float((played.optimum - played.reference).mean())
        return (played.policy - played.reference) / gap


#: By name. CartPole is evaluated often, since what is asked of it is to stay solved.
TASKS: dict[str, Task] = {
    "ou-1344": Task("OUSpread-v0", 1_344, 1_344, 1_000, (1_344,)),
    "ou": Task("OUSpread-v0", 50_000, 5_000, 1_000, (20_000, 50_000)),
    "cartpole": Task("CartPole-v1", 150_000, 2_000, 100, (20_000, 50_000, 150_000), 475.0),
    "acrobot": Task("Acrobot-v1", 100_000, 5_000, 100, (60_000, 100_000), -85.0),
    "mountaincar": Task("MountainCar-v0", 150_000, 5_000, 100, (120_000, 150_000), -120.0),
    "lunarlander": Task("LunarLander-v3", 300_000, 10_000, 100, (150_000, 300_000), 200.0),
}
