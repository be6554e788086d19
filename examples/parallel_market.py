"""Three traders on one path teach one model; with JORMUNGANDR_URL set, a service's.

All live traders are asked about in one request per step. Each explores on its own, so a path is
tried in three ways at once. The last lines value the policy on paths that none of them has met.
"""

import argparse
import os

import jormungandr
from jormungandr.numerics.statistics import paired_bootstrap, ratio_bootstrap
from jormungandr_envs import ou_market_v0, paired_returns
from jormungandr_wrappers import ParallelRecorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paths", type=int, default=28, help="to train on, 144 transitions each")
    parser.add_argument("--episodes", type=int, default=400, help="to compare on")
    parser.add_argument("--model", default="market", help="its name in the service")
    args = parser.parse_args()

    # One update per step of the market, not per transition: the three of a step are much alike.
    spec = jormungandr.ModelSpec.preset("ou-note", pacing={"updates_per_transition": 1 / 3})
    if "JORMUNGANDR_URL" in os.environ:
        with jormungandr.RemoteLearner(None, args.model) as model:
            model.create(spec)
            trade(model, args.paths, args.episodes)
    else:
        trade(jormungandr.Learner(spec), args.paths, args.episodes)


def trade(model: jormungandr.Endpoint, paths: int, episodes: int) -> None:
    env = ou_market_v0.parallel_env(n_traders=3)
    market = ParallelRecorder(env, model, actor_id="market", label_key="drift_label")
    for seed in range(paths):
        observations, _ = market.reset(seed=seed)
        while market.agents:
            observations, *_ = market.step(market.act(observations))
    (receipt,) = market.flush()
    state = model.wait(receipt.lsn)
    print(f"{receipt.accepted} transitions of 3 traders, {state['update_count']} updates")

    returns = paired_returns(lambda x: model.act(x, deterministic=True).indices, episodes, seed=0)
    gain, gap = returns.policy - returns.reference, returns.optimum - returns.reference
    better, closed = paired_bootstrap(gain, seed=0), ratio_bootstrap(gain, gap, seed=0)
    print(f"policy - reference {better.estimate:+.3f} [{better.low:+.3f}, {better.high:+.3f}]")
    print(f"gap closed {closed.estimate:.0%} [{closed.low:.0%}, {closed.high:.0%}] (95 %)")


if __name__ == "__main__":
    main()
