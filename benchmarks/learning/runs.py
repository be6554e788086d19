"""Runs: one JSON line each, in a file that a later sitting goes on with."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.contenders import CONTENDERS
from benchmarks.learning.tasks import TASKS
from jormungandr.version import __version__

__all__ = ["RESULTS", "Run", "known", "perform"]

RESULTS = Path(__file__).parents[1] / "results" / "learning.jsonl"


@dataclass(frozen=True)
class Run:
    """One training with one seed.

    Args:
        task, contender, seed: which.
        evaluations: [steps, mean score, 25 % quantile, worst] at each.
        seconds: of training, evaluations left out.
        noted: what the contender had to say at the end.
        versions: of what computed.
    """

    task: str
    contender: str
    seed: int
    evaluations: list[list[float]]
    seconds: float
    noted: dict[str, Any]
    versions: dict[str, str]

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it."""
        return self.task, self.contender, self.seed

    def at(self, steps: int) -> float:
        """Return the mean score after so many steps."""
        return next(row[1] for row in self.evaluations if row[0] == steps)


def known(path: Path = RESULTS) -> list[Run]:
    """Return the runs of a file, the last of each key."""
    if not path.exists():
        return []
    runs = [Run(**json.loads(line)) for line in path.read_text().splitlines()]
    return list({run.key: run for run in runs}.values())


def perform(task: str, contender: str, seed: int, path: Path = RESULTS) -> Run:
    """Train, evaluate, and append the run to the file."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    evaluations, noted, spent, began = [], {}, 0.0, time.perf_counter()
    for at, act, noted in CONTENDERS[contender](TASKS[task], seed):  # noqa: B007 - the last stays
        spent += time.perf_counter() - began
        scores = TASKS[task].score(act)
        row = [at, scores.mean(), np.quantile(scores, 0.25), scores.min()]
        evaluations.append([round(float(x), 4) for x in row])
        began = time.perf_counter()
    versions = {
        "jormungandr": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "stable-baselines3": stable_baselines3.__version__,
        "python": platform.python_version(),
    }
    run = Run(task, contender, seed, evaluations, round(spent, 1), noted, versions)
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(run)) + "\n")
    return run
