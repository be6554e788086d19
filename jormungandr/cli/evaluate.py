"""``jormungandr evaluate``: how good a saved policy is, with intervals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium

from jormungandr.cli.comparison import compare_on_ou, episode_returns, print_probe
from jormungandr.errors import InvalidValue
from jormungandr.numerics.statistics import paired_bootstrap
from jormungandr.policy import PolicySnapshot
from jormungandr.spec import ModelSpec

__all__ = ["add_arguments", "check_fits", "print_returns", "run"]

#: First seed of held-out episodes: far from any that training draws.
HELD_OUT_SEED = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "policy",
        type=Path,
        help="a checkpoint folder, a policy's safetensors file, or a model's folder of a service",
    )
    parser.add_argument(
        "--env", default="OUSpread-v0", help="environment id (default: %(default)s)"
    )
    parser.add_argument("--episodes", type=int, default=None, help="default: 1000 paths, or 100")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="of the held-out episodes")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 0."""
    policy = PolicySnapshot.open(arguments.policy)
    is_ou = arguments.env.rpartition(":")[2] == "OUSpread-v0"
    episodes = (1_000 if is_ou else 100) if arguments.episodes is None else arguments.episodes
    if episodes < 2:
        raise InvalidValue("--episodes", ">= 2, for an interval", episodes)
    print(f"policy version {policy.version}, after {policy.update_count} updates")
    if is_ou:
        check_fits(policy.spec, gymnasium.make(arguments.env), "policy")
        print_probe(lambda x: (policy.greedy(x), policy.values(x)))
        compare_on_ou(policy.greedy, episodes, arguments.seed)
        return 0
    print_returns(policy, arguments.env, episodes, arguments.seed)
    return 0


def check_fits(spec: ModelSpec, env: gymnasium.Env[Any, Any], where: str) -> None:
    """Refuse a model that does not see what the environment shows, or acts otherwise.

    Raises:
        InvalidValue: naming both.
    """
    (sees, acts), (shown, taken) = (
        (s.observation.shape[0], len(s.action_set)) for s in (spec, ModelSpec.for_env(env))
    )
    if (sees, acts) != (shown, taken):
        name = "the environment" if env.spec is None else env.spec.id
        raise InvalidValue(
            where,
            f"{shown} features and {taken} actions, as {name} has",
            f"{sees} features and {acts} actions",
        )


def print_returns(policy: PolicySnapshot, env_id: str, episodes: int, seed: int) -> float:
    """Print and return the mean return of the greedy policy over held-out episodes."""
    env = gymnasium.make(env_id)
    check_fits(policy.spec, env, "policy")
    returns = episode_returns(env, policy.greedy, episodes, seed)
    env.close()
    mean = paired_bootstrap(returns, seed=0)
    print(
        f"{episodes} held-out episodes of {env_id}: mean return {mean.estimate:.2f},"
        f" 95 % interval [{mean.low:.2f}, {mean.high:.2f}],"
        f" lowest {returns.min():.2f}, highest {returns.max():.2f}"
    )
    return mean.estimate
