"""What a check of a data directory finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["NOT_CHECKSUM", "Finding", "damage", "gap", "proven", "undone"]

NOT_CHECKSUM = "it is not what its checksum was taken of"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Args:
        status: ``ok`` it is proven; ``gap`` it could not be, for a reason that is no fault;
            ``undone`` the check itself has failed; ``damage`` it is not what was written.
        where: file, and row or tensor where there is one.
        text: what was found.
    """

    status: Literal["ok", "gap", "undone", "damage"]
    where: str
    text: str

    def __str__(self) -> str:
        return f"{_WORDS[self.status]:<10}  {self.where}: {self.text}"


_WORDS = {"ok": "ok", "gap": "not proven", "undone": "NOT DONE", "damage": "DAMAGE"}


def proven(where: str, text: str) -> Finding:
    """Return that something is as it was written."""
    return Finding("ok", where, text)


def gap(where: str, text: str) -> Finding:
    """Return that something could not be proven."""
    return Finding("gap", where, text)


def damage(where: str, text: object) -> Finding:
    """Return that something is not what was written."""
    return Finding("damage", where, str(text))


def undone(where: str, text: object) -> Finding:
    """Return that something could not be checked because the check has failed."""
    return Finding("undone", where, str(text))
