"""OUSpreadEnv: the contract of Gymnasium, the formulas, and what is refused."""

import math
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from jormungandr_envs import Action, Drift, OUSpreadEnv, drift_label, reference_action
from jormungandr_envs.ou_parameters import OUParameters
from jormungandr_envs.ou_path import simulate

KAPPA, SIGMA = 0.18, 0.35
SIGMA_X = SIGMA / math.sqrt(1 - (1 - KAPPA) ** 2)


def play(env, actions, **reset):
    """Return the observations, rewards and infos of one whole episode."""
    observation, info = env.reset(**reset)
    observations, rewards, infos = [observation], [], [info]
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        observations.append(observation)
        rewards.append(reward)
        infos.append(info)
        assert truncated is False
        assert terminated is (len(rewards) == len(actions))
    return np.array(observations), rewards, infos


def test_gymnasium_checker_warns_of_nothing_but_the_unbounded_box():
    """Its two warnings are about the infinite bounds, which a Gaussian spread really has."""
    env = gym.make("jormungandr_envs:OUSpread-v0").unwrapped
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == 2
    assert all("infinity" in message for message in messages)


def test_sb3_checker_warns_of_nothing():
    """The stricter checker of Stable-Baselines3 passes in silence."""
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb3_check_env(OUSpreadEnv(render_mode="rgb_array"))
    assert [str(warning.message) for warning in caught] == []


def test_spaces_are_those_of_the_task():
    """Three actions from 0; unbounded spreads, bounded position and time."""
    env = OUSpreadEnv()
    assert env.action_space == gym.spaces.Discrete(3)
    assert env.observation_space.dtype == np.float32
    assert env.observation_space.low.tolist() == [-math.inf, -math.inf, -1.0, 0.0]
    assert env.observation_space.high.tolist() == [math.inf, math.inf, 1.0, 1.0]


def test_rewards_and_observations_by_hand():
    """A path worked out here, shock by shock, from the generator's own draws."""
    env = OUSpreadEnv(horizon=5)
    actions = [Action.LONG, Action.LONG, Action.SHORT, Action.FLAT, Action.SHORT]
    observations, rewards, _ = play(env, actions, seed=11, options={"x0": 0.4})

    draws = gym.utils.seeding.np_random(11)[0].standard_normal(6)
    x, held, expected = 0.4, 0, []
    rows = [(x / SIGMA_X, 0.0, 0.0, 1.0)]
    for step, action in enumerate(actions):
        successor = (1 - KAPPA) * x + SIGMA * draws[step + 1]
        a = int(action) - 1
        expected.append(a * (successor - x) / SIGMA_X - 0.035 * abs(a - held) - 0.004 * abs(a))
        rows.append((successor / SIGMA_X, (successor - x) / SIGMA_X, a, (4 - step) / 5))
        x, held = successor, a
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(observations, np.array(rows), rtol=1e-6, atol=1e-6)


def test_costs_alone():
    """A path without shocks at its mean never moves, so what is left of the reward is the costs."""
    env = OUSpreadEnv(sigma=1e-9, horizon=6)
    actions = [0, 2, 2, 1, 1, 0]
    env.reset(seed=0, options={"x0": 0.0})
    env._move = [0.0] * 7
    rewards = [env.step(action)[1] for action in actions]
    assert rewards == pytest.approx([-0.039, -0.074, -0.004, -0.035, 0.0, -0.039], abs=1e-15)
    assert math.copysign(1.0, rewards[4]) == 1.0


def test_staying_flat_is_worth_zero_and_never_minus_zero():
    """The sign of a zero would otherwise tell which way the spread went."""
    _, rewards, _ = play(OUSpreadEnv(), [1] * 48, seed=0)
    assert [math.copysign(1.0, reward) for reward in rewards] == [1.0] * 48


def test_step_48_terminates_and_does_not_truncate():
    """The end is a termination, at which alone the reference's return is reported."""
    observations, rewards, infos = play(OUSpreadEnv(), [1] * 48, seed=0)
    assert len(rewards) == 48
    assert observations[0, 3] == 1.0
    assert observations[-1, 3] == 0.0
    assert [index for index, info in enumerate(infos) if "reference_return" in info] == [48]


def test_types_are_the_builtin_ones_that_sb3_asks_for():
    """Rewards and ends are Python's own types, and no reserved name is taken."""
    env = OUSpreadEnv(horizon=1)
    observation, info = env.reset(seed=0)
    assert observation.dtype == np.float32
    assert type(info["drift_label"]) is int
    _, reward, terminated, truncated, info = env.step(np.int64(2))
    assert (type(reward), terminated, truncated) == (float, True, False)
    assert type(terminated) is bool
    assert type(info["reference_return"]) is float
    assert "episode" not in info
    assert not hasattr(env, "compute_reward")


def test_actions_do_not_move_the_path():
    """Different actions under one seed meet the same spreads, labels and reference."""
    rng = np.random.default_rng(0)
    env = OUSpreadEnv()
    first, *_, infos_1 = play(env, rng.integers(0, 3, 48), seed=5)
    other, *_, infos_2 = play(env, rng.integers(0, 3, 48), seed=5)
    assert first[:, :2].tolist() == other[:, :2].tolist()
    assert first[:, 2].tolist() != other[:, 2].tolist()
    assert infos_1 == infos_2


def test_a_fixed_start_keeps_the_shocks_of_the_seed():
    """Two starts under one seed approach each other at the rate of reversion."""
    free, *_ = play(OUSpreadEnv(), [1] * 48, seed=5)
    fixed, *_ = play(OUSpreadEnv(), [1] * 48, seed=5, options={"x0": 0.0})
    apart = free[:, 0].astype(float) - fixed[:, 0]
    assert fixed[0, 0] == 0.0
    np.testing.assert_allclose(apart, apart[0] * 0.82 ** np.arange(49), atol=1e-6)


def test_seeds_fix_episodes_and_their_sequel():
    """A seed fixes its episode and the unseeded ones after it."""
    one, two = OUSpreadEnv(), OUSpreadEnv()
    for seed in (3, None, None):
        left, right = play(one, [2] * 48, seed=seed), play(two, [2] * 48, seed=seed)
        assert left[0].tobytes() == right[0].tobytes()
        assert left[1:] == right[1:]
    assert one.reset(seed=3)[0].tobytes() != one.reset(seed=4)[0].tobytes()


def test_returned_data_share_no_memory():
    """No observation or info is used twice."""
    env = OUSpreadEnv()
    seen = [env.reset(seed=0)]
    for _ in range(3):
        observation, *_, info = env.step(1)
        seen.append((observation, info))
    for index, (observation, info) in enumerate(seen):
        for later_observation, later_info in seen[index + 1 :]:
            assert not np.shares_memory(observation, later_observation)
            assert info is not later_info


def test_reference_return_is_what_the_reference_earns():
    """Playing the reference through the environment earns the reported return to the bit."""
    env = OUSpreadEnv()
    observation, _ = env.reset(seed=8)
    earned = 0.0
    for _ in range(48):
        observation, reward, *_, info = env.step(reference_action(float(observation[0])))
        earned += reward
    assert earned == info["reference_return"]


def test_drift_label_belongs_to_the_observation_returned_with_it():
    """The label is of the spread just observed, at reset and at every step."""
    observations, _, infos = play(OUSpreadEnv(), [1] * 48, seed=2)
    labels = [info["drift_label"] for info in infos]
    expected = [
        Drift.DOWN if z > 0.35 else Drift.UP if z < -0.35 else Drift.FLAT
        for z in observations[:, 0]
    ]
    assert labels == expected
    assert set(labels) == {0, 1, 2}


@pytest.mark.parametrize(
    ("z", "label"), [(0.36, "DOWN"), (0.35, "FLAT"), (-0.35, "FLAT"), (-0.36, "UP")]
)
def test_drift_label_boundaries(z, label):
    """The thresholds themselves are FLAT."""
    assert Drift(drift_label(z)).name == label


def test_paths_follow_the_recursion():
    """The doubling scan agrees with the plain loop."""
    parameters = OUParameters(horizon=37)
    noise = np.random.default_rng(0).standard_normal((4, 38))
    paths = simulate(noise, parameters)
    for row, draws in enumerate(noise):
        x = [SIGMA_X * draws[0]]
        for draw in draws[1:]:
            x.append((1 - KAPPA) * x[-1] + SIGMA * draw)
        np.testing.assert_allclose(paths.z[:, row], np.array(x) / SIGMA_X, atol=1e-13)
        np.testing.assert_allclose(paths.move[1:, row], np.diff(x) / SIGMA_X, atol=1e-13)


def test_spread_is_stationary_from_the_first_step():
    """Deviation 1 in its own unit at every step, and correlation 1 - kappa between steps."""
    noise = np.random.default_rng(1).standard_normal((40_000, 49))
    z = simulate(noise, OUParameters()).z
    assert OUParameters().sigma_x == pytest.approx(0.6115, abs=5e-5)
    assert np.abs(z.std(axis=1) - 1).max() < 4 / math.sqrt(2 * 40_000)
    assert np.abs(z.mean(axis=1)).max() < 4 / math.sqrt(40_000)
    assert np.mean(z[1:] * z[:-1]) == pytest.approx(0.82, abs=0.005)


@given(batch=st.integers(1, 9), horizon=st.integers(1, 70), kappa=st.floats(0.01, 1.99))
def test_a_batch_gives_each_path_the_bits_it_would_have_alone(batch, horizon, kappa):
    """Neither the sums nor the scan depend on how many paths share an array."""
    parameters = OUParameters(horizon=horizon, kappa=kappa)
    noise = np.random.default_rng(horizon).standard_normal((batch, horizon + 1))
    together = simulate(noise, parameters)
    for row in range(batch):
        alone = simulate(noise[row : row + 1], parameters)
        for name in ("z", "move", "drift", "reference_return"):
            expected, actual = getattr(alone, name)[..., 0], getattr(together, name)[..., row]
            assert expected.tobytes() == actual.tobytes()


@pytest.mark.parametrize("action", [3, -1, 1.0, "LONG", None, [1], np.array([1]), np.float32(1)])
def test_bad_actions_are_refused_and_change_nothing(action):
    """A bad action is named, and the episode goes on as if it had not been tried."""
    env = OUSpreadEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected 0 \(SHORT\), 1 \(FLAT\) or 2 \(LONG\)"):
        env.step(action)
    assert env.step(1)[0][3] == np.float32(47 / 48)


@pytest.mark.parametrize("action", [2, np.int32(2), np.uint8(2), np.array(2), Action.LONG])
def test_every_kind_of_integer_is_an_action(action):
    """Whatever Python takes as an index is an action."""
    env = OUSpreadEnv()
    env.reset(seed=0)
    assert env.step(action)[0][2] == 1.0


def test_steps_outside_an_episode_are_refused():
    """There is no step before a reset nor after the end."""
    env = OUSpreadEnv(horizon=1)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(1)
    env.reset(seed=0)
    env.step(1)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(1)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("kappa", 0.0, "> 0 and < 2"),
        ("kappa", 2.0, "> 0 and < 2"),
        ("kappa", math.nan, "> 0 and < 2"),
        ("kappa", "0.18", "> 0 and < 2"),
        ("kappa", None, "> 0 and < 2"),
        ("sigma", 0.0, "> 0"),
        ("sigma", math.inf, "> 0"),
        ("turnover_cost", -0.1, ">= 0"),
        ("holding_cost", -0.1, ">= 0"),
        ("reference_threshold", -0.1, ">= 0"),
        ("drift_threshold", math.inf, ">= 0"),
        ("horizon", 0, "an integer >= 1"),
        ("horizon", 48.0, "an integer >= 1"),
        ("horizon", True, "an integer >= 1"),
    ],
)
def test_bad_parameters_are_named(name, value, expected):
    """The message says which parameter, what was expected and what was given."""
    with pytest.raises(
        ValueError, match=rf"OUSpread\.{name}: expected .*{expected}, got"
    ) as caught:
        OUSpreadEnv(**{name: value})
    assert repr(value) in str(caught.value)


def test_an_unknown_parameter_is_refused():
    """A misspelt parameter is not silently ignored."""
    with pytest.raises(TypeError, match="kapa"):
        OUSpreadEnv(kapa=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x_0": 1.0}, "expected only 'x0', got 'x_0'"),
        ({"x0": math.nan}, "expected a finite number, got nan"),
        ({"x0": "high"}, "expected a finite number, got 'high'"),
    ],
)
def test_bad_reset_options_are_named(options, message):
    """A misspelt option or an impossible start is not silently ignored."""
    with pytest.raises(ValueError, match=message):
        OUSpreadEnv().reset(options=options)
