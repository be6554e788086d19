"""Builders that many tests share: a small model, transitions for it, and all of a learner's state.

Session-scoped functions rather than objects, so that a property may call them for every example.
"""

from __future__ import annotations

import tests.threads  # noqa: F401 - before NumPy is imported

# isort: split
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import settings

from jormungandr.learner import Learner
from jormungandr.spec import ModelSpec
from tests.forked import Forks

settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")
torch.set_num_threads(1)

#: A model whose every path is short: it updates after four transitions and wraps after sixteen.
SMALL: dict[str, Any] = {
    "observation": {"features": ["x", "y"]},
    "actions": 3,
    "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1},
    "c51": {
        "atoms": 11,
        "support": [-2.0, 2.0],
        "hidden": 8,
        "batch_size": 4,
        "target_interval": 5,
    },
    "replay": {"capacity": 16, "beta_updates": 20},
    "validation": {"capacity": 8, "evaluate_every": 3},
    "pacing": {"learning_starts": 4, "updates_per_transition": 0.5},
    "exploration": {"start": 1.0, "end": 0.1, "transitions": 20},
    "divergence": {"patience": 2, "copy_every": 4},
}


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """What runs programs in processes of their own, without their imports each time."""
    started = Forks()
    yield started
    started.close()


@pytest.fixture(scope="session")
def small() -> Callable[..., ModelSpec]:
    """``small(c51={"n_step": 3})``: the small model, fields overridden group by group."""

    def build(**overrides: Any) -> ModelSpec:
        fields = dict(SMALL)
        for name, value in overrides.items():
            old = fields.get(name)
            both = isinstance(value, Mapping) and isinstance(old, Mapping) and name != "observation"
            fields[name] = {**old, **value} if both else value
        return ModelSpec.from_dict(fields)

    return build


@pytest.fixture(scope="session")
def step() -> Callable[..., dict[str, Any]]:
    """``step(3, reward=1.0)``: a good transition of actor ``a``, episode ``e``, timestep 3."""

    def build(timestep: int = 0, /, **fields: Any) -> dict[str, Any]:
        return {
            "actor_id": "a",
            "episode_id": "e",
            "timestep": timestep,
            "split": "train",
            "policy_version": 0,
            "observation": [0.25 * timestep, 1.0],
            "action": timestep % 3,
            "reward": 0.5,
            "next_observation": [0.25 * (timestep + 1), 1.0],
            "terminated": False,
            "truncated": False,
            **fields,
        }

    return build


@pytest.fixture(scope="session")
def label() -> Callable[..., dict[str, Any]]:
    """``label(3, 1)``: class 1 for actor ``a``, episode ``e``, timestep 3."""

    def build(timestep: int = 0, cls: Any = 1, /, **fields: Any) -> dict[str, Any]:
        identity = {"actor_id": "a", "episode_id": "e", "timestep": timestep}
        return {**identity, "label": cls, **fields}

    return build


@pytest.fixture(scope="session")
def state() -> Callable[[Learner], dict[str, Any]]:
    """``state(learner)``: everything that decides its future, comparable by ``==``, bit for bit.

    ``state(learner).pop("lsn")`` leaves what must not depend on how transitions were batched.
    """

    def collect(learner: Learner) -> dict[str, Any]:
        ledger, info = learner._ledger, learner.info()
        counters, progress = asdict(ledger.counters), dict(vars(learner.progress))
        lsn = [counters.pop("lsn"), counters.pop("data_lsn"), progress.pop("lsn")]
        lsn += [info.pop("journal_lsn"), info.pop("applied_lsn"), *ledger.roll.items()]
        info.pop("lag")  # measured by a process for as long as it lives; it decides nothing
        good, moments = learner._good
        snapshot = learner.snapshot()
        windows, steps = learner.windows.state()
        return {
            "lsn": lsn,
            "info": info,
            "progress": progress,
            "pacing": [learner.pacing.transitions, learner.pacing.paid],
            "streams": [
                g.bit_generator.state for g in (learner._sampling, learner._acting, learner._noise)
            ],
            "windows": [windows, _bits(steps)],
            "returns": learner.returns.state(),
            "evaluations": msgspec.to_builtins(list(learner.evaluations)),
            "counters": counters,
            "episodes": dict(ledger.episodes),
            "blocks": {key: block.tobytes() for key, block in ledger.blocks.items()},
            "pendings": list(ledger.pendings.items()),
            "snapshot": [snapshot.version, snapshot.update_count, snapshot.digest()],
            "algorithm": _bits(learner.algorithm.state()),
            "good": _bits(good),
            "moments": [a.tobytes() for a in (*moments, *learner._latched)],
            "replay": _bits(learner.replay.state()),
            "validation": _bits(learner.validation.state()),
            "normalizer": _bits(learner.normalizer.state()),
        }

    return collect


def _bits(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(arrays.items())}
