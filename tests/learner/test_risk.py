"""Choosing by the mean, or by the worst part of the returns: a task whose answers are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jormungandr import Learner, ModelSpec
from jormungandr.errors import InvalidInput

#: The risky path: 3 nine times in ten, else −10. The safe one: 1 always.
#: Means 1.7 and 1; of the worst tenth −10 and 1.
RISKY, SAFE = 0, 1


def spec(seed, **risk):
    """Return a specification that learns the two paths."""
    return ModelSpec.from_dict(
        {
            "observation": {"shape": [1]},
            "actions": [{"label": "RISKY", "value": 0}, {"label": "SAFE", "value": 1}],
            "seed": seed,
            "c51": {"support": [-12, 12], "hidden": 16, "lr": 5e-3, "adam_eps": 1e-8},
            "replay": {"alpha": 0},
            "pacing": {"learning_starts": 200, "updates_per_transition": 1.0},
            "risk": risk,
        }
    )


def rows(seed, count=400):
    """Return episodes of one step on either path."""
    order = np.random.default_rng(seed).permutation(count)
    found = []
    for n, i in enumerate(order.tolist()):
        # Exactly one in ten of the risky ones goes wrong.
        reward = 1.0 if i % 2 == SAFE else -10.0 if (i // 2) % 10 == 0 else 3.0
        found.append(
            {
                "actor_id": "a",
                "episode_id": str(n),
                "timestep": 0,
                "split": "train",
                "policy_version": -1,
                "observation": [0.0],
                "action": i % 2,
                "reward": reward,
                "next_observation": [0.0],
                "terminated": True,
                "truncated": False,
            }
        )
    return found


def learned(seed, **risk):
    """Return a policy that has learned them."""
    learner = Learner(spec(seed, **risk))
    learner.add(rows(seed))
    return learner.snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_the_mean_takes_the_risky_path_and_the_tail_the_safe_one(seed):
    """Ten of ten seeds; the replies tell the expected returns in both."""
    seen, rng = np.zeros((1, 1)), np.random.default_rng(0)
    by_mean = learned(seed).act(seen, rng, deterministic=True)
    by_tail = learned(seed, kind="cvar", level=0.1).act(seen, rng, deterministic=True)
    assert by_mean.actions[0].index == RISKY
    assert by_tail.actions[0].index == SAFE
    assert by_mean.expected_values == by_tail.expected_values
    assert by_tail.expected_values[0] == pytest.approx([1.7, 1.0], abs=0.4)


def test_everything_that_acts_from_a_policy_chooses_alike(tmp_path):
    """Masks, a distribution asked for, torch's module, SB3's policy, and the words of a bundle."""
    from jormungandr.bundle import describe
    from jormungandr.learner.exported import ExportedPolicy
    from jormungandr.sb3 import C51Policy

    policy = learned(0, kind="cvar", level=0.1)
    seen, rng = np.zeros((3, 1), dtype=np.float32), np.random.default_rng(0)
    whole = policy.act(seen, rng, deterministic=True, distribution=True)
    assert [choice.index for choice in whole.actions] == [SAFE] * 3
    assert policy.greedy(seen).tolist() == [SAFE] * 3
    assert policy.greedy(seen, np.array([[True, False]] * 3)).tolist() == [RISKY] * 3
    assert ExportedPolicy(policy)(torch.from_numpy(seen))[0].tolist() == [SAFE] * 3
    theirs = C51Policy.from_snapshot(policy, "cpu")
    assert theirs.predict(seen, deterministic=True)[0].tolist() == [SAFE] * 3
    theirs.save(tmp_path / "policy.zip")
    again = C51Policy.load(tmp_path / "policy.zip", "cpu")
    assert again.predict(seen, deterministic=True)[0].tolist() == [SAFE] * 3
    assert "worst 0.1" in describe(policy)["network"]["decision"]


@pytest.mark.parametrize(
    "risk", [{"kind": "var"}, {"kind": "cvar", "level": 0}, {"kind": "cvar", "level": 1.5}]
)
def test_another_risk_is_refused(risk):
    """Naming the field."""
    with pytest.raises(InvalidInput, match="risk"):
        spec(0, **risk)
