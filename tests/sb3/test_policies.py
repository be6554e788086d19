"""C51Policy: made from a learner's policy, moments that stay put, files, copies, and its kinds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.vec_env import VecEnv

from jormungandr import Learner, ModelSpec
from jormungandr.errors import CheckpointError, DtypeMismatch, InvalidInput, InvalidValue
from jormungandr.inputs import normalize
from jormungandr.numerics.moments import RunningMoments
from jormungandr.sb3 import (
    C51,
    C51Policy,
    CnnPolicy,
    MultiInputPolicy,
    ObservationMoments,
    PrioritizedReplayBuffer,
)
from jormungandr_envs import OUSpreadEnv

Build = Callable[..., C51]
Walks = Callable[..., VecEnv]
Small = Callable[..., ModelSpec]
Step = Callable[..., dict[str, Any]]


def trained(spec: ModelSpec, step: Step) -> Learner:
    """Return a learner whose policy and moments are no longer the initial ones."""
    learner, rng = Learner(spec), np.random.default_rng(0)
    scale, offset = np.array([30.0, 0.01]), np.array([1000.0, -5.0])
    for t in range(24):
        one, two = rng.normal(size=(2, 2)) * scale + offset
        learner.add(
            [step(t, observation=one.tolist(), next_observation=two.tolist(), reward=t % 2)]
        )
    learner.update(20)
    return learner


def observations(count: int = 500) -> NDArray[np.float32]:
    """Return observations like the training ones, and some far outside."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(count, 2)) * (30.0, 0.01) + (1000.0, -5.0)
    x[::10] *= 100.0
    return x.astype(np.float32)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"observation": {"shape": [2], "normalize": False}},
        {"observation": {"shape": [2], "clip": 1.5}},
        {"auxiliary": None, "c51": {"hidden": [16, 5], "atoms": 7, "support": [-1.0, 3.0]}},
    ],
    ids=["auxiliary", "raw", "clip", "sizes"],
)
def test_a_snapshot_acts_alike(small: Small, step: Step, fields: dict[str, Any]) -> None:
    """Values within 1e-5 of the NumPy forward, and the same actions, from one and from many."""
    snapshot = trained(small(**fields), step).snapshot()
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    x = observations()
    if policy.moments is None:
        x = ((x - (1000.0, -5.0)) / (30.0, 0.01)).clip(-10, 10).astype(np.float32)
    with torch.no_grad():
        logits = policy.q_net.logits(torch.as_tensor(x)).numpy()
        values = policy.q_net(torch.as_tensor(x)).numpy()
        target = policy.q_net_target(torch.as_tensor(x)).numpy()
    actions, state = policy.predict(x, deterministic=True)
    single = [int(policy.predict(row)[0]) for row in x[:20]]
    expected = snapshot.values(x)
    clear = np.diff(np.sort(expected, axis=1))[:, -1] > 1e-5  # no tie

    assert logits == pytest.approx(snapshot.logits(x)[0], abs=1e-5)
    assert values == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(target, values)
    assert len(set(snapshot.greedy(x).tolist())) > 1
    assert actions[clear].tolist() == snapshot.greedy(x)[clear].tolist()
    assert single == actions[:20].tolist()
    assert (actions.dtype, state) == (np.int64, None)


def test_from_checkpoint(small: Small, step: Step, tmp_path: Path) -> None:
    """A learner's checkpoint and a policy's file give the same policy, anything else an error."""
    learner = trained(small(), step)
    learner.save(tmp_path / "checkpoint")
    (tmp_path / "policy.safetensors").write_bytes(learner.snapshot().to_bytes())
    policies = [
        C51Policy.from_checkpoint(tmp_path / "checkpoint", device="cpu"),
        C51Policy.from_checkpoint(str(tmp_path / "policy.safetensors"), device="cpu"),
    ]
    x = observations()

    for policy in policies:
        assert policy.predict(x)[0].tolist() == learner.snapshot().greedy(x).tolist()
    with pytest.raises(CheckpointError, match="a policy's file"):
        C51Policy.from_checkpoint(tmp_path / "nowhere")
    (tmp_path / "bad").write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError):
        C51Policy.from_checkpoint(tmp_path / "bad")


def test_a_learners_policy_is_evaluated_by_sb3() -> None:
    """evaluate_policy takes it as it takes every policy of SB3."""
    snapshot = Learner(ModelSpec.preset("ou-note")).snapshot()
    policy = C51Policy.from_snapshot(snapshot, device="cpu")
    returns, lengths = evaluate_policy(
        policy, make_vec_env(OUSpreadEnv, seed=0), n_eval_episodes=3, return_episode_rewards=True
    )

    assert lengths == [48, 48, 48]
    assert isinstance(returns, list)
    assert np.isfinite(returns).all()


def test_values_are_means_of_the_distribution(model: Build) -> None:
    """`q_net(obs)` are expected returns of raw observations; predictions are their largest."""
    learned = model().learn(60)
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(50, 2)) + 100, dtype=torch.float32)
    with torch.no_grad():
        probs = learned.q_net.distribution(x).numpy().astype(np.float64)
        values = learned.q_net(x).numpy()

    assert probs.shape == (50, 3, 11)
    assert probs.sum(axis=-1) == pytest.approx(1.0)
    assert values == pytest.approx(probs @ np.linspace(-2, 2, 11), abs=1e-6)
    assert learned.predict(x.numpy(), deterministic=True)[0].tolist() == (
        values.argmax(axis=1).tolist()
    )


def rows_of(replay: PrioritizedReplayBuffer) -> NDArray[np.float32]:
    """Return both observations of every transition in the order they came, (2 · B, D)."""
    rows = replay.size()
    both = np.stack([replay.observations[:rows], replay.next_observations[:rows]], axis=2)
    return both.reshape(-1, both.shape[-1])


def latched(learned: C51) -> list[list[float]]:
    """Return what normalises now."""
    moments = learned.policy.moments
    assert moments is not None
    return [moments.mean.tolist(), moments.var.tolist()]


def test_moments_are_of_the_training_data(model: Build) -> None:
    """They count both observations of every transition, bit for bit as RunningMoments does."""
    learned = model(buffer_size=10_000, gradient_steps=2).learn(200)
    replay, moments = learned.replay_buffer, learned.policy.moments
    assert isinstance(replay, PrioritizedReplayBuffer)
    assert moments is not None
    expected = RunningMoments((2,))
    for row in rows_of(replay):
        expected.update(row[None])
    running = {name: getattr(moments, name) for name in expected.state()}

    assert moments.running().count == 400
    assert {k: v.numpy().tobytes() for k, v in running.items()} == {
        k: v.tobytes() for k, v in expected.state().items()
    }
    assert latched(learned) == [expected.mean.tolist(), expected.var.tolist()]


def test_moments_change_at_updates_only(model: Build, walk: Walks) -> None:
    """Before the first update they are the identity; acting and evaluating move nothing."""
    learned = model(learning_starts=100)
    learned.learn(96)
    assert latched(learned) == [[0.0, 0.0], [1.0, 1.0]]
    learned.learn(16, reset_num_timesteps=False)
    before, state = latched(learned), copy.deepcopy(learned.policy.state_dict())
    assert before[0][0] == pytest.approx(100.0, abs=3.0)
    assert before[1][0] == pytest.approx(9.0, rel=0.5)

    learned.predict(np.full((5, 2), 1e6, dtype=np.float32))
    evaluate_policy(learned, walk(1), n_eval_episodes=2)
    learned.policy(torch.full((5, 2), 1e6))
    assert all(torch.equal(v, state[k]) for k, v in learned.policy.state_dict().items())

    learned.learning_starts = 10**6
    learned.learn(16, reset_num_timesteps=False)
    assert latched(learned) == before
    assert learned.policy.moments is not None
    assert learned.policy.moments.running().count == 2 * 128


def test_normalisation_is_the_learners() -> None:
    """The torch form equals the NumPy form, bit for bit, and the policy's networks use it."""
    moments = ObservationMoments((2,), clip=2.0)
    moments.update(observations())
    assert moments.mean.tolist() == [0.0, 0.0]
    moments.latch()
    x = observations()
    expected = normalize(x, moments.mean.numpy(), moments.var.numpy(), 2.0)

    assert moments(torch.as_tensor(x)).numpy().tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="finite numbers"):
        moments.update(np.array([[np.nan, 0.0]], dtype=np.float32))


def test_files(model: Build, tmp_path: Path) -> None:
    """`policy.save` keeps every argument and the moments; loaded, it predicts alike."""
    learned = model(clip_observations=3.0, double=True).learn(60)
    learned.policy.save(str(tmp_path / "policy.pth"))
    back = C51Policy.load(str(tmp_path / "policy.pth"), device="cpu")
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32) * 3 + 100

    assert back.predict(x)[0].tolist() == learned.policy.predict(x)[0].tolist()
    assert back.moments is not None
    assert (back.moments.clip, back.net_arch, back.head["atoms"]) == (3.0, [8, 8], 11)
    state, other = learned.policy.state_dict(), back.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)
    assert sorted(n for n in state if not n.startswith(("q_net.q_net", "q_net_target.q_net"))) == [
        f"moments.{name}" for name in ("count", "mean", "shift", "sums", "var")
    ]


def test_a_networks_file(model: Build, tmp_path: Path) -> None:
    """A network saved on its own keeps the moments that it normalises with."""
    learned = model().learn(60)
    learned.q_net.save(str(tmp_path / "network.pth"))
    back = type(learned.q_net).load(str(tmp_path / "network.pth"), device="cpu")
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(9, 2)) + 100).float()

    with torch.no_grad():
        assert torch.equal(back(x), learned.q_net(x))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies(model: Build, how: Callable[[C51Policy], C51Policy]) -> None:
    """A copied or pickled policy acts alike, and has networks and moments of its own."""
    learned = model().learn(60)
    other = how(learned.policy)
    x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32) * 3 + 100
    before = learned.policy.predict(x)[0].tolist()
    assert other.predict(x)[0].tolist() == before
    assert other.moments is not None
    values = other.q_net(torch.as_tensor(x))
    other.moments.update(x * 50)
    other.moments.latch()

    assert learned.policy.predict(x)[0].tolist() == before
    assert not torch.equal(other.q_net(torch.as_tensor(x)), values)  # still shared inside


def image_env() -> VecEnv:
    """Return images of 40 × 40."""
    return make_vec_env(
        lambda: FakeImageEnv(screen_height=40, screen_width=40, n_channels=1, discrete=True), 2
    )


def spread() -> VecEnv:
    """Return vectors, which have moments."""
    return make_vec_env("OUSpread-v0", 2)


def identity() -> VecEnv:
    """Return discrete observations."""
    return make_vec_env(lambda: IdentityEnv(4), 2)


def mixed() -> VecEnv:
    """Return Dicts of images and vectors."""
    return make_vec_env(SimpleMultiObsEnv, 2)


@pytest.mark.parametrize(
    ("policy", "env", "kind", "arch"),
    [
        ("MlpPolicy", spread, C51Policy, [128, 128]),
        ("MlpPolicy", identity, C51Policy, [128, 128]),
        ("CnnPolicy", image_env, CnnPolicy, []),
        ("MultiInputPolicy", mixed, MultiInputPolicy, [128, 128]),
        (C51Policy, spread, C51Policy, [128, 128]),
    ],
    ids=["Mlp-Box", "Mlp-Discrete", "Cnn", "MultiInput", "class"],
)
@pytest.mark.parametrize("n_steps", [1, 3])
def test_every_policy_trains(
    model: Build,
    tmp_path: Path,
    policy: Any,
    env: Callable[[], VecEnv],
    kind: type[C51Policy],
    arch: list[int],
    n_steps: int,
) -> None:
    """Each name learns on an environment made for it, keeps its actions in a file, and acts."""
    venv = env()
    learned = model(venv, policy, policy_kwargs=None, n_steps=n_steps)
    first = [p.detach().clone() for p in learned.q_net.parameters()]
    learned.learn(20)
    learned.save(tmp_path / "model")
    back = C51.load(tmp_path / "model", env=venv, device="cpu")
    obs = venv.reset()
    assert not isinstance(obs, tuple)
    actions = [each.predict(obs, deterministic=True)[0].tolist() for each in (learned, back)]

    assert type(learned.policy) is kind
    assert learned.policy.net_arch == arch
    assert not all(
        torch.equal(a, b) for a, b in zip(first, learned.q_net.parameters(), strict=True)
    )
    assert (learned.policy.moments is not None) == (env is spread)
    assert len(actions[0]) == 2
    assert actions[0] == actions[1]


class FlattenImages(FlattenExtractor):
    """An extractor of one's own."""


def test_extractors(model: Build) -> None:
    """The names bring SB3's extractors, and another one may be given."""
    cnn = model(image_env(), "CnnPolicy", policy_kwargs=None)
    flat = model(
        image_env(), "CnnPolicy", policy_kwargs={"features_extractor_class": FlattenImages}
    )
    both = model(mixed(), "MultiInputPolicy")

    assert isinstance(cnn.q_net.features_extractor, NatureCNN)
    assert isinstance(flat.q_net.features_extractor, FlattenImages)
    assert flat.policy.net_arch == [128, 128]
    assert isinstance(both.q_net.features_extractor, CombinedExtractor)
    assert cnn.q_net.features_extractor is not cnn.q_net_target.features_extractor


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        (np.full((36, 36), 0.5, np.float32), DtypeMismatch),  # divided by 255 already
        (np.full((36, 36), 200.0), DtypeMismatch),
        (np.full((36, 36), 256), InvalidValue),
        (np.full((36, 36), -1), InvalidValue),
        (np.ones((36, 36), np.bool_), DtypeMismatch),
    ],
)
def test_pixels_are_bytes(shown: NDArray[Any], error: type[InvalidInput]) -> None:
    """An image of another kind would be divided by 255, and acted on in the dark."""
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": [36, 36], "dtype": "uint8"},
            "actions": 2,
            "c51": {"hidden": 8},
            "replay": {"capacity": 4},
        }
    )
    policy = C51Policy.from_snapshot(Learner(spec).snapshot())
    assert (
        policy.predict(np.full((36, 36), 200))[0]
        == policy.predict(np.full((36, 36), 200, np.uint8))[0]
    )
    with pytest.raises(error, match=r"observation: expected integers in 0\.\.255"):
        policy.predict(shown)


def test_pixels_inside_a_dict_are_bytes() -> None:
    """The part is named."""
    model = C51("MultiInputPolicy", SimpleMultiObsEnv(), buffer_size=10)
    observation = model.observation_space.sample()
    model.predict(observation)
    with pytest.raises(DtypeMismatch, match=r"observation\.img: expected integers"):
        model.predict({**observation, "img": observation["img"] / 255})
