"""The overview as SVG: how fast peers and limits are beside ours, a line for each case."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.speed.results import Result
from benchmarks.speed.timing import UNITS, Measured, ratio

__all__ = ["overview", "relative"]

WIDTH, LEFT, RIGHT, TOP, LINE = 860, 250, 836, 52, 46
#: Speeds at the edges, as multiples of ours; what lies beyond is drawn at the edge.
LOW, HIGH = 0.02, 20.0
TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
#: Ours with compiled loops.
FAST = "ours [fast]"
COLOURS = {"ours": "#d1342f", "peer": "#2272b2", "limit": "#777"}


def relative(result: Result) -> list[tuple[Measured, float]]:
    """Return how fast peers and limits are, as multiples of ours: turn by turn, the median.

    Ours with compiled loops is among them; a case that counts no operations has none.
    """
    mine, unit = result.of("ours"), UNITS[result.unit]
    if mine is None or unit.of is None:
        return []
    return [
        (one, (ratio(one, mine) if unit.more else ratio(mine, one)).median)
        for one in result.measured
        if one.x is None and (one.kind != "ours" or one.name == FAST)
    ]


def overview(results: Sequence[Result]) -> str:
    """Return the picture; ours is the line at 1, what is left of it is slower."""
    bottom = TOP + LINE * len(results)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 44}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{bottom + 44}" fill="#fff"/>',
        '<text x="12" y="20" font-size="13">Speed beside ours, which is 1: peers (blue), limits '
        "written by hand (grey)</text>",
    ]
    for tick in TICKS:
        x, own = _across(tick), tick == 1
        colour, width = ("#d1342f", 1.6) if own else ("#e4e4e4", 1)
        parts.append(
            f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="{colour}" stroke-width="{width}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    middle = (LEFT + RIGHT) / 2
    words = "slower than ours · times the speed of ours · faster than ours"
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{words}</text>')
    for i, result in enumerate(results):
        parts += _line(result, TOP + LINE * i + LINE / 2)
    return "\n".join([*parts, "</svg>", ""])


def _line(result: Result, y: float) -> list[str]:
    parts = [f'<text x="12" y="{y + 4:.1f}">{escape(result.case)}</text>']
    parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#f2f2f2"/>')
    # Words above and below the line in turn, from left to right, so that neighbours do not meet.
    for k, (one, speed) in enumerate(sorted(relative(result), key=lambda pair: pair[1])):
        x = _across(speed)
        name = escape(one.name.removeprefix("limit: "))
        at = y - 7 if k % 2 == 0 else y + 15
        anchor = "end" if x > RIGHT - 90 else "start" if x < LEFT + 60 else "middle"
        colour = COLOURS[one.kind]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{at:.1f}" text-anchor="{anchor}" fill="{colour}" '
            f'font-size="10">{name} {speed:.2g}</text>'
        )
    return parts


def _across(speed: float) -> float:
    share = math.log(min(max(speed, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + (RIGHT - LEFT) * share
