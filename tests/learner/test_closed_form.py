"""The closed-form gradient: autograd's numbers, and the same state in and out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.errors import InvalidValue
from jormungandr.learner.c51 import C51, Batch
from jormungandr.learner.closed_form import ClosedFormC51
from jormungandr.learner.layers import Gradient, Layers
from jormungandr.learner.network import Network
from jormungandr.numerics import categorical
from jormungandr.numerics.projection import Projection

ACTIONS, INPUTS = 3, 4
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "double": {"c51": {"double": True}},
    "one layer": {"c51": {"hidden": [7]}},
    "three layers": {"c51": {"hidden": [9, 6, 5]}},
    "two atoms": {"c51": {"atoms": 2}},
    "clipped": {"c51": {"max_grad_norm": 1e-3}},
    "narrow": {"c51": {"support": [-0.5, 0.25]}},
    "auxiliary": {"auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.3}},
    "masks": {"action_masks": True},
    "kl": {"replay": {"priority": "kl"}},
    "dueling": {"c51": {"dueling": True}},
    "dueling of one layer": {"c51": {"dueling": True, "hidden": [7], "double": True}},
    "dueling and auxiliary": {
        "c51": {"dueling": True},
        "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.3},
    },
}


def spec(**fields: Any) -> ModelSpec:
    """Return a small specification."""
    c51 = {"hidden": 8, "atoms": 11, "support": [-3, 3], "lr": 0.01, **fields.pop("c51", {})}
    return ModelSpec.from_dict(
        {"observation": {"shape": [INPUTS]}, "actions": ACTIONS, "c51": c51, **fields}
    )


def batch(rows: int, seed: int, of: ModelSpec, *, weighted: bool = True, labels: int = 2) -> Batch:
    """Return B random transitions; a third ends, and some targets lie beyond the support."""
    rng = np.random.default_rng(seed)
    mask = None
    if of.action_masks:
        mask = rng.random((rows, ACTIONS)) < 0.5
        mask[np.arange(rows), rng.integers(ACTIONS, size=rows)] = True
    return Batch(
        observation=rng.standard_normal((rows, INPUTS)).astype(np.float32),
        action=rng.integers(ACTIONS, size=rows),
        reward=(2 * rng.standard_normal(rows)).astype(np.float32),
        next_observation=rng.standard_normal((rows, INPUTS)).astype(np.float32),
        discount=np.where(rng.random(rows) < 1 / 3, 0, 0.9).astype(np.float32),
        label=rng.integers(-1, labels, size=rows).astype(np.int32),
        next_action_mask=mask,
        weight=rng.random(rows) + 0.1 if weighted else None,
    )


def both(of: ModelSpec) -> tuple[C51, ClosedFormC51]:
    """Return two algorithms of equal weights, their target networks apart from the online ones."""
    pair = C51(of, np.random.default_rng(0)), ClosedFormC51(of, np.random.default_rng(0))
    other = C51(of, np.random.default_rng(1)).online.get_weights()
    for algorithm in pair:
        algorithm.target.set_weights(other)
    return pair


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("case", list(CASES))
def test_same_step_as_autograd(case: str, weighted: bool) -> None:
    """Loss, priorities, gradient and the weights after three steps, also of other batch sizes."""
    of = spec(**CASES[case])
    autograd, closed = both(of)

    for step, rows in enumerate((16, 16, 5)):
        given_batch = batch(rows, step, of, weighted=weighted)
        expected, found = autograd.update(given_batch), closed.update(given_batch)

        assert found.finite
        assert expected.finite
        for name in ("loss", "auxiliary_loss", "grad_norm", "clipped_low", "clipped_high"):
            assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=2e-6), name
        np.testing.assert_allclose(found.priority, expected.priority, atol=2e-6)
        if step == 0:
            by_name = {n: p.grad for n, p in autograd.online.named_parameters()}
            norm = max(1.0, expected.grad_norm / of.c51.max_grad_norm)
            for name, slope in closed._gradient.views.items():
                gradient = by_name[name]
                assert gradient is not None
                np.testing.assert_allclose(slope * norm, gradient * norm, atol=1e-6, err_msg=name)
    state = autograd.state()
    for name, array in closed.state().items():
        np.testing.assert_allclose(array, state[name], atol=1e-5, err_msg=name)
    assert closed.state().keys() == state.keys()


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_large_logits(scale: float, double: bool) -> None:
    """Where an exponential leaves the range of float32, the softmax is shifted as autograd's is."""
    of = spec(c51={"double": double})
    autograd, closed = both(of)
    for algorithm in (autograd, closed):
        for network in (algorithm.online, algorithm.target):
            large = {name: array * scale for name, array in network.get_weights().items()}
            network.set_weights(large)
    rows = batch(16, 0, of)
    with torch.no_grad():
        largest = float(closed.online(torch.from_numpy(rows.observation))[0].abs().max())

    expected, found = autograd.update(rows), closed.update(rows)

    assert largest > 88
    assert found.finite
    np.testing.assert_allclose(found.priority, expected.priority, rtol=1e-5, atol=1e-5)
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)


def test_loss_is_never_negative() -> None:
    """Of a transition that is predicted exactly, rounding may not leave a priority below 0."""
    of = spec(c51={"atoms": 2, "hidden": 4})
    _, closed = both(of)
    rows = batch(64, 0, of)
    rows.reward[:] = np.where(np.arange(64) % 2, 100, -100)
    rows.discount[:] = 0
    for step in range(300):
        found = closed.update(rows)
        assert (found.priority >= 0).all(), step


def test_gradient_by_differences() -> None:
    """An oracle that knows no calculus: in float64, a little to both sides in each direction."""
    of = spec(auxiliary={"classes": ["DOWN", "UP"], "weight": 0.3})
    _, closed = both(of)
    rows = batch(16, 3, of)
    target = closed._target_distribution(rows)[0].double().numpy()
    weights = {n: a.astype(np.float64) for n, a in closed.online.get_weights().items()}
    assert rows.weight is not None

    def log_softmax(name: str, h: Any) -> Any:
        x = h @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        x = x.reshape(16, -1, 2 if name == "auxiliary" else 11)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    def loss() -> float:
        h = rows.observation.astype(np.float64)
        for i in range(2):
            h = np.maximum(h @ weights[f"hidden.{i}.weight"].T + weights[f"hidden.{i}.bias"], 0)
        taken = log_softmax("value", h)[np.arange(16), rows.action]
        labelled = np.flatnonzero(rows.label >= 0)
        picked = log_softmax("auxiliary", h)[labelled, 0, rows.label[labelled]]
        return float(-(rows.weight * (target * taken).sum(axis=1)).mean() - 0.3 * picked.mean())

    closed.update(rows)
    for name, slope in closed._gradient.views.items():
        flat = weights[name].reshape(-1)
        for i in range(0, len(flat), 3):
            kept, around = flat[i], []
            for step in (1e-6, -1e-6):
                flat[i] = kept + step
                around.append(loss())
            flat[i] = kept
            expected = (around[0] - around[1]) / 2e-6
            assert float(slope.reshape(-1)[i]) == pytest.approx(expected, abs=2e-6), (name, i)


def test_unlabelled_batch_leaves_the_auxiliary_head() -> None:
    """Without a label the head has no gradient, whatever the step before left there."""
    of = spec(auxiliary={"classes": ["DOWN", "UP"], "weight": 0.3})
    _, closed = both(of)
    closed.update(batch(16, 0, of))
    closed._adam.mean.zero_()
    before = closed.online.get_weights()["auxiliary.weight"]

    result = closed.update(batch(16, 1, of, labels=0))

    assert result.auxiliary_loss is None
    assert np.array_equal(closed.online.get_weights()["auxiliary.weight"], before)


@pytest.mark.parametrize("field", ["reward", "observation"])
def test_non_finite_step_is_skipped(field: str) -> None:
    """A loss that is no number changes nothing."""
    of = spec()
    _, closed = both(of)
    before = closed.state()
    rows = batch(16, 0, of)
    getattr(rows, field)[3] = np.nan

    assert not closed.update(rows).finite
    after = closed.state()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert before.keys() == after.keys()


@pytest.mark.parametrize("engine", [C51, ClosedFormC51])
def test_state_goes_on_bit_for_bit(engine: type[C51]) -> None:
    """What `restore` took over goes on as what it came from."""
    of = spec(auxiliary={"classes": ["DOWN", "UP"], "weight": 0.3})
    first, second = (engine(of, np.random.default_rng(seed)) for seed in (0, 1))
    for step in range(3):
        first.update(batch(16, step, of))
        second.update(batch(16, 9 + step, of))
    second.restore(first.state())
    for algorithm in (first, second):
        algorithm.update(batch(16, 5, of))
        algorithm.copy_target()

    a, b = first.state(), second.state()
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_state_of_no_step_forgets_the_steps() -> None:
    """Going back to the beginning takes Adam back too."""
    of = spec()
    fresh = ClosedFormC51(of, np.random.default_rng(0))
    used = ClosedFormC51(of, np.random.default_rng(1))
    used.update(batch(16, 0, of))
    used.restore(fresh.state())
    for algorithm in (fresh, used):
        algorithm.update(batch(16, 5, of))

    a, b = fresh.state(), used.state()
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_engine_is_of_the_specification() -> None:
    """Resolved when a model is made, and written down; images have no closed form."""
    pixels = {"space": {"type": "box", "shape": [84, 84, 1], "dtype": "uint8"}}
    image = ModelSpec.from_dict({"observation": pixels, "actions": 2})

    assert spec().to_dict()["c51"]["engine"] == "closed_form"
    assert image.to_dict()["c51"]["engine"] == "autograd"
    assert type(Learner(spec()).algorithm) is ClosedFormC51
    assert type(Learner(spec(c51={"engine": "autograd"})).algorithm) is C51
    with pytest.raises(InvalidValue, match=r"c51\.engine"):
        ModelSpec.from_dict({"observation": pixels, "actions": 2, "c51": {"engine": "closed_form"}})


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 9),
    atoms=st.integers(2, 60),
    low=st.floats(-50, 0),
    width=st.floats(0.5, 100),
    scale=st.sampled_from([0.0, 0.1, 1.0, 100.0]),
)
def test_projection_is_the_one_of_torch(
    seed: int, rows: int, atoms: int, low: float, width: float, scale: float
) -> None:
    """For any support, reward and discount, also beyond the ends and on atoms exactly."""
    rng = np.random.default_rng(seed)
    z = categorical.support(low, low + width, atoms)
    probs = rng.dirichlet(np.full(atoms, 0.3), rows).astype(np.float32)
    reward = (scale * rng.standard_normal(rows)).astype(np.float32)
    reward[0] = z[rng.integers(atoms)]
    discount = np.where(rng.random(rows) < 0.4, 0, rng.random(rows)).astype(np.float32)
    arrays = [torch.from_numpy(a) for a in (probs, reward, discount)]

    found, below, above = Projection(low, low + width, atoms)(probs, reward, discount)

    np.testing.assert_allclose(found, categorical.project(z, *arrays), atol=2e-4)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    for share, expected in zip((below, above), categorical.clipped_mass(z, *arrays), strict=True):
        assert share == pytest.approx(float(expected.mean()), abs=1e-5)


def test_projection_keeps_a_nan_in_its_row() -> None:
    """One bad row spoils no other."""
    probs = np.full((3, 5), 0.2, dtype=np.float32)
    reward = np.array([0.0, np.nan, 0.0], dtype=np.float32)

    found, _, _ = Projection(-1, 1, 5)(probs, reward, np.ones(3, dtype=np.float32))

    assert np.isfinite(found[[0, 2]]).all()
    assert np.isnan(found[1]).any()


@pytest.mark.parametrize("size", [0.0, 1e-21, 1e-3, 1e9, 1e18, 1e21, math.inf, math.nan])
def test_length_of_a_gradient_is_that_of_torch(size: float) -> None:
    """Also where squares are too small or too large for float32: what clips is the same."""
    network = Network(spec())
    gradient = Gradient(Layers(network))
    gradient.values.copy_(torch.linspace(-size, size, len(gradient.values)))
    for parameter, view in zip(network.parameters(), gradient.views.values(), strict=True):
        parameter.grad = view.clone()

    expected = float(torch.nn.utils.clip_grad_norm_(network.parameters(), 10.0))
    assert gradient.norm() == pytest.approx(expected, rel=1e-3, nan_ok=True)
    assert math.isfinite(expected) == (size < 1e20)
