"""`PolicySnapshot`: its forward pass is the network's, moments are latched, bytes are checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.inputs import normalize
from jormungandr.weights import layer_shapes

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


@pytest.fixture
def learner(small: Small, step: Step) -> Learner:
    """Return a learner after eight updates on random observations."""
    learner = Learner(small())
    rng = np.random.default_rng(0)
    for t in range(20):
        x = rng.normal(size=2) * [1.0, 30.0] + [0.0, 500.0]
        learner.add([step(t, observation=x, next_observation=x, label=t % 2)])
    return learner


X = np.array([[0.0, 500.0], [1.0, 520.0], [-3.0, 450.0], [1e6, -1e6]], dtype=np.float32)


# -- the forward pass -----------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    auxiliary=st.booleans(),
    normalized=st.booleans(),
    hidden=st.sampled_from([[3, 5], [32, 16]]),
)
def test_numpy_forward_equals_torch(
    small: Small, seed: int, auxiliary: bool, normalized: bool, hidden: list[int]
) -> None:
    """Logits of both heads are the network's within 1e-5, for any weights and moments."""
    spec = small(
        observation={"features": ["x", "y"], "normalize": normalized, "clip": 3.0},
        auxiliary={"classes": ["D", "U", "F"]} if auxiliary else None,
        c51={"hidden": hidden},
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    learner = Learner(spec)
    snapshot = replace(
        learner.snapshot(), mean=rng.normal(size=2), var=rng.uniform(0.1, 5.0, size=2)
    )
    x = rng.normal(size=(7, 2)).astype(np.float32) * 3
    scaled = normalize(x, snapshot.mean, snapshot.var, 3.0) if normalized else x
    with torch.no_grad():
        value, classes = learner.algorithm.online(torch.from_numpy(scaled))
    mine, mine_classes = snapshot.logits(x)

    assert mine == pytest.approx(value.numpy(), abs=1e-5)
    assert snapshot.distribution(x) == pytest.approx(torch.softmax(value, -1).numpy(), abs=1e-5)
    expected = torch.softmax(value, -1).double() @ torch.linspace(-2, 2, 11, dtype=torch.float64)
    assert snapshot.values(x) == pytest.approx(expected.numpy(), abs=1e-5)
    if auxiliary:
        assert classes is not None
        assert mine_classes == pytest.approx(classes.numpy(), abs=1e-5)
        assert snapshot.classify(x).tolist() == classes.argmax(-1).tolist()
    else:
        assert mine_classes is None


def test_forward_does_not_depend_on_the_order_of_weights(learner: Learner) -> None:
    """Weights that come back from a file in the order of their names are the same policy."""
    snapshot = learner.snapshot()
    shuffled = replace(snapshot, weights=dict(sorted(snapshot.weights.items(), reverse=True)))

    assert np.array_equal(shuffled.values(X), snapshot.values(X))
    assert np.array_equal(shuffled.classify(X), snapshot.classify(X))
    assert shuffled.digest() == snapshot.digest()


def test_greedy_takes_the_first_on_a_tie(small: Small) -> None:
    """Equal values go to the lowest index."""
    snapshot = Learner(small()).snapshot()
    flat = {name: np.zeros_like(a) for name, a in snapshot.weights.items()}

    assert replace(snapshot, weights=flat).greedy(X).tolist() == [0, 0, 0, 0]


def test_classify_needs_the_head(small: Small) -> None:
    """A model without an auxiliary head classifies nothing, and says so."""
    with pytest.raises(InvalidValue, match="auxiliary head"):
        Learner(small(auxiliary=None)).snapshot().classify(X)


def test_normalize() -> None:
    """Scaled in float64 and clipped; a constant gives 0, and a large offset eats no digits."""
    x = np.array([[1e7 + 1, 5.0], [1e7 - 3, 5.0]], dtype=np.float32)
    scaled = normalize(x, np.array([1e7 + 0.25, 5.0]), np.array([2.25, 0.0]), clip=1.25)

    assert scaled.dtype == np.float32
    assert scaled == pytest.approx(np.array([[0.5, 0.0], [-1.25, 0.0]]), abs=1e-6)


def test_layer_shapes(small: Small) -> None:
    """Names and shapes of the weights, in the order of the network."""
    assert layer_shapes(small(c51={"hidden": [5, 7]})) == {
        "hidden.0.weight": (5, 2),
        "hidden.0.bias": (5,),
        "hidden.1.weight": (7, 5),
        "hidden.1.bias": (7,),
        "value.weight": (33, 7),
        "value.bias": (33,),
        "auxiliary.weight": (2, 7),
        "auxiliary.bias": (2,),
    }


# -- what a snapshot holds ------------------------------------------------------------------------


def test_version_zero_has_identity_moments(small: Small, step: Step) -> None:
    """Before the first update nothing is normalised, whatever data has come."""
    learner = Learner(small(pacing={"learning_starts": 1000}))
    learner.add([step(t, observation=[50.0, -9.0]) for t in range(10)])
    snapshot = learner.snapshot()

    assert (snapshot.version, snapshot.transitions) == (0, 0)
    assert (snapshot.mean.tolist(), snapshot.var.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_moments_are_latched_at_the_update(learner: Learner, step: Step) -> None:
    """A snapshot has the moments its update was made with; later data does not change it."""
    snapshot = learner.snapshot()
    before, values = snapshot.to_bytes(), snapshot.values(X)
    assert np.array_equal(snapshot.mean, learner.normalizer.mean)
    learner.add([step(20, observation=[1e3, 1e3])])

    assert learner.snapshot() is snapshot
    assert not np.array_equal(snapshot.mean, learner.normalizer.mean)
    learner.add([step(21, observation=[1e3, 1e3])])
    assert learner.snapshot().version == snapshot.version + 1
    assert np.array_equal(learner.snapshot().mean, learner.normalizer.mean)
    assert snapshot.to_bytes() == before
    assert np.array_equal(snapshot.values(X), values)


def test_snapshot_is_apart_from_the_network(learner: Learner) -> None:
    """Further updates do not reach a snapshot that was taken."""
    snapshot = learner.snapshot()
    digest = snapshot.digest()
    learner.update(3)

    assert snapshot.digest() == digest
    assert learner.snapshot().digest() != digest
    assert (snapshot.version, snapshot.update_count, snapshot.transitions) == (8, 8, 20)


def test_digest_is_of_what_the_policy_is(learner: Learner) -> None:
    """Weights, moments, version and specification count; generation and schedule do not."""
    snapshot = learner.snapshot()
    weights = {k: v.copy() for k, v in snapshot.weights.items()}
    weights["value.bias"][3] += 1e-3
    same = replace(snapshot, generation=9, transitions=5)
    others = [
        replace(snapshot, weights=weights),
        replace(snapshot, mean=snapshot.mean + 1e-9),
        replace(snapshot, var=snapshot.var + 1e-9),
        replace(snapshot, version=9),
        replace(snapshot, spec=ModelSpec.from_dict({**snapshot.spec.to_dict(), "seed": 1})),
    ]

    assert same.digest() == snapshot.digest()
    assert len({snapshot.digest(), *[other.digest() for other in others]}) == 6


# -- acting ---------------------------------------------------------------------------------------


def test_act_reply(learner: Learner) -> None:
    """A reply has the version, the actions in the environment's terms, values and probabilities."""
    actions = [{"label": "LMR"[i], "value": i - 1} for i in range(3)]
    spec = ModelSpec.from_dict({**learner.spec.to_dict(), "actions": actions})
    snapshot = replace(learner.snapshot(), spec=spec, generation=4)
    reply = snapshot.act(X, np.random.default_rng(0), deterministic=True, distribution=True)
    best = snapshot.values(X).argmax(axis=1)

    assert (reply.policy_version, reply.generation) == (8, 4)
    assert reply.indices.tolist() == best.tolist()
    assert [(a.index, a.label, a.value) for a in reply.actions] == [
        (i, "LMR"[i], i - 1) for i in best
    ]
    assert reply.actions[0]["label"] == reply["actions"][0].label
    assert np.array(reply.expected_values) == pytest.approx(snapshot.values(X))
    assert reply.behavior_prob == [1.0] * 4
    assert reply.support == np.linspace(-2, 2, 11).tolist()
    assert np.array(reply.distribution) == pytest.approx(snapshot.distribution(X))


def test_distribution_only_when_asked_for(learner: Learner) -> None:
    """The distribution is long, and absent unless asked for."""
    reply = learner.act(X)

    assert (reply.distribution, reply.support) == (None, None)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy(learner: Learner, epsilon: float) -> None:
    """The best action has probability 1 − ε + ε/A, the others ε/A, and that is what is reported."""
    count = 30_000
    reply = learner.act(np.repeat(X[1:2], count, axis=0), epsilon=epsilon)
    best = int(learner.snapshot().greedy(X[1:2])[0])
    expected = np.full(3, epsilon / 3)
    expected[best] += 1 - epsilon
    frequency = np.bincount(reply.indices, minlength=3) / count

    assert frequency == pytest.approx(expected, abs=0.012)
    assert reply.behavior_prob == pytest.approx(expected[reply.indices].tolist())


def test_deterministic_wins_over_epsilon(learner: Learner) -> None:
    """Asked for both, the best action is taken, with certainty, and no random number is drawn."""
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    reply = learner.snapshot().act(X, rng, deterministic=True, epsilon=1.0)

    assert reply.indices.tolist() == learner.snapshot().greedy(X).tolist()
    assert reply.behavior_prob == [1.0] * 4
    assert rng.bit_generator.state == before


def test_schedule_without_epsilon(learner: Learner, small: Small, step: Step) -> None:
    """Without an epsilon the model's schedule applies: in a snapshot as latched, here as it is."""
    snapshot = learner.snapshot()  # after 20 transitions, where the schedule has reached 0.1
    reply = snapshot.act(np.repeat(X, 500, axis=0), np.random.default_rng(0))
    assert sorted(set(np.round(reply.behavior_prob, 6))) == [0.033333, 0.933333]
    fresh = Learner(small(pacing={"learning_starts": 1000}))
    assert set(fresh.act(np.zeros((50, 2))).behavior_prob) == {1 / 3}
    fresh.add([step(t) for t in range(20)])
    assert max(fresh.act(np.zeros((50, 2))).behavior_prob) == pytest.approx(0.9 + 0.1 / 3)
    reply = fresh.snapshot().act(np.zeros((50, 2)), np.random.default_rng(0))
    assert set(reply.behavior_prob) == {1 / 3}


@pytest.mark.parametrize(
    "epsilon",
    [-0.01, 1.01, float("nan"), float("inf"), True, "0.1", [0.1], 1j, 10**5000, Decimal("0.1")],
    ids=lambda e: type(e).__name__,
)
def test_bad_epsilon(learner: Learner, epsilon: Any) -> None:
    """What is no probability is refused, also where it would not be used."""
    for deterministic in (False, True):
        with pytest.raises(InvalidValue, match=r"epsilon: expected a number in 0\.\.1"):
            learner.act(X, deterministic=deterministic, epsilon=epsilon)
    for array in (np.array([0.1]), np.array(0.1), np.True_, np.timedelta64(1)):
        with pytest.raises(InvalidValue, match="epsilon"):
            learner.act(X, epsilon=array)  # type: ignore[arg-type]


@pytest.mark.parametrize("epsilon", [0, 1, np.float32(0.5), np.int64(1)])
def test_numbers_as_epsilon(learner: Learner, epsilon: Any) -> None:
    """Integers and NumPy's scalars are numbers."""
    assert all(type(p) is float for p in learner.act(X, epsilon=epsilon).behavior_prob)


def test_single_observation(learner: Learner) -> None:
    """A single observation is a batch of one."""
    reply = learner.act([0.0, 500.0], deterministic=True)

    assert len(reply.actions) == len(reply.expected_values) == len(reply.behavior_prob) == 1
    assert reply.expected_values == learner.act([[0.0, 500.0]], deterministic=True).expected_values


def test_act_on_nothing(learner: Learner) -> None:
    """No observations get no actions."""
    reply = learner.act(np.zeros((0, 2)))

    assert (reply.actions, reply.expected_values, reply.behavior_prob) == ([], [], [])
    assert reply.indices.shape == (0,)


# -- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("auxiliary", [True, False])
def test_bytes_round_trip(small: Small, step: Step, auxiliary: bool, tmp_path: Path) -> None:
    """A snapshot comes back from its bytes whole, and the same snapshot has the same bytes."""
    overrides: dict[str, Any] = {} if auxiliary else {"auxiliary": None}
    learner = Learner(small(**overrides), generation=3)
    learner.add([step(t) for t in range(10)])
    snapshot = learner.snapshot()
    back = PolicySnapshot.from_bytes(snapshot.to_bytes())
    (tmp_path / "policy.safetensors").write_bytes(snapshot.to_bytes())

    assert back.to_bytes() == snapshot.to_bytes()
    assert back.digest() == snapshot.digest()
    assert (back.spec, back.generation, back.transitions) == (snapshot.spec, 3, 10)
    assert np.array_equal(back.values(X), snapshot.values(X))
    for path in (tmp_path, tmp_path / "policy.safetensors"):
        assert PolicySnapshot.open(path).digest() == snapshot.digest()


def test_open_nothing(tmp_path: Path) -> None:
    """A place without a policy is named."""
    with pytest.raises(CheckpointError, match=r"policy\.safetensors: expected a policy's file"):
        PolicySnapshot.open(tmp_path)
    with pytest.raises(CheckpointError, match="nowhere: expected a policy's file"):
        PolicySnapshot.open(tmp_path / "nowhere")


def taken_apart(learner: Learner) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and tensors of a policy's bytes."""
    data = learner.snapshot().to_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["policy"])
    return header, load(data)


HEADERS: list[Any] = [
    *[{name: None} for name in ("format", "spec", "version", "generation")],
    *[{name: ...} for name in ("format", "spec", "version", "update_count", "transitions")],
    {"generation": ...},
    {"format": "jormungandr-policy-2"},
    {"version": "1"},
    {"version": -1},
    {"version": 1.5},
    {"version": True},
    {"transitions": -1},
    {"spec": {}},
    {"spec": []},
    {"spec": {"observation": {"shape": [2]}, "actions": 0}},
    {"spec": {"observation": {"shape": [3]}, "actions": 3}},
    "[]",
    "null",
    '"x"',
    "{",
    "",
    "[" * 100_000,
]


@pytest.mark.parametrize("change", HEADERS, ids=lambda change: str(change)[:30])
def test_bad_header(learner: Learner, change: Any) -> None:
    """A header that is not ours, or does not describe these weights, is refused."""
    header, tensors = taken_apart(learner)
    if isinstance(change, dict):
        header = {k: v for k, v in {**header, **change}.items() if v is not ...}
        change = json.dumps(header)
    with pytest.raises(CheckpointError, match="policy"):
        PolicySnapshot.from_bytes(save(tensors, metadata={"policy": change}))


TENSORS: list[dict[str, Any]] = [
    {"value.weight": None},
    {"moments.mean": None},
    {"value.weight": np.zeros((33, 9), dtype=np.float32)},
    {"value.weight": np.zeros((8, 33), dtype=np.float32)},
    {"value.bias": np.zeros((33, 1), dtype=np.float32)},
    {"value.bias": np.full(33, np.nan, dtype=np.float32)},
    {"value.bias": np.full(33, np.inf, dtype=np.float32)},
    {"value.bias": np.full(33, 1e39)},
    {"value.bias": np.zeros(33, dtype=np.int64)},
    {"value.bias": np.zeros(33, dtype=np.bool_)},
    {"hidden.0.bias": np.zeros(8, dtype=np.float16)},
    {"moments.mean": np.array([0.0, np.nan])},
    {"moments.mean": np.zeros(3)},
    {"moments.var": np.array([1.0, -1e-9])},
    {"moments.var": np.array([1.0, np.inf])},
]


@pytest.mark.parametrize("change", TENSORS, ids=lambda change: next(iter(change)))
def test_bad_tensors(learner: Learner, change: dict[str, Any]) -> None:
    """A tensor missing, of another shape or dtype, or not finite, is refused by name."""
    header, tensors = taken_apart(learner)
    tensors = {k: v for k, v in {**tensors, **change}.items() if v is not None}
    with pytest.raises(CheckpointError) as caught:
        PolicySnapshot.from_bytes(save(tensors, metadata={"policy": json.dumps(header)}))

    assert caught.value.where == f"policy.{next(iter(change))}"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"\xff" * 16,
        (2**62).to_bytes(8, "little"),
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        None,
        5,
        "text",
    ],
    ids=lambda data: repr(data)[:20],
)
def test_garbage(data: Any) -> None:
    """Bytes that are no policy are refused in our own words."""
    with pytest.raises(CheckpointError, match="policy: expected safetensors of a policy"):
        PolicySnapshot.from_bytes(data)


def test_cut_or_grown_bytes(learner: Learner) -> None:
    """A policy cut at any of many places, or with something after it, is refused."""
    data = learner.snapshot().to_bytes()
    for cut in [data[:n] for n in range(0, len(data), 97)] + [data[:-1], data + b"x"]:
        with pytest.raises(CheckpointError):
            PolicySnapshot.from_bytes(cut)


def test_raw_observations_are_bounded(small: Small) -> None:
    """Without normalisation, elements that float32 just holds give values, and no NaN."""
    learner = Learner(small(observation={"shape": [2], "normalize": False}))
    reply = learner.act([[3e38, 3e38], [1e6, 1e6]], deterministic=True)

    assert np.isfinite(reply.expected_values).all()
    assert reply.expected_values[0] == reply.expected_values[1]
