"""``jormungandr train --resume``: a training that was killed ends as one that was not."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.cli import main
from jormungandr.cli.train_folder import TrainingFolder, keep_policy
from jormungandr.failpoints import VARIABLE
from tests.forked import Forks
from tests.service.serving import until

Capture = pytest.CaptureFixture[str]

#: 300 steps are six episodes of 48 and a piece of one; the state is kept five times on the way.
TRAIN = [
    *("train", "OUSpread-v0", "--steps", "300", "--eval-every", "60", "--eval-episodes", "2"),
    *("--set", "c51.hidden=8", "--set", "c51.atoms=11", "--set", "c51.support=[-16,16]"),
    *("--set", "c51.batch_size=8", "--set", "c51.n_step=3", "--set", "exploration.transitions=200"),
    *("--set", "pacing.learning_starts=50"),
]
CLASSES = 'auxiliary={"classes": ["A", "B"]}'


def killed(forks: Forks, out: Path, failpoint: str) -> None:
    """Train in a process that a place ends with SIGKILL."""
    code = f"from jormungandr.cli import main; main({[*TRAIN, '--out', str(out)]!r})"
    done = forks.run(code, out.parent, **{VARIABLE: failpoint})
    assert done.returncode == -signal.SIGKILL, done.stderr


def resume(out: Path, *more: str) -> None:
    """Go on with a training, in this process."""
    assert main([*TRAIN, "--out", str(out), "--resume", *more]) == 0


def kept(out: Path) -> dict[str, Any]:
    """Return all that a training left, but for how long it took."""
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    latest = out / "latest"
    names = ["ledger.msgpack", "policy.safetensors", "state.json", "tensors.safetensors"]
    return {
        "evaluations": [{**line, "seconds": None} for line in lines],
        "latest": {name: (latest / name).read_bytes() for name in names},
        "best": (out / "best" / "policy.safetensors").read_bytes(),
        "names": sorted(path.name for path in out.iterdir()),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an uninterrupted training leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert main([*TRAIN, "--out", str(out)]) == 0
    return kept(out)


def test_what_is_kept(whole: dict[str, Any]) -> None:
    """A line for each evaluation, the state after the last step, the policy that did best."""
    lines = whole["evaluations"]
    best = max(lines, key=lambda line: line["mean"])

    assert [line["step"] for line in lines] == [60, 120, 180, 240, 300]
    assert json.loads(whole["latest"]["state.json"])["pacing"]["transitions"] == 300
    assert PolicySnapshot.from_bytes(whole["best"]).digest() == best["digest"]
    assert len({line["digest"] for line in lines}) == 5
    assert whole["names"] == ["LOCK", "best", "evaluations.jsonl", "latest", "training.json"]


@pytest.mark.parametrize(
    ("failpoint", "step"),
    [
        ("checkpoint.file:2", None),  # while the first state is written: nothing to go on from
        ("checkpoint.rename:3", 144),  # the third one is whole, and has no name yet
        ("checkpoint.renamed:4", 240),  # the fourth one has its name, the third still lies about
    ],
)
def test_killed_at_a_place(
    whole: dict[str, Any],
    tmp_path: Path,
    capsys: Capture,
    forks: Forks,
    failpoint: str,
    step: int | None,
) -> None:
    """Wherever it is killed, what is resumed has the same state in the end, to the bit."""
    out = tmp_path / "out"
    killed(forks, out, failpoint)
    resume(out)

    assert kept(out) == whole
    went_on = re.findall(r"  goes on from step (\d+)\n", capsys.readouterr().out)
    assert went_on == ([] if step is None else [str(step)])


def test_killed_at_any_time(whole: dict[str, Any], tmp_path: Path) -> None:
    """Killed from outside, in the middle of an episode, it ends the same."""
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "jormungandr", *TRAIN, "--out", str(out)], stdout=subprocess.DEVNULL
    )
    file = out / "evaluations.jsonl"
    try:
        until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 2, "two evaluations")
    finally:
        process.kill()
        process.wait()
    resume(out)

    assert kept(out) == whole


def test_killed_between_two_names(
    whole: dict[str, Any], tmp_path: Path, capsys: Capture, forks: Forks
) -> None:
    """A state that had stepped aside for its successor is found, and half a line is forgotten."""
    out = tmp_path / "out"
    killed(forks, out, "checkpoint.renamed:4")
    shutil.rmtree(out / ".latest.old")
    (out / "latest").rename(out / ".latest.old")
    with (out / "evaluations.jsonl").open("ab") as file:
        file.write(b'{"step":300,"upd')
    resume(out)

    assert kept(out) == whole
    assert "  goes on from step 240\n" in capsys.readouterr().out


def test_nothing_to_do(whole: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    """A training that has come to its end is only judged again; one that never was begins."""
    out = tmp_path / "out"
    resume(out)
    first = capsys.readouterr().out
    resume(out)
    second = capsys.readouterr().out

    assert kept(out) == whole
    assert "goes on from step 300" in second
    assert second.count("held out") == 0
    assert first.splitlines()[-3].split()[:4] == second.splitlines()[-3].split()[:4]


def test_more_steps(tmp_path: Path, capsys: Capture) -> None:
    """With more steps a training goes on past its end, with an episode that it begins there."""
    out = tmp_path / "out"
    resume(out)
    resume(out, "--steps", "360")
    capsys.readouterr()

    assert Learner.load(out / "latest").info()["transitions"]["train"] == 360
    assert len((out / "evaluations.jsonl").read_text().splitlines()) == 6


def test_fewer_steps_than_are_done(ended: Path, capsys: Capture) -> None:
    """Refused with what is done, and nothing changes: a table would name steps it is not of."""
    before = kept(ended)
    assert main([*TRAIN, "--out", str(ended), "--resume", "--steps", "119"]) == 1

    expected = "train: --steps: expected >= 120, the steps that are done, got 119"
    assert expected in capsys.readouterr().err
    assert kept(ended) == before


def test_without_saying_how_many(tmp_path: Path, capsys: Capture) -> None:
    """It goes on to as many steps as it was to have last, and evaluates as often as it did.

    Also the seeds that had not begun: what their curves are made of must not be further apart.
    """
    out = tmp_path / "out"
    train = ["train", "OUSpread-v0", "--eval-episodes", "2", "--out", str(out)]
    train += TRAIN[TRAIN.index("--set") :]
    assert main([*train, "--steps", "60", "--seeds", "1"]) == 0  # ten evaluations, six apart
    assert main([*train, "--steps", "78", "--seeds", "2", "--resume"]) == 0
    shutil.rmtree(out / "seed-1")
    capsys.readouterr()
    assert main([*train, "--seeds", "2", "--resume"]) == 0

    assert "OUSpread-v0: 78 steps, 2 seeds" in capsys.readouterr().out
    for seed in ("seed-0", "seed-1"):
        found = [line["step"] for line in kept(out / seed)["evaluations"]]
        assert found == list(range(6, 79, 6))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--set", "c51.lr=0.1"], "others: c51.lr=0.1; it has c51.lr=0.0005: give these"),
        (["--seed", "1"], "others: seed=1; it has seed=0: give these, or another --out"),
        (
            ["--eval-episodes", "3", "--label-key", "x", "--set", CLASSES],
            'eval_episodes=3, label_key="x"; it has eval_episodes=2, label_key=null: give these',
        ),
    ],
)
def test_another_training(tmp_path: Path, capsys: Capture, more: list[str], text: str) -> None:
    """Other arguments than those it was begun with are refused by name; nothing is changed."""
    out = tmp_path / "out"
    assert main([*TRAIN, "--steps", "50", "--out", str(out)]) == 0
    before = kept(out)
    assert main([*TRAIN, "--out", str(out), "--resume", *more]) == 1
    line = capsys.readouterr().err

    assert "--resume: expected the arguments that" in line
    assert text in line
    assert kept(out) == before


def another(folder: TrainingFolder) -> PolicySnapshot:
    """Return a policy of the same model that was never evaluated."""
    policy = Learner.load(folder.latest).snapshot()
    return replace(policy, version=policy.version + 1)


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """The folder of a training that has come to its end."""
    out = tmp_path / "out"
    assert main([*TRAIN, "--steps", "120", "--out", str(out)]) == 0
    return out


def best_line(out: Path) -> dict[str, Any]:
    """Return the best one of a training's evaluations."""
    lines: list[dict[str, Any]] = kept(out)["evaluations"]
    return max(lines, key=lambda line: line["mean"])


def test_a_best_policy_that_is_not_come_to_again(ended: Path, capsys: Capture) -> None:
    """Killed after a better one was kept, and resumed with fewer steps: the earlier one is best."""
    before = kept(ended)
    with TrainingFolder(ended) as folder:
        for _ in range(2):
            folder.keep_best(another(folder))
    assert kept(ended)["best"] != before["best"]
    resume(ended, "--steps", "120")

    assert kept(ended) == before
    assert "warning" not in capsys.readouterr().out


def test_a_best_policy_that_somebody_put_there(ended: Path, capsys: Capture) -> None:
    """The table does not say of it what was found of another."""
    with TrainingFolder(ended) as folder:
        keep_policy(folder.best, another(folder))
    capsys.readouterr()
    resume(ended, "--steps", "120")
    printed = capsys.readouterr().out
    row = printed[printed.index("  seed  ") :].splitlines()[1].split()

    assert row[1] == row[2]
    assert row[3] == "120"
    assert f"best/ does not hold the policy that did best, at step {best_line(ended)['step']}" in (
        printed
    )


def test_one_at_a_time(tmp_path: Path, capsys: Capture) -> None:
    """A folder that another process trains in is refused."""
    with TrainingFolder(tmp_path / "out"):
        assert main([*TRAIN, "--out", str(tmp_path / "out"), "--resume"]) == 1

    assert "--out: expected a folder that no process trains in" in capsys.readouterr().err


def test_a_damaged_log(tmp_path: Path, capsys: Capture) -> None:
    """Lines that are no evaluations are refused, and the file is left as it is."""
    out = tmp_path / "out"
    assert main([*TRAIN, "--steps", "50", "--out", str(out)]) == 0
    (out / "evaluations.jsonl").write_text("precious\n")
    assert main([*TRAIN, "--out", str(out), "--resume"]) == 1

    assert "evaluations.jsonl: expected one evaluation a line" in capsys.readouterr().err
    assert (out / "evaluations.jsonl").read_text() == "precious\n"
