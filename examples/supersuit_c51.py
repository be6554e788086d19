"""Train Stable-Baselines3's shape of C51 on ou_market_v0 through SuperSuit.

Each trader of each market is one environment of a vector, so all of them share one network. At the
end they trade greedily on paths that none of them has met, beside the reference rule.
"""

import argparse
from typing import Any

import numpy as np
import supersuit
import torch
from numpy.typing import NDArray
from supersuit.vector.sb3_vector_wrapper import SB3VecEnvWrapper

from jormungandr.numerics.statistics import paired_bootstrap
from jormungandr.sb3 import C51
from jormungandr_envs import ou_market_v0


class Traders(SB3VecEnvWrapper):
    """What SuperSuit makes for Stable-Baselines3, with two things it leaves out in 3.11.

    `seed` fails there. And no info says which ends are truncations, so that a value after one would
    be learned as 0.
    """

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Seed market i with ``seed + i``; each later reset goes on from there."""
        self.venv.reset(seed=seed)
        return [seed] * self.num_envs

    def step_wait(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], list[Any]]:
        """Say which ends are truncations, as Stable-Baselines3's own environments do."""
        observations, rewards, terminated, truncated, infos = self.venv.step_wait()
        for i, info in enumerate(infos):
            info["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        return observations, rewards, (terminated | truncated).astype(np.bool_), infos


def traders(markets: int, **parameters: Any) -> Traders:
    """Return the traders of several markets, those of the first one first."""
    market = supersuit.pettingzoo_env_to_vec_env_v1(ou_market_v0.parallel_env(**parameters))
    # base_class="stable_baselines3" would return an SB3VecEnvWrapper as it is.
    return Traders(supersuit.concat_vec_envs_v1(market, markets))


def play(model: C51, paths: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the greedy traders' mean return on each path, and the reference's."""
    env = traders(paths)
    env.seed(seed)
    observations = env.reset()
    returns, done = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.bool_)
    while not done.all():  # they all end together
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, done, infos = env.step(actions)
        returns += rewards
    reference = np.array([info["reference_return"] for info in infos])
    return returns.reshape(paths, -1).mean(axis=1), reference.reshape(paths, -1)[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=4_032, help="of single traders")
    parser.add_argument("--paths", type=int, default=400, help="to compare on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # sharing out such small work costs more than the work
    env = traders(markets=4)
    # One update per step of a market: the three traders of a step are much alike.
    model = C51("MlpPolicy", env, train_freq=1, gradient_steps=4, seed=args.seed, device="cpu")
    model.learn(args.timesteps)
    print(f"{model.num_timesteps} transitions of {env.num_envs} traders in 4 markets")

    policy, reference = play(model, args.paths, seed=args.seed + 1_000)
    better = paired_bootstrap(policy - reference, seed=0)
    print(f"all traders, greedy: {policy.mean():.3f} per episode on {args.paths} held-out paths")
    print(f"reference:           {reference.mean():.3f}")
    print(
        f"policy - reference {better.estimate:+.3f} [{better.low:+.3f}, {better.high:+.3f}] (95 %)"
    )


if __name__ == "__main__":
    main()
