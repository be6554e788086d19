"""Fitted-Q evaluation with linear Q, in closed form.

N logged steps, P features of a state and an action.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FittedQ", "Moments", "fitted_q"]

Floats = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """All that a regression needs of its steps; those of two logs add up, field by field.

    Attributes:
        gram: (P, P) the sum over steps of φ φᵀ, φ the features of a state and the action taken.
        cross: (P, P) of φ φ'ᵀ, φ' those of the successor, averaged over the policy's actions there.
        reward: (P,) of φ r.
    """

    gram: Floats
    cross: Floats
    reward: Floats

    @classmethod
    def of(cls, design: Floats, successor: Floats, reward: Floats) -> "Moments":
        """Return the moments of N steps.

        Args:
            design: (N, P), φ of each.
            successor: (N, P), φ' of each; 0 where nothing follows.
            reward: (N,).
        """
        return cls(design.T @ design, design.T @ successor, design.T @ reward)


class FittedQ(NamedTuple):
    """What a policy's actions are worth, and where it goes.

    Attributes:
        weights: (P,); an action with the features φ is worth φ · weights.
        visits: (P,); φ · visits is how often the policy comes by, over how often the log does, each
            discounted: the value of the start is the sum of that times the reward over the log.
    """

    weights: Floats
    visits: Floats


def fitted_q(
    moments: Moments,
    start: Floats,
    *,
    discount: float,
    iterations: int | None,
    ridge: float,
) -> FittedQ:
    """Evaluate a policy by iterated ridge regression.

    Le, Voloshin and Yue (2019), arXiv:1903.08738, algorithm 3: from Q = 0, each Q is the fit to
    r + γ Q(s', π) with the one before. Linear Q make an iteration w ← b + M w, whose limit, where
    it has one, is (I − M)⁻¹ b. The value of the start is linear in the rewards too; its
    coefficients are the visits, which the transposed iteration yields (on the two together: Uehara,
    Huang and Jiang 2020, arXiv:1910.12809).

    Args:
        moments: of the steps.
        start: (P,) mean features of first states, averaged over the policy's actions there.
        discount: γ in [0, 1].
        iterations: ≥ 1; of a task that ends, its horizon. None is the limit, for γ < 1.
        ridge: penalty on the squared weights, ≥ 0: it weighs as much as so many steps that say 0.

    Raises:
        ValueError: the regression has no single solution.
    """
    size = len(start)
    gram = moments.gram + ridge * np.eye(size)
    sides = np.column_stack([discount * moments.cross, moments.reward])
    try:
        solved = np.asarray(np.linalg.solve(gram, sides), dtype=np.float64)
        step, once = solved[:, :-1], solved[:, -1]
        if iterations is None:
            left = np.eye(size) - step
            weights = np.asarray(np.linalg.solve(left, once), dtype=np.float64)
            reached = np.asarray(np.linalg.solve(left.T, start), dtype=np.float64)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                weights = _iterated(step, once, iterations)
                reached = _iterated(step.T, start, iterations)
        return FittedQ(weights, np.asarray(np.linalg.solve(gram, reached), dtype=np.float64))
    except np.linalg.LinAlgError:
        raise ValueError("fitted_q: expected independent features, or ridge > 0") from None


def _iterated(step: Floats, once: Floats, count: int) -> Floats:
    """Return what ``w ← once + step w`` makes of 0 in so many iterations, (P,)."""
    w = once
    for _ in range(count - 1):
        w = once + step @ w
    return w
