"""Stable-Baselines3's files: told apart without running them, and played as they act."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm

from jormungandr.cli import archives
from jormungandr.cli.archives import ArchiveContender
from jormungandr.cli.contenders import Contender
from jormungandr.cli.matches import play
from jormungandr.cli.opening import open_contender
from jormungandr.errors import CheckpointError, InvalidValue, JormungandrError
from jormungandr.sb3 import C51


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model of each algorithm after a hundred steps of Coins."""
    folder = tmp_path_factory.mktemp("models")
    made: dict[str, BaseAlgorithm] = {
        "dqn": DQN("MlpPolicy", "Coins-v0", learning_starts=50, seed=0, device="cpu"),
        "c51": C51("MlpPolicy", "Coins-v0", learning_starts=50, seed=0, device="cpu"),
        "ppo": PPO("MlpPolicy", "Coins-v0", n_steps=50, batch_size=50, seed=0, device="cpu"),
        "a2c": A2C("MlpPolicy", "Coins-v0", n_steps=50, seed=0, device="cpu"),
    }
    for name, model in made.items():
        model.learn(100).save(folder / f"{name}.zip")
    return folder


def opened(given: str, env_id: str = "Coins-v0") -> Contender:
    """Open a contender for an environment."""
    return open_contender(given, gymnasium.make(env_id), "--policy")


def rewritten(source: Path, target: Path, **changes: Any) -> Path:
    """Copy a model with other entries of its data."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                content = json.dumps({**json.loads(content), **changes}).encode()
            new.writestr(name, content)
    return target


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("", "dqn"), ("", "c51"), ("", "ppo"), *((f"{n}:", n) for n in ("dqn", "c51", "ppo", "a2c"))],
)
def test_a_model_acts_as_it_does_in_its_own_library(files: Path, prefix: str, name: str) -> None:
    """Episode by episode its returns are those of a loop over its own `predict`."""
    given = f"{prefix}{files / name}.zip"
    contender = opened(given)
    assert isinstance(contender, ArchiveContender)
    ours = play(contender, gymnasium.make("Coins-v0"), episodes=4, seed=30, max_steps=100)

    model = {"dqn": DQN, "c51": C51, "ppo": PPO, "a2c": A2C}[name].load(files / f"{name}.zip")
    env, theirs = gymnasium.make("Coins-v0"), []
    for seed in range(30, 34):
        observation, _ = env.reset(seed=seed)
        theirs.append(0.0)
        for _ in range(6):
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, *_ = env.step(int(action))
            theirs[-1] += float(reward)
    assert ours.returns.tolist() == theirs
    assert (contender.name, contender.description) == (
        given,
        f"{name.upper()}, after 100 timesteps",
    )


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ("a2c.zip", InvalidValue, r"expected dqn:, ppo:, a2c: or c51: in .*a2c.zip: a2c or trpo"),
        ("dqn:c51.zip", CheckpointError, r"expected a model of dqn, got .*c51.zip: c51"),
        ("ppo:a2c.zip", CheckpointError, r"expected a model of ppo, got .*a2c.zip: a2c or trpo"),
        ("a2c:ppo.zip", CheckpointError, r"expected a model of a2c, got .*ppo.zip: ppo"),
        ("nothing.zip", CheckpointError, r"expected a .zip of Stable-Baselines3, got .*nothing"),
        ("dqn:nothing", CheckpointError, r"expected a .zip of Stable-Baselines3, got .*nothing"),
        ("text.zip", CheckpointError, r"expected a .zip of Stable-Baselines3, got .*BadZipFile"),
        ("bare.zip", CheckpointError, r"expected a .zip .* got bare.zip without a model; model.sa"),
        ("hull.zip", CheckpointError, r"expected a .zip of Stable-Baselines3, got .*KeyError"),
    ],
)
def test_what_is_no_such_model_is_refused(
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    error: type[JormungandrError],
    text: str,
) -> None:
    """A file of another algorithm, of none, or of several, is named with what it is."""
    (tmp_path / "text.zip").write_text("no archive")
    for name, entry in (("bare", "other"), ("hull", "data")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr(entry, "{}")
    for file in files.iterdir():
        (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=r"--policy: " + text):
        opened(given)


def test_nothing_runs_before_the_algorithm_is_known(files: Path, tmp_path: Path) -> None:
    """A policy of another package is not loaded without a prefix; with one it is."""
    theirs = json.loads(zipfile.ZipFile(files / "dqn.zip").read("data"))["policy_class"]
    foreign = rewritten(
        files / "dqn.zip",
        tmp_path / "foreign.zip",
        policy_class={**theirs, "__module__": "elsewhere", ":serialized:": "not a pickle"},
    )
    with pytest.raises(InvalidValue, match=r"foreign.zip: a policy that is none of theirs"):
        opened(str(foreign))
    with pytest.raises(CheckpointError, match=r"expected a model of dqn, got .*foreign.zip: "):
        opened(f"dqn:{foreign}")


def test_no_replay_buffer_is_set_aside(files: Path) -> None:
    """A model that only acts does not need room for a million transitions."""
    contender = opened(str(files / "dqn.zip"))
    assert isinstance(contender, ArchiveContender)

    assert contender.model.replay_buffer.buffer_size == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_other_spaces_are_refused(files: Path, env_id: str) -> None:
    """A model sees and does what the environment it learned in showed and took."""
    with pytest.raises(InvalidValue, match=r"--policy: observation_space: expected .* got Box"):
        opened(str(files / "dqn.zip"), env_id)


def test_other_actions_are_refused(files: Path) -> None:
    """An equal observation space is not enough."""
    env = gymnasium.make("Coins-v0").unwrapped
    env.action_space = spaces.Discrete(4)
    with pytest.raises(InvalidValue, match=r"--policy: action_space: .* got Discrete\(3\)"):
        open_contender(str(files / "dqn.zip"), env, "--policy")


def test_images_fit_although_training_turned_them(tmp_path: Path) -> None:
    """A model of images stores them with channels first, and acts on what the environment shows."""
    env = gymnasium.make("Coins-v0").unwrapped
    env.observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    model = DQN("CnnPolicy", env, buffer_size=10, device="cpu")
    model.save(tmp_path / "images.zip")
    contender = open_contender(str(tmp_path / "images.zip"), env, "--policy")
    image = env.observation_space.sample()
    action, _ = contender.predict(image, None, np.array([True]))

    assert action.item() == model.predict(image, deterministic=True)[0]


def test_c51_heeds_a_mask(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these models only ours knows masks; the others act without."""
    for name, heeds in (("c51", True), ("dqn", False)):
        contender = opened(str(files / f"{name}.zip"))
        side, start = np.zeros(2, np.float32), np.array([True])
        best = contender.predict(side, None, start)[0].item()
        mask = np.arange(3)[None] != best
        assert (contender.predict(side, None, start, True, mask)[0].item() != best) == heeds


def test_its_library_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Without Stable-Baselines3 the command says what to install."""
    import sys

    from jormungandr.cli import main

    monkeypatch.delitem(sys.modules, archives.__name__)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)

    assert main(["evaluate", "Coins-v0", "--policy", "dqn:x.zip"]) == 1
    assert capsys.readouterr().err == (
        'jormungandr evaluate needs stable_baselines3: pip install "jormungandr-rl[sb3]"\n'
    )
