"""Ctrl-C in ``jormungandr train``: one line that says what is kept and the command that goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jormungandr.cli import main
from tests.service.serving import until

Capture = pytest.CaptureFixture[str]

#: Six episodes of 48 steps and a piece of one; the last steps come after the last evaluation seen.
TRAIN = [
    *("train", "OUSpread-v0", "--steps", "300", "--eval-every", "60", "--eval-episodes", "2"),
    *("--set", "c51.hidden=8", "--set", "c51.atoms=11", "--set", "c51.support=[-8,8]"),
    *("--set", "c51.batch_size=8", "--set", "pacing.learning_starts=50"),
]
#: What is kept before the first state, which comes after the first evaluation.
NONE_YET = "no state yet, the first is kept at the end of the episode that step 60 is in"


def evaluated(out: Path) -> list[int]:
    """Return the steps of the evaluations of every seed in a folder."""
    files = sorted(out.glob("**/evaluations.jsonl"))
    return [json.loads(line)["step"] for f in files for line in f.read_text().splitlines()]


def interrupted(arguments: list[str], out: Path, evaluations: int) -> str:
    """Press Ctrl-C after some evaluations: the whole group has it; return what it says of that."""
    # A shell has what it starts in the background ignore Ctrl-C, these tests for one; that is
    # inherited, and a handler is not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "jormungandr", *arguments, "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        until(lambda: len(evaluated(out)) >= evaluations, "evaluations")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    return said


ENDLESS = [word if word != "300" else "1000000" for word in TRAIN]


def test_what_it_says_goes_on(tmp_path: Path) -> None:
    """One line; the command in it ends where a training that nobody stopped ends."""
    out, whole = tmp_path / "with a space", tmp_path / "whole"
    said = interrupted([*ENDLESS, "--seed", "3"], out, 2)
    kept, _, command = said.partition("; to go on: ")

    assert said.count("\n") == 1
    place = re.escape(str(out))
    assert re.fullmatch(rf"stopped; kept in {place}: (up to step [\d,]+|{NONE_YET})", kept)
    name, *arguments = shlex.split(command)
    assert name == "jormungandr"
    # To its end, which is nearer here than the one it was to have.
    last = str(max(evaluated(out)) + 60)
    assert main([last if word == "1000000" else word for word in arguments]) == 0
    assert main([*TRAIN, "--seed", "3", "--steps", last, "--out", str(whole)]) == 0
    for file in whole.glob("**/policy.safetensors"):
        assert (out / file.relative_to(whole)).read_bytes() == file.read_bytes()


def test_several_at_once(tmp_path: Path) -> None:
    """Those in other processes say nothing of it."""
    out = tmp_path / "out"
    said = interrupted([*ENDLESS, "--seeds", "2", "--jobs", "2"], out, 3)
    kept, _, command = said.partition("; to go on: ")

    assert said.count("\n") == 1
    assert kept.startswith(f"stopped; kept in {out}: ")
    assert kept.endswith(NONE_YET) or re.search(r"seed [01] up to step [\d,]+$", kept)
    assert " --seeds 2 --jobs 2 " in command


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], "stopped; nothing is kept without --out"),
        (
            ["--out", "OUT"],
            f"stopped; kept in OUT: {NONE_YET}; to go on: jormungandr train ",
        ),
    ],
)
def test_before_anything_is_kept(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    expected: str,
) -> None:
    """It says so."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jormungandr.cli.train_loop._Course.run", stop)
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, *more]) == 130

    assert capsys.readouterr().err.startswith(expected)


def test_every_argument_is_in_the_command(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever decides what is trained; what replaces a training is not."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jormungandr.cli.train_loop.open_stage", stop)
    given = "train OUSpread-v0 --steps 300 --seed 2 --preset control --set"
    given += """ 'auxiliary={"classes": ["A", "B"]}' --label-key drift_label --eval-every 7"""
    given += " --service http://127.0.0.1:1 --model m --eval-episodes 9"
    out = ["--out", str(tmp_path / "out")]
    assert main([*shlex.split(given), *out, "--overwrite"]) == 130
    said = capsys.readouterr().err

    command = shlex.join(["jormungandr", *shlex.split(given), *out, "--resume"])
    assert said == (
        "stopped; the service keeps every step that it has, and the folder the evaluations;"
        f" to go on: {command}\n"
    )
