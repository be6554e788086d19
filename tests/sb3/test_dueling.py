"""The dueling head in Stable-Baselines3's shape: trained there, and brought there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jormungandr import Learner, ModelSpec
from jormungandr.errors import InvalidValue
from jormungandr.learner import c51
from jormungandr.sb3 import C51, C51Policy
from jormungandr.weights import layer_shapes

Build = Callable[..., C51]
Small = Callable[..., ModelSpec]

KWARGS: dict[str, Any] = {"net_arch": [8, 8], "dueling": True}
X = np.random.default_rng(0).normal((100, 0), 3, size=(50, 2)).astype(np.float32)


def linear(network: Any) -> list[nn.Linear]:
    """Return the layers of a head, from the input to the logits."""
    return [layer for layer in network.q_net.modules() if isinstance(layer, nn.Linear)]


def test_a_snapshot_acts_alike(small: Small) -> None:
    """Logits within 1e-5 of the NumPy forward, and the same actions."""
    spec = small(c51={"dueling": True})
    rng = np.random.default_rng(3)
    weights = {
        n: rng.normal(size=s, scale=1.0).astype(np.float32) for n, s in layer_shapes(spec).items()
    }
    snapshot = replace(Learner(spec).snapshot(), weights=weights, mean=np.array([100.0, 0.0]))
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    with torch.no_grad():
        logits = policy.q_net.logits(torch.as_tensor(X)).numpy()

    np.testing.assert_allclose(logits, snapshot.logits(X)[0], rtol=1e-5, atol=1e-5)
    assert policy.predict(X)[0].tolist() == snapshot.greedy(X).tolist()
    assert len(set(snapshot.greedy(X).tolist())) > 1


def test_step_is_the_learners(model: Build, small: Small) -> None:
    """From the same weights, one batch moves every weight of both alike."""
    spec = small(
        c51={"dueling": True, "lr": 1e-2, "batch_size": 8, "engine": "autograd"}, auxiliary=None
    )
    learner = c51.C51(spec, np.random.default_rng(0))
    plain = {"alpha": 0.0, "n_steps": 1, "double": False}
    ours = model(policy_kwargs=KWARGS, learning_starts=10**6, **plain).learn(40)
    names = ("hidden.0", "hidden.1", "value", "advantage")
    for network in (ours.q_net, ours.q_net_target):
        assert len(linear(network)) == len(names)
        for name, layer in zip(names, linear(network), strict=True):
            state = {p: learner.online.get_parameter(f"{name}.{p}") for p in ("weight", "bias")}
            layer.load_state_dict(state)
    moments, replay = ours.policy.moments, ours.replay_buffer
    assert moments is not None
    assert replay is not None
    moments.latch()
    data = replay.sample(8)
    ours.replay_buffer.sample = lambda *_, **__: data  # type: ignore[union-attr]
    with torch.no_grad():
        x, following = (moments(o).numpy() for o in (data.observations, data.next_observations))
    learner.update(
        c51.Batch(
            observation=x,
            action=data.actions.numpy().ravel(),
            reward=data.rewards.numpy().ravel(),
            next_observation=following,
            discount=((1 - data.dones) * 0.99).numpy().ravel(),
            label=np.full(8, -1, dtype=np.int32),
        )
    )
    before = [p.detach().clone() for p in ours.q_net.parameters()]
    ours.train(1, 8)

    after = list(ours.q_net.parameters())
    for old, new, same in zip(before, after, learner.online.parameters(), strict=True):
        np.testing.assert_allclose(new.detach(), same.detach(), atol=1e-5)
        assert not torch.equal(old, new)


def test_files(model: Build, tmp_path: Path) -> None:
    """A model and its policy are saved with the head, and predict alike when they are loaded."""
    learned = model(policy_kwargs=KWARGS).learn(60)
    learned.save(tmp_path / "model.zip")
    learned.policy.save(str(tmp_path / "policy.pth"))
    again = C51.load(tmp_path / "model.zip", device="cpu")
    policy = C51Policy.load(str(tmp_path / "policy.pth"), device="cpu")
    expected = learned.q_net(torch.as_tensor(X))

    assert (policy.head["dueling"], again.policy.head["dueling"]) == (True, True)
    for network in (again.policy.q_net, again.policy.q_net_target, policy.q_net):
        assert len(linear(network)) == 4
    assert torch.equal(again.policy.q_net(torch.as_tensor(X)), expected)
    assert torch.equal(policy.q_net(torch.as_tensor(X)), expected)


def test_without_hidden_layers(model: Build) -> None:
    """Both heads may be linear in the features themselves."""
    learned = model(policy_kwargs={"net_arch": [], "dueling": True})

    assert [layer.in_features for layer in linear(learned.q_net)] == [2, 2]
    assert learned.predict(X)[0].shape == (50,)


def test_where_it_is_given(model: Build) -> None:
    """It is of the network, as `net_arch` is; what C51 itself has is refused there."""
    with pytest.raises(InvalidValue, match="policy_kwargs"):
        model(policy_kwargs={"atoms": 3})
    with pytest.raises(TypeError, match="dueling"):
        model(dueling=True)
