"""``jormungandr actor`` plays as the model's specification says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from jormungandr import ModelSpec
from jormungandr.cli import main
from jormungandr.errors import ModelUnknown
from tests.service.serving import Server

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a running service, which the environment's variables name."""
    folder = tmp_path_factory.mktemp("service")
    with Server(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JORMUNGANDR_URL", server.url)
        patch.setenv("JORMUNGANDR_TOKEN_FILE", str(folder / "operator-token"))
        patch.delenv("JORMUNGANDR_TOKEN", raising=False)
        yield server


def act(env_id: str, model: str, *more: str) -> list[str]:
    """Return the arguments with which two episodes are played."""
    return ["actor", env_id, "--model", model, "--actor-id", "a", "--episodes", "2", *more]


def test_frames_and_repeated_actions(capsys: Capture, server: Server) -> None:
    """The model is created as it was set, and the actor's steps are its decisions.

    The same settings are as good as none afterwards; others are refused, and nothing is played.
    """
    settings = ["--set", "observation.frame_stack=2", "--set", "action_repeat=4"]
    assert main(act("Coins-v0", "frames", *settings)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with server.connect("frames") as endpoint:
        info = endpoint.wait(lines[-1]["lsn"])

    assert [line["length"] for line in lines] == [2, 2]  # of six steps: four, and two to the end
    assert info["transitions"]["train"] == 4
    assert (info["spec"]["observation"]["frame_stack"], info["spec"]["action_repeat"]) == (2, 4)
    assert main(act("Coins-v0", "frames")) == 0  # of a model that exists nothing need be said
    assert json.loads(capsys.readouterr().out.splitlines()[0])["length"] == 2
    assert main(act("Coins-v0", "frames", *settings)) == 0
    capsys.readouterr()
    assert main(act("Coins-v0", "frames", "--set", "action_repeat=3")) == 1
    captured = capsys.readouterr()

    assert "differences at action_repeat" in captured.err
    assert captured.out == ""


def test_a_model_starts_from_the_preset_that_train_starts_from(
    capsys: Capture, server: Server
) -> None:
    """Unless another one is named; and one that exists is held to what is named."""
    default = ModelSpec.for_env(gymnasium.make("Coins-v0"), preset="default").to_dict()
    assert main(act("Coins-v0", "unasked")) == 0
    assert main(act("Coins-v0", "asked", "--preset", "control")) == 0
    found = []
    for model in ("unasked", "asked"):
        with server.connect(model) as endpoint:
            found.append(endpoint.info()["spec"])

    assert found[0] == default
    assert found[1]["replay"]["alpha"] == 0.0
    assert main(act("Coins-v0", "asked", "--preset", "control")) == 0
    capsys.readouterr()
    assert main(act("Coins-v0", "asked", "--preset", "default")) == 1
    assert "differences at" in capsys.readouterr().err


def test_masks(capsys: Capture, server: Server) -> None:
    """Masks are taken from the info, and the service takes what is sent."""
    assert main(act("MaskedCoins-v0", "masks", "--set", "action_masks=true")) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    with server.connect("masks") as endpoint:
        assert endpoint.wait(lines[-1]["lsn"])["transitions"]["train"] == 12

    assert main(act("Coins-v0", "masks")) == 1
    error = capsys.readouterr().err
    assert "info['action_mask']: expected a mask of 3 actions" in error
    assert "the environment has to tell it with every observation" in error


def test_labels_need_a_model_that_has_them(capsys: Capture, server: Server) -> None:
    """Nothing is played, and no model is made, where every label would be refused."""
    assert main(act("OUSpread-v0", "labels", "--label-key", "drift_label")) == 1
    assert "--label-key: expected a model with an auxiliary head" in capsys.readouterr().err
    with server.connect("labels") as endpoint, pytest.raises(ModelUnknown):
        endpoint.info()

    classes = """auxiliary={"classes": ["DOWN", "NONE", "UP"]}"""
    labels = ["--label-key", "drift_label", "--set", classes]
    assert main(act("OUSpread-v0", "labels", *labels)) == 0
    with server.connect("unlabelled") as endpoint:
        endpoint.create(ModelSpec.for_env(gymnasium.make("Coins-v0")))
    assert main(act("Coins-v0", "unlabelled", "--label-key", "x")) == 1
    assert "--label-key: expected a model with an auxiliary head" in capsys.readouterr().err


def test_a_token_for_actors_creates_no_model(
    capsys: Capture, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only act is told that there is no model yet, and who makes one."""
    data = ["--data-dir", str(server.data_dir)]
    assert main(["token", "create", "desk", *data, "--scope", "actor"]) == 0
    monkeypatch.setenv("JORMUNGANDR_TOKEN", capsys.readouterr().out.strip())
    assert main(act("Coins-v0", "not-yet")) == 1
    error = capsys.readouterr().err

    assert "token: expected one with the scope 'operate'" in error
    assert "model 'not-yet' does not exist yet, and an operator has to create it first" in error


def test_many_environments(capsys: Capture, server: Server, tmp_path: Path) -> None:
    """Several are played at once, wherever actions are chosen; every step of them is stored.

    A fallback acts where a local policy is too old; that is recorded as not the policy's.
    """
    for placement in ("remote", "local"):
        more = ["--num-envs", "3", "--placement", placement, "--spool", str(tmp_path / placement)]
        assert main(act("OUSpread-v0", "many", "--seed", "3", *more, "--actor-id", placement)) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(line["env"], line["length"]) for line in lines] == [(0, 48), (1, 48)]
    with server.connect("many") as endpoint:
        assert endpoint.info()["accepted"] == {"train": 2 * 3 * 48, "validation": 0}
    guard = ["--placement", "local", "--max-policy-age", "1e-9", "--fallback", "1"]
    assert main(act("OUSpread-v0", "many", *guard)) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["first_version"] for line in lines} == {-1}
    with server.connect("many") as endpoint:
        assert endpoint.info()["unversioned"] == 96


def test_returns_are_those_of_the_episodes(capsys: Capture, server: Server) -> None:
    """What a line says of an episode is what a single environment of that seed gives."""
    arguments = ["--set", "exploration.start=0", "--set", "exploration.end=0", "--seed", "5"]
    arguments += ["--set", "pacing.updates_per_transition=0", "--split", "validation"]
    assert main(act("OUSpread-v0", "seeded", *arguments)) == 0
    alone = json.loads(capsys.readouterr().out.splitlines()[0])
    assert main(act("OUSpread-v0", "seeded", *arguments, "--num-envs", "2")) == 0
    together = json.loads(capsys.readouterr().out.splitlines()[0])

    assert (together["env"], together["length"]) == (0, alone["length"])
    assert together["return"] == pytest.approx(alone["return"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--num-envs", "0"], "--num-envs: expected >= 1"),
        (["--num-envs", "2", "--follow"], "--num-envs: expected 1 with --follow"),
        (["--fallback", "1"], "--fallback: expected together with"),
        (["--deadline-ms", "5"], "--fallback: expected together with"),
        (
            ["--deadline-ms", "60000", "--fallback", "3"],
            "--fallback: expected an action in 0..2, got 3",
        ),
        (
            ["--max-policy-age", "9", "--fallback", "1"],
            "--max-policy-age: expected --placement local, got remote",
        ),
    ],
)
def test_arguments_that_do_not_go_together(
    capsys: Capture, server: Server, more: list[str], message: str
) -> None:
    """Nothing is played, and no model is made."""
    assert main(act("Coins-v0", "none", *more)) == 1
    assert message in capsys.readouterr().err
    with server.connect("none") as endpoint, pytest.raises(ModelUnknown):
        endpoint.info()
