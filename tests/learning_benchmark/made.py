"""Runs and contenders of a test's choice."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.learning.runs import Run
from benchmarks.learning.scores import Group
from benchmarks.learning.tasks import TASKS, Task

SHORT = Task("OUSpread-v0", 96, 48, 8, (96,), (-1.0, 1.0))


def seconds(training: float, evaluating: float) -> dict[str, float]:
    """Return those of a run that had the processor for itself."""
    both = {"training": training, "evaluating": evaluating}
    return {**both, **{f"{key}_cpu": value for key, value in both.items()}}


def run(contender: str = "ours", seed: int = 0, task: str = "cartpole", **fields: Any) -> Run:
    """Return a run that somebody might have done; `means` are those of its evaluations."""
    shape = TASKS[task].shape
    means = fields.pop("means", None)
    number = shape["steps"] // shape["every"]
    means = [100.0] * number if means is None else means
    steps = [shape["every"] * (i + 1) for i in range(len(means))]
    known_fields: dict[str, Any] = {
        "fingerprint": "aaa",
        "settings": {"lr": 1.0, "shape": shape},
        "changes": {},
        "evaluations": {"steps": steps, "mean": list(means)},
        "seconds": seconds(10.0, 2.0),
        "noted": {"updates": 5, "warnings": []},
        "versions": {"jormungandr": "1"},
        "machine": {"cores": 2, "kind": "x86_64", "jobs": 1},
    }
    return Run(task, contender, seed, **{**known_fields, **fields})


@dataclasses.dataclass
class Fake:
    """A contender with settings of the test's choice."""

    given: dict[str, Any] | None
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    name: str = "ours"
    seeds: int = 2

    def settings(self, task: Task) -> dict[str, Any] | None:
        """Return them."""
        return self.given

    def inert(self, task: Task) -> dict[str, Any]:
        """Return the defaults."""
        return self.defaults

    def changes(self, task: Task) -> dict[str, Any]:
        """Return none."""
        return {}

    def train(self, task: Task, seed: int) -> Iterator[Any]:
        """Hand over a policy that always does the first action."""
        for at in range(task.every, task.steps + 1, task.every):
            yield at, lambda seen: np.zeros(len(seen), dtype=np.int64), {"updates": at}


class Endless(Fake):
    """A contender that says that it has begun, and never ends."""

    def train(self, task: Task, seed: int) -> Iterator[Any]:
        """Train on and on."""
        print("begun", flush=True)
        threading.Event().wait()
        yield from super().train(task, seed)


def cartpole(*means: list[float]) -> Group:
    """Return a group with a seed for each list of means."""
    return Group(tuple(run(seed=i, means=row) for i, row in enumerate(means)))
