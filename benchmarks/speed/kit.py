"""What a row is handed: how long to measure, where files may lie, and the peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.speed.peers import Peers
from benchmarks.speed.timing import Case

__all__ = ["Kit", "Row"]


@dataclass(frozen=True)
class Kit:
    """What the rows of a run share.

    Args:
        quick: whether to look once instead of to measure.
        folder: an empty one; services keep their data in it, so its disk counts.
        peers: their environment.
    """

    quick: bool
    folder: Path
    peers: Peers

    @property
    def rounds(self) -> int:
        """Turns of each contender."""
        return 2 if self.quick else 9

    @property
    def seconds(self) -> float:
        """Seconds of a turn of a loop in one process."""
        return 0.05 if self.quick else 0.5

    @property
    def long(self) -> float:
        """Seconds of a turn that a service or several processes take part in."""
        return 0.5 if self.quick else 4.0

    def room(self, name: str) -> Path:
        """Return the path of a folder that is not there yet."""
        return self.folder / name


class Row(Protocol):
    """One row: yields its cases, and frees what a case held when it is asked for the next."""

    def __call__(self, kit: Kit) -> Iterator[Case]:
        """Yield the cases, each to be measured before the next is asked for."""
        ...
