"""What is asked of our contenders on each task, and whether the runs say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.learning.scores import Group
from benchmarks.learning.tasks import TASKS

__all__ = ["TARGETS", "Target", "Verdict"]

#: The runs of all contenders on one task.
Others = Mapping[str, Group]


@dataclass(frozen=True)
class Verdict:
    """What was measured, and by how much it is short of the target: 0 or less is met.

    `short` is None where runs to compare with are missing.
    """

    measured: str
    short: float | None

    def __str__(self) -> str:
        if self.short is None:
            return self.measured
        if self.short <= 0:
            return f"met: {self.measured}"
        digits = 2 if self.short >= 0.005 else 4
        return f"**missed by {self.short:,.{digits}f}**: {self.measured}".replace(".00**", "**")


@dataclass(frozen=True)
class Target:
    """One target.

    Args:
        level: ``must`` or ``stretch``.
        task: its name.
        text: for a reader.
        judge: what a contender's runs say, with everyone's on the task beside them.
    """

    level: str
    task: str
    text: str
    judge: Callable[[Group, Others], Verdict]


def mean(steps: int, least: float) -> Callable[[Group, Others], Verdict]:
    """The mean over seeds after so many steps."""

    def judge(mine: Group, others: Others) -> Verdict:
        score = float(mine.at(steps).mean())
        return Verdict(f"{score:.2f}", least - score)

    return judge


def worst(steps: int, least: float) -> Callable[[Group, Others], Verdict]:
    """The worst seed after so many steps."""

    def judge(mine: Group, others: Others) -> Verdict:
        score = float(mine.at(steps).min())
        return Verdict(f"worst of {len(mine.runs)} {score:.2f}", least - score)

    return judge


def solved_by(steps: int, score: float, of_ten: int) -> Callable[[Group, Others], Verdict]:
    """So many of ten seeds had their first solved evaluation by then."""

    def judge(mine: Group, others: Others) -> Verdict:
        number = sum(at is not None and at <= steps for at in mine.first(score))
        return _of_ten(number, len(mine.runs), of_ten)

    return judge


def solved_at(steps: int, score: float, of_ten: int) -> Callable[[Group, Others], Verdict]:
    """So many of ten seeds are solved at that evaluation."""

    def judge(mine: Group, others: Others) -> Verdict:
        return _of_ten(int((mine.at(steps) >= score).sum()), len(mine.runs), of_ten)

    return judge


def _of_ten(number: int, total: int, of_ten: int) -> Verdict:
    """Judge how many seeds did it, of more than ten the same share.

    Undecided while those to come may still decide it.
    """
    failed = total - number
    if number < of_ten and failed <= 10 - of_ten and total < 10:
        return Verdict(f"{number} seeds", None)
    least = math.ceil(of_ten * total / 10) if total > 10 else of_ten
    return Verdict(f"{number} of {total} seeds", least - number)


def stays(score: float, least: float) -> Callable[[Group, Others], Verdict]:
    """No evaluation after the first solved one is under `least`."""

    def judge(mine: Group, others: Others) -> Verdict:
        later = [row for row in mine.after(score) if len(row)]
        if not later:
            return Verdict("never solved", None)
        lowest = float(min(row.min() for row in later))
        under = sum(int((row < least).sum()) for row in later)
        total = sum(len(row) for row in later)
        return Verdict(f"lowest {lowest:.0f}, {under} of {total} under", least - lowest)

    return judge


def beside(steps: tuple[int, ...], prefix: str, slack: float) -> Callable[[Group, Others], Verdict]:
    """At those steps, the mean is at most `slack` under that of the best contender named so."""

    def judge(mine: Group, others: Others) -> Verdict:
        rivals = {name: group for name, group in others.items() if name.startswith(prefix)}
        if not rivals:
            return Verdict("nobody to compare with yet", None)
        parts, short = [], -np.inf
        for step in steps:
            name = max(rivals, key=lambda who: float(rivals[who].at(step).mean()))
            ours, theirs = float(mine.at(step).mean()), float(rivals[name].at(step).mean())
            parts.append(f"{ours:.3f} against {theirs:.3f} ({name})")
            short = max(short, theirs - slack - ours)
        return Verdict("; ".join(parts), short)

    return judge


def steady(since: int, most: float) -> Callable[[Group, Others], Verdict]:
    """No seed falls back by more from its best evaluation at `since` steps or later."""

    def judge(mine: Group, others: Others) -> Verdict:
        fall = mine.largest_fall(since)
        return Verdict(f"largest fall {fall:.3f}", fall - most)

    return judge


_SOLVED = {name: task.solved or 0.0 for name, task in TASKS.items()}
_POLE, _LAND = _SOLVED["cartpole"], _SOLVED["lunarlander"]

TARGETS: tuple[Target, ...] = (
    Target("must", "ou-1344", "gap closed ≥ 0.78 at 1,344", mean(1_344, 0.78)),
    Target("must", "ou-1344", "every seed above the reference (0)", worst(1_344, 0.0)),
    Target("stretch", "ou-1344", "gap closed ≥ 0.83 at 1,344", mean(1_344, 0.83)),
    Target("stretch", "ou-1344", "worst seed ≥ 0.65", worst(1_344, 0.65)),
    Target(
        "must",
        "ou",
        "within 0.03 of SB3 DQN at 20,000 and 50,000",
        beside((20_000, 50_000), "SB3 DQN", 0.03),
    ),
    Target("must", "ou", "above QR-DQN there", beside((20_000, 50_000), "QR-DQN", 0.0)),
    Target("must", "ou", "from 20,000 on no seed falls back by > 0.05", steady(20_000, 0.05)),
    Target("stretch", "ou", "gap closed ≥ 0.96 at 20,000", mean(20_000, 0.96)),
    Target("stretch", "ou", "gap closed ≥ 0.98 at 50,000", mean(50_000, 0.98)),
    Target("must", "cartpole", "≥ 475 by 50,000, 9 of 10 seeds", solved_by(50_000, _POLE, 9)),
    Target("must", "cartpole", "then no evaluation under 400 to 150,000", stays(_POLE, 400.0)),
    Target("stretch", "cartpole", "≥ 475 by 20,000, 9 of 10 seeds", solved_by(20_000, _POLE, 9)),
    Target("must", "acrobot", "≥ −85 at 100,000", mean(100_000, -85.0)),
    Target("stretch", "acrobot", "≥ −80 at 60,000", mean(60_000, -80.0)),
    Target("must", "mountaincar", "≥ −120 at 150,000", mean(150_000, -120.0)),
    Target("stretch", "mountaincar", "≥ −110 at 120,000", mean(120_000, -110.0)),
    Target("must", "lunarlander", "≥ 200 at 300,000, 8 of 10 seeds", solved_at(300_000, _LAND, 8)),
    Target(
        "stretch", "lunarlander", "≥ 200 at 150,000, 8 of 10 seeds", solved_at(150_000, _LAND, 8)
    ),
)
