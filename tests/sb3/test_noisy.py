"""Noisy layers in Stable-Baselines3's shape: where they draw, and where they do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import Learner, ModelSpec
from jormungandr.errors import InvalidValue
from jormungandr.learner.network import NoisyLinear
from jormungandr.sb3 import C51, C51Policy

Build = Callable[..., C51]
Small = Callable[..., ModelSpec]

KWARGS: dict[str, Any] = {"net_arch": [8, 8], "noisy": True}
X = np.random.default_rng(0).normal((100, 0), 3, size=(200, 2)).astype(np.float32)


@pytest.fixture
def noisy(model: Build) -> Callable[..., C51]:
    """``noisy(dueling=True)``: a small C51 that explores by noise alone."""

    def build(**kwargs: Any) -> C51:
        return model(
            policy_kwargs={**KWARGS, **kwargs},
            exploration_initial_eps=0.0,
            exploration_final_eps=0.0,
        )

    return build


def layers(network: Any) -> list[NoisyLinear]:
    """Return the noisy layers of a network."""
    return [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]


@pytest.mark.parametrize("dueling", [False, True])
def test_layers(noisy: Build, dueling: bool) -> None:
    """Every linear layer is noisy, its deviations σ₀/√inputs; the optimizer has them too."""
    built = noisy(dueling=dueling, noisy_sigma=0.3)
    found = layers(built.q_net)
    linear = [m for m in built.q_net.modules() if isinstance(m, torch.nn.Linear)]
    learned = {id(p) for group in built.policy.optimizer.param_groups for p in group["params"]}

    assert found == linear
    assert len(found) == (4 if dueling else 3)
    for layer in found:
        deviation = torch.full_like(layer.weight, 0.3 / math.sqrt(layer.in_features))
        assert torch.allclose(layer.weight_sigma, deviation)
        assert {id(layer.weight_sigma), id(layer.bias_sigma)} <= learned


def test_predictions(noisy: Build) -> None:
    """A deterministic one is the means'; others have noise of their own, masks or not."""
    built = noisy(noisy_sigma=2.0)
    masks = np.ones((len(X), 3), dtype=bool)
    best = built.predict(X, deterministic=True)[0].tolist()
    chosen = [built.predict(X)[0].tolist() for _ in range(6)]
    masked = [built.predict(X, action_masks=masks)[0].tolist() for _ in range(6)]

    assert built.predict(X, deterministic=True)[0].tolist() == best
    assert built.predict(X, deterministic=True, action_masks=masks)[0].tolist() == best
    with torch.no_grad():
        assert built.q_net(torch.as_tensor(X)).argmax(dim=1).tolist() == best
    for explored in (chosen, masked):
        assert len({tuple(actions) for actions in [*explored, best]}) > 3
    assert all(layer.noise is None for layer in layers(built.q_net))


def test_each_update_draws_for_both_networks(noisy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer of either network, anew each time; deviations are learned."""
    built = noisy()
    before = [layer.weight_sigma.detach().clone() for layer in layers(built.q_net)]
    seen: list[bytes] = []
    inner = C51._update

    def watched(self: C51, batch_size: int) -> tuple[float, float, float]:
        for network in (self.q_net, self.q_net_target):
            for layer in layers(network):
                assert layer.noise is not None
                seen.extend(drawn.numpy().tobytes() for drawn in layer.noise)
        return inner(self, batch_size)

    monkeypatch.setattr(C51, "_update", watched)
    built.learn(60)

    assert len(seen) == len(set(seen)) == 12 * built._n_updates > 60
    for old, layer in zip(before, layers(built.q_net), strict=True):
        assert layer.noise is None
        assert not torch.equal(old, layer.weight_sigma)


def test_seeded(noisy: Build) -> None:
    """The same seed, the same exploration and the same weights; seeding anew repeats it."""
    one, other = (noisy().learn(60) for _ in range(2))
    for first, second in zip(one.q_net.parameters(), other.q_net.parameters(), strict=True):
        assert torch.equal(first, second)
    replies = []
    for _ in range(2):
        one.set_random_seed(5)
        replies.append([one.predict(X)[0].tolist() for _ in range(3)])

    assert replies[0] == replies[1]


def test_files(noisy: Build, tmp_path: Path) -> None:
    """Model and policy keep their deviations, and explore after they were loaded."""
    learned = noisy(dueling=True, noisy_sigma=2.0).learn(60)
    learned.save(tmp_path / "model.zip")
    learned.policy.save(str(tmp_path / "policy.pth"))
    policies = [
        C51.load(tmp_path / "model.zip", device="cpu").policy,
        C51Policy.load(str(tmp_path / "policy.pth"), device="cpu"),
    ]
    best = learned.predict(X, deterministic=True)[0].tolist()

    for policy in policies:
        assert policy.predict(X, deterministic=True)[0].tolist() == best
        assert any(policy.predict(X)[0].tolist() != best for _ in range(5))
        for one, other in zip(layers(policy.q_net), layers(learned.q_net), strict=True):
            assert torch.equal(one.weight_sigma, other.weight_sigma)


def test_others_draw_nothing(model: Build) -> None:
    """A C51 without noise draws from NumPy's global stream what it always did."""
    np.random.seed(3)
    expected = np.random.rand()
    built = model()
    np.random.seed(3)
    C51Policy(built.observation_space, built.action_space, built.lr_schedule)  # type: ignore[arg-type]
    assert np.random.rand() == expected


def test_refused(noisy: Build) -> None:
    """A deviation below 0."""
    with pytest.raises(InvalidValue, match=r"c51\.noisy_sigma"):
        noisy(noisy_sigma=-1.0)


def test_a_snapshot_comes_without_noise(small: Small) -> None:
    """A learner's policy acts by its means, whether it is asked to be deterministic or not."""
    snapshot = Learner(small(c51={"noisy": True, "noisy_sigma": 3.0})).snapshot()
    policy = C51Policy.from_snapshot(snapshot, device="cpu")

    assert layers(policy.q_net) == []
    for deterministic in (True, False):
        actions, _ = policy.predict(X, deterministic=deterministic)
        assert actions.tolist() == snapshot.greedy(X).tolist()
