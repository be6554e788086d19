"""Tianshou's C51 with prioritized replay: updates, one action, and its replay alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.c51 import C51, C51Policy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, PrioritizedReplayBuffer
from tianshou.utils.net.common import Net

from benchmarks.speed.peer.data import experience

torch.set_num_threads(1)


def update(
    *, size: int, actions: int, layers: list[int], atoms: int, batch: int, capacity: int
) -> Callable[[int], object]:
    """Return updates: sample, loss, step, priorities written back."""
    algorithm = C51(
        policy=_policy(size, actions, layers, atoms),
        optim=AdamOptimizerFactory(lr=5e-4),
        gamma=0.99,
        target_update_freq=200,
    )
    buffer = _filled(size, actions, capacity)

    def call(count: int) -> None:
        with policy_within_training_step(algorithm.policy):
            for _ in range(count):
                algorithm.update(buffer=buffer, sample_size=batch)

    return call


def act(*, size: int, actions: int, layers: list[int], atoms: int) -> Callable[[int], object]:
    """Return `policy(batch)` of one observation."""
    policy = _policy(size, actions, layers, atoms)
    seen = experience(64, size, actions)["observation"]

    def call(count: int) -> None:
        with torch.no_grad():
            for i in range(count):
                policy(Batch(obs=seen[i % 64 : i % 64 + 1], info={}))

    return call


def replay(*, capacity: int, batch: int, gathered: bool) -> Callable[[int], object]:
    """Return: a draw with its weights, and new priorities.

    Args:
        capacity: items held.
        batch: drawn at a time.
        gathered: whether with what the items hold, as `sample` returns it.
    """
    buffer = _filled(4, 3, capacity)
    fresh = np.random.default_rng(0).random((64, batch)) + 0.1

    def draws(count: int) -> None:
        for i in range(count):
            index = buffer.sample_indices(batch)
            weight = buffer.get_weight(index)
            weight / np.max(weight)
            buffer.update_weight(index, fresh[i % 64])

    def samples(count: int) -> None:
        for i in range(count):
            _, index = buffer.sample(batch)
            buffer.update_weight(index, fresh[i % 64])

    return samples if gathered else draws


def _policy(size: int, actions: int, layers: list[int], atoms: int) -> C51Policy:
    net = Net(
        state_shape=(size,),
        action_shape=(actions,),
        hidden_sizes=layers,
        softmax=True,
        num_atoms=atoms,
    )
    return C51Policy(model=net, action_space=gym.spaces.Discrete(actions), num_atoms=atoms)


def _filled(size: int, actions: int, capacity: int) -> PrioritizedReplayBuffer:
    held: dict[str, Any] = experience(capacity, size, actions)
    buffer = PrioritizedReplayBuffer(capacity, alpha=0.6, beta=0.4)
    # One by one a million would take minutes: the first makes the arrays, the rest are put there.
    done = held["terminated"]
    columns = {
        "obs": held["observation"],
        "act": held["action"],
        "rew": held["reward"].astype(np.float64),
        "terminated": done,
        "truncated": np.zeros(capacity, dtype=bool),
        "done": done,
        "obs_next": held["next_observation"],
    }
    buffer.set_batch(Batch(**columns, info=Batch()))
    buffer._size, buffer._insertion_idx = capacity, 0
    buffer.update_weight(np.arange(capacity), np.random.default_rng(1).random(capacity) + 0.1)
    return buffer
