"""Models and experience that several rows use."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.speed.peer.data import experience
from jormungandr import Learner
from jormungandr.columns import Columns
from jormungandr.learner.core import Core
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.spec import ModelSpec

__all__ = ["columns_of", "fill", "learner", "specification"]

CHUNK = 4_096


def specification(
    size: int = 4,
    actions: int = 3,
    layers: tuple[int, ...] = (64, 64),
    *,
    batch: int = 64,
    capacity: int = 100_000,
    **groups: Any,
) -> dict[str, Any]:
    """Return a model as the contenders have it: prioritized, and no update unless it is asked for.

    Args:
        size: numbers in an observation.
        actions: to choose from.
        layers: hidden ones.
        batch: of an update.
        capacity: of replay.
        groups: of the specification, in place of what is said here.
    """
    return {
        "observation": {"shape": [size]},
        "actions": actions,
        "c51": {"hidden": list(layers), "batch_size": batch, "target_interval": 200},
        "replay": {"capacity": capacity, "alpha": 0.6},
        "pacing": {"updates_per_transition": 0},
        **groups,
    }


def columns_of(size: int, actions: int, count: int, first: int = 0) -> Columns:
    """Return transitions of one long episode, which has no end.

    Args:
        size: numbers in an observation.
        actions: to choose from.
        count: of transitions.
        first: timestep of the first one.
    """
    held = experience(count, size, actions)
    return Columns(
        actors=("a",),
        episodes=("e",),
        actor=np.zeros(count, np.int32),
        episode=np.zeros(count, np.int32),
        timestep=np.arange(first, first + count),
        split=np.zeros(count, np.uint8),
        policy_version=np.full(count, -1, np.int64),
        observation=held["observation"],
        action=held["action"],
        reward=held["reward"],
        next_observation=held["next_observation"],
        terminated=np.zeros(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        behavior_prob=np.full(count, np.nan, np.float32),
        label=np.full(count, -1, np.int32),
        next_action_mask=np.zeros((count, 0), np.bool_),
    )


def fill(core: Core, count: int) -> None:
    """Apply so many transitions as a learner process does: they are admitted already."""
    spec = core.spec
    part = columns_of(spec.observation.stored_shape[0], len(spec.action_set), CHUNK)
    outcome = np.full(CHUNK, ACCEPTED, dtype=np.uint8)
    row = TransitionsRow(1, part, outcome)
    done = 0
    while done < count:
        if count - done < CHUNK:
            few = slice(0, count - done)
            row = TransitionsRow(1, part.take(np.arange(count - done)), outcome[few])
        core.apply(row)
        done += CHUNK


def learner(count: int, spec: dict[str, Any]) -> Learner:
    """Return a learner that holds so many transitions, their priorities all different."""
    made = Learner(ModelSpec.from_dict(spec))
    fill(made, count)
    return made
