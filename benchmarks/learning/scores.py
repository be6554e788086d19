"""What the runs of a contender say: when it solved a task, whether it stayed solved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.runs import Run
from jormungandr.numerics.statistics import Interval, iqm, iqm_bootstrap

__all__ = ["Group", "groups", "interval"]

Floats = NDArray[np.float64]
#: Resamples of a curve's band, which has many points, and of a table's interval.
BAND, TABLE = 1_000, 10_000


@dataclass(frozen=True)
class Group:
    """The runs of one contender on one task, one a seed."""

    runs: tuple[Run, ...]

    @property
    def scores(self) -> Floats:
        """Mean scores, (seeds, evaluations)."""
        return np.array([run.means for run in self.runs])

    @property
    def steps(self) -> list[int]:
        """Training steps before each evaluation."""
        return self.runs[0].steps

    def at(self, steps: int) -> Floats:
        """Return the mean score of every seed after so many steps, (seeds,)."""
        return np.array([run.at(steps) for run in self.runs])

    def first(self, solved: float) -> list[int | None]:
        """Return each seed's steps until its first evaluation that is solved, None without one."""
        hits = self.scores >= solved
        return [self.steps[int(hit.argmax())] if hit.any() else None for hit in hits]

    def after(self, solved: float) -> list[Floats]:
        """Return the evaluations after the first solved one, of each seed that has one."""
        hits = self.scores >= solved
        return [
            row[int(hit.argmax()) + 1 :]
            for row, hit in zip(self.scores, hits, strict=True)
            if hit.any()
        ]

    def largest_fall(self, since: int) -> float:
        """Return the most that a seed lost after an evaluation at `since` steps or later."""
        rows = self.scores[:, self.steps.index(since) :]
        return float((np.maximum.accumulate(rows, axis=1) - rows).max())

    def curve(self) -> tuple[Floats, Floats, Floats]:
        """Return the interquartile mean of the seeds with its 95 % band, each (evaluations,).

        Whole runs are resampled, as `iqm_bootstrap` does for one evaluation.
        """
        scores = self.scores
        n = len(scores)
        middle = np.array([iqm(column) for column in scores.T])
        picks = np.random.default_rng(0).integers(0, n, size=(BAND, n))
        ordered = np.sort(scores[picks], axis=1)  # (BAND, n, evaluations)
        means = ordered[:, n // 4 : n - n // 4].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975], axis=0)
        return middle, low, high


def groups(runs: Iterable[Run]) -> dict[tuple[str, str], Group]:
    """Return the runs by (task, contender), those with its newest settings only.

    The newest are those of the line that comes last in the file.
    """
    runs = list(runs)
    newest = {(run.task, run.contender): run.fingerprint for run in runs}
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if newest[run.task, run.contender] == run.fingerprint:
            found.setdefault((run.task, run.contender), []).append(run)
    return {
        key: Group(tuple(sorted(mine, key=lambda run: run.seed))) for key, mine in found.items()
    }


def interval(scores: Sequence[float] | Floats) -> Interval:
    """Return the interquartile mean over seeds with its 95 % bootstrap interval.

    One seed has none: its ends are the score itself.
    """
    if len(scores) < 2:
        return Interval(float(scores[0]), float(scores[0]), float(scores[0]))
    return iqm_bootstrap(scores, resamples=TABLE, seed=0)
