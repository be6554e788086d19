"""What acts: random within the mask, policies of ours, references; and how each is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jormungandr import ModelSpec, PolicySnapshot
from jormungandr.cli import contenders, main, opening
from jormungandr.cli.contenders import RandomContender, RemoteContender, SnapshotContender
from jormungandr.cli.matches import act_on_batch, play
from jormungandr.cli.opening import check_fits, open_contender
from jormungandr.errors import (
    CheckpointError,
    InvalidValue,
    JormungandrError,
    MissingField,
    ModelUnknown,
    Unavailable,
)
from jormungandr_envs import reference_action
from tests.service.serving import SPEC, Server, experience

ONE = np.array([True])


# -- random -------------------------------------------------------------------------------------


def test_random_is_uniform_over_the_allowed_actions() -> None:
    """Every allowed action is as likely as another, whatever the row's mask; no other is taken."""
    count = 30_000
    masks = np.tile([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 0]], (count // 3, 1)).astype(bool)
    random = RandomContender("random", spaces.Discrete(4))
    state = random.start(0, 0)
    actions, _ = random.predict(None, state, np.zeros(count, bool), True, masks)

    shares = [np.bincount(actions[k::3], minlength=4) / (count // 3) for k in range(3)]
    expected = [[0.25] * 4, [0, 0.5, 0, 0.5], [0, 0, 1, 0]]
    np.testing.assert_allclose(shares, expected, atol=0.02)  # four standard errors
    assert ((np.array(shares) == 0) == (np.array(expected) == 0)).all()


def test_random_starts_where_the_actions_do() -> None:
    """Actions are those of the space, also of one that does not start at 0."""
    random = RandomContender("random", spaces.Discrete(3, start=5))
    actions, _ = random.predict(None, random.start(0, 0), np.zeros(100, bool))

    assert set(actions.tolist()) == {5, 6, 7}


def test_random_has_a_stream_of_its_own_for_each_episode() -> None:
    """Seed and number of the episode decide its actions, and nothing else does."""

    def actions(seed: int, episode: int) -> list[int]:
        random = RandomContender("random", spaces.Discrete(100))
        np.random.seed(episode)  # what it must not look at
        return random.predict(None, random.start(seed, episode), np.zeros(20, bool))[0].tolist()  # type: ignore[no-any-return]

    assert actions(1, 0) == actions(1, 0)
    assert len({tuple(actions(*which)) for which in [(1, 0), (0, 1), (1, 1), (2, 0)]}) == 4


# -- policies of ours ---------------------------------------------------------------------------


def test_a_policy_acts_greedily(caller: Callable[..., PolicySnapshot]) -> None:
    """It takes the best action each time, although its schedule would explore."""
    policy = caller(exploration={"start": 1.0, "end": 1.0})
    env = gymnasium.make("Coins-v0")
    result = play(SnapshotContender("policy", policy), env, episodes=5, seed=0, max_steps=100)

    assert result.returns.tolist() == [6.0] * 5


def test_a_policy_with_masks_takes_the_best_allowed_action(
    caller: Callable[..., PolicySnapshot],
) -> None:
    """A mask is used by a model that has masks, is no matter to another, and is needed by it."""
    side, mask = np.array([2.0, 0.0], dtype=np.float32), np.array([[True, True, False]])
    masked = SnapshotContender("masked", caller(action_masks=True))
    plain = SnapshotContender("plain", caller())

    assert masked.predict(side, None, ONE, True, mask)[0].item() == 1
    assert masked.predict(side, None, ONE, True, ~mask)[0].item() == 2
    assert plain.predict(side, None, ONE, True, mask)[0].item() == 2
    with pytest.raises(MissingField, match="action_masks"):
        play(masked, gymnasium.make("Coins-v0"), episodes=1, seed=0, max_steps=100)


def test_a_path_is_a_policy(tmp_path: Path, caller: Callable[..., PolicySnapshot]) -> None:
    """What `PolicySnapshot.open` reads can be named: a file, and a folder with one in it."""
    file = tmp_path / "policy.safetensors"
    file.write_bytes(caller().to_bytes())
    env = gymnasium.make("Coins-v0")
    for given in (str(file), str(tmp_path)):
        found = open_contender(given, env, "--policy")
        assert isinstance(found, SnapshotContender)
        assert found.policy.digest() == caller().digest()
        assert (found.name, found.description) == (given, "policy version 7, after 7 updates")


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        (
            "CartPole-v1",
            "--policy: expected 4 features and 2 actions, as CartPole-v1 has,"
            " got 2 features and 3 actions",
        ),
        ("MountainCar-v0", ""),
        (
            "FrozenLake-v1",
            '--policy: expected {"type":"discrete","n":16,"start":0} and 4 actions,'
            " as FrozenLake-v1 has, got 2 features and 3 actions",
        ),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(
    tmp_path: Path, caller: Callable[..., PolicySnapshot], env_id: str, text: str
) -> None:
    """Observation and actions must be the environment's; an equal shape is enough."""
    file = tmp_path / "policy"
    file.write_bytes(caller().to_bytes())
    env = gymnasium.make(env_id)
    if not text:
        assert isinstance(open_contender(str(file), env, "--policy"), SnapshotContender)
        return
    with pytest.raises(InvalidValue) as refused:
        open_contender(str(file), env, "--policy")
    assert str(refused.value) == text


def test_bytes_fit_a_shape_and_an_image_does_not() -> None:
    """A shape given by hand says nothing of bytes, except where a picture needs them."""

    def env(shape: tuple[int, ...]) -> Any:
        made = gymnasium.make("Coins-v0").unwrapped
        made.observation_space = spaces.Box(0, 255, shape, np.uint8)
        return made

    check_fits(ModelSpec.from_dict({"observation": {"shape": [9]}, "actions": 3}), env((9,)), "m")
    flat = ModelSpec.from_dict({"observation": {"shape": [36, 36]}, "actions": 3})
    with pytest.raises(InvalidValue, match=r"m: expected .*uint8"):
        check_fits(flat, env((36, 36)), "m")


# -- references ---------------------------------------------------------------------------------


def test_the_reference_of_ou_is_the_documented_one() -> None:
    """Its return is the one that the environment reports for it, alone and as a batch."""
    env = gymnasium.make("OUSpread-v0", reference_threshold=0.3)
    reference = open_contender("reference", env, "--policy")
    result = play(reference, env, episodes=3, seed=8, max_steps=1_000)
    for i in range(3):
        env.reset(seed=8 + i)
        info: dict[str, Any] = {}
        for _ in range(48):
            info = env.step(1)[4]
        assert result.returns[i] == pytest.approx(info["reference_return"], rel=1e-12)

    z = np.linspace(-2, 2, 41, dtype=np.float32)
    observations = np.stack([z, 0 * z, 0 * z, 0 * z], axis=1)
    actions = act_on_batch(reference, 0)(observations)
    assert actions.tolist() == reference_action(z, 0.3).tolist()


def test_an_environment_may_bring_its_own() -> None:
    """A method `reference_action` of the bare environment is its reference; none is an error."""
    env = gymnasium.make("JudgedCoins-v0")
    reference = open_contender("reference", env, "--against")
    assert play(reference, env, episodes=1, seed=0, max_steps=100).returns.tolist() == [6.0]

    with pytest.raises(
        InvalidValue, match=r"--against: .*reference_action\(observation\), got Coi"
    ):
        open_contender("reference", gymnasium.make("Coins-v0"), "--against")


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("nowhere", CheckpointError, "--policy: expected a policy's file, .* got 'nowhere'"),
        ("Random", CheckpointError, "--policy: expected .* random or reference, got 'Random'"),
        (".", CheckpointError, "expected a policy's file, got "),
        (
            "service",
            CheckpointError,
            r"this is a service's data directory: name service/models/ou.1 or .*ou.2 or"
            r" .*ou.3 or service/models/ou.4 … \(5 in all\)$",
        ),
        (
            "service/models/ou",
            CheckpointError,
            "got 'service/models/ou'; there is service/models/ou.1 or ",
        ),
        ("good", CheckpointError, "got 'good'; there is good.safetensors$"),
        ("http://127.0.0.1:1", InvalidValue, "--policy: expected http://HOST:PORT/v1/models/ID"),
        ("http://127.0.0.1:1/", InvalidValue, "--policy: expected http://HOST:PORT/v1/models/ID"),
        ("http://127.0.0.1:1/v1/models/", InvalidValue, "or http://HOST:PORT/ID, got"),
        ("http://127.0.0.1:1/other/m", InvalidValue, "--policy: expected http://HOST:PORT"),
        ("http://127.0.0.1:1/m?x=1", InvalidValue, "--policy: expected http://HOST:PORT"),
    ],
)
def test_what_there_is_not_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    error: type[JormungandrError],
    text: str,
) -> None:
    """The error says what there could have been, and what is there under another name."""
    monkeypatch.chdir(tmp_path)
    for generation in range(1, 6):
        (tmp_path / "service" / "models" / f"ou.{generation}").mkdir(parents=True)
    (tmp_path / "good.safetensors").touch()
    with pytest.raises(error, match=text):
        open_contender(given, gymnasium.make("Coins-v0"), "--policy")


def test_actions_that_are_not_discrete_are_refused() -> None:
    """Nothing of this is for continuous actions."""
    with pytest.raises(InvalidValue, match="action_space: expected a Discrete, got Box"):
        open_contender("random", gymnasium.make("Pendulum-v1"), "--policy")


@pytest.mark.parametrize(
    ("given", "url", "model_id"),
    [
        ("http://h:8/v1/models/ou", "http://h:8", "ou"),
        ("http://h:8/v1/models/ou/", "http://h:8", "ou"),
        ("https://h/ou", "https://h", "ou"),
        ("https://h/behind/v1/models/o%75", "https://h/behind", "ou"),
    ],
)
def test_urls(monkeypatch: pytest.MonkeyPatch, given: str, url: str, model_id: str) -> None:
    """A URL is that of the service, and its last part the model's id."""
    asked: list[Any] = []

    class Served:
        spec = ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 3})

        def __init__(self, *given: str) -> None:
            asked.extend(given)

    monkeypatch.setattr(opening, "RemoteContender", Served)
    open_contender(given, gymnasium.make("Coins-v0"), "--policy")

    assert asked == [given, url, model_id]


# -- services -----------------------------------------------------------------------------------


def test_a_served_policy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It acts as the snapshot that the service keeps on disk, alone and in a batch of requests."""
    monkeypatch.delenv("JORMUNGANDR_TOKEN", raising=False)
    monkeypatch.setattr(contenders, "CHUNK", 2)
    monkeypatch.setattr(contenders, "PATIENCE", 0.0)
    env = gymnasium.make("Coins-v0")
    with Server(tmp_path) as server:
        monkeypatch.setenv("JORMUNGANDR_TOKEN_FILE", str(tmp_path / "operator-token"))
        with server.connect("coins") as endpoint:
            endpoint.create(SPEC)
            version = endpoint.wait(endpoint.add(experience(8, 8)).lsn)["policy_version"]
        served = open_contender(f"{server.url}/v1/models/coins", env, "--policy")
        kept = open_contender(str(tmp_path / "models" / "coins.1"), env, "--policy")
        assert isinstance(served, RemoteContender)
        assert isinstance(kept, SnapshotContender)

        both = [play(c, env, episodes=2, seed=0, max_steps=100) for c in (served, kept)]
        assert both[0].returns.tolist() == both[1].returns.tolist()
        rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
        assert act_on_batch(served, 0)(rows).tolist() == act_on_batch(kept, 0)(rows).tolist()
        np.testing.assert_allclose(served.values(rows), kept.values(rows), rtol=1e-6)
        assert served.description == f"served policy version {version}"
        with server.connect("coins") as endpoint:
            more = endpoint.add(experience(1, 3, actor_id="b"))
            endpoint.wait(more.lsn)
        assert version > 0
        moved = f"served policy versions {version} to {version + 3}: it learned meanwhile"
        assert served.description == moved

        with pytest.raises(ModelUnknown):
            open_contender(f"{server.url}/nothing", env, "--policy")
        with pytest.raises(InvalidValue, match="--policy: expected 4 features and 2 actions"):
            open_contender(f"{server.url}/coins", gymnasium.make("CartPole-v1"), "--policy")
        served.close()

        found = []
        for policy in (f"{server.url}/v1/models/coins", str(tmp_path / "models" / "coins.1")):
            out = tmp_path / "figures.json"
            stored = ["fqe", str(tmp_path), "coins", "--policy", policy, "--json", str(out)]
            assert main(stored) == 0
            found.append(json.loads(out.read_bytes()))
            assert found[-1].pop("policy") == policy
        assert found[0] == found[1]
        assert found[0]["policy_version"] == version + 3
        assert main(["fqe", str(tmp_path), "coins", "--policy", f"{server.url}/nothing"]) == 1
        assert "expected a model that exists, got 'nothing'" in capsys.readouterr().err

        arguments = ["--policy", f"{server.url}/coins", "--episodes", "3"]
        against = ["--against", str(tmp_path / "models" / "coins.1")]
        assert main(["evaluate", "Coins-v0", *arguments, *against]) == 0
        printed = capsys.readouterr().out.splitlines()
        served_as = f"(served policy version {version + 3})"
        assert printed[4] == f"  A: {server.url}/coins {served_as}"
        assert printed[-1].endswith("   0 won, 3 tied, 0 lost")
    with pytest.raises(Unavailable):
        open_contender(f"{server.url}/coins", env, "--policy")
    assert "expected a connection" in caplog.text
