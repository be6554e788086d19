"""The targets, and whether figures meet them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from benchmarks.speed.results import Result
from benchmarks.speed.timing import ratio, spread

__all__ = ["TARGETS", "Target", "Verdict", "judged", "number"]


@dataclass(frozen=True)
class Verdict:
    """Whether a target is met: None where it was not measured; and the figure in words."""

    met: bool | None
    text: str


@dataclass(frozen=True)
class Target:
    """What one contender of a case is to reach.

    Args:
        case: name of the case.
        relation: ``>=`` or ``<=``.
        bound: times what the other one has, or an absolute figure in the unit of the case.
        of: the other contender; None is an absolute figure.
        who: the contender.
    """

    case: str
    relation: Literal[">=", "<="]
    bound: float
    of: str | None = None
    who: str = "ours"

    def text(self, unit: str) -> str:
        """Return it in words."""
        sign = "≥" if self.relation == ">=" else "≤"
        what = (
            f"{number(self.bound)} {unit}".strip()
            if self.of is None
            else f"{self.bound:g} × {self.of}"
        )
        return f"{sign} {what}" if self.who == "ours" else f"{self.who}: {sign} {what}"

    def judge(self, result: Result) -> Verdict:
        """Hold what was measured against it; by the median of the turns."""
        mine = result.of(self.who)
        if mine is None:
            return Verdict(None, f"not measured: {self.who}: {result.why(self.who)}")
        if self.of is None:
            found = spread(mine.values)
            words = f"{number(found.median)} [{number(found.low)}, {number(found.high)}]"
        else:
            other = result.of(self.of)
            if other is None:
                return Verdict(None, f"not measured: {self.of}: {result.why(self.of)}")
            found = ratio(mine, other)
            words = f"{found.median:.2f} × [{found.low:.2f}, {found.high:.2f}]"
        met = found.median >= self.bound if self.relation == ">=" else found.median <= self.bound
        return Verdict(met, words)


def judged(result: Result) -> list[tuple[Target, Verdict]]:
    """Return the targets of a case with their verdicts."""
    return [(target, target.judge(result)) for target in TARGETS if target.case == result.case]


def number(value: float) -> str:
    """Return a figure with three digits that count, or all those before the point."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.9995 else f"{value:.3g}"


def _targets() -> Iterable[Target]:
    yield Target("update-small", ">=", 4, "Tianshou C51 + PER")
    yield Target("update-small", ">=", 1.7, "SB3 DQN")
    yield Target("update-large", ">=", 2, "Tianshou C51 + PER")
    for size in ("100k", "1m"):
        # Once the draws alone, and once with what the items hold, as both return them to a user.
        for more in ("", ", gathered"):
            yield Target(f"replay-{size}", "<=", 1.3, f"Tianshou{more}", who=f"ours{more}")
            yield Target(f"replay-{size}", "<=", 0.6, f"Tianshou{more}", who=f"ours [fast]{more}")
    yield Target("act", "<=", 15)
    yield Target("http-one", "<=", 1.3, "bare ASGI + forward")
    yield Target("http-busy", ">=", 20_000, who="ours, 64 connections")
    yield Target("http-paced", "<=", 1.5, "ours, alone", who="ours, beside a learner")
    yield Target("http-kept", ">=", 0.95)
    yield Target("ingest-256", ">=", 250_000, who="ours, columns")
    yield Target("ingest-256", ">=", 150_000, who="ours, JSON")
    yield Target("ingest-1", ">=", 8_000)
    yield Target("ingest-sustained", ">=", 0.95, "the learner alone")
    yield Target("env-64", ">=", 5e6)
    yield Target("env-4096", ">=", 25e6)
    for case, who, bound in (
        ("actor-1", "ours, remote", 3_000),
        ("actor-1", "ours, local", 20_000),
        ("actor-64", "ours, remote", 60_000),
        ("actor-64", "ours, local", 150_000),
    ):
        yield Target(case, ">=", bound, who=who)
    yield Target("growth-memory", "<=", 1.3, who="ours, 64 numbers")
    yield Target("start-help", "<=", 150)
    yield Target("start-ready", "<=", 2_000)
    yield Target("start-action", "<=", 5_000)


TARGETS = tuple(_targets())
