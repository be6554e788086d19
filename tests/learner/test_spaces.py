"""Images, dicts and stacked frames through the learner: forward passes, checkpoints, learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.encoding import observations
from jormungandr.inputs import prepared
from jormungandr.weights import convolved

State = Callable[[Learner], dict[str, Any]]

IMAGE = {"shape": [36, 40, 2], "dtype": "uint8"}
OBSERVATIONS: dict[str, dict[str, Any]] = {
    "box of two axes": {"shape": [2, 3]},
    "stacked box": {"shape": [3], "frame_stack": 2},
    "discrete": {"space": {"type": "discrete", "n": 5, "start": -1}},
    "bits": {"space": {"type": "multi_binary", "shape": [4]}},
    "multi-discrete": {"space": {"type": "multi_discrete", "nvec": [2, 3]}},
    "dict": {
        "space": {
            "type": "dict",
            "spaces": {
                "x": {"type": "box", "shape": [2]},
                "n": {"type": "discrete", "n": 3},
                "b": {"type": "multi_binary", "shape": [2]},
            },
        }
    },
    "image": IMAGE,
    "stacked image": {"shape": [36, 40], "dtype": "uint8", "frame_stack": 3},
}


def spec_of(observation: dict[str, Any], **fields: Any) -> ModelSpec:
    """Return a model that learns from its eighth transition on."""
    return ModelSpec.from_dict(
        {
            "observation": observation,
            "actions": 3,
            "replay": {"capacity": 64},
            "validation": {"capacity": 16, "evaluate_every": 4},
            "pacing": {"learning_starts": 8, "updates_per_transition": 0.5},
            **fields,
            "c51": {"hidden": [8], "atoms": 11, "batch_size": 4, **fields.get("c51", {})},
        }
    )


def drawn(spec: ModelSpec, rng: np.random.Generator, count: int) -> list[Any]:
    """Return random observations, as the environment shows them."""

    def one(space: Any, shape: tuple[int, ...]) -> Any:
        kind = type(space).__name__
        if kind == "Box":
            pixels = space.dtype == "uint8"
            return (
                rng.integers(256, size=shape, dtype=np.uint8)
                if pixels
                else rng.normal(3.0, 2.0, size=shape).astype(np.float32)
            )
        if kind == "Discrete":
            return int(rng.integers(space.n)) + space.start
        if kind == "MultiBinary":
            return rng.integers(2, size=space.shape)
        if kind == "MultiDiscrete":
            return np.array([rng.integers(n) for n in space.nvec])
        return {k: one(part, getattr(part, "shape", ())) for k, part in space.spaces.items()}

    o = spec.observation
    return [one(o.described, o.shown_shape) for _ in range(count)]


def feed(learner: Learner, seed: int, count: int, start: int = 0) -> None:
    """Add random transitions, every fourth of them held out."""
    rng = np.random.default_rng(seed)
    seen = drawn(learner.spec, rng, count + 1)
    for t in range(count):
        learner.add(
            [
                {
                    "actor_id": "a",
                    "episode_id": "v" if t % 4 == 3 else "t",
                    "timestep": start + t,
                    "split": "validation" if t % 4 == 3 else "train",
                    "policy_version": 0,
                    "observation": seen[t],
                    "action": int(rng.integers(3)),
                    "reward": float(rng.normal()),
                    "next_observation": seen[t + 1],
                    "terminated": False,
                    "truncated": False,
                }
            ]
        )


@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_numpy_forward_equals_torch(observation: dict[str, Any]) -> None:
    """After updates, the snapshot's logits are the network's, for every kind of observation."""
    learner = Learner(spec_of(observation))
    feed(learner, 0, 40)
    snapshot = learner.snapshot()
    rows = drawn(learner.spec, np.random.default_rng(9), 5)
    x = observations(rows, learner.spec)
    with torch.no_grad():
        seen = torch.from_numpy(prepared(x, learner.spec, snapshot.mean, snapshot.var))
        expected, _ = learner.algorithm.online(seen)

    assert learner.update_count > 5
    assert snapshot.logits(x)[0] == pytest.approx(expected.numpy(), abs=1e-5)
    greedy = learner.act(rows, deterministic=True).indices
    assert greedy.tolist() == snapshot.greedy(x).tolist()
    assert (
        snapshot.predict(
            rows[0] if not learner.spec.observation.frame_stack > 1 else x[:1], deterministic=True
        )[0]
        .ravel()
        .tolist()
        == greedy[:1].tolist()
    )


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_checkpoint_goes_on_bit_for_bit(
    observation: dict[str, Any], n_step: int, state: State, tmp_path: Path
) -> None:
    """Replay, held-out store, windows and policies of any observation survive a checkpoint."""
    learner = Learner(spec_of(observation, c51={"n_step": n_step}))
    feed(learner, 0, 30)
    learner.save(tmp_path / "c")
    back = Learner.load(tmp_path / "c")
    for one in (learner, back):
        feed(one, 1, 10, start=30)

    assert state(back) == state(learner)
    assert back.replay.arrays["observation"].dtype == learner.spec.observation.stored_dtype
    opened = PolicySnapshot.from_bytes(learner.snapshot().to_bytes())
    assert opened.digest() == learner.snapshot().digest()


@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_moments_are_counted_for_every_kind(observation: dict[str, Any]) -> None:
    """Each training transition counts twice; bits, one-hots and pixels are not normalised."""
    learner = Learner(spec_of(observation))
    feed(learner, 0, 40)
    snapshot = learner.snapshot()
    moved = np.flatnonzero((snapshot.mean != 0) | (snapshot.var != 1)).tolist()

    assert learner.info()["normalizer"]["count"] == 2 * 30
    measured = {"box of two axes": 6, "stacked box": 6, "dict": 2}
    kind = next(name for name, o in OBSERVATIONS.items() if o is observation)
    assert len(moved) == measured.get(kind, 0)
    if kind == "dict":
        assert moved == [5, 6]  # b: 2, n: 3, x: 2


@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_no_observations(observation: dict[str, Any]) -> None:
    """An empty request has an empty answer, whatever an observation is."""
    assert Learner(spec_of(observation)).act([]).actions == []


def test_pixels_are_fractions() -> None:
    """The network sees a picture's channels first, between 0 and 1."""
    spec = spec_of(IMAGE)
    x = np.zeros((1, 36, 40, 2), dtype=np.uint8)
    x[0, 3, 4, 1], x[0, 5, 6, 0] = 255, 51
    seen = prepared(x, spec, np.zeros(0), np.zeros(0))

    assert (seen.shape, seen.dtype) == ((1, 2, 36, 40), np.float32)
    assert (seen[0, 1, 3, 4], seen[0, 0, 5, 6], seen.sum()) == (1.0, np.float32(0.2), 1.2)


def test_convolution() -> None:
    """Against a loop over every filter, place and pixel."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 9, 8)).astype(np.float32)
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    bias = rng.normal(size=4).astype(np.float32)
    expected = np.zeros((2, 4, 4, 3))
    for b, f, i, j in np.ndindex(*expected.shape):
        total = float(bias[f])
        for c, di, dj in np.ndindex(3, 3, 3):
            total += float(weight[f, c, di, dj]) * float(x[b, c, 2 * i + di, 2 * j + dj])
        expected[b, f, i, j] = max(total, 0.0)

    assert convolved(x, weight, bias, 2) == pytest.approx(expected, abs=1e-5)


def test_learns_from_pixels() -> None:
    """Which half of the picture is bright says which action pays."""
    spec = spec_of(
        {"shape": [36, 36], "dtype": "uint8"},
        c51={
            "hidden": [32],
            "support": [-1.0, 1.0],
            "batch_size": 32,
            "lr": 1e-3,
            "adam_eps": 1e-8,
        },
        pacing={"learning_starts": 64, "updates_per_transition": 0.5},
        replay={"capacity": 512},
    )
    learner, rng = Learner(spec), np.random.default_rng(0)

    def picture(right: int) -> NDArray[np.uint8]:
        image = rng.integers(0, 60, size=(36, 36), dtype=np.uint8)
        image[:, 18 * right : 18 * right + 18] += np.uint8(120)
        return image

    for t in range(320):
        right, action = int(rng.integers(2)), int(rng.integers(3))
        image = picture(right)
        learner.add(
            [
                {
                    "actor_id": "a",
                    "episode_id": f"e{t}",
                    "timestep": 0,
                    "split": "train",
                    "policy_version": -1,
                    "observation": image,
                    "action": action,
                    "reward": 1.0 if action == right else -0.5,
                    "next_observation": image,
                    "terminated": True,
                    "truncated": False,
                }
            ]
        )
    seen = [picture(i % 2) for i in range(20)]

    assert learner.act(seen, deterministic=True).indices.tolist() == [0, 1] * 10
