"""Cases that have an axis: what lies along it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CURVES", "Curve"]


@dataclass(frozen=True)
class Curve:
    """How a case is drawn; its axis has decades.

    Args:
        across: what the axis says.
        decades: whether the figures are drawn by decades, too.
    """

    across: str
    decades: bool = False


CURVES = {
    "growth-update": Curve("transitions in replay"),
    "growth-inference": Curve("observations in a request", decades=True),
    "growth-codec": Curve("transitions in a request", decades=True),
    "growth-connections": Curve("connections"),
    "growth-models": Curve("models"),
}
