"""How good a policy is, from steps that others took: a fitted Q, corrected where it is biased.

N steps of E episodes, D numbers an observation, A actions, F features of a state, P = (1 + A) F of
a state and an action.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jormungandr.numerics.bounds import student_quantile
from jormungandr.numerics.cross_fitting import Problem, crossed
from jormungandr.numerics.features import RandomFeatures, by_action
from jormungandr.numerics.statistics import Interval

__all__ = ["LoggedSteps", "OffPolicyValue", "largest_log", "off_policy_value"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Cosines among the features of a state; draws of them; parts that the episodes are cut into.
COSINES, DRAWS, FOLDS = 50, 5, 10
#: What the discounted future after the last iteration may weigh.
REST = 1e-12
#: Numbers of one array that is made of the steps, at most: 1 GiB.
LARGEST = 1 << 27


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSteps:
    """N steps, in any order, taken by whatever policies.

    Args:
        observation, next_observation: (N, D) finite.
        action: (N,) in [0, A).
        reward: (N,) finite.
        terminated: (N,) whether nothing follows. What follows a step that was only truncated has a
            value: there is no field for that.
        episode: (N,) a number per episode.
        initial: (N,) whether a step is its episode's first.
    """

    observation: Floats
    action: Ints
    reward: Floats
    next_observation: Floats
    terminated: Bools
    episode: Ints
    initial: Bools

    def __len__(self) -> int:
        return len(self.action)

    def take(self, index: npt.NDArray[np.intp] | Bools) -> "LoggedSteps":
        """Return the steps at `index`, integers or a mask."""
        return LoggedSteps(*(getattr(self, name)[index] for name in self.__slots__))


class OffPolicyValue(NamedTuple):
    """An estimate, and what it rests on.

    Attributes:
        value: of the policy, with its interval.
        fitted: what the fit says without the correction.
        episodes, steps: of the log that were used.
        agreement: share of the steps at which the policy would have done what was done.
        effective_steps: (Σω)² / Σω² of the steps' weights ω, in [0, steps]: about as many steps of
            the policy's own would say as much.
        unfinished: share of the policy's episodes that go on after the horizon, by the fit, and so
            not exactly one: where all end, up to 0.46 has been seen. 0 without a horizon.
    """

    value: Interval
    fitted: float
    episodes: int
    steps: int
    agreement: float
    effective_steps: float
    unfinished: float


def off_policy_value(
    steps: LoggedSteps,
    choice: Floats,
    next_choice: Floats,
    *,
    discount: float,
    horizon: int | None = None,
    ridge: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> OffPolicyValue:
    """Estimate what a policy earns in an episode.

    `fitted_q` is biased by its features and its penalty. So it is corrected as in double
    reinforcement learning (Kallus and Uehara 2020, arXiv:1908.08526): the episodes are cut into
    parts, Q and the visits ω are fitted to all parts but one, and of that one an episode
    contributes

        Q(s₀, π) + Σ_t ω(s_t, a_t) (r_t + γ Q(s_{t+1}, π) − Q(s_t, a_t)),

    in which errors of Q count only where ω is wrong too. With a horizon at which most episodes go
    on, Q and ω are those of each number of steps to go: `FittedQ.errors_to_go`.

    The estimate is the median over several draws of random features and parts, and its standard
    error the median of those of the draws with their distance from it (Chernozhukov et al. 2018,
    arXiv:1608.00060, definition 3.3). The interval is Student's over episodes: they are
    independent, their steps are not.

    Args:
        steps: what was done; episodes whose first step is not there are left out.
        choice: (N, A) the policy's probability of each action at the observations.
        next_choice: (N, A) at the next observations; not read where nothing follows.
        discount: γ in [0, 1].
        horizon: steps after which every episode ends, terminated or not; None is no end, for
            γ < 1. Where time matters the observation has to show it.
        ridge: as for `fitted_q`, > 0.
        confidence: coverage aimed at, in (0, 1).
        seed: of the draws. The same seed gives the same estimate, in whatever order the steps come,
            up to rounding.

    Raises:
        ValueError: an argument is outside its range, or there is too little or too much to fit.
    """
    count = _iterations(discount, horizon)
    if not (ridge > 0 and 0 < confidence < 1):
        got = f"{ridge} and {confidence}"
        raise ValueError(f"off_policy_value: expected ridge > 0, confidence in (0, 1), got {got}")
    whole = np.isin(steps.episode, steps.episode[steps.initial])
    steps, choice, next_choice = steps.take(whole), choice[whole], next_choice[whole]
    names, episode = np.unique(steps.episode, return_inverse=True)
    firsts = int(steps.initial.sum())
    if not 2 <= len(names) == firsts:
        got = f"{firsts} in {len(names)}"
        raise ValueError(
            f"off_policy_value.steps: expected 2 episodes, a first step each, got {got}"
        )
    most = largest_log(steps.observation.shape[1], choice.shape[1])
    if len(steps) > most:
        raise ValueError(f"off_policy_value.steps: expected at most {most}, got {len(steps)}")
    taken = np.eye(choice.shape[1])[steps.action]
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(DRAWS):
        directions = int(rng.integers(1 << 32))
        features = RandomFeatures(steps.observation, cosines=COSINES, seed=directions)
        here = features(steps.observation)
        following = by_action(features(steps.next_observation), next_choice)
        following[steps.terminated] = 0.0
        first = np.argsort(episode[steps.initial])
        problem = Problem(
            design=by_action(here, taken),
            successor=following,
            reward=steps.reward,
            start=by_action(here[steps.initial], choice[steps.initial])[first],
            episode=episode,
            part=rng.permutation(np.arange(len(names)) % FOLDS),
        )
        draws.append(crossed(problem, discount, count, ridge))
    return OffPolicyValue(
        value=_pooled(np.stack([draw.contribution for draw in draws]), confidence),
        fitted=float(np.median([draw.fitted.mean() for draw in draws])),
        episodes=len(names),
        steps=len(steps),
        agreement=float((choice * taken).sum() / len(steps)),
        effective_steps=float(np.median([draw.effective for draw in draws])),
        unfinished=float(np.median([draw.unfinished for draw in draws])),
    )


def largest_log(size: int, actions: int) -> int:
    """Return how many steps can be used, of so many numbers an observation and so many actions."""
    return LARGEST // ((1 + size + COSINES) * (1 + actions))


def _iterations(discount: float, horizon: int | None) -> int | None:
    """Return after how many iterations what is left out weighs nothing; None is the limit."""
    if not 0 <= discount <= 1 or (horizon is None and discount == 1):
        expected = "expected a discount in [0, 1], below 1 without a horizon"
        raise ValueError(f"off_policy_value: {expected}, got {discount} and {horizon}")
    if horizon is None:
        return None
    if horizon < 1:
        raise ValueError(f"off_policy_value.horizon: expected >= 1, got {horizon}")
    if discount in (0, 1):
        return horizon if discount else 1
    return min(horizon, math.ceil(math.log(REST) / math.log(discount)))


def _pooled(contributions: Floats, confidence: float) -> Interval:
    """Return the median of the draws, (draws, E), with an interval that has their spread in it."""
    episodes = contributions.shape[1]
    values = contributions.mean(axis=1)
    estimate = float(np.median(values))
    variances = contributions.var(axis=1, ddof=1) / episodes + (values - estimate) ** 2
    reach = student_quantile((1 + confidence) / 2, episodes - 1) * math.sqrt(np.median(variances))
    return Interval(estimate, estimate - reach, estimate + reach)
