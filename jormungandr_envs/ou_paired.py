"""Policies compared on the same held-out paths, so that the paths' luck cancels."""

import math
from collections.abc import Callable
from typing import NamedTuple, Unpack

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_arguments import checked_actions
from jormungandr_envs.ou_labels import POSITIONS
from jormungandr_envs.ou_optimal import optimal_policy
from jormungandr_envs.ou_parameters import OUFields, OUParameters
from jormungandr_envs.ou_path import Paths, observe, simulate, step_rewards, total

__all__ = ["PairedReturns", "paired_returns"]

Returns = npt.NDArray[np.float64]
Act = Callable[[npt.NDArray[np.float32]], npt.ArrayLike]

# Mixed into the seed as a SeedSequence spawn key: no `reset(seed=...)` has one, so an environment
# trained under any seed has not met these paths.
HELD_OUT = 0x4F55


class PairedReturns(NamedTuple):
    """Undiscounted returns of three policies; entry i of each belongs to path i."""

    policy: Returns
    reference: Returns
    optimum: Returns

    @property
    def gap_closed(self) -> float:
        """Share of the way from the reference to the optimum: 0 at the one, 1 at the other.

        The ratio of the mean differences. Not a number when the optimum did not beat the reference
        on these paths, which takes a handful of episodes (their difference has a standard
        deviation of about 2.6 per episode around 1.18).
        """
        gap = float(self.optimum.mean() - self.reference.mean())
        return float(self.policy.mean() - self.reference.mean()) / gap if gap > 0 else math.nan


def paired_returns(
    act: Act, episodes: int, seed: int, **parameters: Unpack[OUFields]
) -> PairedReturns:
    """Play held-out episodes with a policy, the reference and the optimum, all at once.

    The first paths of a longer evaluation are those of a shorter one with the same seed.

    Args:
        act: maps float32 observations (B, 4) to action indices (B,), B = ``episodes``; called once
            per step of the horizon.
        episodes: number of paths, at least 1.
        seed: of the paths, at least 0.
        **parameters: as `OUParameters`.

    Raises:
        ValueError: if ``episodes`` or a parameter is out of range, or if ``act`` returns anything
            but B action indices.
    """
    if episodes < 1:
        raise ValueError(f"paired_returns episodes: expected an integer >= 1, got {episodes!r}")
    p = OUParameters(**parameters)
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(HELD_OUT,)))
    paths = simulate(generator.standard_normal((episodes, p.horizon + 1)), p)
    return PairedReturns(
        policy=_play(paths, act, p),
        reference=paths.reference_return,
        optimum=_play(paths, optimal_policy(**parameters).act, p),
    )


def _play(paths: Paths, act: Act, parameters: OUParameters) -> Returns:
    """Return a policy's return on each path, (B,)."""
    horizon, episodes = parameters.horizon, paths.z.shape[1]
    actions = np.empty((horizon, episodes), dtype=np.int64)
    position = np.zeros(episodes)
    for now in range(horizon):
        time_left = (horizon - now) / horizon
        observations = observe(paths.z[now], paths.move[now], position, time_left)
        actions[now] = checked_actions(act(observations), episodes)
        position = POSITIONS.take(actions[now])
    return total(step_rewards(actions, paths.move, parameters))
