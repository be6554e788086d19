"""The baselines: algorithms of Stable-Baselines3 and of sb3-contrib, trained as ours are."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.ours import Pause
from benchmarks.learning.tasks import Task

__all__ = ["Baseline"]

#: Arguments of an algorithm that decide nothing here, or that this harness gives.
_ASIDE = {"self", "policy", "env", "seed", "device", "verbose", "_init_setup_model"}
_ASIDE |= {"tensorboard_log", "stats_window_size"}


@dataclass(frozen=True)
class Baseline:
    """A contender of Stable-Baselines3 or sb3-contrib.

    Args:
        name: of the contender.
        algorithm: ``DQN``, ``QRDQN`` or ``PPO``.
        table: its settings by environment, where alone it enters; None enters with its defaults.
        only: environments to enter for; None is all.
        most: steps of the longest task that its settings were chosen for; None is any.
        seeds: that it is trained with, from 0.
    """

    name: str
    algorithm: str
    table: Mapping[str, dict[str, Any]] | None = None
    only: tuple[str, ...] | None = None
    most: int | None = None
    seeds: int = 5

    def changes(self, task: Task) -> dict[str, Any]:
        """Return its settings for a task where they are not the defaults."""
        # A copy: QRDQN writes into the policy_kwargs that it is given.
        return copy.deepcopy((self.table or {}).get(task.env_id, {}))

    def settings(self, task: Task) -> dict[str, Any] | None:
        """Return all that decides a training but the seed; None if it does not enter."""
        if self.table is not None and task.env_id not in self.table:
            return None
        if self.only is not None and task.env_id not in self.only:
            return None
        if self.most is not None and task.steps > self.most:
            return None
        return {**self.inert(task), **self.changes(task)}

    def inert(self, task: Task) -> dict[str, Any]:
        """Return the defaults: an argument that old lines do not have was like this then."""
        parameters = inspect.signature(self._kind().__init__).parameters.values()
        plain = (int, float, str, bool, type(None))
        defaults = {
            p.name: p.default
            for p in parameters
            if p.name not in _ASIDE and isinstance(p.default, plain)
        }
        return {"algorithm": self.algorithm, "n_envs": 1, **defaults}

    def train(self, task: Task, seed: int) -> Iterator[Pause]:
        """Train with a seed; hand over the policy after every `task.every` steps."""
        from stable_baselines3.common.env_util import make_vec_env

        from benchmarks.learning.pauses import paused

        given = {name: _schedule(value) for name, value in self.changes(task).items()}
        number = given.pop("n_envs", 1)
        if task.every % number:
            raise ValueError(f"{self.name}: {number} environments never pause at {task.every}")
        if "exploration_steps" in given:
            given["exploration_fraction"] = given.pop("exploration_steps") / task.steps
        env = task.make() if number == 1 else make_vec_env(task.make, number, seed=seed)
        model = self._kind()("MlpPolicy", env, seed=seed, device="cpu", **given)

        def act(seen: NDArray[Any]) -> NDArray[np.int64]:
            return np.asarray(model.predict(seen, deterministic=True)[0])

        # One call: schedules go by its total. The policy is handed over from inside.
        for at in paused(model, task.steps, task.every):
            yield at, act, {"updates": _updates(model), "warnings": []}
        env.close()

    def _kind(self) -> Any:
        home = "sb3_contrib" if self.algorithm == "QRDQN" else "stable_baselines3"
        return getattr(importlib.import_module(home), self.algorithm)


def _updates(model: Any) -> int:
    """Return gradient steps: what an on-policy algorithm counts are passes over its rollout."""
    count = int(model._n_updates)
    if not hasattr(model, "rollout_buffer"):
        return count
    return count * math.ceil(model.n_steps * model.n_envs / model.batch_size)


def _schedule(value: Any) -> Any:
    """Return a number as it is, and ``lin_x`` as the Zoo does: x times what remains of the run."""
    if not (isinstance(value, str) and value.startswith("lin_")):
        return value
    initial = float(value.removeprefix("lin_"))
    return lambda remaining: remaining * initial
