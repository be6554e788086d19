"""Noisy layers: their formula, where noise is and where it is not, and that it is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import FORMATS, describe
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.learner.artefacts import ARTEFACTS
from jormungandr.learner.c51 import C51, Batch
from jormungandr.learner.export import export_policy
from jormungandr.learner.network import Network, NoisyLinear, noise
from jormungandr.learner.noisy import NoisyC51
from jormungandr.questions import Question
from jormungandr.streams import network_noise, streams
from jormungandr.weights import factors, layer_shapes

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

X = np.random.default_rng(0).normal(size=(40, 2), scale=2).astype(np.float32)


@pytest.fixture
def noisy(small: Small) -> Callable[..., ModelSpec]:
    """``noisy(dueling=True)``: the small model with noisy layers, exploring by them alone."""
    return lambda **c51: small(
        c51={"noisy": True, **c51}, exploration={"start": 0.0, "end": 0.0, "transitions": 1}
    )


def wide(snapshot: PolicySnapshot, sigma: float = 0.3) -> PolicySnapshot:
    """Return a policy of random weights whose noise decides some of its actions."""
    rng = np.random.default_rng(5)
    weights = {
        name: np.full(shape, sigma, np.float32)
        if name.endswith("_sigma")
        else rng.normal(size=shape, scale=0.5).astype(np.float32)
        for name, shape in layer_shapes(snapshot.spec).items()
    }
    return replace(snapshot, weights=weights)


def batch(seed: int = 0) -> Batch:
    """Return eight random transitions of the small model, half of them labelled."""
    rng = np.random.default_rng(seed)
    return Batch(
        observation=rng.normal(size=(8, 2)).astype(np.float32),
        action=rng.integers(3, size=8),
        reward=rng.normal(size=8).astype(np.float32),
        next_observation=rng.normal(size=(8, 2)).astype(np.float32),
        discount=np.full(8, 0.9, dtype=np.float32),
        label=(np.arange(8) % 2 - 1).astype(np.int32),
    )


# -- layers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
def test_layers_and_initial_weights(noisy: Small, small: Small, dueling: bool) -> None:
    """Means are drawn as without noise; deviations are σ₀/√inputs, of biases too."""
    spec, plain = noisy(dueling=dueling, noisy_sigma=0.7), small(c51={"dueling": dueling})
    weights, without = (Learner(s).snapshot().weights for s in (spec, plain))
    sigmas = {name: array for name, array in weights.items() if name.endswith("_sigma")}

    assert list(layer_shapes(spec))[: len(without)] == list(without)
    assert all(np.array_equal(weights[name], without[name]) for name in without)
    assert set(sigmas) == {f"{n}_sigma" for n in without if not n.startswith("auxiliary")}
    assert set(Network(spec).state_dict()) == set(weights)
    for name, array in sigmas.items():
        inputs = 2 if name.startswith("hidden.0") else 8
        np.testing.assert_allclose(array, 0.7 / math.sqrt(inputs))


def test_layer_is_the_formula() -> None:
    """Weights are μ + σ·f(ε_out)f(ε_in)ᵀ biases μ + σ·f(ε_out); without noise μ alone."""
    rng = np.random.default_rng(0)
    layer = NoisyLinear(5, 3, 0.5)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(size=parameter.shape)))
    x = torch.from_numpy(rng.normal(size=(4, 5)).astype(np.float32))
    mean = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), mean)
    of_inputs, of_outputs = (factors(n, rng) for n in (5, 3))
    layer.noise = (torch.from_numpy(of_inputs), torch.from_numpy(of_outputs))
    w = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    weight = w["weight"] + w["weight_sigma"] * np.outer(of_outputs, of_inputs)
    bias = w["bias"] + w["bias_sigma"] * of_outputs

    np.testing.assert_allclose(layer(x).detach(), x.numpy() @ weight.T + bias, atol=1e-5)


def test_factors() -> None:
    """f(ε) keeps the sign and takes the root: its mean is 0, its square's √(2/π)."""
    drawn = factors(200_000, np.random.default_rng(0)).astype(np.float64)
    same = np.random.default_rng(0).standard_normal(200_000)

    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert (drawn**2).mean() == pytest.approx(math.sqrt(2 / math.pi), abs=0.01)
    np.testing.assert_allclose(drawn * np.abs(drawn), same, atol=1e-5)


def test_stream_is_one_of_its_own() -> None:
    """The other three are what they were, and none of them is this one."""
    own = network_noise(7).bit_generator.state
    others = [np.random.default_rng(c) for c in np.random.SeedSequence(7).spawn(3)]

    assert [g.bit_generator.state for g in streams(7)] == [g.bit_generator.state for g in others]
    assert own not in [g.bit_generator.state for g in others]
    assert own == network_noise(7).bit_generator.state != network_noise(8).bit_generator.state


def test_engine_is_autograd(noisy: Small) -> None:
    """Resolved where it is left open, refused where it is the other one."""
    spec = noisy()

    assert spec.c51.engine == "autograd"
    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert type(Learner(spec).algorithm) is NoisyC51
    with pytest.raises(InvalidValue, match=r"c51\.engine: expected 'autograd' for noisy layers"):
        noisy(engine="closed_form")


# -- updates --------------------------------------------------------------------------------------


def test_each_update_draws_for_both_networks(noisy: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four updates, eight different draws of every layer, from the stream; afterwards none."""
    algorithm = NoisyC51(noisy(), np.random.default_rng(0), np.random.default_rng(1))
    seen: list[Any] = []
    inner = C51.update

    def watched(self: C51, rows: Batch, updates: int = 0) -> Any:
        for network in (self.online, self.target):
            layers = [m for m in network.modules() if isinstance(m, NoisyLinear)]
            assert len(layers) == 3
            seen.append([tensor.numpy() for m in layers for tensor in m.noise or ()])
        return inner(self, rows, updates)

    monkeypatch.setattr(C51, "update", watched)
    for updates in range(4):
        algorithm.update(batch(updates), updates)
    stream = np.random.default_rng(1)

    assert len({drawn.tobytes() for draws in seen for drawn in draws}) == 8 * 6
    for draws in seen:
        sizes = ((2, 8), (8, 8), (8, 33))
        for drawn, n in zip(draws, [n for pair in sizes for n in pair], strict=True):
            assert np.array_equal(drawn, factors(n, stream))
    for network in (algorithm.online, algorithm.target):
        assert all(m.noise is None for m in network.modules() if isinstance(m, NoisyLinear))


def test_update_is_c51s_on_the_weights_with_noise(noisy: Small, small: Small) -> None:
    """Loss, target and gradient are those of plain networks that have the noisy weights."""
    spec = noisy(double=True, max_grad_norm=1e9)
    plain = small(c51={"engine": "autograd", "double": True, "max_grad_norm": 1e9})
    algorithm = NoisyC51(spec, np.random.default_rng(0), np.random.default_rng(1))
    expected = C51(plain, np.random.default_rng(0))
    policy, stream = Learner(spec).snapshot(), np.random.default_rng(1)
    for network, like in ((algorithm.online, expected.online), (algorithm.target, expected.target)):
        network.set_weights(wide(policy).weights)
        drawn = wide(policy).with_noise(stream).without_noise().weights
        like.set_weights(drawn)

    found, wanted = algorithm.update(batch(), 0), expected.update(batch(), 0)

    assert found.loss == pytest.approx(wanted.loss, abs=1e-5)
    assert found.auxiliary_loss == pytest.approx(wanted.auxiliary_loss, abs=1e-5)
    np.testing.assert_allclose(found.priority, wanted.priority, atol=1e-5)
    gradients = {n: p.grad for n, p in algorithm.online.named_parameters()}
    stream = np.random.default_rng(1)
    for name in ("hidden.0", "hidden.1", "value", "auxiliary"):
        slopes = {p: expected.online.get_parameter(f"{name}.{p}").grad for p in ("weight", "bias")}
        noise = None
        if name != "auxiliary":
            outputs, inputs = layer_shapes(spec)[f"{name}.weight"]
            of_inputs, of_outputs = factors(inputs, stream), factors(outputs, stream)
            noise = {"weight": np.outer(of_outputs, of_inputs), "bias": of_outputs}
        for part, slope in slopes.items():
            assert slope is not None
            np.testing.assert_allclose(gradients[f"{name}.{part}"], slope, atol=2e-5)
            if noise is not None:
                by_sigma = gradients[f"{name}.{part}_sigma"]
                np.testing.assert_allclose(by_sigma, slope.numpy() * noise[part], atol=2e-5)


def test_held_out_losses_are_without_noise(noisy: Small, step: Step) -> None:
    """Measured twice they are the same, and those of a network of the means."""
    learner = Learner(noisy())
    learner.add([step(t) for t in range(20)])
    learner.add([step(t, episode_id="v", split="validation") for t in range(8)])
    stream = learner._noise.bit_generator.state
    one, other = learner.evaluate(), learner.evaluate()

    assert one == other
    assert learner._noise.bit_generator.state == stream
    plain = Learner(learner.spec)
    plain.algorithm.online.set_weights(
        {n: 0 * w if "sigma" in n else w for n, w in learner.snapshot().weights.items()}
    )
    plain.algorithm.target.set_weights(learner.algorithm.target.get_weights())
    plain._latched, plain.validation = learner._latched, learner.validation
    measured = plain.evaluate()
    assert measured is not None
    assert one is not None
    assert measured.validation_loss == one.validation_loss


@pytest.mark.parametrize("averaging", [0.0, 0.5])
def test_goes_on_bit_for_bit(
    noisy: Small, step: Step, state: State, tmp_path: Path, averaging: float
) -> None:
    """The stream is in a checkpoint, with deviations, their average and Adam's; so is acting."""
    learner = Learner(noisy(averaging=averaging))
    learner.add([step(t, reward=t % 2) for t in range(30)])
    learner.act(X)
    learner.save(tmp_path / "c")
    loaded = Learner.load(tmp_path / "c")
    replies = []
    for one in (learner, loaded):
        one.add([step(t) for t in range(30, 50)])
        replies.append(one.act(X))

    assert learner.update_count > 10
    assert state(loaded) == state(learner)
    assert replies[0] == replies[1]
    assert loaded.snapshot().to_bytes() == learner.snapshot().to_bytes()
    sigma = learner.snapshot().weights["value.weight_sigma"]
    assert len(np.unique(sigma)) > 100  # it is learned


def test_a_plain_model_keeps_no_stream(small: Small, tmp_path: Path) -> None:
    """Its checkpoint is as it always was, and nothing draws."""
    learner = Learner(small())
    learner.save(tmp_path / "c")

    assert sorted(json.loads((tmp_path / "c" / "state.json").read_text())["streams"]) == [
        "acting",
        "sampling",
    ]
    assert learner._noise.bit_generator.state == network_noise(0).bit_generator.state


# -- acting ---------------------------------------------------------------------------------------


def test_policy_by_itself_is_without_noise(noisy: Small) -> None:
    """Values, distribution and the deterministic action are the means', and draw nothing."""
    snapshot = wide(Learner(noisy()).snapshot())
    silent = replace(
        snapshot, weights={n: 0 * w if "sigma" in n else w for n, w in snapshot.weights.items()}
    )
    rng = np.random.default_rng(3)
    before = rng.bit_generator.state
    reply = snapshot.act(X, rng, deterministic=True, epsilon=0.5)

    assert rng.bit_generator.state == before
    assert np.array_equal(snapshot.values(X), silent.values(X))
    assert np.array_equal(snapshot.without_noise().values(X), silent.values(X))
    assert reply.indices.tolist() == silent.greedy(X).tolist()
    assert snapshot.predict(X, deterministic=True)[0].tolist() == silent.greedy(X).tolist()


@pytest.mark.parametrize("dueling", [False, True])
def test_noise_in_numpy_is_the_networks(noisy: Small, dueling: bool) -> None:
    """From the same stream both forward passes have the same noise."""
    spec = noisy(dueling=dueling)
    learner = Learner(spec)
    snapshot = wide(learner.snapshot())
    network = Network(spec)
    network.set_weights(snapshot.weights)
    with torch.no_grad():
        with noise(np.random.default_rng(9), network):
            logits, _ = network(torch.from_numpy(X))
        mean, _ = network(torch.from_numpy(X))
    drawn = snapshot.with_noise(np.random.default_rng(9))

    np.testing.assert_allclose(drawn.logits(X)[0], logits.numpy(), atol=1e-4)
    np.testing.assert_allclose(snapshot.logits(X)[0], mean.numpy(), atol=1e-4)
    assert float((logits - mean).abs().max()) > 0.1


def test_noise_explores(noisy: Small) -> None:
    """Without epsilon the actions differ from request to request; what is replied fits them."""
    snapshot = wide(Learner(noisy()).snapshot())
    rng = np.random.default_rng(0)
    replies = [snapshot.act(X, rng, epsilon=0.0) for _ in range(20)]
    chosen = np.array([reply.indices for reply in replies])

    for reply in replies:
        values = np.array(reply.expected_values)
        assert reply.indices.tolist() == values.argmax(axis=1).tolist()
        assert set(reply.behavior_prob) == {1.0}
    assert len({actions.tobytes() for actions in chosen}) > 10
    assert (chosen == snapshot.greedy(X)).mean() > 0.4
    still = wide(snapshot, sigma=0.0)
    assert still.act(X, rng, epsilon=0.0).indices.tolist() == still.greedy(X).tolist()


def test_epsilon_stays_available(noisy: Small) -> None:
    """It adds to the noise, as without."""
    snapshot = wide(Learner(noisy()).snapshot(), sigma=0.0)
    reply = snapshot.act(X, np.random.default_rng(0), epsilon=0.6)

    assert 0 < (reply.indices != snapshot.greedy(X)).sum() < len(X)
    assert sorted(set(reply.behavior_prob)) == pytest.approx([0.6 / 3, 0.6 / 3 + 0.4])


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_requests_together_are_requests_one_by_one(noisy: Small, epsilon: float) -> None:
    """Each has noise of its own, draw for draw; what is deterministic among them has none."""
    snapshot = wide(Learner(noisy()).snapshot())
    questions = [
        Question.checked(
            snapshot.spec,
            X[at : at + 4],
            deterministic=at == 8,
            epsilon=epsilon,
            action_masks=None,
            distribution=at == 4,
        )
        for at in range(0, 16, 4)
    ]
    rng = np.random.default_rng(4)
    together = snapshot.answer(questions, np.random.default_rng(4))
    alone = [snapshot.answer([question], rng)[0] for question in questions]

    assert together == alone
    assert together[2].indices.tolist() == snapshot.greedy(X[8:12]).tolist()
    values = [reply.expected_values for reply in together]
    assert not np.allclose(values[0], snapshot.values(X[:4]))
    assert np.array_equal(np.float32(values[2]), snapshot.values(X[8:12]))


def test_acting_does_not_change_learning(noisy: Small, step: Step, state: State) -> None:
    """The noise of acting comes from the acting stream, which nothing else depends on."""
    acting, silent = Learner(noisy()), Learner(noisy())
    for t in range(20):
        acting.act(X)
        for learner in (acting, silent):
            learner.add([step(t)])
    one, other = state(acting), state(silent)
    drawn, kept = one.pop("streams"), other.pop("streams")

    assert (drawn[0], drawn[2]) == (kept[0], kept[2])
    assert drawn[1] != kept[1]
    assert one == other


def test_bytes_carry_the_deviations(noisy: Small) -> None:
    """Read from its bytes a policy explores as before; without deviations it is refused."""
    from safetensors.numpy import load, save

    snapshot = wide(Learner(noisy()).snapshot())
    data = snapshot.to_bytes()
    opened = PolicySnapshot.from_bytes(data)
    replies = [p.act(X, np.random.default_rng(1), epsilon=0.0) for p in (snapshot, opened)]
    assert replies[0] == replies[1]
    assert opened.digest() == snapshot.digest() != wide(snapshot, sigma=0.1).digest()

    tensors = load(data)
    del tensors["hidden.1.bias_sigma"]
    size = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + size])["__metadata__"]
    with pytest.raises(CheckpointError, match=r"policy\.hidden\.1\.bias_sigma"):
        PolicySnapshot.from_bytes(save(tensors, metadata=metadata))


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bundle"])
def test_exports_are_without_noise(noisy: Small, tmp_path: Path, name: str) -> None:
    """What leaves for other programs is the policy of the means."""
    snapshot = wide(Learner(noisy(dueling=True)).snapshot())
    export_policy(snapshot, tmp_path / "e", name)
    run = ARTEFACTS[name].load(snapshot, (tmp_path / "e" / ARTEFACTS[name].file).read_bytes())

    got = run({"observation": X})
    np.testing.assert_allclose(got["distribution"], snapshot.distribution(X), atol=1e-5)
    np.testing.assert_array_equal(got["action"], snapshot.greedy(X))


def test_bundle_keeps_the_noise_and_says_so(noisy: Small, small: Small, tmp_path: Path) -> None:
    """Opened, it explores; its description names what readers of the greedy policy can skip."""
    snapshot = wide(Learner(noisy()).snapshot())
    export_policy(snapshot, tmp_path / "b", "bundle")
    opened = PolicySnapshot.open(tmp_path / "b")

    assert opened.to_bytes() == snapshot.to_bytes()
    about = describe(snapshot)["network"]
    assert "NAME.weight_sigma" in about["noise"]
    assert [layer["name"] for layer in about["layers"]] == [
        "hidden.0",
        "hidden.1",
        "value",
        "auxiliary",
    ]
    assert "noise" not in describe(Learner(small()).snapshot())["network"]
