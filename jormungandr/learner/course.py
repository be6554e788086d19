"""`Course`: a learner on its way through rows, and the held-out measurements it made on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from jormungandr.learner.core import Core
from jormungandr.protocol import Evaluation
from jormungandr.rows import JournalRow

__all__ = ["Course", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement, and how many training transitions had been applied when it was made."""

    transitions: int
    evaluation: Evaluation


@dataclass
class Course:
    """Apply rows as the learner of a service does, and keep every evaluation with its place.

    Args:
        core: a new learner.
    """

    core: Core
    points: list[Point] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def apply(self, row: JournalRow) -> None:
        """Apply the next row."""
        self.core.apply(row, self._after_update)

    def _after_update(self) -> None:
        if not self.core.evaluations:
            return
        newest = self.core.evaluations[-1]
        fresh = not self.points or self.points[-1].evaluation is not newest
        if fresh:
            self.points.append(Point(self.core.pacing.transitions, newest))
