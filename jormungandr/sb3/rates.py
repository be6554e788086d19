"""`AnnealedRate`: a learning rate that falls while Stable-Baselines3 learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jormungandr.settings import C51, LearningRate

__all__ = ["AnnealedRate"]


@dataclass(frozen=True)
class AnnealedRate:
    """From `lr` down to `end` times `lr` over all of `learn`, on the curves of the learner's own.

    Stable-Baselines3 knows how long a call of `learn` will be, and says which share remains.

    Args:
        lr: at the beginning.
        kind: ``linear``, or half a ``cosine``.
        end: what is left at the end, as a share of `lr`.

    Raises:
        InvalidValue: a number outside its range.

    Example:
        >>> rate = AnnealedRate(1e-3, end=0.1)
        >>> f"{rate(1.0):.4f} {rate(0.5):.5f} {rate(0.0):.4f}"
        '0.0010 0.00055 0.0001'
    """

    lr: float
    kind: Literal["linear", "cosine"] = "linear"
    end: float = 0.1

    def __post_init__(self) -> None:
        C51(lr=self.lr, lr_schedule=self._curve())

    def _curve(self) -> LearningRate:
        return LearningRate(kind=self.kind, updates=1, end=self.end)

    def __call__(self, progress_remaining: float) -> float:
        """Return the learning rate where this share of the steps remains, 1 to 0."""
        # The last rollout may go past the end.
        return self.lr * self._curve().factor_at(min(1.0, 1 - progress_remaining))
