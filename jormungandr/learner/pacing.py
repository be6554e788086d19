"""Pacing: when updates are due, as a function of what has been read and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from jormungandr.spec import Pacing as PacingSpec

__all__ = ["Pacing"]


@dataclass
class Pacing:
    """Counts training transitions applied and updates paid.

    After `n` transitions, ``floor((n - learning_starts) · updates_per_transition)`` updates are
    due. The ratio is taken as the decimal it is written as, so 0.1 is one update every ten
    transitions exactly, and never nine or eleven.

    Args:
        spec: learning_starts and updates_per_transition.
        transitions: accepted training transitions applied.
        paid: due updates that ran, were skipped for want of a batch, or were not finite.
    """

    spec: PacingSpec
    transitions: int = 0
    paid: int = 0

    def __post_init__(self) -> None:
        ratio = Fraction(repr(float(self.spec.updates_per_transition)))
        self._updates, self._per = ratio.numerator, ratio.denominator

    @property
    def owed(self) -> int:
        """Updates that are due now."""
        beyond = max(0, self.transitions - self.spec.learning_starts)
        return beyond * self._updates // self._per - self.paid

    def until_due(self) -> int | None:
        """Return how many more training transitions make an update due; None when never."""
        if self._updates == 0:
            return None
        at = self.spec.learning_starts - (-(self.paid + 1) * self._per // self._updates)
        return max(1, at - self.transitions)
