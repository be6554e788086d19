"""The last layer of a closed-form step: two ways to the same numbers, and which is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import ModelSpec
from jormungandr.learner.c51 import C51, Batch
from jormungandr.learner.closed_form import ClosedFormC51
from jormungandr.learner.heads import GroupedHead, WholeHead, head
from jormungandr.learner.layers import Gradient, Layers
from jormungandr.learner.network import Network, initial_weights


def spec(actions: int, **c51: Any) -> ModelSpec:
    """Return a specification of one hidden layer of 16 units, and 11 atoms."""
    return ModelSpec.from_dict(
        {
            "observation": {"shape": [3]},
            "actions": actions,
            "c51": {"hidden": [16], "atoms": 11, "support": [-3, 3], **c51},
        }
    )


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("actions", [1, 2, 5, 40])
def test_both_ways_agree(actions: int, dueling: bool) -> None:
    """Logits, and gradients by weights and inputs; some of the actions are not in the batch."""
    of, rng = spec(actions, dueling=dueling), np.random.default_rng(actions)
    network = Network(of)
    network.requires_grad_(False)
    network.set_weights(initial_weights(of, rng))
    layers = Layers(network)
    layers.merge()
    h = torch.from_numpy(rng.standard_normal((9, 16)).astype(np.float32))
    slope = rng.standard_normal((9, 11)).astype(np.float32)
    found = []
    for way in (WholeHead, GroupedHead):
        one, gradient, out = way(9, 16, actions, 11), Gradient(layers), torch.empty(9, 16)
        for action in (rng.integers(actions, size=9), np.arange(9) // 4 % actions):
            logits = one.taken(layers, h, action).copy()  # the second is the same for both
            one.slope[:] = slope
            one.back(layers, gradient, h, out)
        gradient.split()
        found.append([logits, out.numpy(), *(view.numpy() for view in gradient.views.values())])

    for one_way, other_way in zip(*found, strict=True):
        np.testing.assert_allclose(one_way, other_way, atol=1e-5)


@pytest.mark.parametrize("double", [False, True])
def test_same_step_as_autograd(double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grouped way in a whole step; that of the other is in test_closed_form.py."""
    of, rng = spec(5, double=double), np.random.default_rng(1)
    monkeypatch.setattr("jormungandr.learner.room.head", GroupedHead)
    pair = C51(of, np.random.default_rng(0)), ClosedFormC51(of, np.random.default_rng(0))
    batch = Batch(
        observation=rng.standard_normal((16, 3)).astype(np.float32),
        action=rng.integers(4, size=16),
        reward=rng.standard_normal(16).astype(np.float32),
        next_observation=rng.standard_normal((16, 3)).astype(np.float32),
        discount=np.full(16, 0.9, dtype=np.float32),
        label=np.full(16, -1, dtype=np.int32),
        weight=rng.random(16) + 0.1,
    )
    assert type(pair[1]._room.head) is GroupedHead
    for _ in range(3):
        expected, found = (algorithm.update(batch) for algorithm in pair)

    assert found.loss == pytest.approx(expected.loss, abs=2e-6)
    np.testing.assert_allclose(found.priority, expected.priority, atol=2e-6)
    state = pair[0].state()
    for name, array in pair[1].state().items():
        np.testing.assert_allclose(array, state[name], atol=1e-5, err_msg=name)


def test_what_is_faster_is_taken() -> None:
    """A small layer whole, a large one by its actions."""
    assert type(head(64, 64, 3, 51)) is WholeHead
    assert type(head(128, 256, 4, 51)) is GroupedHead
    assert type(head(64, 64, 1000, 51)) is GroupedHead
    assert type(head(4, 64, 1000, 51)) is GroupedHead  # of four actions at most
    assert type(head(4096, 4096, 1, 51)) is WholeHead
