"""C51, DQN and PPO after equally many training transitions of OUSpread-v0, on the same paths.

C51 is ours, with the preset of the release note. It trains twice, on transitions alone and with the
drift labels in OUSpread's info, for which only its auxiliary head has a place. DQN and PPO are
those of Stable-Baselines3. DQN has C51's settings wherever it has the same knob; PPO its own
defaults, with rollouts of two episodes, the best of a few lengths tried. Nothing else was tuned:
read the table as a check on equal terms, not as a ranking of algorithms. "gap closed" is the share
of the way from the reference rule to the optimum; its interval covers the paths, and the seeds
stand beside it.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN, PPO

from jormungandr import Learner, ModelSpec
from jormungandr.numerics.statistics import ratio_bootstrap
from jormungandr_envs import PairedReturns, paired_returns
from jormungandr_wrappers import RemoteActor

ROLLOUT = 96  # PPO's transitions per rollout: two episodes
Policy = Callable[[NDArray[np.float32]], NDArray[Any]]


def c51(transitions: int, seed: int, label_key: str | None = None) -> Policy:
    learner = Learner(ModelSpec.preset("ou-note", seed=seed))
    env = gym.make("OUSpread-v0")
    # Batches of one: the next action is chosen after the update that this transition makes due.
    actor = RemoteActor(env, learner, actor_id="c51", label_key=label_key, batch_size=1)
    actor.run(steps=transitions, seed=seed)
    return lambda x: learner.act(x, deterministic=True).indices


def c51_with_labels(transitions: int, seed: int) -> Policy:
    return c51(transitions, seed, label_key="drift_label")


def dqn(transitions: int, seed: int) -> Policy:
    spec = ModelSpec.preset("ou-note")
    model = DQN(
        "MlpPolicy",
        gym.make("OUSpread-v0"),
        learning_rate=spec.c51.lr,
        batch_size=spec.c51.batch_size,
        gamma=spec.c51.gamma,
        max_grad_norm=spec.c51.max_grad_norm,
        target_update_interval=spec.c51.target_interval,
        learning_starts=spec.pacing.learning_starts,
        train_freq=1,
        exploration_initial_eps=spec.exploration.start,
        exploration_final_eps=spec.exploration.epsilon(transitions),
        exploration_fraction=1.0,
        policy_kwargs={"net_arch": list(spec.c51.layers)},
        seed=seed,
        device="cpu",
    )
    model.learn(transitions)
    return lambda x: model.predict(x, deterministic=True)[0]


def ppo(transitions: int, seed: int) -> Policy:
    model = PPO(
        "MlpPolicy",
        gym.make("OUSpread-v0"),
        n_steps=ROLLOUT,
        batch_size=ROLLOUT // 2,
        gamma=ModelSpec.preset("ou-note").c51.gamma,
        seed=seed,
        device="cpu",
    )
    model.learn(transitions)
    return lambda x: model.predict(x, deterministic=True)[0]


CONTESTANTS = (
    ("C51", c51),
    ("C51, labels", c51_with_labels),
    ("SB3 DQN", dqn),
    ("SB3 PPO", ppo),
)


def report(name: str, runs: list[PairedReturns], seconds: float) -> str:
    """Return a row of the table, from one `PairedReturns` per seed on the same paths."""
    returns = np.mean([run.policy for run in runs], axis=0)  # (paths,)
    reference, optimum = runs[0].reference, runs[0].optimum
    closed = ratio_bootstrap(returns - reference, optimum - reference, seed=0)
    interval = f"{closed.estimate:5.0%} [{closed.low:5.0%}, {closed.high:5.0%}]"
    seeds = " ".join(f"{run.gap_closed:.0%}" for run in runs)
    return (
        f"{name:12} {returns.mean():7.3f} {(returns - reference).mean():+8.3f}   {interval:22}"
        f" {seconds:5.1f} s  {seeds}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_344, help="to train on, each")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each algorithm")
    parser.add_argument("--episodes", type=int, default=1_000, help="held-out paths")
    args = parser.parse_args()
    if args.transitions < ROLLOUT or args.transitions % ROLLOUT:
        parser.error(f"--transitions: expected a multiple of {ROLLOUT}, got {args.transitions}")

    torch.set_num_threads(1)  # sharing out such small work costs more than the work
    print(
        f"{args.transitions} training transitions, {args.seeds} seeds, {args.episodes} paths\n"
        "                 mean vs. ref.   gap closed (95 %)     training  gap closed by seed"
    )
    runs: list[PairedReturns] = []
    for name, train in CONTESTANTS:
        start = time.perf_counter()
        policies = [train(args.transitions, seed) for seed in range(args.seeds)]
        seconds = time.perf_counter() - start
        runs = [paired_returns(policy, args.episodes, seed=1) for policy in policies]
        print(report(name, runs, seconds), flush=True)
    for name in ("reference", "optimum"):
        print(f"{name:12} {getattr(runs[0], name).mean():7.3f}")


if __name__ == "__main__":
    main()
