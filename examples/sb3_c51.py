"""Train C51 as one would train Stable-Baselines3's DQN, on four copies of OUSpread-v0.

The best policy met on the way is saved, loaded again, and compared with the reference rule and the
optimum on paths that none of the environments has met.
"""

import argparse
from pathlib import Path

import torch
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from jormungandr.sb3 import C51
from jormungandr_envs import paired_returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=5_000, help="to train on")
    parser.add_argument("--episodes", type=int, default=1_000, help="to compare on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("sb3_c51"), help="for the results")
    args = parser.parse_args()

    torch.set_num_threads(1)  # sharing out such small work costs more than the work
    env = make_vec_env("OUSpread-v0", n_envs=4, seed=args.seed)
    held_out = make_vec_env("OUSpread-v0", n_envs=4, seed=args.seed + 1_000)
    evaluation = EvalCallback(
        held_out,
        n_eval_episodes=100,
        eval_freq=250,  # calls of `env.step`, of four transitions each, as in `train_freq`
        best_model_save_path=str(args.folder),
        log_path=str(args.folder),
        verbose=0,
    )
    model = C51("MlpPolicy", env, train_freq=1, seed=args.seed, device="cpu")
    model.learn(args.timesteps, callback=evaluation)

    model = C51.load(args.folder / "best_model.zip", device="cpu")
    mean, deviation = evaluate_policy(model, held_out, n_eval_episodes=100)
    print(f"evaluate_policy: {mean:.2f} per episode, standard deviation {deviation:.2f}")
    returns = paired_returns(
        lambda x: model.predict(x, deterministic=True)[0], args.episodes, seed=args.seed
    )
    for name, values in returns._asdict().items():
        print(f"{name:9} {values.mean():6.3f} per episode on the same {args.episodes} paths")
    print(f"gap closed {returns.gap_closed:.0%}")


if __name__ == "__main__":
    main()
