"""Lineages: which rows of them a state meets on its way, and under what number it goes on.

After a change of what computes — libraries, processor, threads — the same rows give other bits. A
LINEAGE row then says from which position on, and its number, past every published one, is what the
policy at that position is called from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jormungandr.errors import CheckpointError
from jormungandr.service.journal.database import LineageRow

__all__ = ["ahead", "check_course", "enter"]


def ahead(rows: Sequence[LineageRow], passed: int) -> list[tuple[int, LineageRow]]:
    """Return the rows that a state meets, in order, each with how many it has passed by then.

    One that began earlier than those before it took over from them: they are passed with it.

    Args:
        rows: every lineage of the journal, in order.
        passed: how many of them the state has passed.
    """
    found: list[tuple[int, LineageRow]] = []
    for number, row in enumerate(rows[passed:], passed + 1):
        while found and found[-1][1].applied_lsn > row.applied_lsn:
            found.pop()
        found.append((number, row))
    return found


def enter(core: Any, rows: Sequence[LineageRow]) -> None:
    """Give a state the number of each lineage that begins where it is.

    Args:
        core: the `Core`; changed.
        rows: every lineage of the journal, in order.
    """
    progress = core.progress
    for number, row in ahead(rows, progress.lineages):
        if row.applied_lsn != progress.lsn:
            break
        core.renumber(row.version, number - progress.lineages)


def check_course(core: Any, rows: Sequence[LineageRow], where: str) -> None:
    """Refuse a state that went on where another lineage began.

    Args:
        core: the `Core`.
        rows: every lineage of the journal, in order.
        where: of the state, for the message.

    Raises:
        CheckpointError: it did.
    """
    progress = core.progress
    if progress.lineages > len(rows):
        raise CheckpointError(
            where, f"at most {len(rows)} lineages, as the journal has", progress.lineages
        )
    for _, row in ahead(rows, progress.lineages)[:1]:
        if row.applied_lsn < progress.lsn:
            raise CheckpointError(
                where,
                f"a state of the lineage that began after row {row.applied_lsn}",
                f"one of an earlier lineage, at row {progress.lsn}",
            )
