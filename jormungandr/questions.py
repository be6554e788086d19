"""`Question`: one checked request for actions; one forward pass answers several of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.checks import is_number
from jormungandr.columns import action_masks as checked_masks
from jormungandr.encoding import observations
from jormungandr.errors import InvalidType, InvalidValue, shown
from jormungandr.spec import ModelSpec

__all__ = ["Question", "best", "choose_one"]

_FLAGS = (bool, np.bool_)
#: The probability of an only action that is not drawn; shared, so nobody may write to it.
_CERTAIN = np.ones(1)
_CERTAIN.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is asked of a policy: B observations, and how to choose among A actions.

    Args:
        observations: (B, *stored_shape), raw.
        masks: (B, A) which actions are allowed; None allows all.
        epsilon: probability of a uniformly random action.
        deterministic: take the best action always; wins over `epsilon`.
        distribution: whether the distributions are asked for.
    """

    observations: NDArray[Any]
    masks: NDArray[np.bool_] | None
    epsilon: float
    deterministic: bool
    distribution: bool

    @classmethod
    def checked(
        cls,
        spec: ModelSpec,
        observation: ArrayLike,
        *,
        deterministic: bool,
        epsilon: Any,
        action_masks: ArrayLike | None,
        distribution: bool,
    ) -> Question:
        """Return what was asked, as arrays.

        Raises:
            InvalidInput: (one of its classes) for a bad observation, mask or option.
        """
        for name, option in (("deterministic", deterministic), ("distribution", distribution)):
            if not isinstance(option, _FLAGS):
                raise InvalidType(name, "true or false", shown(option))
        x = observations(observation, spec)
        masks = checked_masks(action_masks, spec, len(x))
        if not is_number(epsilon) or not 0 <= epsilon <= 1:
            raise InvalidValue("epsilon", "a number in 0..1", shown(epsilon))
        return cls(x, masks, float(epsilon), bool(deterministic), bool(distribution))

    def __len__(self) -> int:
        return len(self.observations)

    def choose(
        self, values: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the actions chosen, (B,), and the probability of each choice, (B,).

        Args:
            values: (B, A) expected return of every action.
            rng: draws whether to explore and what; nothing where nothing is explored.
        """
        first = best(values, self.masks)
        count, actions = values.shape
        if self.deterministic or self.epsilon <= 0:
            return first, _CERTAIN if count == 1 else np.ones(count)
        if count == 1 and self.masks is None:  # the same draws, without arrays
            taken, probability = choose_one(values[0], self.epsilon, False, rng)
            return np.array([taken]), np.array([probability])
        random = rng.random(count) < self.epsilon
        if self.masks is None:
            allowed: Any = actions
            other = rng.integers(actions, size=count)
        else:  # the k-th of the allowed ones
            allowed = self.masks.sum(axis=1)
            k = (rng.random(count) * allowed).astype(np.int64)
            other = (self.masks.cumsum(axis=1) == (k + 1)[:, None]).argmax(axis=1)
        chosen = np.where(random, other, first)
        return chosen, self.epsilon / allowed + (1 - self.epsilon) * (chosen == first)


def choose_one(
    values: NDArray[np.float32], epsilon: float, deterministic: bool, rng: np.random.Generator
) -> tuple[int, float]:
    """Return what `Question.choose` does of one observation without a mask, without arrays.

    Args:
        values: (A,) expected return of every action.
        epsilon: probability of a uniformly random action.
        deterministic: take the best action always.
        rng: draws as there.
    """
    first = int(values.argmax())
    if deterministic or epsilon <= 0:
        return first, 1.0
    explores, drawn = rng.random() < epsilon, int(rng.integers(len(values)))
    taken = drawn if explores else first
    return taken, epsilon / len(values) + (1 - epsilon) * (taken == first)


def best(values: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Return the action of the highest value among those allowed, (B,); the first on a tie."""
    if mask is not None:
        values = np.where(mask, values, np.float32(-np.inf))
    return np.asarray(values.argmax(axis=-1), dtype=np.int64)
