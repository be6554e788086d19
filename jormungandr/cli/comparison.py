"""How good a policy is, in print: paired against reference and optimum, with intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jormungandr.numerics.statistics import paired_bootstrap, ratio_bootstrap
from jormungandr_envs import ACTION_LABELS, paired_returns

__all__ = ["compare_on_ou", "episode_returns", "print_probe"]

Act = Callable[[NDArray[np.float32]], ArrayLike]


def compare_on_ou(act: Act, episodes: int, seed: int) -> bool:
    """Print policy, reference and optimum on the same held-out paths of OUSpread-v0.

    Args:
        act: maps observations (B, 4) to action indices (B,).
        episodes: paths, at least 2.
        seed: of the paths.

    Returns:
        Whether the policy is above the reference with its whole interval.
    """
    returns = paired_returns(act, episodes, seed)
    rows = {"policy": returns.policy, "reference": returns.reference, "optimum": returns.optimum}
    print(f"\n{episodes:,} held-out paths of OUSpread-v0 (seed {seed}), return per episode:")
    print(f"  {'':<12}{'mean':>8}{'minus reference':>18}   95 % interval (paired bootstrap)")
    for name, values in rows.items():
        line = f"  {name:<12}{values.mean():>8.3f}"
        if name != "reference":
            difference = paired_bootstrap(values - returns.reference, seed=seed)
            line += (
                f"{difference.estimate:>+18.3f}   [{difference.low:+.3f}, {difference.high:+.3f}]"
            )
        print(line)
    gain, room = returns.policy - returns.reference, returns.optimum - returns.reference
    try:
        gap = ratio_bootstrap(gain, room, seed=seed)
    except ValueError:  # on some resample the optimum is not above the reference
        print("  gap closed: too few paths to tell")
    else:
        print(f"  gap closed  {gap.estimate:>8.3f}{'':>21}[{gap.low:.3f}, {gap.high:.3f}]")
    return paired_bootstrap(gain, seed=seed).low > 0


def print_probe(act: Callable[[NDArray[np.float32]], tuple[ArrayLike, ArrayLike]]) -> list[int]:
    """Print what the policy does at (z, 0, flat, full time) for z = -2 … +2; return the actions.

    Args:
        act: maps observations (B, 4) to (action indices (B,), expected returns (B, 3)).
    """
    z = np.array([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=np.float32)
    observations = np.stack([z, 0 * z, 0 * z, 0 * z + 1], axis=1)
    chosen, values = (np.asarray(part) for part in act(observations))
    print("\nprobe at (z, 0, flat, full time):")
    print("  z      action   expected return of " + ", ".join(ACTION_LABELS))
    for i, spread in enumerate(z):
        numbers = "  ".join(f"{v:+.2f}" for v in values[i])
        print(f"  {spread:+.0f}     {ACTION_LABELS[chosen[i]]:<7}  {numbers}")
    return [int(index) for index in chosen]


def episode_returns(
    env: gymnasium.Env[Any, Any], act: Act, episodes: int, seed: int
) -> NDArray[np.float64]:
    """Play episodes with a policy and return their undiscounted returns, (episodes,)."""
    returns = np.zeros(episodes)
    for i in range(episodes):
        observation, _ = env.reset(seed=seed + i)
        over = False
        while not over:
            action = int(np.asarray(act(np.asarray(observation, dtype=np.float32)[None]))[0])
            observation, reward, terminated, truncated, _ = env.step(action)
            returns[i] += float(reward)
            over = terminated or truncated
    return returns
