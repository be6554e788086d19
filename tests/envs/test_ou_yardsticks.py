"""The reference and the optimum: published figures, closed forms, and simulation."""

import math

import gymnasium as gym
import numpy as np
import pytest

from jormungandr_envs import (
    Action,
    OUParameters,
    OUSpreadEnv,
    OUSpreadVectorEnv,
    optimal_policy,
    ou_optimal,
    paired_returns,
    reference_action,
    reference_value,
)
from jormungandr_envs.ou_paired import _play
from jormungandr_envs.ou_path import simulate

SHORT, FLAT, LONG = Action
EPISODES = 20_000


def density(x):
    """Return the standard normal density."""
    return math.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def upper_tail(x):
    """Return the standard normal probability of exceeding x."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def best(z, position, time_left=1.0, **task):
    """Return the optimal action in one state."""
    observation = np.array([[z, 0.0, position, time_left]], dtype=np.float32)
    return Action(int(optimal_policy(**task).act(observation)[0]))


def assert_mean(samples, expected):
    """The mean lies within three of its own standard errors."""
    error = samples.std(ddof=1) / math.sqrt(len(samples))
    assert abs(samples.mean() - expected) < 3 * error


def test_reference_action_on_numbers_and_arrays():
    """Numbers give ints, arrays give int64 arrays, and the thresholds themselves are FLAT."""
    assert [reference_action(z) for z in (-0.66, -0.65, 0.0, 0.65, 0.66)] == [2, 1, 1, 1, 0]
    assert type(reference_action(np.float32(1.0))) is int
    actions = reference_action(np.array([[-1.0, 0.0, 1.0]], dtype=np.float32), threshold=0.5)
    assert actions.dtype == np.int64
    assert actions.tolist() == [[LONG, FLAT, SHORT]]
    with pytest.raises(ValueError, match="threshold: expected a number >= 0, got -1"):
        reference_action(0.0, threshold=-1)


def test_published_values():
    """The figures that the documentation states."""
    assert reference_value() == pytest.approx(4.951, abs=5e-4)
    assert reference_value(x0=0.0) == pytest.approx(4.656, abs=5e-4)
    assert optimal_policy().value() == pytest.approx(6.132, abs=5e-4)
    assert optimal_policy().value(x0=0.0) == pytest.approx(5.824, abs=5e-4)
    assert reference_value(reference_threshold=0.0) == pytest.approx(6.03, abs=5e-3)


def test_thresholds_of_the_first_action():
    """The figures that the documentation states: where the first action changes."""
    assert [best(z, 0) for z in (-0.19, -0.18, 0.18, 0.19)] == [LONG, FLAT, FLAT, SHORT]
    assert [best(z, 1) for z in (0.13, 0.14, 0.19)] == [LONG, FLAT, SHORT]
    assert [best(z, -1) for z in (-0.13, -0.14, -0.19)] == [SHORT, FLAT, LONG]


def test_without_costs_both_always_in_policies_are_worth_the_same():
    """No cost ties the steps together: each is worth kappa E|z|."""
    free = {"turnover_cost": 0.0, "holding_cost": 0.0}
    expected = 48 * 0.18 * math.sqrt(2 / math.pi)
    assert reference_value(reference_threshold=0.0, **free) == pytest.approx(expected, abs=1e-9)
    # The kink of |z| costs the trapezoid rule spacing^2 / 6 of the density there, per step.
    assert optimal_policy(**free).value() == pytest.approx(expected, abs=2e-4)


def test_one_step_values_in_closed_form():
    """With one step the optimum holds a position beyond cost / kappa."""
    kappa, cost = 0.3, 0.1 + 0.02
    task = {"kappa": kappa, "horizon": 1, "turnover_cost": 0.1, "holding_cost": 0.02}
    at = cost / kappa  # worth a position beyond it
    expected = 2 * (kappa * density(at) - cost * upper_tail(at))
    assert optimal_policy(**task).value() == pytest.approx(expected, abs=1e-5)
    expected = 2 * (kappa * density(0.65) - cost * upper_tail(0.65))
    assert reference_value(**task) == pytest.approx(expected, abs=1e-12)
    start = 1.5 * OUParameters(**task).sigma_x
    expected = pytest.approx(kappa * 1.5 - cost, abs=1e-12)
    assert reference_value(x0=start, **task) == expected
    assert optimal_policy(**task).value(x0=start) == expected


def test_values_are_the_same_on_both_sides_of_the_mean():
    """The task has no preferred direction."""
    assert reference_value(x0=1.2) == pytest.approx(reference_value(x0=-1.2), abs=1e-12)
    policy = optimal_policy()
    assert policy.value(x0=1.2) == pytest.approx(policy.value(x0=-1.2), abs=1e-9)


@pytest.mark.parametrize("horizon", [2, 6, 48])
def test_last_action_pays_for_itself_within_one_step(horizon):
    """The time observed selects the row: a position is entered beyond 0.039 / 0.18 only then."""
    last = {"time_left": 1 / horizon, "horizon": horizon}
    assert [best(z, 0, **last) for z in (-0.22, -0.21, 0.21, 0.22)] == [LONG, FLAT, FLAT, SHORT]
    assert [best(z, 1, **last) for z in (0.17, 0.175, 0.22)] == [LONG, FLAT, SHORT]
    assert best(0.21, 0, time_left=2 / horizon, horizon=horizon) == SHORT


def test_optimal_value_has_converged(monkeypatch):
    """Twice the spacing gives another value, but not by much."""
    value = optimal_policy().value()
    monkeypatch.setattr(ou_optimal, "SPACING", 0.02)
    coarse = ou_optimal.OptimalPolicy(OUParameters()).value()
    assert coarse == pytest.approx(value, abs=1e-4)
    assert coarse != value


@pytest.mark.parametrize(
    "task", [{}, {"kappa": 0.05, "horizon": 20}, {"kappa": 1.5, "turnover_cost": 0.3}], ids=str
)
def test_simulated_means_agree_with_the_values(task):
    """Both values are the means of 20,000 episodes, on three quite different tasks."""
    returns = paired_returns(optimal_policy(**task).act, EPISODES, seed=0, **task)
    assert_mean(returns.reference, reference_value(**task))
    assert_mean(returns.optimum, optimal_policy(**task).value())
    assert returns.policy.tolist() == returns.optimum.tolist()
    assert returns.gap_closed == 1.0


def test_the_environment_itself_earns_the_values():
    """The same check through the vector environment's own rewards, observations and infos."""
    env = OUSpreadVectorEnv(EPISODES)
    observations, _ = env.reset(seed=0)
    returns = np.zeros(EPISODES)
    for _ in range(48):
        observations, rewards, *_, infos = env.step(optimal_policy().act(observations))
        returns += rewards
    assert_mean(returns, optimal_policy().value())
    assert_mean(infos["reference_return"], reference_value())
    assert_mean(returns - infos["reference_return"], optimal_policy().value() - reference_value())


def test_value_from_a_fixed_start():
    """Both values take a start that reset options can fix."""
    env = OUSpreadVectorEnv(EPISODES)
    observations, _ = env.reset(seed=0, options={"x0": 1.2})
    returns = np.zeros(EPISODES)
    for _ in range(48):
        observations, rewards, *_, infos = env.step(optimal_policy().act(observations))
        returns += rewards
    assert_mean(returns, optimal_policy().value(x0=1.2))
    assert_mean(infos["reference_return"], reference_value(x0=1.2))


def test_act_takes_observations_as_the_environment_emits_them():
    """Any batch of float32 rows, even of none or from beyond the grid."""
    env = OUSpreadVectorEnv(3)
    observations, _ = env.reset(seed=0)
    assert observations.dtype == np.float32
    actions = optimal_policy().act(observations)
    assert (actions.dtype, actions.shape) == (np.int64, (3,))
    assert optimal_policy().act(observations[:0]).shape == (0,)
    rows = [optimal_policy().act(observations[i : i + 1])[0] for i in range(3)]
    assert actions.tolist() == rows
    far = np.array([[-50.0, 0, 0, 1], [50.0, 0, 0, 1]], dtype=np.float32)
    assert optimal_policy().act(far).tolist() == [LONG, SHORT]
    with pytest.raises(ValueError, match=r"observations: expected shape \(B, 4\), got \(4,\)"):
        optimal_policy().act(observations[0])


def test_optimal_policy_is_solved_once():
    """Equal tasks share one solution."""
    assert optimal_policy() is optimal_policy(kappa=0.18, horizon=48)
    assert optimal_policy() is not optimal_policy(kappa=0.2)


def test_optimal_policy_says_when_its_grid_is_too_coarse():
    """A shock narrower than the grid would be integrated wrongly."""
    with pytest.raises(ValueError, match=r"OUSpread\.kappa: expected at least 5e-5"):
        optimal_policy(kappa=1e-6)


def test_paired_returns_are_the_environments_returns():
    """Bit for bit, on the paths that an environment draws."""
    parameters = OUParameters()
    draws = [gym.utils.seeding.np_random(40 + i)[0].standard_normal(49) for i in range(3)]
    paths = simulate(np.array(draws), parameters)
    expected = []
    for i in range(3):
        env = OUSpreadEnv()
        observation, _ = env.reset(seed=40 + i)
        total = 0.0
        for _ in range(48):
            action = int(optimal_policy().act(observation[None])[0])
            observation, reward, *_ = env.step(action)
            total += reward
        expected.append(total)
    assert _play(paths, optimal_policy().act, parameters).tolist() == expected


def test_paired_policies_meet_the_same_paths():
    """A policy that copies the reference earns exactly what the reference earns."""
    returns = paired_returns(lambda batch: reference_action(batch[:, 0]), 500, seed=3)
    policy, reference, optimum = returns
    assert policy.tolist() == reference.tolist()
    assert (policy.shape, optimum.shape) == ((500,), (500,))
    assert returns.gap_closed == 0.0
    always_in = paired_returns(lambda batch: reference_action(batch[:, 0], 0.0), 5000, seed=3)
    assert always_in.gap_closed == pytest.approx((6.029 - 4.951) / (6.132 - 4.951), abs=0.03)


def test_held_out_paths_depend_on_the_seed_only():
    """More episodes extend the same paths, and no environment under that seed meets them."""

    def flat(batch):
        return np.ones(len(batch), dtype=int)

    few, many = paired_returns(flat, 10, seed=1), paired_returns(flat, 30, seed=1)
    assert few.reference.tolist() == many.reference[:10].tolist()
    assert few.reference.tolist() != paired_returns(flat, 10, seed=2).reference.tolist()
    env = OUSpreadVectorEnv(10)
    env.reset(seed=1)
    for _ in range(48):
        *_, infos = env.step(np.ones(10, dtype=int))
    assert not set(few.reference) & set(infos["reference_return"])


def test_gap_closed_is_not_a_number_without_a_gap():
    """A handful of unlucky episodes has no gap to close."""
    returns = paired_returns(lambda batch: np.ones(len(batch), dtype=int), 1, seed=0)
    assert math.isnan(returns._replace(optimum=returns.reference).gap_closed)


def test_bad_paired_arguments_are_refused():
    """A policy that returns anything but one action per row is named."""
    with pytest.raises(ValueError, match="episodes: expected an integer >= 1, got 0"):
        paired_returns(optimal_policy().act, 0, seed=0)
    with pytest.raises(ValueError, match=r"actions: expected 2 integers of shape \(2,\)"):
        paired_returns(lambda batch: 1, 2, seed=0)
    with pytest.raises(ValueError, match=r"actions\[0\]: expected 0"):
        paired_returns(lambda batch: np.full(len(batch), 3), 2, seed=0)
