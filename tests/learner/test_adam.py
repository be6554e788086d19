"""`Adam`: its state is copied out and in; the steps are held against torch in test_closed_form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from jormungandr import ModelSpec
from jormungandr.learner.adam import Adam
from jormungandr.learner.layers import Layers
from jormungandr.learner.network import Network, initial_weights


@pytest.fixture
def layers() -> Layers:
    """Return the parameters of a small network."""
    spec = ModelSpec.from_dict(
        {"observation": {"shape": [3]}, "actions": 2, "c51": {"hidden": [4], "atoms": 5}}
    )
    network = Network(spec)
    network.requires_grad_(False)
    network.set_weights(initial_weights(spec, np.random.default_rng(0)))
    return Layers(network)


def test_no_state_before_a_step(layers: Layers) -> None:
    """As torch has none: a checkpoint of a learner that never updated holds nothing of it."""
    adam = Adam(layers, 1e-8)
    assert adam.state() == {}
    adam.step(torch.ones_like(layers.values), 0.1)

    kinds = ("exp_avg", "exp_avg_sq", "step")
    assert adam.state().keys() == {f"{name}.{kind}" for name in layers.views for kind in kinds}


def test_state_is_a_copy(layers: Layers) -> None:
    """Later steps change nothing of what was copied out, or of what was handed in."""
    adam, other = Adam(layers, 1e-8), Adam(layers, 1e-8)
    gradient = torch.linspace(-1, 1, len(layers.values))
    adam.step(gradient, 0.1)
    state = adam.state()
    before = {name: array.tobytes() for name, array in state.items()}
    other.restore(state)
    for one in (adam, other):
        one.step(gradient, 0.1)

    assert {name: array.tobytes() for name, array in state.items()} == before
    assert {name: array.tobytes() for name, array in other.state().items()} == {
        name: array.tobytes() for name, array in adam.state().items()
    }
    assert {array.item() for name, array in adam.state().items() if name.endswith("step")} == {2.0}
