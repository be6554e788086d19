"""The tasks, and how a policy is scored on one: greedily, on seeds that no training sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import jormungandr_envs

__all__ = ["HELD_OUT", "TASKS", "Act", "Task"]

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
        view: lowest and highest score of its plot.
        solved: score that counts as solved, None where that is no word for it.
        collapsed: score under which a solved task is lost again.
    """

    env_id: str
    steps: int
    every: int
    episodes: int
    marks: tuple[int, ...]
    view: tuple[float, float]
    solved: float | None = None
    collapsed: float | None = None

    @property
    def shape(self) -> dict[str, Any]:
        """What decides a run, of the task: runs of another shape are of another task."""
        return {
            "env_id": self.env_id,
            "steps": self.steps,
            "every": self.every,
            "episodes": self.episodes,
            "first_held_out_seed": HELD_OUT,
        }

    def make(self) -> gymnasium.Env[Any, Any]:
        """Return an environment to train in."""
        return gymnasium.make(self.env_id)

    def missing(self) -> str | None:
        """Return what is not installed that the environment needs, None if all is."""
        try:
            self.make().close()
        except gymnasium.error.DependencyNotInstalled as error:
            return str(error)
        return None

    def score(self, act: Act) -> Floats:
        """Return a score per held-out episode: its return, or on OUSpread the gap closed.

        On OUSpread each episode is compared with the reference policy on the same path, and the
        difference divided by what the optimal policy gains on average over the reference there.
        """
        if self.env_id == "OUSpread-v0":
            return self._gap(act)
        return self._returns(act)

    def _returns(self, act: Act) -> Floats:
        """Return the return of each episode, (episodes,): those that go on are stepped together."""
        envs = [self.make() for _ in range(self.episodes)]
        seen = np.stack([env.reset(seed=HELD_OUT + i)[0] for i, env in enumerate(envs)])
        if self.env_id == "CartPole-v1":
            return _poles(act, seen, [env.unwrapped.state for env in envs])  # type: ignore[attr-defined]
        total, going = np.zeros(self.episodes), list(range(self.episodes))
        while going:
            for i, action in zip(list(going), act(seen[going]), strict=True):
                seen[i], reward, terminated, truncated, _ = envs[i].step(int(action))
                total[i] += float(reward)
                if terminated or truncated:
                    going.remove(i)
        for env in envs:
            env.close()
        return total

    def _gap(self, act: Act) -> Floats:
        played = jormungandr_envs.paired_returns(act, self.episodes, HELD_OUT)
        gap = float((played.optimum - played.reference).mean())
        return (played.policy - played.reference) / gap


def _poles(act: Act, seen: NDArray[Any], states: list[Any]) -> Floats:
    """Return the returns of CartPole from these states, with its vector environment: much faster.

    Its reset has one seed for all, so the states are put in.
    """
    envs = gymnasium.make_vec("CartPole-v1", len(states), "vector_entry_point")
    envs.reset(seed=0)
    envs.unwrapped.state = np.array(states, dtype=np.float64).T  # type: ignore[attr-defined]
    total, going = np.zeros(len(states)), np.ones(len(states), dtype=np.bool_)
    while going.any():
        seen, reward, terminated, truncated, _ = envs.step(act(seen))
        total += np.where(going, reward, 0.0)
        going &= ~(terminated | truncated)
    envs.close()
    return total


#: By name. CartPole is evaluated often, since what is asked of it is to stay solved.
TASKS: dict[str, Task] = {
    "ou-1344": Task("OUSpread-v0", 1_344, 1_344, 1_000, (1_344,), (-1.0, 1.0)),
    "ou": Task("OUSpread-v0", 50_000, 5_000, 1_000, (20_000, 50_000), (-0.5, 1.0)),
    "cartpole": Task(
        "CartPole-v1", 150_000, 2_000, 100, (20_000, 50_000, 150_000), (0.0, 500.0), 475.0, 400.0
    ),
    "acrobot": Task("Acrobot-v1", 100_000, 5_000, 100, (60_000, 100_000), (-500.0, -50.0), -85.0),
    "mountaincar": Task(
        "MountainCar-v0", 150_000, 5_000, 100, (120_000, 150_000), (-200.0, -90.0), -120.0
    ),
    "lunarlander": Task(
        "LunarLander-v3", 300_000, 10_000, 100, (150_000, 300_000), (-400.0, 300.0), 200.0
    ),
}
