"""Commands of the documents on environments that come with Gymnasium, cut short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.cli import main

Capture = pytest.CaptureFixture[str]
QUICK = ["--steps", "300", "--eval-episodes", "2", "--set", "pacing.learning_starts=100"]
QUICK += ["--set", "c51.n_step=1"]  # each transition is an item of its own, at once


def trained(capsys: Capture, out: Path, env_id: str, *settings: str) -> Learner:
    """Return what a command leaves behind, after a look at what it prints."""
    given = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", env_id, *QUICK, *given, "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"{env_id}, 2 episodes, seeds from 1000000000" in captured.out
    learner = Learner.load(out / "latest")
    assert (learner.info()["transitions"]["train"], learner.update_count) == (300, 100)
    return learner


def test_taxi_with_masks(capsys: Capture, tmp_path: Path) -> None:
    """Whatever it did was allowed, and what it may do next is stored."""
    learner = trained(capsys, tmp_path / "taxi", "Taxi-v4", "action_masks=true")
    taxi = gymnasium.make("Taxi-v4").unwrapped
    stored = learner.replay.newest(300)

    assert stored["observation"].shape == (300, 500)
    for state, action in zip(stored["observation"].argmax(axis=1), stored["action"], strict=True):
        assert taxi.action_mask(int(state))[action]
    following = stored["next_observation"].argmax(axis=1)
    expected = np.stack([taxi.action_mask(int(state)) for state in following])
    assert stored["next_action_mask"].tolist() == expected.astype(bool).tolist()


def test_frozen_lake(capsys: Capture, tmp_path: Path) -> None:
    """A number of sixteen is seen as one of sixteen."""
    learner = trained(capsys, tmp_path / "lake", "FrozenLake-v1")
    stored = learner.replay.newest(300)["observation"]

    assert stored.shape == (300, 16)
    assert (stored.sum(axis=1) == 1).all()


class Unfinished(gymnasium.Env[Any, Any]):
    """An environment that its author has not finished."""

    def __init__(self, fails: Exception | None = None) -> None:
        if fails is not None:
            raise fails


@pytest.mark.parametrize(
    ("entry", "fields", "unchecked", "message"),
    [
        (Unfinished, {"fails": TypeError("no display")}, False, "got TypeError: no display; it is"),
        ("tests.cli.test_newcomer:None_Such", {}, False, "got AttributeError: module 'tests.cli"),
        (Unfinished, {}, False, "got AttributeError: The environment must specify an"),
        (Unfinished, {}, True, "got one without observation_space; give it an observation_space"),
    ],
)
@pytest.mark.parametrize("command", ["train", "evaluate", "actor"])
def test_an_environment_that_is_not_finished(
    capsys: Capture,
    command: str,
    entry: Any,
    fields: dict[str, Any],
    unchecked: bool,
    message: str,
) -> None:
    """What its author has left is said in one line, with the place where it is raised."""
    more = {"train": [], "evaluate": ["--policy", "random"]}.get(command)
    if more is None:
        more = ["--url", "http://127.0.0.1:9", "--model", "m", "--actor-id", "a"]
    gymnasium.register("Odd-v0", entry, kwargs=fields, disable_env_checker=unchecked)
    try:
        assert main([command, "Odd-v0", *more]) == 1
    finally:
        del gymnasium.registry["Odd-v0"]
    error = capsys.readouterr().err

    assert f"jormungandr {command}: ENV: expected an environment that gymnasium.make" in error
    assert message in error
    assert error.count("\n") == 1


def test_a_bug_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of ours that fails shows where."""

    def broken(*_: object) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr("jormungandr_envs.ou_spread.observation_space", broken)
    with pytest.raises(AttributeError, match="a bug"):
        main(["train", "OUSpread-v0"])


def test_cart_pole_with_frames(capsys: Capture, tmp_path: Path) -> None:
    """Four frames, one for each decision of four steps."""
    settings = ["observation.frame_stack=4", "action_repeat=4"]
    learner = trained(capsys, tmp_path / "pole", "CartPole-v1", *settings)
    stored = learner.replay.newest(300)

    assert stored["observation"].shape == (300, 16)
    assert set(stored["reward"]) <= {1.0, 2.0, 3.0, 4.0}
    assert (stored["reward"] == 4).sum() > 150
