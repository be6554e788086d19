"""``jormungandr train``: what a specification says of the environment, and what is refused."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.cli import main
from jormungandr.cli.new_spec import spec_for
from jormungandr.spec import preset_names

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("Coins-v0", ["observation.frame_stack=2", "action_repeat=2"]),
        ("MaskedCoins-v0", ["action_masks=true"]),
    ],
)
def test_what_is_specified_is_trained_on_and_evaluated(
    capsys: Capture, tmp_path: Path, env_id: str, settings: list[str]
) -> None:
    """Training plays the environment as specified; evaluation plays the bare one, and so again."""
    given = [word for setting in settings for word in ("--set", setting)]
    quick = ["--steps", "60", "--eval-episodes", "3", "--set", "pacing.learning_starts=40"]
    assert main(["train", env_id, *quick, *given, "--out", str(tmp_path / "m")]) == 0
    trained = capsys.readouterr().out.splitlines()
    learner = Learner.load(tmp_path / "m" / "latest")

    assert learner.info()["transitions"]["train"] == 60
    assert learner.spec.observation.frame_stack * learner.spec.action_repeat in (1, 4)
    table = trained.index(f"{env_id}, 3 episodes, seeds from 1000000000")
    assert trained[table + 2].endswith(" 6.0")  # steps of the bare environment
    policy = str(tmp_path / "m" / "latest")
    assert main(["evaluate", env_id, "--policy", policy, "--episodes", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == trained[table : table + 3]


@pytest.mark.parametrize("place", ["/proc/m", "FILE/m", "FILE/n/m"])
def test_what_cannot_be_kept_is_not_trained(capsys: Capture, tmp_path: Path, place: str) -> None:
    """A folder that nothing can be written to is said before the work, not after it."""
    (tmp_path / "file").write_text("…")
    out = place.replace("FILE", str(tmp_path / "file"))

    assert main(["train", "Coins-v0", "--steps", "5", "--out", out]) == 1
    captured = capsys.readouterr()
    assert "--out: expected a folder that can be written" in captured.err
    assert captured.out == ""


def test_a_disk_that_fails_at_the_end(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the disk says then is one line too."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Learner, "save", full)
    assert main(["train", "Coins-v0", "--steps", "5", "--out", str(tmp_path / "m")]) == 1
    assert "--out: expected a folder that can be written" in capsys.readouterr().err


def test_settings_that_are_none(capsys: Capture) -> None:
    """A number in place of the observation's fields is refused by name."""
    assert main(["train", "Coins-v0", "--set", "observation=5"]) == 1
    assert "observation: expected an object, got 5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("--seeds 0", "--seeds: expected >= 1, got 0"),
        ("--eval-every 0", "--eval-every: expected >= 1"),
        ("--jobs 0", "--jobs: expected >= 1"),
        ("--jobs 2", "--jobs: expected 1, or --seeds"),
        ("--resume", "--resume: expected a folder, with --out"),
        ("--overwrite", "--overwrite: expected a folder, with --out"),
        ("--model m", "--model: expected a service"),
        ("--service http://127.0.0.1:1 --model M!", "--model: expected an id"),
        ("--set preset=control", "--set: expected no preset, got control; --preset names it"),
        ("--set env=3", "--set: expected a field of the specification, got 'env=3'"),
        ("--seeds 2 --set seed=3", "--set: expected no seed, got 3"),
        (
            "--set seed=3",
            "--set: expected no seed, got 3; --seed says it for model and environment",
        ),
        ("--label-key drift_label", "--label-key: expected a model with an auxiliary head"),
        (
            "--set c51.double=True",
            "c51.double: expected bool, got str; values of --set are JSON: true, 0.5, [64,64]",
        ),
        ("--set c51.hidden=64,64", "got str; values of --set are JSON: true, 0.5, [64,64]"),
        ("--seeds 2 --out FOLDER", "--out: expected a new folder, or one of an earlier training"),
        ("--out FOLDER", "--out: expected a new folder, or one of an earlier training"),
    ],
)
def test_refused(tmp_path: Path, capsys: Capture, given: str, text: str) -> None:
    """What does not go together is refused in one line, before anything is trained."""
    (tmp_path / "notes").write_text("precious")
    arguments = given.replace("FOLDER", str(tmp_path)).split()
    assert main(["train", "OUSpread-v0", *arguments]) == 1
    captured = capsys.readouterr()

    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_preset_is_hinted_at(capsys: Capture) -> None:
    """Without a preset the one that there is is named; ``auto`` takes it."""
    quick = ["--steps", "5", "--eval-episodes", "2"]
    assert main(["train", "CartPole-v1", *quick]) == 0
    plain = capsys.readouterr().out
    assert main(["train", "CartPole-v1", *quick, "--preset", "auto"]) == 0
    auto = capsys.readouterr().out
    assert main(["train", "Coins-v0", *quick]) == 0
    other = capsys.readouterr().out

    unlearned = "warning: seed 0: nothing was learned: the first update comes after 1,000 steps"
    assert unlearned in plain
    hint = "hint: --preset CartPole-v1 is made for it, and --preset auto finds it"
    assert plain.splitlines()[1] == hint
    assert "hint" not in auto + other


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_is_for_train(preset: str) -> None:
    """The general ones for anything, the others for the environment of their name."""
    env_id = {"ou-note": "OUSpread-v0", "ou-1344": "OUSpread-v0"}.get(preset, preset)
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D")
    env = gymnasium.make("Coins-v0" if env_id in ("default", "control") else env_id)
    spec = spec_for(env, preset, {"c51": {"hidden": 4}})

    assert spec == ModelSpec.for_env(env, preset=preset, c51={"hidden": 4})
    if env_id == preset and preset in ("OUSpread-v0", "CartPole-v1"):
        assert spec == spec_for(env, "auto", {"c51": {"hidden": 4}})


def test_no_preset_of_that_name(capsys: Capture) -> None:
    """Without a preset for the environment ``auto`` is refused, with what there is."""
    assert main(["train", "Coins-v0", "--preset", "auto"]) == 1
    line = capsys.readouterr().err

    assert "--preset auto: expected an environment with a preset" in line
    assert "got Coins-v0; --preset control is for any small control task" in line
