"""Runs: one JSON line each, in a file that a later sitting goes on with."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.contenders import Contender
from benchmarks.learning.tasks import Task
from benchmarks.lines import append_line, lines

__all__ = ["RESULTS", "Run", "append", "fingerprint", "known", "perform"]

RESULTS = Path(__file__).parents[1] / "results" / "learning.jsonl"

#: Of an evaluation's episodes.
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}


@dataclass(frozen=True)
class Run:
    """One training with one seed.

    Args:
        task, contender, seed: which.
        fingerprint: of the settings and the task's shape; runs with another one are of another
            contender, whatever its name.
        settings: all that decided it, the seed apart; ``shape`` is the task's.
        changes: what of it the contender asked for; the rest are defaults.
        evaluations: by name a number for each: ``steps`` of training until then, and the ``mean``,
            ``sd``, ``worst`` and quantiles of the scores of its episodes.
        seconds: of ``training`` and of ``evaluating``, and of them the processor's: where others
            use the machine too, those say more.
        noted: what the contender had to say at the end: ``updates`` and ``warnings``.
        versions: of what computed.
        machine: that it ran on, and how many ``jobs`` at a time.
    """

    task: str
    contender: str
    seed: int
    fingerprint: str
    settings: dict[str, Any]
    changes: dict[str, Any]
    evaluations: dict[str, list[float]]
    seconds: dict[str, float]
    noted: dict[str, Any]
    versions: dict[str, str]
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What names it."""
        return self.task, self.contender, self.seed, self.fingerprint

    @property
    def steps(self) -> list[int]:
        """Training steps before each evaluation."""
        return [int(step) for step in self.evaluations["steps"]]

    @property
    def means(self) -> list[float]:
        """Mean score of each evaluation."""
        return self.evaluations["mean"]

    def at(self, steps: int) -> float:
        """Return the mean score after so many steps.

        Raises:
            ValueError: there was no evaluation then.
        """
        return self.means[self.steps.index(steps)]


def known(path: Path = RESULTS) -> list[Run]:
    """Return the runs of a file, the last of each key.

    A line that a killed process left unfinished is named on stderr and left out.
    """
    runs = [Run(**fields) for fields in lines(path)]
    return list({run.key: run for run in runs}.values())


def append(run: Run, path: Path) -> None:
    """Add a run to the file, durably: one write at its end, so that writers do not mix."""
    append_line(json.dumps(asdict(run), separators=(",", ":")), path)


def fingerprint(name: str, task: Task, contender: Contender, runs: Iterable[Run]) -> str | None:
    """Return what marks runs of a contender with the settings it has today, None if it has none.

    That of earlier runs with these settings, if there are any. A field that those do not have, for
    it came later, must be at its default.
    """
    settings = contender.settings(task)
    if settings is None:
        return None
    now = json.loads(json.dumps({**settings, "shape": task.shape}))
    inert = json.loads(json.dumps(contender.inert(task)))
    for run in runs:
        same = (run.task, run.contender) == (name, contender.name)
        if same and _agree(run.settings, now, inert):
            return run.fingerprint
    text = json.dumps(now, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _agree(old: Mapping[str, Any], new: Mapping[str, Any], inert: Mapping[str, Any]) -> bool:
    for key in old.keys() | new.keys():
        if key not in new:
            return False
        before = old.get(key, inert.get(key, _NOTHING))
        if isinstance(before, Mapping) and isinstance(new[key], Mapping):
            under = inert.get(key)
            if not _agree(before, new[key], under if isinstance(under, Mapping) else {}):
                return False
        elif before != new[key]:
            return False
    return True


_NOTHING = object()


def perform(
    name: str, task: Task, contender: Contender, seed: int, mark: str, jobs: int = 1
) -> Run:
    """Train and evaluate.

    Args:
        name: of the task.
        task: itself.
        contender: who trains.
        seed: of the training.
        mark: the `fingerprint`.
        jobs: how many run at a time, for the record.
    """
    import torch

    torch.set_num_threads(1)
    settings = contender.settings(task)  # loads its libraries, before the clock runs
    assert settings is not None, contender.name
    rows: list[dict[str, float]] = []
    noted: dict[str, Any] = {}
    training, evaluating, clock = np.zeros(2), np.zeros(2), _clock()
    for at, act, noted in contender.train(task, seed):  # noqa: B007 - the last stays
        training += (paused := _clock()) - clock
        rows.append({"steps": at, **_summary(task.score(act))})
        evaluating += (clock := _clock()) - paused
    return Run(
        task=name,
        contender=contender.name,
        seed=seed,
        fingerprint=mark,
        settings={**settings, "shape": task.shape},
        changes=contender.changes(task),
        evaluations={key: [row[key] for row in rows] for key in rows[0]},
        seconds={
            "training": round(float(training[0]), 1),
            "evaluating": round(float(evaluating[0]), 1),
            "training_cpu": round(float(training[1]), 1),
            "evaluating_cpu": round(float(evaluating[1]), 1),
        },
        noted=noted,
        versions=_versions(),
        machine={"cores": os.cpu_count(), "kind": platform.machine(), "jobs": jobs},
    )


def _clock() -> np.ndarray:
    """Return the seconds of the wall and of this process on the processor, (2,)."""
    return np.array([time.perf_counter(), time.process_time()])


def _summary(scores: np.ndarray) -> dict[str, float]:
    found = {"mean": scores.mean(), "sd": scores.std(), "worst": scores.min()}
    found |= {key: np.quantile(scores, at) for key, at in QUANTILES.items()}
    return {key: round(float(value), 4) for key, value in found.items()}


def _versions() -> dict[str, str]:
    from jormungandr.service.child.fingerprint import NUMERICS
    from jormungandr.version import __version__

    found = {"jormungandr": __version__, "numerics": str(NUMERICS)}
    for name in ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "Box2D"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, "python": platform.python_version()}
