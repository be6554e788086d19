"""`OffPolicyReport`: what held-out steps say of a policy that did not take them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import InvalidValue, shown
from jormungandr.held_steps import HeldOutSteps
from jormungandr.numerics.off_policy import (
    LoggedSteps,
    OffPolicyValue,
    largest_log,
    off_policy_value,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.spec import ModelSpec

__all__ = ["OffPolicyReport", "check_fits", "evaluate_off_policy"]

#: Observations per forward pass.
CHUNK = 4_096
#: Fewer episodes than this, or a smaller share of effective steps, are thin evidence.
FEW, THIN = 30, 0.1
#: Share of steps at which the policy would have done what nobody could, above which it is said.
UNEXPLORED = 0.02
#: Share of the policy's episodes that go on after the horizon: above, more than begin.
OUTLIVED = 1.1
#: What there is for policies that cannot be evaluated so.
INSTEAD = (
    "play it with `jormungandr evaluate ENV --policy …`; where nothing can be played, let it act in"
    " held-out episodes: the model's metrics have their mean return with an interval"
)


@dataclass(frozen=True, slots=True)
class OffPolicyReport:
    """What a policy is worth by held-out steps.

    Args:
        policy_version: of the policy.
        result: the estimate, and what it rests on.
        gamma: discount.
        horizon: steps that an episode is taken to have at most; None is no limit.
        unexplored: share of the steps at which the policy would have done something else than an
            actor that left nothing to chance; None where no probabilities are known, and where
            the actor's were those under the noise of its network.
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
        if r.unfinished > OUTLIVED:
            found.append(
                f"outlived: the fit has {r.unfinished:.0%} of its episodes reach the horizon, which"
                " is more than begin, and so the value is too high; the policy lives longer than"
                " the log shows; log with one that does, or take a shorter horizon"
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
            "unfinished": r.unfinished,
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
    logged: ModelSpec | None = None,
) -> OffPolicyReport:
    """Estimate what a policy earns in an episode when it acts greedily, from held-out steps.

    Args:
        policy: which.
        held: the steps; see `jormungandr.numerics.off_policy` for what is made of them.
        gamma: discount; None is that of the policy's specification.
        horizon: steps that an episode has at most. None is no limit; with a discount of 1, the
            longest episode held.
        seed: of the random features.
        logged: specification of the model that the steps were sent to; None is the policy's.

    Raises:
        InvalidValue: an argument is out of range; the policy sees images, masks or something else
            than the steps hold; there are too few episodes, or too many.
    """
    logged = policy.spec if logged is None else logged
    check_fits(policy.spec, logged)
    gamma = policy.spec.c51.gamma if gamma is None else gamma
    if not 0 <= gamma <= 1:
        raise InvalidValue("gamma", "0..1", gamma)
    if horizon is not None and horizon < 1:
        raise InvalidValue("horizon", ">= 1", horizon)
    _check(policy.spec, held)
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
    unexplored = None if logged.c51.noisy else _unexplored(held, chosen)
    return OffPolicyReport(policy.version, result, gamma, horizon, unexplored)


def check_fits(policy: ModelSpec, logged: ModelSpec) -> None:
    """Refuse a policy that cannot be evaluated by the steps of a model.

    Args:
        policy: its specification.
        logged: that of the model that the steps were sent to.

    Raises:
        InvalidValue: it does not see what the steps show, acts otherwise, or sees images or masks.
    """
    actions, others = len(policy.action_set), len(logged.action_set)
    if actions != others:
        raise InvalidValue("policy", f"the {others} actions of the steps", f"{actions} actions")
    mine, theirs = policy.observation, logged.observation
    for what, own, other in (
        ("observations", mine.described, theirs.described),
        ("features", mine.features, theirs.features),
        ("frame_stack", mine.frame_stack, theirs.frame_stack),
        ("actions", [a.value for a in policy.action_set], [a.value for a in logged.action_set]),
        ("action_repeat", policy.action_repeat, logged.action_repeat),
    ):
        if own != other and not (what == "features" and None in (own, other)):
            raise InvalidValue("policy", f"the {what} of the steps, {other}", own)
    if mine.is_image:
        expected = "one that sees vectors, of which the fitted Q is made"
        raise InvalidValue("policy", expected, "one that sees images", INSTEAD)
    if policy.action_masks:
        expected = "a model without action masks: those of first observations are not stored"
        raise InvalidValue("policy", expected, "masks", INSTEAD)


def _check(spec: ModelSpec, held: HeldOutSteps) -> None:
    """Refuse steps that a policy cannot be evaluated by.

    Raises:
        InvalidValue: saying why.
    """
    shape, actions = spec.observation.stored_shape, len(spec.action_set)
    if held.observation.shape[1:] != shape:
        expected = f"observations of shape {shape}, as the policy sees them"
        raise InvalidValue("held-out steps", expected, shown(held.observation.shape[1:]))
    if len(held) and not 0 <= held.action.min() <= held.action.max() < actions:
        wrong = held.action[(held.action < 0) | (held.action >= actions)][0]
        expected = f"actions 0..{actions - 1}, as the policy has {actions}"
        raise InvalidValue("held-out steps", expected, f"action {wrong}")
    episodes = len(np.unique(held.episode[held.timestep == 0]))
    if episodes < 2:
        remedy = "hold out more"
        raise InvalidValue(
            "held-out steps", "at least 2 episodes with first steps", episodes, remedy
        )
    most = largest_log(math.prod(shape), actions)
    if len(held) > most:
        expected = f"at most {most:,} steps"
        raise InvalidValue("held-out steps", expected, len(held), "take fewer episodes")


def _unexplored(held: HeldOutSteps, chosen: NDArray[np.int64]) -> float | None:
    """Return the share of the steps with a known probability that was 1 of another action."""
    known = ~np.isnan(held.behavior_prob)
    certain = (held.behavior_prob >= 1) & (chosen != held.action)
    return float(certain[known].mean()) if known.any() else None


def _greedy(policy: PolicySnapshot, observation: NDArray[Any]) -> NDArray[np.int64]:
    starts = range(0, len(observation), CHUNK)
    return np.concatenate([policy.greedy(observation[i : i + CHUNK]) for i in starts])
