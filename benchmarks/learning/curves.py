"""Learning curves as SVG: a line with its band for everyone, small, and the same each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["Series", "plot"]

#: Of the picture, and of the frame in it: left, top, right, bottom.
WIDTH, HEIGHT = 760, 360
LEFT, TOP, RIGHT, BOTTOM = 56, 28, 560, 318


@dataclass(frozen=True)
class Series:
    """One line: its label, colour, and at each of x its middle and its band."""

    label: str
    colour: str
    x: Sequence[float]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def plot(
    title: str, series: Sequence[Series], view: tuple[float, float], level: float | None = None
) -> str:
    """Return the picture.

    Args:
        title: above it.
        series: lines, the last on top.
        view: scores at the lower and upper edge; what lies beyond is drawn at the edge.
        level: a score to be marked with a dashed line.
    """
    end = max(max(line.x) for line in series)

    def points(x: Sequence[float], y: NDArray[np.float64]) -> list[str]:
        return [f"{_across(a, end):.1f},{_down(b, view):.1f}" for a, b in zip(x, y, strict=True)]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
    ]
    for tick in _ticks(*view):
        y = _down(tick, view)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(0, end):
        x = _across(tick, end)
        parts.append(f'<path d="M{x:.1f} {BOTTOM}v4" stroke="#888"/>')
        text = f'<text x="{x:.1f}" y="{BOTTOM + 17}" text-anchor="middle">{tick:,.0f}</text>'
        parts.append(text)
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">training steps</text>')
    if level is not None:
        y = _down(level, view)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#888" stroke-dasharray="5 4"/>')
    for line in series:
        band = points(line.x, line.high) + points(line.x, line.low)[::-1]
        parts.append(
            f'<polygon points="{" ".join(band)}" fill="{line.colour}" fill-opacity="0.14"/>'
        )
    for i, line in enumerate(series):
        parts.append(
            f'<polyline points="{" ".join(points(line.x, line.middle))}" fill="none" '
            f'stroke="{line.colour}" stroke-width="1.8"/>'
        )
        y = TOP + 12 + 18 * (len(series) - 1 - i)
        parts.append(
            f'<path d="M{RIGHT + 12} {y - 4}h18" stroke="{line.colour}" stroke-width="2.5"/>'
        )
        parts.append(f'<text x="{RIGHT + 36}" y="{y}">{escape(line.label)}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#888"/>')
    return "\n".join([*parts, "</svg>", ""])


def _across(x: float, end: float) -> float:
    return LEFT + (RIGHT - LEFT) * x / end


def _down(y: float, view: tuple[float, float]) -> float:
    low, high = view
    return BOTTOM - (BOTTOM - TOP) * (min(max(y, low), high) - low) / (high - low)


def _ticks(low: float, high: float) -> list[float]:
    """Return four to nine round numbers from low to high."""
    raw = (high - low) / 5
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw)
    first = np.ceil(low / step - 1e-9)
    count = int(np.floor(high / step + 1e-9) - first) + 1
    return [float(round((first + i) * step, 10)) for i in range(count)]
