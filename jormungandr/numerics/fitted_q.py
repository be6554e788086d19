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
        beyond: (P,); φ · beyond is how often the policy comes by after the last iteration; 0 in the
            limit.
        expected: (P, P); φ · expected · φ is how often the policy comes by with k steps to go times
            Q_k, summed over k; empty in the limit.
        followed: (P, P); φ · followed · φ' is the same with Q_{k-1} of what follows.
    """

    weights: Floats
    visits: Floats
    beyond: Floats
    expected: Floats
    followed: Floats

    def errors(
        self, design: Floats, successor: Floats, reward: Floats, discount: float
    ) -> Floats:  # (N,)
        """Return how far Q is from r + γ Q(s', π) at each step, as often as the policy is there.

        Args:
            design: as for `Moments.of`, like the next two.
            successor: the same.
            reward: the same.
            discount: γ, as it was fitted with.
        """
        visits = design @ self.visits
        return np.asarray(visits * (reward + (discount * successor - design) @ self.weights))

    def errors_to_go(
        self, design: Floats, successor: Floats, reward: Floats, discount: float
    ) -> Floats:  # (N,)
        """Return the same of each Q_k by itself: of the fit with k steps to go, summed over k.

        Not the same: Q_k is fitted to r + γ Q_{k-1}(s', π), and where episodes go on, it is far
        from r + γ Q_k(s', π). Not for the limit.
        """
        found = (design @ self.visits) * reward
        found += discount * np.einsum("np,np->n", design @ self.followed, successor)
        found -= np.einsum("np,np->n", design @ self.expected, design)
        return found


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
        iterations: ≥ 1; of a task that ends, its horizon. None is the limit, for γ < 1. So many
            times P numbers are held.
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
            reached = np.linalg.solve(left.T, start)
            beyond, expected = np.zeros(size), np.empty((size, 0))
            followed = expected
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                worth = _iterated(step, once, once, iterations)  # row k: with k + 1 steps to go
                there = _iterated(step.T, start, 0.0, iterations)  # row t: after t steps
                weights, reached = worth[-1], there.sum(axis=0)
                beyond = step.T @ there[-1]
                expected = there.T @ worth[::-1]
                followed = there[:-1].T @ worth[-2::-1]  # with none to go it is worth 0
        sides = np.column_stack([reached, beyond, expected, followed])
        solved = np.asarray(np.linalg.solve(gram, sides), dtype=np.float64)
        expected, followed = np.array_split(solved[:, 2:], 2, axis=1)
        return FittedQ(weights, solved[:, 0], solved[:, 1], expected, followed)
    except np.linalg.LinAlgError:
        raise ValueError("fitted_q: expected independent features, or ridge > 0") from None


def _iterated(step: Floats, first: Floats, more: Floats | float, count: int) -> Floats:
    """Return the first of a sequence, and what ``w ← more + step w`` makes of it, (count, P)."""
    found = np.empty((count, len(first)))
    found[0] = first
    for i in range(1, count):
        found[i] = more + step @ found[i - 1]
    return found
