"""``jormungandr train --seeds``: several seeds, one table, and what is refused."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.cli import main
from jormungandr.cli.evaluate import HELD_OUT_SEED
from jormungandr.cli.train_folder import TrainingFolder
from jormungandr.cli.train_plan import (
    EVALUATION_SEED,
    TRAINING_SEEDS,
    Plan,
    default_model,
    reset_seed,
)
from jormungandr.cli.train_table import Outcome, print_outcomes
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.numerics.statistics import iqm_bootstrap
from jormungandr.spec import MODEL_ID
from tests.service.serving import until

Capture = pytest.CaptureFixture[str]

TINY = [
    *("--set", "c51.hidden=8", "--set", "c51.atoms=11", "--set", "c51.support=[-8,8]"),
    *("--set", "c51.batch_size=8", "--set", "pacing.learning_starts=40"),
]
TRAIN = ["train", "OUSpread-v0", "--steps", "100", "--eval-every", "50", "--eval-episodes", "2"]
TRAIN += TINY


def digests(out: Path) -> list[str]:
    """Return the digests of every evaluation of every seed."""
    files = sorted(out.glob("seed-*/evaluations.jsonl"))
    return [json.loads(line)["digest"] for f in files for line in f.read_text().splitlines()]


def test_several_seeds(tmp_path: Path, capsys: Capture) -> None:
    """Each seed is what it is alone, with one process or two; the table has them all."""
    for jobs in ("1", "2"):
        out = ["--out", str(tmp_path / jobs)]
        assert main([*TRAIN, "--seeds", "2", "--jobs", jobs, *out]) == 0
    printed = capsys.readouterr().out
    # The folder itself is no policy and no state: what to name instead is said.
    with pytest.raises(CheckpointError, match=r"name .*seed-0/best, or the latest"):
        PolicySnapshot.open(tmp_path / "1")
    with pytest.raises(CheckpointError, match=r"the state is in .*seed-0/latest"):
        Learner.load(tmp_path / "1")
    assert main([*TRAIN, "--seed", "1", "--out", str(tmp_path / "alone")]) == 0

    found = digests(tmp_path / "1")
    assert len(set(found)) == 4
    assert digests(tmp_path / "2") == found
    alone = (tmp_path / "alone" / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["digest"] for line in alone] == found[2:]
    assert "OUSpread-v0: 100 steps, 2 seeds" in printed
    assert re.search(r"  seed 1  step      100  updates      30 .* held out +-?\d+\.\d\d", printed)
    table = printed[printed.index("  seed  ") :].splitlines()
    assert [row.split()[0] for row in table[:3]] == ["seed", "0", "1"]
    assert re.fullmatch(
        r"  IQM of final +-?\d+\.\d\d   \[-?\d+\.\d\d, -?\d+\.\d\d\]"
        r"   95 %, stratified bootstrap over seeds, too narrow for so few",
        table[3],
    )


def test_seeds_that_are_not_said_again(tmp_path: Path, capsys: Capture) -> None:
    """Who goes on without --seeds is told which seeds are there, and to say it."""
    for seed in range(5):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "training.json").write_text("{}")
    assert main([*TRAIN, "--out", str(tmp_path), "--resume"]) == 1

    error = capsys.readouterr().err
    assert f"got {tmp_path}, which holds seed-0, seed-1, seed-2, seed-3, …; " in error
    assert "it was made with --seeds: give it too, 5 or as many as then" in error


def test_the_table(capsys: Capture) -> None:
    """The interval is that of the interquartile mean over seeds; the pace is the median."""
    finals = [10.0, 20.0, 30.0, 40.0, 50.0]
    outcomes = [Outcome(i, f, f + 5, 100, 10.0 * (i + 1), ()) for i, f in enumerate(finals)]
    outcomes[2] = Outcome(2, 30.0, 35.0, 100, 30.0, ("something is off",))
    print_outcomes("a title", outcomes)
    lines = capsys.readouterr().out.splitlines()
    low, high = iqm_bootstrap(np.array(finals), seed=0)[1:]

    assert lines[1:4] == [
        "a title",
        "  seed  final   best  at step  steps/s",
        "     0  10.00  15.00      100       10",
    ]
    assert lines[8].startswith(f"  IQM of final      30.00   [{low:.2f}, {high:.2f}]")
    assert lines[10] == "  steps/s              30   median"
    assert lines[-1] == "warning: seed 2: something is off"


def test_the_best_is_kept(tmp_path: Path) -> None:
    """Beside the latest policy lies the one that did best, the first of several as good."""
    out = tmp_path / "out"
    given = ["--steps", "240", "--eval-every", "24", "--out", str(out)]
    assert main([*TRAIN, *given, "--set", "c51.lr=0.01"]) == 0
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["mean"])

    assert best is not lines[-1]
    assert PolicySnapshot.open(out / "best").digest() == best["digest"]
    assert PolicySnapshot.open(out / "latest").digest() == lines[-1]["digest"]


def test_evaluating_changes_nothing(tmp_path: Path) -> None:
    """However often it is evaluated, what is learned is the same, to the bit."""
    for name, every in (("rarely", "100"), ("often", "7")):
        out = ["--out", str(tmp_path / name)]
        assert main([*TRAIN, "--eval-every", every, *out]) == 0
    rarely, often = (PolicySnapshot.open(tmp_path / n / "latest") for n in ("rarely", "often"))

    assert rarely.digest() == often.digest()


def test_seeds_are_apart() -> None:
    """Episodes of training, of evaluations and of the table at the end never have one seed."""
    drawn = {reset_seed(seed, step) for seed in range(20) for step in range(0, 2_000, 20)}

    assert len(drawn) == 2_000
    assert max(drawn) < TRAINING_SEEDS < EVALUATION_SEED < EVALUATION_SEED + 1_000_000
    assert EVALUATION_SEED + 1_000_000 < HELD_OUT_SEED


def test_episodes_are_reset_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each training episode begins with the seed that its first step gives."""
    made: list[Any] = []
    make = gymnasium.make

    def recorded(env_id: str) -> Any:
        made.append(make(env_id))
        return made[-1]

    monkeypatch.setattr("jormungandr.cli.train_loop.gymnasium.make", recorded)
    arguments = ["--steps", "15", "--eval-every", "15", "--eval-episodes", "2", "--seed", "3"]
    assert main(["train", "Coins-v0", *arguments]) == 0
    seeds = [env.unwrapped.seeds for env in made]

    assert [reset_seed(3, step) for step in (0, 6, 12)] in seeds
    assert [EVALUATION_SEED, EVALUATION_SEED + 1] in seeds


@pytest.mark.parametrize("env_id", ["CartPole-v1", "package:Odd_Name-v0", "x" * 200])
def test_default_model(env_id: str) -> None:
    """A model's id at the service is made of the environment's."""
    assert MODEL_ID.fullmatch(default_model(env_id, 12)) is not None
    assert default_model("CartPole-v1", 0) == "cartpole-v1-seed-0"


def test_a_plan_travels() -> None:
    """A plan goes to another process whole."""
    spec = ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 2})
    plan = Plan("CartPole-v1", spec, 0, 10, 5, 2, out=Path("x"))

    assert pickle.loads(pickle.dumps(plan)) == plan


def test_an_error_of_one_ends_all(capsys: Capture) -> None:
    """What one training says is said once, and nothing is left running.

    The game is registered in this process alone.
    """
    assert main(["train", "Coins-v0", "--steps", "5", "--seeds", "2", "--jobs", "2"]) == 1
    captured = capsys.readouterr()

    assert "Coins" in captured.err
    assert captured.err.count("\n") == 1
    assert multiprocessing.active_children() == []


def test_processes_end_with_the_command(tmp_path: Path) -> None:
    """When the command is killed, the trainings that it began end, and their folders are free."""
    out = tmp_path / "out"
    steps = ["--steps", "1000000", "--eval-every", "50"]
    command = [*TRAIN, *steps, "--seeds", "2", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "jormungandr", *command],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: len(digests(out)) >= 2, "evaluations")
        process.kill()
        process.wait()
        for seed in ("seed-0", "seed-1"):
            until(lambda seed=seed: _free(out / seed), "the end of a training")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _free(folder: Path) -> bool:
    try:
        with TrainingFolder(folder):
            return True
    except InvalidValue:
        return False
