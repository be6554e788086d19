"""Cpprb's prioritized replay: a C++ segment tree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cpprb import PrioritizedReplayBuffer

from benchmarks.speed.peer.data import experience


def replay(*, capacity: int, batch: int) -> Callable[[int], object]:
    """Return: a sample, with what it holds gathered, and new priorities."""
    held = experience(capacity, 4, 3)
    buffer = PrioritizedReplayBuffer(
        capacity,
        {
            "observation": {"shape": 4},
            "action": {"dtype": np.int64},
            "reward": {},
            "next_observation": {"shape": 4},
            "terminated": {"dtype": np.bool_},
        },
        alpha=0.6,
    )
    buffer.add(**held, priorities=np.random.default_rng(1).random(capacity) + 0.1)
    fresh = np.random.default_rng(0).random((64, batch)) + 0.1

    def call(count: int) -> None:
        for i in range(count):
            drawn = buffer.sample(batch, beta=0.4)
            buffer.update_priorities(drawn["indexes"], fresh[i % 64])

    return call
