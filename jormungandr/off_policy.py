"""`HeldOutSteps` and what they say of a policy that did not take them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.errors import InvalidValue, shown
from jormungandr.numerics.off_policy import (
    LoggedSteps,
    OffPolicyValue,
    largest_log,
    off_policy_value,
)
from jormungandr.policy import PolicySnapshot

__all__ = ["HeldOutSteps", "OffPolicyReport", "episode_keys", "evaluate_off_policy"]

#: Observations per forward pass.
CHUNK = 4_096
#: Fewer episodes than this, or a smaller share of effective steps, are thin evidence.
FEW, THIN = 30, 0.1
#: Share of steps at which the policy would have done what nobody could, above which it is said.
UNEXPLORED = 0.02


def episode_keys(columns: Columns) -> NDArray[np.uint64]:
    """Return (B,) a number per episode, the same for its steps in whatever batch they come."""
    if not len(columns):
        return np.zeros(0, dtype=np.uint64)
    pairs = np.stack([columns.actor, columns.episode], axis=1)
    found, inverse = np.unique(pairs, axis=0, return_inverse=True)
    keys = [
        blake2b(
            f"{columns.actors[actor]}\0{columns.episodes[episode]}".encode(), digest_size=8
        ).digest()
        for actor, episode in found.tolist()
    ]
    return np.frombuffer(b"".join(keys), dtype="<u8").astype(np.uint64)[inverse.reshape(-1)]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutSteps:
    """N steps that no training saw, oldest first.

    Args:
        observation, next_observation: (N, D) as they are stored.
        action: (N,).
        reward, behavior_prob: (N,); the latter NaN where unknown.
        terminated: (N,).
        timestep: (N,) in the episode.
        episode: (N,) as of `episode_keys`.
    """

    observation: NDArray[Any]
    action: NDArray[np.int64]
    reward: NDArray[np.floating[Any]]
    next_observation: NDArray[Any]
    terminated: NDArray[np.bool_]
    behavior_prob: NDArray[np.floating[Any]]
    timestep: NDArray[np.int64]
    episode: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.action)

    @classmethod
    def of_columns(cls, parts: Sequence[Columns]) -> HeldOutSteps:
        """Return the steps of several batches, in their order; at least one batch."""
        names = [name for name in cls.__slots__ if name != "episode"]
        arrays = {n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
        return cls(**arrays, episode=np.concatenate([episode_keys(part) for part in parts]))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> HeldOutSteps:
        """Return the steps of a `ValidationStore`, from what its `in_order` returns."""
        return cls(**{name: arrays[name] for name in cls.__slots__})

    def newest(self, episodes: int) -> HeldOutSteps:
        """Return the steps of the newest episodes that began here, at most so many."""
        began = self.episode[self.timestep == 0]
        # Each once, by where it begins; one that began twice is admission's to prevent.
        keep = np.isin(self.episode, began[max(0, len(began) - episodes) :])
        return HeldOutSteps(*(getattr(self, name)[keep] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class OffPolicyReport:
    """What a policy is worth by held-out steps.

    Args:
        policy_version: of the policy.
        result: the estimate, and what it rests on.
        gamma: discount.
        horizon: steps that an episode is taken to have at most; None is no limit.
        unexplored: share of the steps at which the policy would have done something else than an
            actor that left nothing to chance; None where no probabilities are known.
    """

    policy_version: int
    result: OffPolicyValue
    gamma: float
    horizon: int | None
    unexplored: float | None

    def warnings(self) -> list[str]:
        """Return what makes the estimate doubtful, each with its remedy."""
        found, r = [], self.result
        if r.episodes < FEW:
            found.append(
                f"few_episodes: {r.episodes}; intervals are known to hold from about {FEW} on;"
                " hold out more"
            )
        if r.effective_steps < THIN * r.steps:
            found.append(
                f"off_support: {r.steps:,} steps say as much as {r.effective_steps:,.0f} of its"
                " own would; the policy goes where the log seldom does; log with a policy nearer"
                " to it, or with more exploration"
            )
        if self.unexplored is not None and self.unexplored > UNEXPLORED:
            found.append(
                f"unexplored: at {self.unexplored:.0%} of the steps the policy would do what the"
                " actor, which left nothing to chance, did not; nothing in the log says what that"
                " is worth; explore in held-out episodes"
            )
        if abs(r.fitted - r.value.estimate) > r.value.high - r.value.low:
            found.append(
                f"corrected: the fit alone says {r.fitted:.4g}, which is further away than the"
                " interval is wide; it takes more episodes to fit this task"
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, JSON-able."""
        r = self.result
        return {
            "policy_version": self.policy_version,
            "value": r.value.estimate,
            "interval_95": [r.value.low, r.value.high],
            "fitted": r.fitted,
            "gamma": self.gamma,
            "horizon": self.horizon,
            "episodes": r.episodes,
            "steps": r.steps,
            "agreement": r.agreement,
            "effective_steps": r.effective_steps,
            "unexplored": self.unexplored,
            "warnings": self.warnings(),
        }


def evaluate_off_policy(
    policy: PolicySnapshot,
    held: HeldOutSteps,
    *,
    gamma: float | None = None,
    horizon: int | None = None,
    seed: int = 0,
) -> OffPolicyReport:
    """Estimate what a policy earns in an episode when it acts greedily, from held-out steps.

    Args:
        policy: which.
        held: the steps; see `jormungandr.numerics.off_policy` for what is made of them.
        gamma: discount; None is that of the policy's specification.
        horizon: steps that an episode has at most. None is no limit; with a discount of 1, the
            longest episode held.
        seed: of the random features.

    Raises:
        InvalidValue: an argument is out of range; the policy sees images, masks or something else
            than the steps hold; there are too few episodes, or too many.
    """
    gamma = policy.spec.c51.gamma if gamma is None else gamma
    if not 0 <= gamma <= 1:
        raise InvalidValue("gamma", "0..1", gamma)
    if horizon is not None and horizon < 1:
        raise InvalidValue("horizon", ">= 1", horizon)
    _check(policy, held)
    if horizon is None and gamma == 1:
        horizon = int(held.timestep.max()) + 1
    steps = LoggedSteps(
        observation=held.observation.astype(np.float64),
        action=held.action,
        reward=held.reward.astype(np.float64),
        next_observation=held.next_observation.astype(np.float64),
        terminated=held.terminated,
        episode=np.unique(held.episode, return_inverse=True)[1].reshape(-1),
        initial=held.timestep == 0,
    )
    actions = np.eye(len(policy.spec.action_set))
    chosen = _greedy(policy, held.observation)
    following = _greedy(policy, held.next_observation)
    try:
        result = off_policy_value(
            steps, actions[chosen], actions[following], discount=gamma, horizon=horizon, seed=seed
        )
    except ValueError as error:  # what the data lead to; the arguments are checked above
        raise InvalidValue("held-out steps", "steps that a Q can be fitted to", error) from None
    known = ~np.isnan(held.behavior_prob)
    certain = (held.behavior_prob >= 1) & (chosen != held.action)
    unexplored = float(certain[known].mean()) if known.any() else None
    return OffPolicyReport(policy.version, result, gamma, horizon, unexplored)


def _check(policy: PolicySnapshot, held: HeldOutSteps) -> None:
    """Refuse what cannot be evaluated.

    Raises:
        InvalidValue: saying why.
    """
    o, actions = policy.spec.observation, len(policy.spec.action_set)
    if o.is_image:
        raise InvalidValue("policy", "one that sees vectors", "one that sees images")
    if policy.spec.action_masks:
        remedy = "play it with `jormungandr evaluate`"
        expected = "a model without action masks: those of first observations are not stored"
        raise InvalidValue("policy", expected, "masks", remedy)
    if held.observation.shape[1:] != o.stored_shape or (len(held) and held.action.max() >= actions):
        got = f"observations {held.observation.shape[1:]}"
        raise InvalidValue("policy", f"{got} and the actions of the steps", shown(o.stored_shape))
    episodes = len(np.unique(held.episode[held.timestep == 0]))
    if episodes < 2:
        remedy = "hold out more"
        raise InvalidValue(
            "held-out steps", "at least 2 episodes with first steps", episodes, remedy
        )
    most = largest_log(math.prod(o.stored_shape), actions)
    if len(held) > most:
        expected = f"at most {most:,} steps"
        raise InvalidValue("held-out steps", expected, len(held), "take fewer episodes")


def _greedy(policy: PolicySnapshot, observation: NDArray[Any]) -> NDArray[np.int64]:
    starts = range(0, len(observation), CHUNK)
    return np.concatenate([policy.greedy(observation[i : i + CHUNK]) for i in starts])
