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

__all__ = ["add_arguments", "fits", "print_returns", "run"]

#: First seed of held-out episodes: far from any that training draws.
HELD_OUT_SEED = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "policy", type=Path, help="a policy's safetensors file or a checkpoint folder"
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
        if policy.spec.observation.shape != (4,) or len(policy.spec.action_set) != 3:
            raise InvalidValue("policy", "one of OUSpread-v0", policy.spec.observation.shape)
        print_probe(lambda x: (policy.greedy(x), policy.values(x)))
        compare_on_ou(policy.greedy, episodes, arguments.seed)
        return 0
    print_returns(policy, arguments.env, episodes, arguments.seed)
    return 0


def fits(spec: ModelSpec, env: gymnasium.Env[Any, Any]) -> bool:
    """Whether a model of this specification sees what the environment shows, and can act in it."""
    own = ModelSpec.for_env(env)
    same_shape = spec.observation.shape == own.observation.shape
    return same_shape and len(spec.action_set) == len(own.action_set)


def print_returns(policy: PolicySnapshot, env_id: str, episodes: int, seed: int) -> float:
    """Print and return the mean return of the greedy policy over held-out episodes."""
    env = gymnasium.make(env_id)
    if not fits(policy.spec, env):
        raise InvalidValue("policy", f"one of {env_id}", policy.spec.observation.shape)
    returns = episode_returns(env, policy.greedy, episodes, seed)
    env.close()
    mean = paired_bootstrap(returns, seed=0)
    print(
        f"{episodes} held-out episodes of {env_id}: mean return {mean.estimate:.2f},"
        f" 95 % interval [{mean.low:.2f}, {mean.high:.2f}],"
        f" lowest {returns.min():.2f}, highest {returns.max():.2f}"
    )
    return mean.estimate
