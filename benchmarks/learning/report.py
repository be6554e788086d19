"""The table: of each task and mark, every contender's scores over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.learning.runs import Run
from benchmarks.learning.tasks import TASKS
from jormungandr.numerics.statistics import iqm_bootstrap

__all__ = ["table"]


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table: IQM over seeds with its 95 % interval, worst seed, seconds."""
    lines = [
        "| task | steps | contender | seeds | IQM [95 %] | mean | worst | s per run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        for mark in task.marks:
            for contender in dict.fromkeys(run.contender for run in runs if run.task == name):
                mine = [r for r in runs if (r.task, r.contender) == (name, contender)]
                scores = np.array([run.at(mark) for run in mine])
                seconds = np.median([run.seconds for run in mine])
                lines.append(
                    f"| {name} | {mark:,} | {contender} | {len(mine)} | {_iqm(scores)}"
                    f" | {scores.mean():.2f} | {scores.min():.2f} | {seconds:.0f} |"
                )
    return "\n".join(lines)


def _iqm(scores: np.ndarray) -> str:
    if len(scores) < 2:
        return f"{scores[0]:.2f}"
    found = iqm_bootstrap(scores, seed=0)
    return f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
