"""One observation is answered with the bits, and the draws, that its batch of one would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from jormungandr import ModelSpec, PolicySnapshot
from jormungandr.errors import InvalidValue, NonFinite, ShapeMismatch
from jormungandr.numerics.risk import lower_tail_mean
from jormungandr.protocol import InferenceReply
from jormungandr.questions import Question
from jormungandr.weights import layer_shapes

SPECS: list[dict[str, Any]] = [
    {},
    {"observation": {"shape": [5], "normalize": False}},
    {"risk": {"kind": "cvar", "level": 0.3}},
    {"auxiliary": {"classes": ["up", "down"]}},
    {"c51": {"hidden": [7, 64, 33], "atoms": 101}},
    {"c51": {"dueling": True}},
    {"c51": {"noisy": True}},
    {"observation": {"space": {"type": "multi_binary", "shape": [5]}}},
    {"observation": {"space": {"type": "box", "shape": [5, 1]}}},
]


def made(seed: int, fields: dict[str, Any], actions: int = 3, gain: float = 0.5) -> PolicySnapshot:
    """Return a policy with weights of its own seed; its moments are not those of the start."""
    rng = np.random.default_rng(seed)
    c51 = {"hidden": [16, 16], "atoms": 51, "support": [-2, 2], **fields.get("c51", {})}
    given = {"observation": {"shape": [5]}, "actions": actions, **fields, "c51": c51}
    spec = ModelSpec.from_dict(given)
    weights = {
        name: rng.normal(scale=gain, size=shape).astype(np.float32)
        for name, shape in layer_shapes(spec).items()
    }
    size = spec.observation.stored_shape
    return PolicySnapshot(
        spec=spec,
        version=4,
        update_count=4,
        transitions=100,
        weights=weights,
        mean=rng.normal(size=size) * 100,
        var=rng.uniform(0, 50, size=size) ** 2,
    )


def expected(
    policy: PolicySnapshot, x: NDArray[Any], epsilon: float, deterministic: bool, seed: int
) -> tuple[list[float], int, float]:
    """Return values, action and its probability, from the pass of a batch and draws of arrays."""
    rng = np.random.default_rng(seed)
    acting = policy.with_noise(rng) if policy.spec.c51.noisy and not deterministic else policy
    probs = acting.distribution(x.reshape(1, -1))
    support = policy.support.astype(np.float32)
    scores = values = probs @ support
    if policy.spec.risk.kind == "cvar":
        scores = lower_tail_mean(support, probs, policy.spec.risk.level).astype(np.float32)
    first = int(scores.argmax())
    if deterministic or epsilon == 0:
        return values[0].tolist(), first, 1.0
    random, other = rng.random(1)[0] < epsilon, rng.integers(scores.shape[1], size=1)[0]
    taken = int(other) if random else first
    share = epsilon / scores.shape[1]
    return values[0].tolist(), taken, share + (1 - epsilon) * (taken == first)


def told(reply: InferenceReply) -> tuple[list[float], int, float]:
    """Return the same of a reply."""
    assert (reply.policy_version, reply.generation) == (4, 1)
    assert reply.distribution is None
    assert reply.support is None
    (values,), (action,), (probability,) = (
        reply.expected_values,
        reply.actions,
        reply.behavior_prob,
    )
    return values, action.index, probability


@settings(max_examples=200, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    fields=st.sampled_from(SPECS),
    actions=st.integers(2, 6),
    gain=st.sampled_from([0.5, 0.01]),
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e8, 3e37]),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    deterministic=st.booleans(),
)
def test_the_bits_and_draws_of_a_batch_of_one(
    seed: int,
    fields: dict[str, Any],
    actions: int,
    gain: float,
    scale: float,
    epsilon: float,
    deterministic: bool,
) -> None:
    """However one observation is given, and however it is asked for; clipped elements too."""
    policy = made(seed, fields, actions, gain)
    x = (scale * np.random.default_rng(seed).uniform(-1, 1, 5)).astype(np.float32)
    if fields.get("observation", {}).get("space", {}).get("type") == "multi_binary":
        x = (x > 0).astype(np.float32)
    o = policy.spec.observation
    shown = x.reshape(o.shown_shape)
    wanted = expected(policy, x, epsilon, deterministic, seed)
    options: dict[str, Any] = {"epsilon": epsilon, "deterministic": deterministic}

    for observation in (x, shown, shown[None], x.astype(np.float64), x[None], shown.tolist()):
        reply = policy.act(observation, np.random.default_rng(seed), **options)
        assert told(reply) == wanted
    question = Question(x[None], None, epsilon, deterministic, False)
    assert told(policy.answer([question], np.random.default_rng(seed))[0]) == wanted
    # Where the distribution is asked for, it goes the other way.
    whole = policy.act(x, np.random.default_rng(seed), **options, distribution=True)
    assert told(without_distribution(whole)) == wanted


def without_distribution(reply: InferenceReply) -> InferenceReply:
    """Return a reply without its distribution."""
    assert reply.distribution is not None
    reply.distribution = reply.support = None
    return reply


@pytest.mark.parametrize("fields", SPECS[:5], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(fields: dict[str, Any], bad: float) -> None:
    """By name, and before anything is drawn."""
    policy, rng = made(0, fields), np.random.default_rng(0)
    x = np.ones(5, dtype=np.float32)
    x[3] = bad

    with pytest.raises(NonFinite, match=r"observations\[0\]"):
        policy.act(x, rng, epsilon=0.5)
    with pytest.raises(ShapeMismatch):
        policy.act(x[:4], rng, epsilon=0.5)
    assert rng.random() == np.random.default_rng(0).random()


def test_bits_that_are_none_are_refused() -> None:
    """A float32 vector of the right length is not always an observation."""
    policy = made(0, SPECS[7])

    with pytest.raises(InvalidValue, match=r"observations\[0\]"):
        policy.act(np.full(5, 0.5, dtype=np.float32), np.random.default_rng(0))


def test_an_observation_is_left_as_it_is() -> None:
    """Nothing of the caller's is written to, and nothing of one call is seen by the next."""
    policy, rng = made(0, {}), np.random.default_rng(0)
    rows = rng.normal(size=(20, 5)).astype(np.float32) * 100
    rows.setflags(write=False)

    before = [told(policy.act(row, rng, deterministic=True)) for row in rows]

    assert [told(policy.act(row, rng, deterministic=True)) for row in rows] == before
    fresh = replace(policy)
    assert [told(fresh.act(row, rng, deterministic=True)) for row in rows] == before
