"""Cases on OUSpread: a trained policy, its true value, and steps that another policy took."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import jormungandr_envs
from jormungandr import ModelSpec
from jormungandr.held_steps import HeldOutSteps
from jormungandr.learner import Learner
from jormungandr.policy import PolicySnapshot
from jormungandr_wrappers import RemoteActor

__all__ = ["MARKS", "Case", "logged", "trained", "truth"]

#: Training transitions of a policy: none, a few updates, and as many as the note's task has.
MARKS = (0, 1_030, 1_100, 1_344, 2_000)
#: Seed of the paths on which the truth is measured.
HELD_OUT = 77


@dataclass(frozen=True)
class Case:
    """A policy, and one of the same training before it (itself, of an untrained one)."""

    seed: int
    steps: int
    policy: PolicySnapshot
    earlier: PolicySnapshot


def trained(seeds: range) -> Iterator[Case]:
    """Yield one policy a seed, trained as long as its place among the marks says."""
    for seed in seeds:
        place = seed % len(MARKS)
        env = gymnasium.make("OUSpread-v0")
        learner = Learner(ModelSpec.preset("ou-note", seed=seed))
        actor = RemoteActor(env, learner, actor_id="train", batch_size=1, label_key="drift_label")
        earlier = policy = learner.snapshot()
        for before, mark in pairwise(MARKS[: place + 1]):
            actor.run(steps=mark - before, seed=None if before else seed)
            earlier, policy = policy, learner.snapshot()
        env.close()
        yield Case(seed, MARKS[place], policy, earlier)


def truth(policy: PolicySnapshot, paths: int) -> tuple[float, float]:
    """Return the expected undiscounted return of a greedy policy, and its standard error.

    The reference policy's is known exactly; what is simulated is only by how much this one differs
    on the same paths.
    """
    played = jormungandr_envs.paired_returns(policy.greedy, paths, HELD_OUT)
    apart = played.policy - played.reference
    exact = jormungandr_envs.reference_value()
    return exact + float(apart.mean()), float(apart.std(ddof=1)) / paths**0.5


def logged(behavior: PolicySnapshot, epsilon: float, episodes: int, seed: int) -> HeldOutSteps:
    """Return what a policy does in so many episodes, with probability ε anything at all."""
    env = jormungandr_envs.OUSpreadVectorEnv(episodes)
    rng = np.random.default_rng([seed, 1])
    seen, _ = env.reset(seed=[1_000_000 * (seed + 1) + i for i in range(episodes)])
    columns: list[dict[str, NDArray[Any]]] = []
    for timestep in range(env.parameters.horizon):
        reply = behavior.act(seen, rng, epsilon=epsilon)
        before = seen.copy()
        seen, reward, terminated, _, _ = env.step(reply.indices)
        columns.append(
            {
                "observation": before,
                "action": reply.indices,
                "reward": reward,
                "next_observation": seen.copy(),
                "terminated": terminated,
                "behavior_prob": np.array(reply.behavior_prob),
                "timestep": np.full(episodes, timestep),
                "episode": np.arange(episodes, dtype=np.uint64),
            }
        )
    return HeldOutSteps.of_arrays(
        {name: np.concatenate([c[name] for c in columns]) for name in columns[0]}
    )
