"""examples/supersuit_c51.py runs and learns, and what SuperSuit hands on is what happened."""

import re
import sys

import numpy as np
import pytest

pytest.importorskip("supersuit")
pytest.importorskip("stable_baselines3")

import supersuit

from examples.supersuit_c51 import Traders, main, traders
from jormungandr.sb3 import C51, PrioritizedReplayBuffer
from jormungandr_envs import ou_market_v0

MARKETS = 2
SEED = 5
#: Of a market that every trader leaves before its end, together.
LEAVING = {"horizon": 12, "leave_after": {f"trader_{i}": 7 for i in range(3)}}


def suited(parallel_env):
    """Return one market as SuperSuit by itself hands it to Stable-Baselines3."""
    market = supersuit.pettingzoo_env_to_vec_env_v1(parallel_env)
    return supersuit.concat_vec_envs_v1(market, 1, base_class="stable_baselines3")


def test_all_traders_beat_the_reference(monkeypatch, capsys):
    """With half its steps and paths, the shared network is better than the rule on unseen paths."""
    monkeypatch.setattr(sys, "argv", ["x", "--timesteps", "2400", "--paths", "200"])
    main()
    printed = capsys.readouterr().out.splitlines()
    line = r"policy - reference ([+-][\d.]+) \[([+-][\d.]+), [+-][\d.]+\] \(95 %\)"
    gain = re.fullmatch(line, printed[3])
    assert gain is not None
    means = [float(re.search(r"(-?\d+\.\d+)", text)[1]) for text in printed[1:3]]

    assert printed[0] == "2400 transitions of 12 traders in 4 markets"
    assert float(gain[1]) == pytest.approx(means[0] - means[1], abs=2e-3)
    assert float(gain[2]) > 0


@pytest.mark.parametrize("parameters", [{"horizon": 12}, LEAVING], ids=["ends", "leaving"])
def test_replay_holds_what_the_market_did(parameters):
    """Every stored transition is that of the parallel market, the last of an episode included.

    A termination is one and a truncation is one, so that only after the latter is there a value.
    """
    env = traders(MARKETS, **parameters)
    learned = C51("MlpPolicy", env, train_freq=1, learning_starts=60, seed=SEED, device="cpu")
    learned.learn(40 * env.num_envs)
    replay = learned.replay_buffer
    assert isinstance(replay, PrioritizedReplayBuffer)
    rows, ends = replay.size(), 0

    for i in range(MARKETS):
        market = ou_market_v0.parallel_env(**parameters)
        market.reset(seed=SEED + i)
        observations, _ = market.reset()  # `learn` begins with a reset
        for row in range(rows):
            for j, agent in enumerate(market.possible_agents, 3 * i):
                assert replay.observations[row, j].tolist() == observations[agent].tolist()
            chosen = replay.actions[row, 3 * i : 3 * i + 3, 0]
            step = market.step(dict(zip(market.possible_agents, chosen, strict=True)))
            observations, rewards, terminated, truncated, _ = step
            for j, agent in enumerate(market.possible_agents, 3 * i):
                assert replay.next_observations[row, j].tolist() == observations[agent].tolist()
                assert replay.rewards[row, j] == np.float32(rewards[agent])
                assert bool(replay.dones[row, j]) == (terminated[agent] or truncated[agent])
                assert bool(replay.timeouts[row, j]) == truncated[agent]
            if not market.agents:
                ends += 1
                observations, _ = market.reset()

    assert rows == 40
    assert ends == MARKETS * (rows // (7 if "leave_after" in parameters else 12))


def test_seeds_decide_the_paths():
    """Equal seeds give equal paths, and each market has one of its own."""
    starts = []
    for seed in (0, 0, 10):
        env = traders(MARKETS)
        env.seed(seed)
        starts.append(env.reset()[:, 0].tolist())

    assert starts[0] == starts[1] != starts[2]
    assert [len(set(start[:3])) for start in starts] == [1, 1, 1]
    assert starts[0][0] != starts[0][3]


def test_what_supersuit_leaves_out():
    """The two methods of the example are needed; when this fails, they can go."""
    env = suited(ou_market_v0.parallel_env(**LEAVING))
    env.reset()
    for _ in range(7):
        _, _, dones, infos = env.step(np.zeros(3, dtype=int))

    assert dones.all()
    assert all("terminal_observation" in info for info in infos)
    assert not any("TimeLimit.truncated" in info for info in infos)
    with pytest.raises(AttributeError, match="seed"):
        env.seed(0)


def test_one_that_leaves_alone_is_refused():
    """A vector of fixed length has no place for a trader that is gone."""
    env = traders(1, leave_after={"trader_1": 2})
    assert isinstance(env, Traders)
    env.reset()
    env.step(np.zeros(3, dtype=int))
    with pytest.raises(AssertionError, match="varying numbers of active agents"):
        env.step(np.zeros(3, dtype=int))


def test_black_death_adds_a_step_that_nobody_took():
    """Behind it a market of 3 steps ends with its 4th, in zeros: it is no way around the above."""
    market = ou_market_v0.parallel_env(horizon=3, leave_after={"trader_1": 1})
    env = suited(supersuit.black_death_v3(market))
    env.reset()
    steps = [env.step(np.zeros(3, dtype=int)) for _ in range(4)]

    assert [bool(dones.any()) for _, _, dones, _ in steps] == [False, False, False, True]
    assert steps[1][0][1].tolist() == [0.0] * 4
    assert [info["terminal_observation"].tolist() for info in steps[3][3]] == [[0.0] * 4] * 3
