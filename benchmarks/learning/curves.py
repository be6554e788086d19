"""Curves as SVG: a line with its band for everyone, small, and the same each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["Axis", "Series", "plot"]

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


@dataclass(frozen=True)
class Axis:
    """One axis: what is written beside it, and whether it has decades."""

    label: str = ""
    decades: bool = False


def plot(
    title: str,
    series: Sequence[Series],
    view: tuple[float, float],
    level: float | None = None,
    *,
    across: Axis = Axis("training steps"),
    up: Axis = Axis(),
) -> str:
    """Return the picture.

    Args:
        title: above it.
        series: lines, the last on top.
        view: scores at the lower and upper edge; what lies beyond is drawn at the edge.
        level: a score to be marked with a dashed line.
        across: of x: from 0, or with decades from the least there is.
        up: of the scores; its label is for the title to say.
    """
    width = (0.0, max(max(line.x) for line in series))
    if across.decades:
        width = (min(min(line.x) for line in series), width[1])

    def right(x: float) -> float:
        return LEFT + (RIGHT - LEFT) * _share(x, width, across.decades)

    def down(y: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * _share(min(max(y, view[0]), view[1]), view, up.decades)

    def points(x: Sequence[float], y: NDArray[np.float64]) -> list[str]:
        return [f"{right(a):.1f},{down(b):.1f}" for a, b in zip(x, y, strict=True)]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
    ]
    for tick in _ticks(*view, decades=up.decades):
        y = down(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(*width, decades=across.decades):
        x = right(tick)
        parts.append(f'<path d="M{x:.1f} {BOTTOM}v4" stroke="#888"/>')
        text = f'<text x="{x:.1f}" y="{BOTTOM + 17}" text-anchor="middle">{tick:,.0f}</text>'
        parts.append(text)
    middle = (LEFT + RIGHT) / 2
    label = escape(across.label)
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    if level is not None:
        y = down(level)
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


def _share(value: float, ends: tuple[float, float], decades: bool) -> float:
    low, high = ends
    if decades:
        return float(np.log(value / low) / np.log(high / low))
    return (value - low) / (high - low)


def _ticks(low: float, high: float, *, decades: bool = False) -> list[float]:
    """Return four to nine round numbers from low to high, or the powers of ten between them."""
    if decades:
        first, last = np.ceil(np.log10(low) - 1e-9), np.floor(np.log10(high) + 1e-9)
        return [10.0**k for k in range(int(first), int(last) + 1)]
    raw = (high - low) / 5
    size = 10.0 ** np.floor(np.log10(raw))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw)
    first = np.ceil(low / step - 1e-9)
    count = int(np.floor(high / step + 1e-9) - first) + 1
    return [float(round((first + i) * step, 10)) for i in range(count)]
