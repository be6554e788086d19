"""Playing: the same seeds for every contender, and what their returns say about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from jormungandr.cli.contenders import Contender
from jormungandr.errors import NonFinite
from jormungandr.numerics.statistics import (
    Improvement,
    Interval,
    iqm_bootstrap,
    paired_bootstrap,
    probability_of_improvement,
)
from jormungandr_wrappers.masks import read_mask

__all__ = ["Paired", "Played", "Result", "Summary", "act_on_batch", "pair", "play", "summarize"]


@dataclass(frozen=True)
class Played:
    """Whole episodes of one contender; entry i was reset with the i-th seed.

    Attributes:
        returns: undiscounted, (episodes,).
        lengths: in steps, (episodes,).
        cut: whether it was ended by the limit on steps and not by the environment, (episodes,).
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    cut: NDArray[np.bool_]


@dataclass(frozen=True)
class Summary:
    """One contender's returns in numbers; intervals aim at 95 %."""

    mean: Interval
    iqm: Interval
    median: float
    lowest: float
    highest: float
    length: float


@dataclass(frozen=True)
class Result:
    """What a contender did, and what that comes to."""

    contender: Contender
    played: Played
    summary: Summary


@dataclass(frozen=True)
class Paired:
    """One contender against another on the same seeds; intervals aim at 95 %.

    Attributes:
        mean: of the differences.
        iqm: of the differences: the seeds on which the two differ most, either way, are left
            out. The difference of the two IQMs would leave out other seeds of the one than of the
            other, and so lose the pairing.
        improvement: how often the first one does better.
    """

    mean: Interval
    iqm: Interval
    improvement: Improvement


def play(
    contender: Contender,
    env: gymnasium.Env[Any, Any],
    *,
    episodes: int,
    seed: int,
    max_steps: int,
    watch: Callable[[], None] | None = None,
) -> Played:
    """Play whole episodes; the i-th is reset with ``seed + i``.

    Args:
        contender: acts, deterministically where it can.
        env: with discrete actions; nobody else acts in it.
        episodes: how many, at least 1.
        seed: of the first one, at least 0.
        max_steps: of one episode, after which it is cut.
        watch: called in the first episode, after the reset and after each step.

    Raises:
        NonFinite: an episode's return is no number.
        InvalidInput: (one of its classes) ``info["action_mask"]`` is no mask of the actions.
    """
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    cut = np.zeros(episodes, dtype=np.bool_)
    for i in range(episodes):
        observation, info = env.reset(seed=seed + i)
        state, start, over = contender.start(seed, i), np.array([True]), False
        seen = watch if i == 0 else None
        if seen is not None:
            seen()
        while not over and lengths[i] < max_steps:
            mask = _mask(info, env.action_space)
            action, state = contender.predict(observation, state, start, True, mask)
            observation, reward, terminated, truncated, info = env.step(int(action.item()))
            returns[i] += float(reward)
            lengths[i] += 1
            start, over = np.array([False]), terminated or truncated
            if seen is not None:
                seen()
        cut[i] = not over
        if not np.isfinite(returns[i]):
            raise NonFinite(f"return of the episode with seed {seed + i}", "a number", returns[i])
    return Played(returns, lengths, cut)


def summarize(played: Played, seed: int) -> Summary:
    """Describe a contender's returns; `seed` is of the resampling."""
    returns = played.returns
    return Summary(
        mean=paired_bootstrap(returns, seed=seed),
        iqm=iqm_bootstrap(returns, seed=seed),
        median=float(np.median(returns)),
        lowest=float(returns.min()),
        highest=float(returns.max()),
        length=float(played.lengths.mean()),
    )


def pair(first: Played, second: Played, seed: int) -> Paired:
    """Compare two contenders that played the same seeds; `seed` is of the resampling."""
    differences = first.returns - second.returns
    return Paired(
        mean=paired_bootstrap(differences, seed=seed),
        iqm=iqm_bootstrap(differences, seed=seed),
        improvement=probability_of_improvement(differences),
    )


def act_on_batch(
    contender: Contender, seed: int
) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Return a contender as a function of B observations that step together, (B, D) to (B,)."""
    state, begins = contender.start(seed, 0), True

    def act(observations: NDArray[np.float32]) -> NDArray[np.int64]:
        nonlocal state, begins
        starts = np.full(len(observations), begins)
        actions, state = contender.predict(observations, state, starts)
        begins = False
        return np.asarray(actions, dtype=np.int64)

    return act


def _mask(info: dict[str, Any], space: gymnasium.Space[Any]) -> NDArray[np.bool_] | None:
    """Return which actions the environment says are allowed, (1, A), if it says so."""
    if "action_mask" not in info:
        return None
    assert isinstance(space, spaces.Discrete)
    mask = read_mask(info, "action_mask", int(space.n), "info", remedy="")
    return None if mask is None else mask[None]
