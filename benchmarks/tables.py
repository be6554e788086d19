"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["rows"]


def rows(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
