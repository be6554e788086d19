"""The demo: its bookkeeping is exact, and it comes out the same wherever the learner lives."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.cli import main
from jormungandr.cli.demo import MOST_EPISODES, Episode, make_schedule, report_bookkeeping
from jormungandr.spec import ModelSpec

Capture = pytest.CaptureFixture[str]
SPEC = ModelSpec.preset("ou-note")
NOTE = """
bookkeeping:
  training episodes            28
  validation episodes           7
  training transitions      1,344
  validation transitions      336
  normalizer count          2,688
  updates                     344
  evaluations                  31
  policy version              344
"""
#: 5 episodes and 1 held out: too few for an update.
SHORT = """
bookkeeping:
  training episodes             5
  validation episodes           1
  training transitions        240
  validation transitions       48
  normalizer count            480
  updates                       0
  evaluations                   0
  policy version                0
"""


def run(*arguments: str) -> tuple[int, str]:
    """Run the demo; return its status and all that it prints from the bookkeeping on."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = main(["demo", *arguments])
    text = printed.getvalue()
    return status, text[text.index("\nbookkeeping:") :]


@pytest.fixture(scope="module")
def note() -> str:
    """The report of the default schedule with the learner in this process."""
    status, report = run("--in-process", "--paths", "200")
    assert status == 0
    return report


# -- the schedule -------------------------------------------------------------------------------


def test_schedule() -> None:
    """Four training episodes, then a held-out one; no seed is used twice."""
    schedule = make_schedule(28, 0)
    splits = "".join(episode.split[0] for episode in schedule)

    assert splits == "ttttv" * 7
    assert len({episode.seed for episode in schedule}) == 35
    assert schedule[:2] == [Episode("train", 10_000), Episode("train", 10_001)]
    assert schedule[4] == Episode("validation", 510_000)
    assert [len(make_schedule(n, 0)) for n in (1, 3, 4, 5)] == [1, 3, 5, 6]
    other = {episode.seed for episode in make_schedule(28, 1)}
    assert other & {episode.seed for episode in schedule} == set()


# -- the bookkeeping ----------------------------------------------------------------------------


def test_note_in_process(note: str) -> None:
    """The release note's schedule gives the release note's numbers, to the last one."""
    assert note.startswith(NOTE)
    assert "WRONG" not in note


def test_note_reports_everything(note: str) -> None:
    """The report has both held-out quantities, the probe, and the comparison with intervals."""
    for text in (
        "\nvalidation_return (deterministic, on paths of its own), beside the reference:\n",
        "\nvalidation_loss (cross-entropy over the whole held-out store), by policy version:\n",
        "\nauxiliary accuracy: train ",
        "\nprobe at (z, 0, flat, full time):\n",
        "\n200 held-out paths of OUSpread-v0 (seed 1000000000), return per episode:\n",
        "\n  gap closed ",
    ):
        assert text in note
    losses = note.partition("by policy version:\n")[2].partition("\n\n")[0]
    assert losses.count(":") == 31
    assert losses.split()[0] == "11:"
    assert losses.split()[-2] == "341:"


def test_short_in_process() -> None:
    """A short schedule has its own exact numbers."""
    status, report = run("--in-process", "--episodes", "5", "--paths", "20")

    assert status == 0
    assert report.startswith(SHORT)


def test_seed_changes_the_result(note: str) -> None:
    """Another seed is another experiment, with the same bookkeeping."""
    status, report = run("--in-process", "--paths", "200", "--seed", "1")

    assert status == 0
    assert report.startswith(NOTE)
    assert report != note


INFO: dict[str, Any] = {
    "transitions": {"train": 1_344, "validation": 336},
    "normalizer": {"count": 2_688},
    "update_count": 344,
    "policy_version": 344,
}


def check(info: dict[str, Any], evaluations: int = 31, length: int = 48) -> bool:
    """Report bookkeeping over the note's schedule."""
    schedule = make_schedule(28, 0)
    played = [{"length": length}] * len(schedule)
    return report_bookkeeping(SPEC, schedule, played, info, evaluations)


def test_right_counts(capsys: Capture) -> None:
    """The expected counts are accepted."""
    assert check(INFO)
    assert capsys.readouterr().out == NOTE


@pytest.mark.parametrize(
    ("info", "evaluations", "line"),
    [
        (
            {"transitions": {"train": 1_343, "validation": 336}},
            31,
            "training transitions      1,343   WRONG, expected 1,344",
        ),
        (
            {"transitions": {"train": 1_344, "validation": 337}},
            31,
            "validation transitions      337   WRONG, expected 336",
        ),
        (
            {"normalizer": {"count": 3_360}},
            31,
            "normalizer count          3,360   WRONG, expected 2,688",
        ),
        ({"update_count": 345}, 31, "updates                     345   WRONG, expected 344"),
        ({"policy_version": 343}, 31, "policy version              343   WRONG, expected 344"),
        ({}, 30, "evaluations                  30   WRONG, expected 31"),
    ],
)
def test_wrong_count(capsys: Capture, info: dict[str, Any], evaluations: int, line: str) -> None:
    """A count that is off by one is marked, and the verdict is no."""
    assert not check({**INFO, **info}, evaluations)
    text = capsys.readouterr().out
    assert line in text
    assert text.count("WRONG") == 1


def test_episodes_cut_short(capsys: Capture) -> None:
    """An episode that is not whole does not count as one."""
    assert not check(INFO, length=47)
    assert capsys.readouterr().out.count("WRONG") == 2


def test_wrong_count_ends_with_status_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo fails when a number does not come out, and says so in its report."""
    wait = Learner.wait
    monkeypatch.setattr(Learner, "wait", lambda self, lsn: {**wait(self, lsn), "update_count": 1})
    status, report = run("--in-process", "--episodes", "1", "--paths", "20")

    assert status == 1
    assert "updates                       1   WRONG, expected 0" in report


# -- with a service -----------------------------------------------------------------------------


def test_lockstep(note: str, tmp_path: Path, capsys: Capture) -> None:
    """By default two actors beside a service report what one process does, to the last bit."""
    data = ["--data-dir", str(tmp_path)]
    status, report = run("--paths", "200", *data)

    assert status == 0
    assert report == note
    assert (tmp_path / "models" / "ou-note.1" / "journal.db").is_file()
    assert main(["demo", *data]) == 1
    captured = capsys.readouterr()
    assert "--data-dir: expected one without an ou-note model" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.slow
def test_free() -> None:
    """Actors that race still give exact bookkeeping; what they learn may differ."""
    status, report = run("--free", "--paths", "200")

    assert status == 0
    assert report.startswith(NOTE)


def test_nothing_is_left_running(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """An actor that dies ends the demo with one line, and the other processes with it."""
    started: list[Any] = []

    class Watched(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **options: Any) -> None:
            dies = [sys.executable, "-c", "raise SystemExit(9)"]
            super().__init__(dies if "actor-1" in command else command, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)

    assert main(["demo", "--lockstep", "--episodes", "5"]) == 1
    assert capsys.readouterr().err == (
        "jormungandr demo: actor-1: expected an episode's result, got exit 9\n"
    )
    assert [process.returncode for process in started] == [0, 0, 9]


def test_no_path_is_both_trained_and_validated_on() -> None:
    """However long the schedule, the seeds of one kind of episode are never those of the other."""
    kinds: dict[str, list[int]] = {"train": [], "validation": []}
    for episode in make_schedule(MOST_EPISODES, 0):
        kinds[episode.split].append(episode.seed)
    another = make_schedule(1, 1)[0].seed

    assert max(kinds["train"]) < min(kinds["validation"])
    assert max(kinds["validation"]) < another
