"""Measuring: contenders take turns, and what is told are medians and ratios within a turn.

A machine that others use, or that clocks down, slows neighbours in time alike. So nobody is
measured for long at a stretch, and two contenders are compared turn by turn.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "UNITS",
    "Case",
    "Contender",
    "Kind",
    "Measured",
    "Spread",
    "Unit",
    "counted",
    "interleaved",
    "looped",
    "ratio",
    "spread",
    "timed",
]

Kind = Literal["ours", "peer", "limit"]


@dataclass(frozen=True)
class Unit:
    """What figures are in.

    Args:
        name: as it is written behind a figure.
        more: whether more is better.
        of: the figure of so many operations in so many seconds; None where a contender measures
            something else than its loop.
    """

    name: str
    more: bool
    of: Callable[[int, float], float] | None = None


def _rate(name: str) -> Unit:
    return Unit(name, True, lambda count, seconds: count / seconds)


#: By name; results name theirs.
UNITS = {
    unit.name: unit
    for unit in (
        *(
            _rate(f"{what}/s")
            for what in ("updates", "steps", "requests", "transitions", "commits")
        ),
        Unit("µs", False, lambda count, seconds: 1e6 * seconds / count),
        Unit("ms", False),
        Unit("s", False),
        Unit("MiB", False),
        Unit("bytes", False),
        Unit("of its rate", True),
        Unit("of the raw bytes", False),
    )
}


@dataclass(frozen=True)
class Contender:
    """One of those that take turns.

    Args:
        name: unique in its case, together with `x`.
        kind: whose it is; a limit is hand-written, without checks and without care.
        sample: measures once and returns the figure, in the unit of the case.
        about: what it does, or what a limit is made of, in a few words.
        x: where it lies along the axis of a case that has one.
    """

    name: str
    kind: Kind
    sample: Callable[[], float]
    about: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Case:
    """Contenders that do the same work.

    Args:
        name: unique; targets and the document go by it.
        title: what the work is.
        unit: the name of one of `UNITS`.
        contenders: in the order in which they are shown.
        absent: by name, those that cannot take part, and why.
        noted: figures beside: called when all have been measured.
        rounds: how many turns; None is what the run says.
    """

    name: str
    title: str
    unit: str
    contenders: Sequence[Contender]
    absent: Mapping[str, str] = field(default_factory=dict)
    noted: Callable[[], Mapping[str, Any]] = dict
    rounds: int | None = None


@dataclass(frozen=True)
class Measured:
    """What a contender measured, a figure a turn."""

    name: str
    kind: str
    values: tuple[float, ...]
    about: str = ""
    x: float | None = None


@dataclass(frozen=True)
class Spread:
    """The middle of some figures, and the least and the most of them."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the ends."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(mine: Measured, other: Measured) -> Spread:
    """Return what mine is of the other's, turn by turn."""
    pairs = zip(mine.values, other.values, strict=True)
    return spread([a / b if b else math.inf for a, b in pairs])


def interleaved(
    contenders: Sequence[Contender], rounds: int
) -> tuple[list[Measured], dict[str, str]]:
    """Let contenders take turns, each round beginning with the next one.

    Args:
        contenders: of one case.
        rounds: turns of each.

    Returns:
        What they measured, in their order; and by name, why one that failed is not among them.
    """
    values: dict[int, list[float]] = {i: [] for i in range(len(contenders))}
    failed: dict[str, str] = {}
    for turn in range(rounds):
        for k in range(len(contenders)):
            i = (turn + k) % len(contenders)
            if i not in values:
                continue
            try:
                values[i].append(contenders[i].sample())
            except Exception as error:  # one that fails is no reason to lose the others
                failed[contenders[i].name] = f"failed: {error}"
                del values[i]
    found = [
        Measured(one.name, one.kind, tuple(values[i]), one.about, one.x)
        for i, one in enumerate(contenders)
        if i in values
    ]
    return found, failed


def timed(
    call: Callable[[int], object], clock: Callable[[], float] = time.process_time
) -> Callable[[int], float]:
    """Return what runs a loop of `call(count)` and tells its seconds.

    Args:
        call: does so many operations.
        clock: of this process by default: of what others compute nothing is in it.
    """

    def run(count: int) -> float:
        began = clock()
        call(count)
        return clock() - began

    return run


def counted(run: Callable[[int], float], seconds: float) -> int:
    """Return how many operations take about so many seconds, after a first one that warms up."""
    run(1)
    count = 1
    while (took := run(count)) < seconds / 4 and count < 1 << 30:
        count *= 2 if took <= 0 else max(2, min(64, int(seconds / 2 / took)))
    return max(1, math.ceil(count * seconds / max(took, 1e-9)))


def looped(
    name: str,
    kind: Kind,
    unit: str,
    run: Callable[[int], float],
    seconds: float,
    about: str = "",
    *,
    each: int = 1,
    x: float | None = None,
) -> Contender:
    """Return a contender that repeats one operation.

    Args:
        name: of it.
        kind: whose it is.
        unit: what the case counts in, with an `of`.
        run: does so many operations and returns their seconds, as `timed` makes it.
        seconds: that one turn should take.
        about: what it does.
        each: what one operation counts for: the steps in a vector step.
        x: where it lies along the axis.
    """
    of = UNITS[unit].of
    assert of is not None, unit
    known: list[int] = []

    def sample() -> float:
        if not known:
            known.append(counted(run, seconds))
        return of(known[0] * each, run(known[0]))

    return Contender(name, kind, sample, about, x)
