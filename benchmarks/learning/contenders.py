"""Who learns: each a function that trains on a task and hands over its policy as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.tasks import Act, Task
from jormungandr import ModelSpec
from jormungandr.learner import Learner
from jormungandr.policy import PolicySnapshot
from jormungandr.spec import preset_names
from jormungandr_wrappers import RemoteActor

__all__ = ["CONTENDERS", "Train", "enters"]

#: Train with a seed; after every `task.every` steps yield (steps, act, what is worth noting).
Train = Callable[[Task, int], Iterator[tuple[int, Act, dict[str, Any]]]]

#: Of Acrobot and LunarLander alike.
_SLOW: dict[str, Any] = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
#: The settings published with Stable-Baselines3, rl-baselines3-zoo, hyperparams/dqn.yml.
ZOO_DQN: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "learning_rate": 2.3e-3,
        "batch_size": 64,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "Acrobot-v1": _SLOW,
    "LunarLander-v3": _SLOW,
    "MountainCar-v0": {
        "learning_rate": 4e-3,
        "batch_size": 128,
        "buffer_size": 10_000,
        "learning_starts": 1_000,
        "gamma": 0.98,
        "target_update_interval": 600,
        "train_freq": 16,
        "gradient_steps": 8,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
}


def ours(preset: Callable[[Task], str | None]) -> Train:
    """Return a contender of ours: a learner in this process, with a preset or without."""

    def train(task: Task, seed: int) -> Iterator[tuple[int, Act, dict[str, Any]]]:
        env, name = task.make(), preset(task)
        if name is None:
            learner = Learner(ModelSpec.for_env(env, seed=seed))
        else:
            learner = Learner(ModelSpec.preset(name, seed=seed))
        actor = RemoteActor(env, learner, actor_id="train", batch_size=1)
        for at in range(task.every, task.steps + 1, task.every):
            actor.run(steps=task.every, seed=seed if at == task.every else None)
            noted = {"updates": learner.update_count, "warnings": learner.warnings()}
            yield at, _greedy(learner.snapshot()), noted
        env.close()

    return train


def _greedy(snapshot: PolicySnapshot) -> Act:
    nobody = np.random.default_rng(0)  # greedy actions draw nothing
    return lambda seen: snapshot.act(seen, nobody, deterministic=True).indices


def sb3(algorithm: str, settings: dict[str, dict[str, Any]]) -> Train:
    """Return a contender of Stable-Baselines3: with its defaults where a task has no settings."""

    def train(task: Task, seed: int) -> Iterator[tuple[int, Act, dict[str, Any]]]:
        import stable_baselines3

        env = task.make()
        kind = getattr(stable_baselines3, algorithm)
        model = kind("MlpPolicy", env, seed=seed, device="cpu", **settings.get(task.env_id, {}))
        # One call: schedules go by its total. The policy is handed over from inside.
        from benchmarks.learning.pauses import paused

        for at in paused(model, task.steps, task.every):

            def act(seen: NDArray[Any]) -> NDArray[np.int64]:
                return np.asarray(model.predict(seen, deterministic=True)[0])

            yield at, act, {}
        env.close()

    return train


def _named(task: Task) -> str | None:
    """Return the preset of a task, None without one."""
    name = "ou-note" if task.env_id == "OUSpread-v0" and task.steps < 10_000 else task.env_id
    return name if name in preset_names() else None


CONTENDERS: dict[str, Train] = {
    "ours": ours(lambda task: None),
    "ours, preset": ours(_named),
    "SB3 DQN": sb3("DQN", {}),
    "SB3 DQN, RL Zoo": sb3("DQN", ZOO_DQN),
    "SB3 PPO": sb3("PPO", {}),
}


def enters(contender: str, task: Task) -> bool:
    """Whether it differs from the others on a task: tuned settings are for some of them alone."""
    return contender != "SB3 DQN, RL Zoo" or task.env_id in ZOO_DQN
