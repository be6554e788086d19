"""``jormungandr train`` on what a specification says of frames, repeated actions and masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from jormungandr import Learner
from jormungandr.cli import main

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
    learner = Learner.load(tmp_path / "m")

    assert learner.info()["transitions"]["train"] == 60
    assert learner.spec.observation.frame_stack * learner.spec.action_repeat in (1, 4)
    table = trained.index(f"{env_id}, 3 episodes, seeds from 1000000000")
    assert trained[table + 2].endswith(" 6.0")  # steps of the bare environment
    assert main(["evaluate", env_id, "--policy", str(tmp_path / "m"), "--episodes", "3"]) == 0
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
