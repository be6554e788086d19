"""Whether the unit of the rewards matters: CartPole-v1 with rewards of 0.01, 1 and 100 a step.

Run from the repository: ``python -m benchmarks.reward_scale [--seeds 3] [--steps 50000]``. Trains
with the settings that ``jormungandr train`` starts from unasked, and with `jormungandr.sb3.C51` as
it is, and prints the steps survived in held-out episodes, mean over seeds with its 95 % interval.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.tasks import TASKS
from jormungandr import ModelSpec
from jormungandr.learner import Learner
from jormungandr.numerics.statistics import paired_bootstrap
from jormungandr_wrappers import RemoteActor

SCALES = (0.01, 1.0, 100.0)


def scaled(scale: float) -> gymnasium.Env[Any, Any]:
    """Return CartPole-v1 with rewards in another unit."""
    env = gymnasium.make("CartPole-v1")
    return gymnasium.wrappers.TransformReward(env, lambda reward: scale * float(reward))


def ours(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> Callable[..., NDArray[Any]]:
    """Train a learner; return how it acts."""
    learner = Learner(ModelSpec.for_env(env, preset="default", seed=seed))
    RemoteActor(env, learner, actor_id="train", batch_size=1).run(steps=steps, seed=seed)
    policy, nobody = learner.snapshot(), np.random.default_rng(0)
    return lambda seen: policy.act(seen, nobody, deterministic=True).indices


def sb3(env: gymnasium.Env[Any, Any], seed: int, steps: int) -> Callable[..., NDArray[Any]]:
    """Train the class in Stable-Baselines3's shape; return how it acts."""
    from jormungandr.sb3 import C51

    model = C51("MlpPolicy", env, seed=seed, device="cpu").learn(steps)
    return lambda seen: model.predict(seen, deterministic=True)[0]


def main() -> None:
    """Run."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, train in (("jormungandr train", ours), ("jormungandr.sb3.C51", sb3)):
        for scale in SCALES:
            scores = np.array(
                [
                    TASKS["cartpole"].score(train(scaled(scale), seed, given.steps)).mean()
                    for seed in range(given.seeds)
                ]
            )
            _, low, high = paired_bootstrap(scores, seed=0)
            each = ", ".join(f"{score:.0f}" for score in scores)
            print(
                f"{name}, rewards x {scale:g}: {scores.mean():.0f} [{low:.0f}, {high:.0f}] ({each})"
            )


if __name__ == "__main__":
    main()
