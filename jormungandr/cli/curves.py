"""Held-out curves side by side, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from jormungandr.protocol import Evaluation

__all__ = ["Curve", "difference", "table"]

#: Evaluations, each after so many training transitions, in order.
Curve: TypeAlias = list[tuple[int, Evaluation]]

#: Lines of a table; longer curves are thinned out.
LINES = 24


def table(original: Curve, new: Curve) -> list[str]:
    """Return two curves side by side, by training transitions; the first and last points are kept.

    Where one curve has several points at one place, its last one is shown.
    """
    left, right = dict(original), dict(new)
    places = sorted({*left, *right})
    if len(places) > LINES:
        last = len(places) - 1
        places = [places[round(i * last / (LINES - 1))] for i in range(LINES)]
    accuracy = any(e.auxiliary_accuracy is not None for _, e in (*original, *new))
    names = ["update", "loss", *(["accuracy"] if accuracy else [])]
    group = 10 * len(names)
    lines = [
        f"{'training':>12} {'original':>{group}} {'new':>{group}}",
        f"{'transitions':>12} {_cells(names)} {_cells(names)}",
    ]
    for place in places:
        cells = [_point(side.get(place), accuracy) for side in (left, right)]
        lines.append(f"{place:>12,} {_cells(cells[0])} {_cells(cells[1])}".rstrip())
    return lines


def difference(original: Curve, new: Curve, apart: Sequence[str] = ()) -> str:
    """Return one line on how the curves end.

    Args:
        original: one curve.
        new: the other.
        apart: differing settings because of which their losses do not measure the same.
    """
    if not original and not new:
        return "difference: none to see, for nothing was evaluated: no updates, or none held out"
    if not original or not new:
        side = "new" if original else "original"
        return f"difference: none to see, for the {side} specification made no updates to evaluate"
    a, b = original[-1][1], new[-1][1]
    parts = []
    for name in ("validation_loss", "auxiliary_accuracy"):
        old, now = getattr(a, name), getattr(b, name)
        if old is not None and now is not None:
            parts.append(f"{name} {now - old:+.4f} ({old:.4f} -> {now:.4f})")
    if apart:
        parts[0] += f", which says nothing: {', '.join(apart)} changes what is measured"
    return f"difference at the last evaluation, new - original: {'; '.join(parts)}"


def _point(evaluation: Evaluation | None, accuracy: bool) -> list[str]:
    if evaluation is None:
        return [""] * (3 if accuracy else 2)
    cells = [f"{evaluation.update_count:,}", f"{evaluation.validation_loss:.4f}"]
    if accuracy:
        known = evaluation.auxiliary_accuracy
        cells.append("" if known is None else f"{known:.3f}")
    return cells


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"{text:>10}" for text in texts)
