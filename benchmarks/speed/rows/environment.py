"""Environments: steps a second of OUSpread-v0, its resets included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gymnasium as gym
import numpy as np

import jormungandr_envs  # noqa: F401  (registers OUSpread-v0)
from benchmarks.speed.kit import Kit
from benchmarks.speed.timing import Case, Contender, Kind, looped, timed

__all__ = ["environment"]

#: Steps of an episode, and the calls they take: the reset is one of its own.
STEPS, CALLS = 48, 49


def environment(kit: Kit) -> Iterator[Case]:
    """Yield one environment, 64 and 4,096."""
    one = [_played(kit, "ours", single(), 1, "`gym.make`, with what it wraps around")]
    yield Case("env-1", "OUSpread-v0, one environment", "steps/s", one)
    for name, count in (("env-64", 64), ("env-4096", 4096)):
        found = [
            _played(kit, "ours", vector(count, "vector_entry_point"), count, "OUSpreadVectorEnv"),
            _played(
                kit,
                "limit: NumPy",
                bare(count),
                count,
                "rewards and the walk; no infos, and no generator for each",
            ),
        ]
        if count == 64:
            about = "Gymnasium's, over ours for one"
            found.insert(1, _played(kit, "SyncVectorEnv", vector(64, "sync"), 64, about))
        title = f"OUSpread-v0, {count:,} environments"
        yield Case(name, title, "steps/s", found)


def _played(
    kit: Kit, name: str, episodes: Callable[[int], object], count: int, about: str
) -> Contender:
    kind: Kind = "limit" if name.startswith("limit") else "ours" if name == "ours" else "peer"
    each = STEPS * count
    return looped(name, kind, "steps/s", timed(episodes), kit.seconds, about, each=each)


def single() -> Callable[[int], object]:
    """Return what plays so many episodes of one environment."""
    env = gym.make("OUSpread-v0")
    env.reset(seed=0)
    actions = [int(a) for a in np.random.default_rng(0).integers(0, 3, STEPS)]

    def play(episodes: int) -> None:
        for _ in range(episodes):
            env.reset()
            for action in actions:
                env.step(action)

    return play


def vector(count: int, mode: str) -> Callable[[int], object]:
    """Return what plays so many episodes of as many environments at a time."""
    envs = gym.make_vec("OUSpread-v0", num_envs=count, vectorization_mode=mode)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (64, count))

    def play(episodes: int) -> None:
        for step in range(CALLS * episodes):
            envs.step(actions[step % 64])

    return play


def bare(count: int) -> Callable[[int], object]:
    """Return a limit: the arithmetic of such a step alone, (count, 4) float32 written each time."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, (64, count))
    noise = rng.standard_normal((64, count))
    z, held = rng.standard_normal(count), np.zeros(count)
    seen = np.zeros((count, 4), np.float32)

    def play(episodes: int) -> None:
        nonlocal z, held
        for step in range(CALLS * episodes):
            wanted = actions[step % 64] - 1.0
            move = noise[step % 64] * 0.1 - z * 0.05
            reward = wanted * move
            reward -= 0.01 * np.abs(wanted - held)
            z, held = z + move, wanted
            shown = seen.copy()
            shown[:, 0], shown[:, 1], shown[:, 2] = z, move, held
            shown[:, 3] = 1 - (step % STEPS) / STEPS

    return play
