"""Which runs are wanted, in which order, and a sitting that does some of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.learning.baselines import Baseline
from benchmarks.learning.contenders import CONTENDERS, seeds_of
from benchmarks.learning.matrix import Job, estimate, missing, perform_all, wanted
from benchmarks.learning.ours import Ours, default
from benchmarks.learning.runs import known
from benchmarks.learning.tasks import TASKS
from tests.learning_benchmark.made import Fake, run, seconds

#: Importing Box2D under pytest's `error` filter ends the process: it warns inside its set-up.
WITHOUT_BOX2D = [name for name in TASKS if name != "lunarlander"]


def test_the_matrix_has_the_most_important_rows_first() -> None:
    """Ten seeds of ours, five of baselines, three of QR-DQN; OUSpread, then CartPole of ours."""
    jobs = list(wanted([], WITHOUT_BOX2D))
    order = list(dict.fromkeys(job.name for job in jobs))
    assert order == ["ou-1344", "cartpole", "ou", "acrobot", "mountaincar"]
    assert len({job.key for job in jobs}) == len(jobs)
    count = {
        (name, who): sum((job.name, job.contender.name) == (name, who) for job in jobs)
        for name in TASKS
        for who in CONTENDERS
    }
    assert count["ou-1344", "ours"] == count["acrobot", "ours"] == 10
    assert count["ou-1344", "SB3 PPO"] == count["ou-1344", "QR-DQN, tuned"] == 10
    assert count["cartpole", "SB3 DQN, RL Zoo"] == 5
    assert count["ou", "QR-DQN"] == count["cartpole", "QR-DQN, RL Zoo"] == 3
    assert seeds_of(CONTENDERS["SB3 PPO"], TASKS["lunarlander"]) == 3
    assert seeds_of(CONTENDERS["ours"], TASKS["lunarlander"]) == 10
    assert count["ou", "SB3 DQN, RL Zoo"] == count["cartpole", "QR-DQN, tuned"] == 0
    first_baseline = next(i for i, j in enumerate(jobs) if j.name == "cartpole" and "SB3" in str(j))
    assert {job.contender.name[:4] for job in jobs[:first_baseline] if job.name == "cartpole"} == {
        "ours"
    }


def test_what_is_done_is_not_done_again() -> None:
    """But for other settings it is."""
    jobs = list(wanted([], ["cartpole"], ["ours"]))
    done = run(seed=4, fingerprint=jobs[0].fingerprint)

    assert [job.seed for job in missing(jobs, [done])] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert len(missing(jobs, [run(seed=4)])) == 10


def test_an_estimate_goes_by_what_is_known() -> None:
    """This contender here, else anyone here, else this contender's steps elsewhere."""
    ours = Job("cartpole", TASKS["cartpole"], Fake({}), 0, "x")
    here = run(seconds=seconds(100.0, 20.0))
    slow = run("SB3 DQN", seconds=seconds(900.0, 20.0))
    elsewhere = run(task="acrobot", seconds=seconds(50.0, 0.0))
    known_here = estimate(ours, [slow, here, elsewhere])
    anyone = estimate(ours, [slow, elsewhere])
    scaled = estimate(ours, [elsewhere])

    assert anyone - known_here == pytest.approx(800)
    assert known_here - scaled == pytest.approx(120 - 75)


@pytest.mark.slow
def test_a_sitting_does_what_fits_and_goes_on_after_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own; what fails is named, what is too long is left."""
    path = tmp_path / "runs.jsonl"
    tiny = dataclasses.replace(TASKS["cartpole"], steps=64, every=32, episodes=3)
    wrong_table = {"CartPole-v1": {"learning_rate": -1.0}}
    long = dataclasses.replace(tiny, steps=10**9)
    jobs = [
        Job("cartpole", tiny, Baseline("wrong", "DQN", wrong_table), 0, "w"),
        Job("cartpole", long, Ours("ours", default), 0, "l"),
        Job("cartpole", tiny, Ours("ours", default), 0, "o"),
        Job("cartpole", tiny, CONTENDERS["QR-DQN, RL Zoo"], 0, "q"),
    ]
    wrong = perform_all(jobs, path, at_once=2, until=_in_an_hour())

    assert sorted(r.contender for r in known(path)) == ["QR-DQN, RL Zoo", "ours"]
    assert {r.machine["jobs"] for r in known(path)} == {2}
    assert len(wrong) == 1
    assert wrong[0].startswith("cartpole, wrong, seed 0: ValueError")
    assert "cartpole, ours, seed 0: left" in capsys.readouterr().out


@pytest.mark.slow
def test_trainings_end_with_the_command(tmp_path: Path) -> None:
    """When the command is ended, so is the training in a process of its own."""
    command = (
        "import math; from pathlib import Path; from benchmarks.learning.matrix import *;"
        "from benchmarks.learning.tasks import TASKS; from tests.learning_benchmark.made import *;"
        "job = Job('cartpole', TASKS['cartpole'], Endless({}), 0, 'x');"
        f"perform_all([job], Path({str(tmp_path / 'runs.jsonl')!r}), at_once=1, until=math.inf)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        process.communicate(timeout=60)  # the end of the output: nobody holds it any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _in_an_hour() -> float:
    return time.monotonic() + 3600
