"""`Finding`: one thing that `doctor` looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["EXIT_CODES", "Finding", "Status", "fail", "ok", "skip", "warn"]

Status: TypeAlias = Literal["ok", "warn", "fail", "skip"]

#: Of each check: the exit status when it is the first that fails.
EXIT_CODES = {
    "packages": 10,
    "sqlite": 11,
    "torch": 12,
    "limits": 13,
    "directory": 14,
    "token": 15,
    "disk": 16,
    "journals": 17,
    "service": 18,
    "learners": 19,
    "clipped": 20,
    "reward": 21,
    "episodes": 22,
    "features": 23,
    "actions": 24,
    "lag": 25,
    "splits": 26,
    "labels": 27,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        check: its name, one of `EXIT_CODES`.
        status: ``ok``; ``warn``, it works and should be looked at; ``fail``, it does not work;
            ``skip``, it could not be looked at.
        measured: what is there, with its unit.
        remedy: what to do; empty where there is nothing to.
    """

    check: str
    status: Status
    measured: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.status:<5} {self.check:<10} {self.measured}"
        return f"{line}\n{'':16} {self.remedy}" if self.remedy else line


def ok(check: str, measured: str) -> Finding:
    """Return that it is as it should be."""
    return Finding(check, "ok", measured)


def warn(check: str, measured: str, remedy: str) -> Finding:
    """Return that it works, and should be looked at."""
    return Finding(check, "warn", measured, remedy)


def fail(check: str, measured: object, remedy: str) -> Finding:
    """Return that it does not work."""
    return Finding(check, "fail", str(measured), remedy)


def skip(check: str, why: str, remedy: str = "") -> Finding:
    """Return that it could not be looked at."""
    return Finding(check, "skip", why, remedy)
