"""A learner's policy of any observation space, as one of Stable-Baselines3: it acts alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.encoding import observations
from jormungandr.errors import InvalidValue
from jormungandr.learner.network import initial_weights
from jormungandr.sb3 import C51Policy
from jormungandr.spaces import from_gymnasium
from tests.forked import Forks

BOX = spaces.Box(-5, 5, (3,), np.float32)
#: What an environment shows, and how many frames are stacked.
SPACES: dict[str, tuple[spaces.Space[Any], int]] = {
    "box": (BOX, 1),
    "box of float64": (spaces.Box(-5, 5, (2,), np.float64), 1),
    "box of two axes": (spaces.Box(-5, 5, (2, 3), np.float32), 1),
    "box of integers": (spaces.Box(-5, 5, (2, 1, 3), np.int32), 1),
    "stacked box": (BOX, 4),
    "stacked rows": (spaces.Box(-5, 5, (2, 3), np.float32), 3),
    "small pixels": (spaces.Box(0, 255, (5, 6, 3), np.uint8), 1),
    "stacked small pixels": (spaces.Box(0, 255, (5, 6), np.uint8), 3),
    "discrete": (spaces.Discrete(4), 1),
    "discrete from -1": (spaces.Discrete(3, start=-1), 1),
    "bits": (spaces.MultiBinary(3), 1),
    "bits of two axes": (spaces.MultiBinary([2, 2]), 1),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), 1),
    "multi-discrete from 5": (spaces.MultiDiscrete([2, 3], start=[5, -2]), 1),
    "dict": (
        spaces.Dict(
            {
                "z.last": BOX,
                "one": spaces.Discrete(3, start=7),
                "many": spaces.MultiDiscrete([3, 2], start=[1, 0]),
                "bits": spaces.MultiBinary([2, 2]),
                "pixels": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            }
        ),
        1,
    ),
    "grey": (spaces.Box(0, 255, (36, 40), np.uint8), 1),
    "channels last": (spaces.Box(0, 255, (36, 40, 3), np.uint8), 1),
    "most channels last": (spaces.Box(0, 255, (40, 36, 38), np.uint8), 1),
    "channels first": (spaces.Box(0, 255, (3, 36, 40), np.uint8), 1),
    "stacked grey": (spaces.Box(0, 255, (36, 40), np.uint8), 4),
    "stacked channels last": (spaces.Box(0, 255, (40, 36, 3), np.uint8), 2),
    "stacked channels first": (spaces.Box(0, 255, (3, 36, 37), np.uint8), 2),
}
VECTORS = list(SPACES)[:15]
COUNT = 12


def made(space: spaces.Space[Any], stack: int, **settings: Any) -> PolicySnapshot:
    """Return a policy of a space with moments of its own and values that lie apart."""
    described = msgspec.to_builtins(from_gymnasium(space))
    spec = ModelSpec.from_dict(
        {
            "observation": {"space": described, "frame_stack": stack, "clip": 1.5, **settings},
            "actions": 4,
            "c51": {"atoms": 7, "support": [-2.0, 3.0], "hidden": [16, 9]},
            "auxiliary": {"classes": ["up", "down"]},
        }
    )
    o, rng = spec.observation, np.random.default_rng(1)
    moments = rng.normal(size=o.moments_shape), rng.uniform(4, 9, size=o.moments_shape)
    mean, var = o.latched(*moments)
    weights = {name: 2.5 * w for name, w in initial_weights(spec, rng).items()}
    return PolicySnapshot(spec, 7, 7, 7, weights, mean, var)


def shown(space: spaces.Space[Any], stack: int) -> list[Any]:
    """Return observations as an environment shows them, frames stacked by its wrapper."""
    space.seed(0)
    if stack == 1:
        return [space.sample() for _ in range(COUNT)]
    return [np.stack([space.sample() for _ in range(stack)]) for _ in range(COUNT)]


def batched(rows: list[Any]) -> Any:
    """Return observations as a VecEnv shows them."""
    if isinstance(rows[0], dict):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def values_of(policy: C51Policy, batch: Any) -> NDArray[np.float32]:
    """Return what the network says of a batch, (B, A)."""
    with torch.no_grad():
        values = policy.q_net(policy.obs_to_tensor(batch)[0]).numpy()
    assert isinstance(values, np.ndarray)
    return values


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("name", SPACES)
def test_it_acts_as_the_snapshot(name: str, normalize: bool) -> None:
    """Values to 1e-5 and the same actions, of one and of many, masked too."""
    space, stack = SPACES[name]
    snapshot = made(space, stack, normalize=normalize)
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    rows = shown(space, stack)
    batch, encoded = batched(rows), observations(rows, snapshot.spec)
    expected, mask = snapshot.values(encoded), np.eye(4, dtype=bool)[::-1][np.arange(COUNT) % 4]
    mask |= np.arange(4) == 0
    actions, state = policy.predict(batch, deterministic=True)

    assert np.ptp(expected, axis=0).max() > 0.02  # the observation matters
    assert values_of(policy, batch) == pytest.approx(expected, abs=1e-5)
    with torch.no_grad():
        target = policy.q_net_target(policy.obs_to_tensor(batch)[0]).numpy()
    assert np.array_equal(target, values_of(policy, batch))
    assert actions.tolist() == snapshot.greedy(encoded).tolist()
    assert actions.shape == (COUNT,)
    assert actions.dtype == np.int64
    assert state is None
    alone = [policy.predict(row)[0] for row in rows]
    assert [(a.shape, int(a)) for a in alone] == [((), a) for a in actions.tolist()]
    masked = policy.predict(batch, action_masks=mask)[0].tolist()
    assert masked == snapshot.greedy(encoded, mask).tolist()
    assert int(policy.predict(rows[0], action_masks=mask[0])[0]) == masked[0]
    assert (policy.moments is not None) == (normalize and not snapshot.spec.observation.is_image)


@pytest.mark.parametrize("name", VECTORS)
def test_encoded_observations_are_taken_too(name: str) -> None:
    """The network takes vectors that are flattened already, as a snapshot does."""
    space, stack = SPACES[name]
    snapshot = made(space, stack)
    encoded = observations(shown(space, stack), snapshot.spec)
    with torch.no_grad():
        values = C51Policy.from_snapshot(snapshot, "cpu").q_net(torch.as_tensor(encoded)).numpy()

    assert values == pytest.approx(snapshot.values(encoded), abs=1e-5)


ELSEWHERE = """
import pathlib
import numpy as np
import torch
from jormungandr.sb3 import C51Policy
for file in sorted(pathlib.Path().glob("*.zip")):
    policy = C51Policy.load(file, device="cpu")
    batch = dict(np.load(file.with_suffix(".npz")))
    batch = batch.get("alone", batch)
    with torch.no_grad():
        values = policy.q_net(policy.obs_to_tensor(batch)[0]).numpy()
    np.savez(file.with_suffix(".out"), values=values, actions=policy.predict(batch)[0])
"""


def test_a_fresh_process_acts_alike(tmp_path: Path, forks: Forks) -> None:
    """Saved and loaded elsewhere, each gives the same values and actions."""
    expected = {}
    for i, (space, stack) in enumerate(SPACES.values()):
        policy = C51Policy.from_snapshot(made(space, stack, normalize=i % 2 == 0), device="cpu")
        batch = batched(shown(space, stack))
        policy.save(str(tmp_path / f"{i}.zip"))
        np.savez(tmp_path / f"{i}.npz", **(batch if isinstance(batch, dict) else {"alone": batch}))
        expected[i] = values_of(policy, batch), policy.predict(batch)[0]
    assert forks.run(ELSEWHERE, tmp_path).returncode == 0

    for i, (values, actions) in expected.items():
        found = np.load(tmp_path / f"{i}.out.npz")
        assert found["values"] == pytest.approx(values, abs=1e-6)
        assert found["actions"].tolist() == actions.tolist()


@pytest.mark.parametrize("name", SPACES)
def test_space_is_the_environments(name: str) -> None:
    """It holds what the environment shows; only channels that come last go to the front."""
    space, stack = SPACES[name]
    seen = C51Policy.from_snapshot(made(space, stack), device="cpu").observation_space
    moved = {"channels last": (3, 36, 40), "most channels last": (38, 40, 36)}
    rows = shown(space, stack)

    if name in moved:
        assert seen.shape == moved[name]
        assert seen.dtype == np.uint8
    elif isinstance(space, spaces.Box):
        assert seen.shape == rows[0].shape
        assert seen.dtype == (np.uint8 if space.dtype == np.uint8 else np.float32)
    else:
        assert all(row in seen for row in rows)


class Pictures(FakeImageEnv):
    """Images whose channels come last, 40 × 44."""

    def __init__(self) -> None:
        super().__init__(screen_height=40, screen_width=44, n_channels=3, discrete=True)


def pictures() -> VecEnv:
    """Return two of them."""
    return make_vec_env(Pictures, 2, seed=0)


@pytest.mark.parametrize("wrapped", [pictures, lambda: VecTransposeImage(pictures())])
def test_sb3_evaluates_an_image_policy(wrapped: Callable[[], VecEnv]) -> None:
    """As the environment shows its images, and as Stable-Baselines3's models want them."""
    snapshot = made(spaces.Box(0, 255, (40, 44, 3), np.uint8), 1)
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    env = wrapped()
    seen = env.reset()
    assert isinstance(seen, np.ndarray)
    last = seen if seen.shape[-1] == 3 else np.moveaxis(seen, 1, -1)

    assert policy.predict(seen)[0].tolist() == snapshot.greedy(last).tolist()
    assert np.isfinite(evaluate_policy(policy, env, n_eval_episodes=2)[0])


def test_stacked_frames_are_gymnasiums() -> None:
    """The space is that of `FrameStackObservation`, whose observations it takes."""
    env = FrameStackObservation(Pictures(), 3)
    snapshot = made(Pictures().observation_space, 3)
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    seen, _ = env.reset(seed=0)

    assert policy.observation_space == env.observation_space
    assert int(policy.predict(seen)[0]) == int(snapshot.greedy(seen[None])[0])


def test_raw_elements_are_bounded() -> None:
    """Without moments an element counts as 1e6 at most, on either side, as in the snapshot."""
    snapshot = made(BOX, 1, normalize=False)
    snapshot.weights["hidden.0.weight"] *= np.float32(1e-6)
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    x = np.array([[1e9, -1e9, 5e5], [1e6, -1e6, 5e5]], dtype=np.float32)
    values = values_of(policy, x)

    assert values == pytest.approx(snapshot.values(x), abs=1e-5)
    assert values[0] == pytest.approx(values[1], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("discrete", 4, r"observation: expected 0\.\.3, got 4"),
        ("discrete from -1", -2, r"observation: expected -1\.\.1, got -2"),
        ("multi-discrete from 5", [5, 1], r"observation: expected -2\.\.0, got 1"),
        (
            "dict",
            {**SPACES["dict"][0].sample(), "one": np.int64(0)},
            r"observation\.one: expected 7\.\.9, got 0",
        ),
    ],
    ids=["discrete", "start", "multi", "dict"],
)
def test_integers_outside_are_refused(name: str, value: Any, message: str) -> None:
    """They would be one-hot nowhere; the error names the part and its range."""
    policy = C51Policy.from_snapshot(made(*SPACES[name]), device="cpu")
    given = value if isinstance(value, dict) else np.array(value)

    with pytest.raises(InvalidValue, match=message):
        policy.predict(given)


def test_a_dict_inside_a_dict_is_refused() -> None:
    """Stable-Baselines3 takes none; the error says where it is and what takes it."""
    nested = spaces.Dict({"a": BOX, "inner": spaces.Dict({"x": BOX})})
    with pytest.raises(InvalidValue, match=r"spaces\['inner'\]: expected no Dict.*PolicySnapshot"):
        C51Policy.from_snapshot(made(nested, 1))


@pytest.mark.parametrize("name", ["dict", "stacked grey"])
def test_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    """A checkpoint's policy goes the same way."""
    space, stack = SPACES[name]
    spec = made(space, stack).spec
    learner = Learner(spec)
    learner.save(tmp_path / "checkpoint")
    policy = C51Policy.from_checkpoint(tmp_path / "checkpoint", device="cpu")
    rows = shown(space, stack)
    expected = learner.snapshot().values(observations(rows, spec))

    assert values_of(policy, batched(rows)) == pytest.approx(expected, abs=1e-5)
