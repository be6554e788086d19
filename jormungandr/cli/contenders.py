"""`Contender`: what acts in an environment, whatever it came from.

B is the number of environments that are acted in at once, 1 unless said otherwise.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jormungandr.client import RemoteLearner, RemotePolicy
from jormungandr.policy import PolicySnapshot

__all__ = [
    "Contender",
    "RandomContender",
    "ReferenceContender",
    "RemoteContender",
    "Seen",
    "SnapshotContender",
    "ValueContender",
]

#: Seconds that a service is given to answer at first.
PATIENCE = 5.0
#: Observations per request to a service.
CHUNK = 1_000


class Seen(NamedTuple):
    """What a contender chooses by; see `Contender.predict`."""

    observation: Any
    state: Any
    episode_start: NDArray[np.bool_]
    deterministic: bool
    action_masks: NDArray[np.bool_] | None


class Contender(ABC):
    """Acts in an environment, in the shape Stable-Baselines3 gives policies.

    Args:
        name: what it was asked for by.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def description(self) -> str:
        """What it is, in a few words."""

    def start(self, seed: int, episode: int) -> Any:
        """Return the state before the first step of an episode.

        Args:
            seed: of the evaluation.
            episode: which one, from 0.
        """
        return None

    def predict(
        self,
        observation: Any,
        state: Any,
        episode_start: NDArray[np.bool_],
        deterministic: bool = True,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[Any], Any]:
        """Return (actions of the environment, state after them).

        Args:
            observation: what the environment shows; or B of them, as an array.
            state: from the step before, or from `start`.
            episode_start: (B,), whether an episode begins here.
            deterministic: take the best action.
            action_masks: (B, A), which actions are allowed; None is all of them. A contender that
                knows no masks does without.

        Returns:
            As many actions as observations: 0-d or (1,) for a single one, else (B,).
        """
        return self._choose(Seen(observation, state, episode_start, deterministic, action_masks))

    @abstractmethod
    def _choose(self, seen: Seen) -> tuple[NDArray[Any], Any]:
        """Return what `predict` does."""

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Release what it holds."""


class ValueContender(Contender):
    """A contender that says what it expects of each action."""

    @abstractmethod
    def values(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """Return the expected return of every action, (B, A), for vectors (B, D)."""


class SnapshotContender(ValueContender):
    """A policy of ours, with its weights here.

    Args:
        name: see `Contender`.
        policy: acts greedily.
    """

    def __init__(self, name: str, policy: PolicySnapshot) -> None:
        super().__init__(name)
        self.policy = policy

    @property
    def description(self) -> str:
        """Its version."""
        return f"policy version {self.policy.version}, after {self.policy.update_count} updates"

    def _choose(self, seen: Seen) -> tuple[NDArray[Any], Any]:
        masks = seen.action_masks if self.policy.spec.action_masks else None
        return self.policy.predict(*seen[:-1], masks)

    def values(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """See `ValueContender.values`."""
        return self.policy.values(_stacked(observations, self.policy.spec.observation.frame_stack))


class RemoteContender(ValueContender):
    """What a model of a service hands out, which may learn on while it plays.

    Args:
        name: see `Contender`.
        url, model_id: as for `RemoteLearner`.

    Raises:
        JormungandrError: the service does not answer, or has no such model.
    """

    def __init__(self, name: str, url: str, model_id: str) -> None:
        super().__init__(name)
        with contextlib.ExitStack() as connections:
            self._endpoint = RemoteLearner(url, model_id, patience=PATIENCE)
            connections.callback(self._endpoint.close)
            self._first_version = self._served()
            self._policy = RemotePolicy(url, model_id)
            connections.callback(self._policy.close)
            self._connections = connections.pop_all()
        self.spec = self._policy.spec

    @property
    def description(self) -> str:
        """Its version, or the first and the last one it played with."""
        first, last = self._first_version, self._served()
        if first == last:
            return f"served policy version {last}"
        return f"served policy versions {first} to {last}: it learned meanwhile"

    def _served(self) -> int:
        """Return the version that is handed out: the champion's, where a model has one."""
        info = self._endpoint.info()
        promotion = info["promotion"]
        gated = promotion["serve"] == "champion" and promotion["champion"] is not None
        return int(promotion["champion"] if gated else info["policy_version"])

    def _choose(self, seen: Seen) -> tuple[NDArray[Any], Any]:
        masks = seen.action_masks if self.spec.action_masks else None
        if len(seen.episode_start) <= CHUNK:
            return self._policy.predict(*seen[:-1], masks)
        actions, states = [], []
        for k, at in enumerate(range(0, len(seen.episode_start), CHUNK)):
            rows = slice(at, at + CHUNK)
            chosen, after = self._policy.predict(
                seen.observation[rows],
                None if seen.state is None else seen.state[k],
                seen.episode_start[rows],
                seen.deterministic,
                None if masks is None else masks[rows],
            )
            actions.append(chosen)
            states.append(after)
        return np.concatenate(actions), states

    def values(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        """See `ValueContender.values`."""
        seen = _stacked(observations, self.spec.observation.frame_stack)
        return np.array(self._endpoint.act(seen, deterministic=True).expected_values)

    def close(self) -> None:
        """Close both connections."""
        self._connections.close()


class RandomContender(Contender):
    """Chooses uniformly among the allowed actions.

    Args:
        name: see `Contender`.
        action_space: of the environment.
    """

    def __init__(self, name: str, action_space: spaces.Discrete) -> None:
        super().__init__(name)
        self._space = action_space

    @property
    def description(self) -> str:
        """What it does."""
        return "uniformly random actions"

    def start(self, seed: int, episode: int) -> np.random.Generator:
        """Return a generator of the episode's own."""
        return np.random.default_rng([seed, episode])

    def _choose(self, seen: Seen) -> tuple[NDArray[Any], np.random.Generator]:
        """It is as random when `deterministic`."""
        rng: np.random.Generator = seen.state
        shape = len(seen.episode_start), int(self._space.n)
        allowed = np.ones(shape, bool) if seen.action_masks is None else seen.action_masks
        # The n-th allowed action of each row, with n drawn from as many as there are.
        nth = rng.integers(allowed.sum(axis=1))
        chosen = (allowed.cumsum(axis=1) > nth[:, None]).argmax(axis=1)
        return chosen + int(self._space.start), rng


class ReferenceContender(Contender):
    """The policy that an environment brings as its yardstick.

    Args:
        name: see `Contender`.
        act: maps an observation to an action; for OUSpread-v0 also (B, 4) to (B,).
    """

    def __init__(self, name: str, act: Callable[[Any], ArrayLike]) -> None:
        super().__init__(name)
        self._act = act

    @property
    def description(self) -> str:
        """What it is."""
        return "the environment's own reference policy"

    def _choose(self, seen: Seen) -> tuple[NDArray[Any], Any]:
        return np.asarray(self._act(seen.observation)), seen.state


def _stacked(observations: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Return vectors (B, D) as the first observations of episodes, (B, frames · D)."""
    return np.tile(observations, frames)
