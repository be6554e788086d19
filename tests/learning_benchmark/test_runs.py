"""Runs are kept, and told apart by their settings."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning.runs import append, fingerprint, known, perform
from benchmarks.learning.tasks import TASKS
from tests.learning_benchmark.made import SHORT, Fake, run


def test_perform_keeps_every_statistic_of_every_evaluation() -> None:
    """One number a statistic and evaluation, in order of size where they have one."""
    task = dataclasses.replace(SHORT, episodes=50)
    done = perform("t", task, Fake({"lr": 1}), 0, "abc")
    found = done.evaluations

    assert set(found) == {"steps", "mean", "sd", "worst", "q05", "q25", "median", "q75", "q95"}
    assert {len(numbers) for numbers in found.values()} == {2}
    ordered = [found[k][0] for k in ("worst", "q05", "q25", "median", "q75", "q95")]
    assert ordered == sorted(ordered)
    scores = task.score(lambda seen: np.zeros(len(seen), dtype=np.int64))
    assert found["mean"] == pytest.approx([scores.mean()] * 2, abs=1e-4)
    assert done.settings == {"lr": 1, "shape": task.shape}
    assert done.versions.keys() >= {"jormungandr", "torch", "stable-baselines3", "sb3-contrib"}


def test_runs_come_back_as_they_were(tmp_path: Path) -> None:
    """One line each; the last of a key counts."""
    path = tmp_path / "deep" / "runs.jsonl"
    append(run(seed=0), path)
    append(run(seed=1), path)
    again = run(seed=0, noted={"updates": 6, "warnings": ["w"]})
    append(again, path)

    assert len(path.read_text().splitlines()) == 3
    assert sorted(known(path), key=lambda r: r.seed) == [again, run(seed=1)]
    assert known(tmp_path / "none") == []


def test_writers_do_not_mix(tmp_path: Path) -> None:
    """Eight at once leave whole lines."""
    path = tmp_path / "runs.jsonl"
    threads = [threading.Thread(target=append, args=(run(seed=i), path)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(r.seed for r in known(path)) == list(range(8))


def test_an_unfinished_line_costs_that_run_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process was killed in a write: the next line begins anew."""
    path = tmp_path / "runs.jsonl"
    append(run(seed=0), path)
    with path.open("a") as file:
        file.write(json.dumps(dataclasses.asdict(run(seed=1)))[:200])
    append(run(seed=2), path)

    assert [r.seed for r in known(path)] == [0, 2]
    assert f"{path}:2: an unfinished line, left out" in capsys.readouterr().err


def test_other_settings_are_another_fingerprint() -> None:
    """The same settings agree, in any order; another value, or another shape, does not."""
    task = TASKS["cartpole"]
    one = fingerprint("cartpole", task, Fake({"a": 1, "b": {"c": [1, 2]}}), [])

    assert one == fingerprint("cartpole", task, Fake({"b": {"c": (1, 2)}, "a": 1}), [])
    assert one != fingerprint("cartpole", task, Fake({"a": 1, "b": {"c": [1, 3]}}), [])
    shorter = dataclasses.replace(task, steps=2_000)
    assert one != fingerprint("cartpole", shorter, Fake({"a": 1, "b": {"c": [1, 2]}}), [])
    assert fingerprint("cartpole", task, Fake(None), []) is None


def test_a_field_that_came_later_is_the_same_while_it_is_at_its_default() -> None:
    """Old lines stay those of a contender when a setting is added that it does not use."""
    task, old = TASKS["cartpole"], run()

    def mark(given: dict[str, Any], inert: dict[str, Any]) -> str | None:
        return fingerprint("cartpole", task, Fake(given, inert), [old])

    assert mark({"lr": 1.0}, {}) == "aaa"
    assert mark({"lr": 1.0, "noisy": False}, {"noisy": False}) == "aaa"
    assert mark({"lr": 1.0, "noisy": True}, {"noisy": False}) != "aaa"
    assert mark({"lr": 1.0, "noisy": False}, {}) != "aaa"
    assert mark({"lr": 2.0, "noisy": False}, {"noisy": False}) != "aaa"
    assert mark({"noisy": False}, {"lr": 1.0, "noisy": False}) != "aaa"
