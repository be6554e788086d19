"""The support of `jormungandr.sb3.C51` fits itself by default, in its networks and its files."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from jormungandr.errors import InvalidValue
from jormungandr.sb3 import C51
from jormungandr.sb3.support import move_support


def model(**arguments):
    """Return one that learns a little of CartPole."""
    settings = {"learning_starts": 200, "train_freq": 1, "policy_kwargs": {"net_arch": [16]}}
    given = {"env": "CartPole-v1", **settings, **arguments}
    return C51("MlpPolicy", seed=0, device="cpu", **given)


@pytest.mark.parametrize("dueling", [False, True])
def test_it_begins_at_the_first_update_and_is_saved(dueling, tmp_path):
    """CartPole's returns at γ 0.99 lie in 0..100; what is loaded goes on from there."""
    made = model(policy_kwargs={"net_arch": [16], "dueling": dueling})
    made.learn(400)
    assert (made.v_min, made.v_max) == pytest.approx((0, 100))
    assert made.q_net.support[-1] == made.q_net_target.support[-1] == pytest.approx(100)
    made.save(tmp_path / "model.zip")
    made.policy.save(tmp_path / "policy.zip")
    again = C51.load(tmp_path / "model.zip", env=gymnasium.make("CartPole-v1"), device="cpu")
    seen = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    with torch.no_grad():
        values = [m.q_net(m.policy.obs_to_tensor(seen)[0]) for m in (made, again)]
    assert torch.equal(*values)
    policy = type(made.policy).load(tmp_path / "policy.zip", "cpu")
    assert policy.q_net.support[-1] == pytest.approx(100)
    again.learn(100, reset_num_timesteps=False)
    assert again._fitted
    assert again.v_max == pytest.approx(100)


def test_what_was_learned_from_rewards_of_0_is_kept():
    """A goal found after 300 updates: the values before it were 0, and are so on the new atoms."""

    class Late(gymnasium.RewardWrapper):
        steps = 0

        def reward(self, reward):
            self.steps += 1
            return 40.0 if self.steps == 500 else 0.0

    made = model(env=Late(gymnasium.make("CartPole-v1")))
    made.learn(499)
    seen = made.policy.obs_to_tensor(np.random.default_rng(0).normal(size=(50, 4)))[0].float()
    assert (made.v_min, made.v_max) == (-1.0, 1.0)
    assert made.q_net(seen).abs().mean() < 0.1
    made.learn(1, reset_num_timesteps=False)
    assert made.v_min == -made.v_max <= -40.0
    assert (made.q_net(seen) / made.v_max).abs().mean() < 0.1


@pytest.mark.parametrize("dueling", [False, True])
def test_a_move_keeps_what_the_networks_say(dueling):
    """To two atoms' distance, of networks that have hardly learned; Adam's averages move along."""
    made = model(policy_kwargs={"net_arch": [16], "dueling": dueling})
    made.learn(600)
    seen = made.policy.obs_to_tensor(np.random.default_rng(0).normal(size=(50, 4)))[0].float()
    networks = (made.q_net, made.q_net_target)
    with torch.no_grad():
        before = [network(seen) for network in networks]
        move_support(made.policy, (0.0, 125.0))
        after = [network(seen) for network in networks]
    for old, new in zip(before, after, strict=True):
        assert (old - new).abs().mean() < 2 * 125 / 50
    head = made.q_net.heads()[-1].weight
    assert made.policy.optimizer.state[head]["exp_avg"].shape == head.shape
    made.learn(100, reset_num_timesteps=False)  # and it goes on


def test_what_the_environment_pays_in_the_end_is_what_counts():
    """Rewards a hundred times as large, bounds a hundred times as wide."""
    env = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda r: 100 * r)
    made = C51("MlpPolicy", env, learning_starts=100, policy_kwargs={"net_arch": [8]}, device="cpu")
    made.learn(200)
    assert made.v_max == pytest.approx(10_000, rel=1e-6)


def test_rewards_are_those_that_are_sampled():
    """`VecNormalize` has normalised them by the time they are seen; once is enough."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    def big() -> gymnasium.Env:
        env = gymnasium.make("CartPole-v1")
        return gymnasium.wrappers.TransformReward(env, lambda r: 1000 * r)

    env = VecNormalize(DummyVecEnv([big]), norm_obs=False, norm_reward=True, gamma=0.99)
    made = C51("MlpPolicy", env, learning_starts=300, policy_kwargs={"net_arch": [8]}, device="cpu")
    made.learn(400)
    sampled = made.replay_buffer.sample(200, env=env).rewards
    # At most what every return of such rewards could be, and within a factor of it.
    widest = float(sampled.max()) / 0.01
    assert widest / 3 < made.v_max < 10 * widest


def test_given_bounds_stay_and_half_of_them_is_refused():
    """As it was."""
    made = model(v_min=-5.0, v_max=5.0)
    made.learn(250)
    assert (made.v_min, made.v_max) == (-5.0, 5.0)
    with pytest.raises(InvalidValue, match="v_min, v_max"):
        model(v_min=0.0)
