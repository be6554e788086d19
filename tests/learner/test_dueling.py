"""The dueling head: its formula, its gradient, and the same policy in every room of the house."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.bundle import FORMATS
from jormungandr.learner.artefacts import ARTEFACTS
from jormungandr.learner.c51 import Batch
from jormungandr.learner.closed_form import ClosedFormC51
from jormungandr.learner.export import export_policy
from jormungandr.learner.network import Network
from jormungandr.weights import layer_shapes

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

ENGINES = ["closed_form", "autograd"]
ACTIONS, ATOMS = 3, 11


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Any]:
    """Return weights of the order of 1, so that no difference is too small to show."""
    rng = np.random.default_rng(seed)
    shapes = layer_shapes(spec).items()
    return {n: rng.normal(size=s, scale=0.5).astype(np.float32) for n, s in shapes}


def by_hand(weights: dict[str, Any], x: Any) -> Any:
    """Return logits (B, A, N) in float64: V + A − mean over the actions of A, of each atom."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    h = np.asarray(x, dtype=np.float64)
    for i in range(2):
        h = np.maximum(h @ w[f"hidden.{i}.weight"].T + w[f"hidden.{i}.bias"], 0)
    value = h @ w["value.weight"].T + w["value.bias"]
    advantage = h @ w["advantage.weight"].T + w["advantage.bias"]
    logits = np.empty((len(h), ACTIONS, ATOMS))
    for b in range(len(h)):
        for n in range(ATOMS):
            of_actions = [advantage[b, a * ATOMS + n] for a in range(ACTIONS)]
            for a in range(ACTIONS):
                logits[b, a, n] = value[b, n] + of_actions[a] - sum(of_actions) / ACTIONS
    return logits


@pytest.fixture
def dueling(small: Small) -> Callable[..., ModelSpec]:
    """``dueling(engine="autograd")``: the small model with that head."""
    return lambda **c51: small(c51={"dueling": True, **c51})


def test_layers(dueling: Small) -> None:
    """The state's head has as many outputs as there are atoms, the actions' the rest."""
    heads = {n: s for n, s in layer_shapes(dueling()).items() if not n.startswith("hidden")}

    assert heads == {
        "value.weight": (ATOMS, 8),
        "value.bias": (ATOMS,),
        "advantage.weight": (ACTIONS * ATOMS, 8),
        "advantage.bias": (ACTIONS * ATOMS,),
        "auxiliary.weight": (2, 8),
        "auxiliary.bias": (2,),
    }
    assert list(Network(dueling()).state_dict()) == list(layer_shapes(dueling()))


def test_formula_in_torch_and_in_numpy(dueling: Small) -> None:
    """Both forward passes give what the formula, written out element by element, gives."""
    spec = dueling()
    weights = random_weights(spec)
    x = np.random.default_rng(1).normal(size=(7, 2)).astype(np.float32)
    network = Network(spec)
    network.set_weights(weights)
    with torch.no_grad():
        in_torch, classes = network(torch.from_numpy(x))
    snapshot = replace(Learner(spec).snapshot(), weights=weights)
    in_numpy, same_classes = snapshot.logits(x)

    np.testing.assert_allclose(in_torch.numpy(), by_hand(weights, x), atol=1e-5)
    np.testing.assert_allclose(in_numpy, by_hand(weights, x), atol=1e-5)
    assert classes is not None
    np.testing.assert_allclose(same_classes, classes.numpy(), atol=1e-5)


def test_forward_of_images() -> None:
    """With convolutions before it, NumPy computes what torch does."""
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": [36, 40], "dtype": "uint8"},
            "actions": 3,
            "c51": {"atoms": 5, "hidden": [16], "dueling": True},
        }
    )
    learner = Learner(spec)
    x = np.random.default_rng(0).integers(0, 256, (3, 36, 40), dtype=np.uint8)
    with torch.no_grad():
        expected, _ = learner.algorithm.online(torch.from_numpy(x[:, None] / np.float32(255)))

    np.testing.assert_allclose(learner.snapshot().logits(x)[0], expected.numpy(), atol=1e-5)


def test_what_all_actions_share_is_the_states(dueling: Small) -> None:
    """Added to the advantages of all actions alike, atom by atom, nothing changes it."""
    spec = dueling()
    weights = random_weights(spec)
    snapshot = replace(Learner(spec).snapshot(), weights=weights)
    shared = np.tile(np.linspace(-3, 3, ATOMS).astype(np.float32), ACTIONS)
    moved = {**weights, "advantage.bias": weights["advantage.bias"] + shared}
    x = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)

    other = replace(snapshot, weights=moved)
    np.testing.assert_allclose(other.logits(x)[0], snapshot.logits(x)[0], atol=1e-5)
    none = {"advantage.weight": 0 * weights["advantage.weight"], "advantage.bias": shared}
    values = replace(snapshot, weights={**weights, **none}).values(x)
    np.testing.assert_allclose(values, values[:, :1].repeat(ACTIONS, axis=1), atol=1e-6)


def test_gradient_by_differences(dueling: Small) -> None:
    """The closed form against an oracle without calculus: both sides of every third weight."""
    spec = dueling(max_grad_norm=1e9)
    closed = ClosedFormC51(spec, np.random.default_rng(0))
    closed.online.set_weights(random_weights(spec))
    rng = np.random.default_rng(2)
    batch = Batch(
        observation=rng.normal(size=(6, 2)).astype(np.float32),
        action=rng.integers(ACTIONS, size=6),
        reward=rng.normal(size=6).astype(np.float32),
        next_observation=rng.normal(size=(6, 2)).astype(np.float32),
        discount=np.full(6, 0.9, dtype=np.float32),
        label=np.full(6, -1, dtype=np.int32),
        weight=rng.random(6) + 0.1,
    )
    target = closed._target_distribution(batch)[0].double().numpy()
    weights = {n: w.astype(np.float64) for n, w in closed.online.get_weights().items()}
    assert batch.weight is not None

    def loss() -> float:
        logits = by_hand(weights, batch.observation)[np.arange(6), batch.action]
        taken = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return float(-(batch.weight * (target * taken).sum(axis=1)).mean())

    closed.update(batch)
    for name, slope in closed._gradient.views.items():
        flat = weights[name].reshape(-1)
        for i in range(0, len(flat), 3):
            kept, around = flat[i], []
            for step in (1e-6, -1e-6):
                flat[i] = kept + step
                around.append(loss())
            flat[i] = kept
            expected = (around[0] - around[1]) / 2e-6
            assert float(slope.reshape(-1)[i]) == pytest.approx(expected, abs=3e-6), (name, i)


@pytest.mark.parametrize("averaging", [0.0, 0.5])
@pytest.mark.parametrize("engine", ENGINES)
def test_goes_on_bit_for_bit(
    dueling: Small, step: Step, state: State, tmp_path: Path, engine: str, averaging: float
) -> None:
    """Saved and loaded, with an average or without; the policy's file is the policy."""
    learner = Learner(dueling(engine=engine, averaging=averaging))
    learner.add([step(t, reward=t % 2) for t in range(30)])
    learner.save(tmp_path / "c")
    loaded = Learner.load(tmp_path / "c")
    for one in (learner, loaded):
        one.add([step(t) for t in range(30, 50)])

    assert learner.update_count > 10
    assert state(loaded) == state(learner)
    snapshot = learner.snapshot()
    opened = PolicySnapshot.from_bytes(snapshot.to_bytes())
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    assert np.array_equal(opened.values(x), snapshot.values(x))
    assert opened.digest() == snapshot.digest()


@pytest.mark.parametrize("engine", ENGINES)
def test_learns_which_action_pays(small: Small, step: Step, engine: str) -> None:
    """Action 1 is worth 1 and the others nothing, wherever it is taken."""
    c51 = {"dueling": True, "engine": engine, "lr": 0.01, "gamma": 0.0, "batch_size": 16}
    learner = Learner(small(c51=c51, auxiliary=None, replay={"capacity": 64}))
    rows = [step(t, reward=float(t % 3 == 1), episode_id=str(t)) for t in range(60)]
    learner.add([{**row, "terminated": True} for row in rows])
    learner.update(300)

    x = np.array([[0.25 * t, 1.0] for t in range(0, 60, 7)], dtype=np.float32)
    np.testing.assert_allclose(learner.snapshot().values(x), [[0, 1, 0]] * len(x), atol=0.1)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "bundle"])
def test_every_export_computes_it(dueling: Small, tmp_path: Path, name: str) -> None:
    """Each format's parity is checked when it is written; here also on other observations."""
    spec = dueling()
    snapshot = replace(Learner(spec).snapshot(), weights=random_weights(spec), mean=np.ones(2))
    export_policy(snapshot, tmp_path / "e", name)
    run = ARTEFACTS[name].load(snapshot, (tmp_path / "e" / ARTEFACTS[name].file).read_bytes())
    x = np.random.default_rng(3).normal(size=(99, 2), scale=3).astype(np.float32)

    got = run({"observation": x})
    np.testing.assert_allclose(got["distribution"], snapshot.distribution(x), atol=1e-5)
    np.testing.assert_array_equal(got["action"], snapshot.greedy(x))
    assert len(set(snapshot.greedy(x).tolist())) > 1


def test_bundle_says_how_to_compute_it(dueling: Small, tmp_path: Path) -> None:
    """The layers are listed, and the decision says what becomes of the two heads."""
    export_policy(Learner(dueling()).snapshot(), tmp_path / "b", "bundle")
    about = json.loads((tmp_path / "b" / "bundle.json").read_text())["network"]

    assert [(layer["name"], layer["activation"]) for layer in about["layers"]][2:] == [
        ("value", None),
        ("advantage", None),
        ("auxiliary", None),
    ]
    assert "subtract from each atom its mean over the actions" in about["decision"]
    export_policy(Learner(dueling(dueling=False)).snapshot(), tmp_path / "p", "bundle")
    about = json.loads((tmp_path / "p" / "bundle.json").read_text())["network"]
    assert about["decision"].startswith("reshape the value layer's output to (actions, atoms)")


def test_another_head_is_another_model(small: Small) -> None:
    """Asked for by a client, it differs from a model without; engines are resolved anew."""
    plain = small()

    assert plain.mismatches({"c51": {"dueling": True}}) == ["c51.dueling"]
    assert plain.mismatches({"c51": {"noisy": True}}) == ["c51.noisy"]
    assert plain.mismatches({"c51": {"engine": "autograd"}}) == ["c51.engine"]
