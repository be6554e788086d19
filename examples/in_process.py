"""Learn OUSpread-v0 in one process: a Gymnasium loop, a learner beside it, no service.

Four environments train while a fifth, held out, is only measured. The last lines compare the
learned policy with the reference rule and the optimum on paths that none of them has met.
"""

import argparse

import gymnasium as gym
import torch

from jormungandr import Learner, ModelSpec
from jormungandr.numerics.statistics import paired_bootstrap, ratio_bootstrap
from jormungandr_envs import paired_returns
from jormungandr_wrappers import VectorRecorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_344, help="to train on")
    parser.add_argument("--episodes", type=int, default=400, help="to compare on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # sharing out such small work costs more than the work
    learner = Learner(ModelSpec.preset("ou-note", seed=args.seed))
    env = VectorRecorder(
        gym.make_vec("OUSpread-v0", num_envs=5, autoreset_mode="SameStep"),
        learner,
        actor_id="in-process",
        split=["train"] * 4 + ["validation"],
        label_key="drift_label",
    )
    observations, _ = env.reset(seed=args.seed)
    for _ in range(args.transitions // 4):
        observations, *_ = env.step(env.act(observations))
    env.close()

    info = learner.info()
    print(f"training transitions {info['transitions']['train']}, updates {info['update_count']}")
    if (held := learner.evaluate()) is not None:
        print(f"held out: loss {held.loss:.3f}, drift accuracy {held.auxiliary_accuracy:.0%}")

    def policy(x):
        return learner.act(x, deterministic=True).indices

    returns = paired_returns(policy, args.episodes, seed=args.seed)
    gain, gap = returns.policy - returns.reference, returns.optimum - returns.reference
    better = paired_bootstrap(gain, seed=0)
    closed = ratio_bootstrap(gain, gap, seed=0)
    for name in ("policy", "reference", "optimum"):
        print(f"{name:9} {getattr(returns, name).mean():6.3f} per episode")
    print(f"policy - reference {better.estimate:+.3f} [{better.low:+.3f}, {better.high:+.3f}]")
    print(f"gap closed {closed.estimate:.0%} [{closed.low:.0%}, {closed.high:.0%}] (95 %)")


if __name__ == "__main__":
    main()
