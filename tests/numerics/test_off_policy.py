"""Off-policy evaluation: exact in a table, honest about its error, indifferent to order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jormungandr.numerics.features import RandomFeatures, by_action
from jormungandr.numerics.fitted_q import Moments, fitted_q
from jormungandr.numerics.off_policy import LoggedSteps, largest_log, off_policy_value

Floats = np.ndarray[Any, np.dtype[np.float64]]

STATES, ACTIONS, COPIES = 5, 3, 4


def table(seed: int, deadly: bool = False) -> tuple[dict[str, Any], Floats, Floats, Floats]:
    """Return a log, and the process it is of to the last count: (log, P, r, π).

    From each state and action, four steps lead to states drawn at random, and the process does so
    with these very frequencies. A deadly one ends at every second of them.
    """
    rng = np.random.default_rng(seed)
    successor = rng.integers(STATES, size=(STATES, ACTIONS, COPIES))
    ends = np.zeros((STATES, ACTIONS, COPIES), dtype=np.bool_)
    ends[..., ::2] = deadly
    reward = rng.normal(size=(STATES, ACTIONS))
    law = (np.eye(STATES)[successor] * ~ends[..., None]).mean(axis=2)  # (S, A, S)
    policy = rng.dirichlet(np.ones(ACTIONS), size=STATES)  # (S, A)
    pairs = np.eye(STATES * ACTIONS)
    design = np.repeat(pairs, COPIES, axis=0)
    following = (np.eye(STATES)[:, :, None] * policy[:, None, :]).reshape(STATES, -1)
    there = following[successor.reshape(-1)] * ~ends.reshape(-1, 1)
    log = {
        "design": design,
        "successor": there,
        "reward": np.repeat(reward.reshape(-1), COPIES),
        "start": following[0],
    }
    return log, law, reward, policy


def exact(law: Floats, reward: Floats, policy: Floats, discount: float) -> Floats:
    """Return Q of every state and action, (S·A,), from the Bellman equations."""
    move = law.reshape(-1, STATES) @ np.kron(np.eye(STATES), np.ones(ACTIONS)) * policy.reshape(-1)
    return np.linalg.solve(np.eye(STATES * ACTIONS) - discount * move, reward.reshape(-1))


@pytest.mark.parametrize("deadly", [False, True])
@pytest.mark.parametrize("discount", [0.0, 0.5, 0.95])
def test_in_a_table_the_fit_is_the_exact_value(discount: float, deadly: bool) -> None:
    """One feature per state and action, and data that are the process: Bellman's solution."""
    log, law, reward, policy = table(1, deadly)
    moments = Moments.of(log["design"], log["successor"], log["reward"])
    for iterations in (700, None):
        fit = fitted_q(moments, log["start"], discount=discount, iterations=iterations, ridge=0.0)
        check_exact(fit, log, law, reward, policy, discount)


def check_exact(
    fit: Any, log: dict[str, Any], law: Floats, reward: Floats, policy: Floats, discount: float
) -> None:
    """Hold a fit against Bellman's equations."""
    q = exact(law, reward, policy, discount)

    assert np.abs(fit.weights - q).max() < 1e-9
    assert log["design"] @ fit.visits @ log["reward"] == pytest.approx(policy[0] @ q[:ACTIONS])


@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 12])
def test_closed_form_is_iterated_regression(iterations: int) -> None:
    """Each iteration is a least-squares fit to the rewards and the fit before it."""
    rng = np.random.default_rng(2)
    design, successor = rng.normal(size=(2, 60, 6))
    reward, start, ridge = rng.normal(size=60), rng.normal(size=6), 0.7
    successor *= 0.5
    rows = np.concatenate([design, np.sqrt(ridge) * np.eye(6)])
    weights = np.zeros(6)
    for _ in range(iterations):
        target = np.concatenate([reward + 0.9 * successor @ weights, np.zeros(6)])
        weights = np.linalg.lstsq(rows, target, rcond=None)[0]
    moments = Moments.of(design, successor, reward)
    fit = fitted_q(moments, start, discount=0.9, iterations=iterations, ridge=ridge)

    assert fit.weights == pytest.approx(weights, abs=1e-9)
    assert design @ fit.visits @ reward == pytest.approx(start @ weights)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_errors_are_those_of_every_number_of_steps_to_go(iterations: int) -> None:
    """Summed one by one, each with the fit of its own number and the visits of its own time."""
    rng = np.random.default_rng(3)
    design, successor = rng.normal(size=(2, 60, 6))
    reward, start, ridge, discount = rng.normal(size=60), rng.normal(size=6), 0.7, 0.9
    moments = Moments.of(design, successor, reward)
    given: dict[str, Any] = {"discount": discount, "ridge": ridge}
    fits = [fitted_q(moments, start, iterations=k + 1, **given) for k in range(iterations)]
    to_go = [np.zeros(6), *(fit.weights for fit in fits)]
    total = np.zeros(60)
    for t in range(iterations):
        visits = fits[t].visits - (fits[t - 1].visits if t else 0.0)  # of that time alone
        later, now = to_go[iterations - t - 1], to_go[iterations - t]
        total += design @ visits * (reward + discount * successor @ later - design @ now)

    found = fits[-1].errors_to_go(design, successor, reward, discount)
    assert found == pytest.approx(total, abs=1e-9)


def test_without_a_horizon_errors_are_those_of_the_one_fit() -> None:
    """Bellman errors, weighed by visits."""
    rng = np.random.default_rng(4)
    design, successor = rng.normal(size=(2, 60, 6))
    reward, start = rng.normal(size=60), rng.normal(size=6)
    fit = fitted_q(
        Moments.of(design, 0.1 * successor, reward), start, discount=0.9, iterations=None, ridge=1.0
    )
    bellman = reward + (0.9 * successor - design) @ fit.weights

    found = fit.errors(design, successor, reward, 0.9)
    assert found == pytest.approx(design @ fit.visits * bellman, abs=1e-9)


@pytest.mark.parametrize("iterations", [3, None])
def test_features_that_cannot_be_told_apart_need_a_penalty(iterations: int | None) -> None:
    """Without one the regression has no single solution, which is said."""
    one = np.ones((4, 2))
    moments = Moments.of(one, one, one[:, 0])
    with pytest.raises(ValueError, match="independent features, or ridge > 0"):
        fitted_q(moments, one[0], discount=0.5, iterations=iterations, ridge=0.0)


# -- the estimate -------------------------------------------------------------------------------

HORIZON = 4


def walk(seed: int, episodes: int = 40) -> tuple[LoggedSteps, Floats, Floats]:
    """Return a random walk's log and a policy's choices: (steps, choice, next choice).

    An action is a step to the left or to the right, taken with even chances, and the reward is the
    new place with noise. The policy steps towards zero.
    """
    rng = np.random.default_rng(seed)
    place = np.zeros((episodes, HORIZON + 1))
    place[:, 0] = rng.normal(size=episodes)
    action = rng.integers(2, size=(episodes, HORIZON))
    for t in range(HORIZON):
        place[:, t + 1] = place[:, t] + 2.0 * action[:, t] - 1.0
    time = np.broadcast_to(np.arange(HORIZON + 1), place.shape)
    seen = np.stack([place, time], axis=-1).astype(np.float64)
    reward = -np.abs(place[:, 1:]) + 0.1 * rng.normal(size=action.shape)
    steps = LoggedSteps(
        observation=seen[:, :-1].reshape(-1, 2),
        action=action.reshape(-1),
        reward=reward.reshape(-1),
        next_observation=seen[:, 1:].reshape(-1, 2),
        terminated=np.tile(np.arange(HORIZON) == HORIZON - 1, episodes),
        episode=np.repeat(np.arange(episodes), HORIZON),
        initial=np.tile(np.arange(HORIZON) == 0, episodes),
    )
    choice = np.eye(2)[(steps.observation[:, 0] < 0).astype(np.int64)]
    following = np.eye(2)[(steps.next_observation[:, 0] < 0).astype(np.int64)]
    return steps, choice, following


def walked() -> float:
    """Return what the policy earns in the walk, on average."""
    place, total = np.random.default_rng(0).normal(size=400_000), 0.0
    for _ in range(HORIZON):
        place += np.where(place < 0, 1.0, -1.0)
        total -= float(np.abs(place).mean())
    return total


WALK = {"discount": 1.0, "horizon": HORIZON}


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of twenty logs of a policy that never followed it, at least eighteen intervals hold it."""
    truth = walked()
    values = [off_policy_value(*walk(seed), **WALK).value for seed in range(20)]

    assert sum(value.low <= truth <= value.high for value in values) >= 18
    assert np.mean([v.estimate for v in values]) == pytest.approx(truth, abs=0.1)
    assert np.mean([v.high - v.low for v in values]) < 1.5


def test_the_same_seed_gives_the_same_estimate() -> None:
    """To the bit; another seed draws other features."""
    log = walk(3)
    first, again, other = (off_policy_value(*log, **WALK, seed=seed) for seed in (1, 1, 2))

    assert first == again
    assert other.value != first.value
    assert other.value.estimate == pytest.approx(first.value.estimate, abs=0.3)


def test_the_order_of_steps_and_the_names_of_episodes_do_not_matter() -> None:
    """Shuffled steps under other numbers, in the same order of numbers, say the same."""
    steps, choice, following = walk(4)
    order = np.random.default_rng(0).permutation(len(steps))
    shuffled = replace(steps.take(order), episode=3 * steps.episode[order] - 1_000)
    one = off_policy_value(steps, choice, following, **WALK)
    two = off_policy_value(shuffled, choice[order], following[order], **WALK)

    assert two.value == pytest.approx(one.value, abs=1e-9)
    assert two[1:] == pytest.approx(one[1:], abs=1e-9)


def test_only_a_termination_ends_the_value() -> None:
    """What follows a terminated step is not read; of any other it is, truncated ones too."""
    steps, choice, following = walk(5)
    last = np.flatnonzero(steps.terminated)
    elsewhere = steps.next_observation.copy()
    elsewhere[last] = 1e6
    garbled = following.copy()
    garbled[last] = np.nan
    one = off_policy_value(steps, choice, following, **WALK)
    two = off_policy_value(replace(steps, next_observation=elsewhere), choice, garbled, **WALK)
    cut = replace(steps, terminated=np.zeros_like(steps.terminated))

    assert two == one
    more = off_policy_value(cut, choice, following, discount=1.0, horizon=2 * HORIZON)
    assert more.value.estimate < 1.5 * one.value.estimate < 0  # it goes on to cost


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("discount", [0.99, 1.0])
def test_a_time_limit_is_an_end_of_the_sum(discount: float, told: bool) -> None:
    """Of episodes that are all cut off after the horizon, whether observations show time or not.

    About one a step, whatever is done: what it earns is known.
    """
    rng, episodes, limit = np.random.default_rng(1), 40, 30
    place = rng.normal(size=(episodes, limit + 1, 1))
    time = np.broadcast_to(np.arange(limit + 1.0)[:, None] / limit, place.shape)
    seen = np.concatenate([place, time], axis=2) if told else place
    steps = LoggedSteps(
        observation=seen[:, :-1].reshape(episodes * limit, -1),
        action=rng.integers(2, size=episodes * limit),
        reward=1.0 + 0.1 * rng.normal(size=episodes * limit),
        next_observation=seen[:, 1:].reshape(episodes * limit, -1),
        terminated=np.zeros(episodes * limit, dtype=np.bool_),
        episode=np.repeat(np.arange(episodes), limit),
        initial=np.tile(np.arange(limit) == 0, episodes),
    )
    always = np.tile([1.0, 0.0], (len(steps), 1))
    found = off_policy_value(steps, always, always, discount=discount, horizon=limit)
    truth = float((discount ** np.arange(limit)).sum())

    assert found.value.low <= truth <= found.value.high
    assert found.value.estimate == pytest.approx(truth, rel=0.02)


def test_episodes_without_a_beginning_are_left_out() -> None:
    """There is no first state to value, and their steps may be any part of them."""
    steps, choice, following = walk(6)
    kept = steps.episode < 30
    partial = kept | ~steps.initial
    one = off_policy_value(steps.take(kept), choice[kept], following[kept], **WALK)
    two = off_policy_value(steps.take(partial), choice[partial], following[partial], **WALK)

    assert two == one
    assert (two.episodes, two.steps) == (30, 30 * HORIZON)


def test_its_own_steps_are_worth_all_of_themselves() -> None:
    """A log of the policy itself agrees with it, and each step counts about as one."""
    steps, _, _ = walk(7)
    taken = np.eye(2)[steps.action]
    even = np.full_like(taken, 0.5)
    own = off_policy_value(steps, even, even, **WALK)
    against = off_policy_value(steps, 1.0 - taken, even, **WALK)

    assert own.agreement == 0.5
    assert 0.8 * own.steps < own.effective_steps <= own.steps
    assert against.agreement == 0.0


def test_more_confidence_is_a_wider_interval() -> None:
    """Around the same estimate."""
    log = walk(8)
    narrow, wide = (off_policy_value(*log, **WALK, confidence=c).value for c in (0.5, 0.99))

    assert narrow.estimate == wide.estimate
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"discount": 1.0}, "below 1 without a horizon"),
        ({"discount": -0.1}, r"a discount in \[0, 1\]"),
        ({"discount": 1.0, "horizon": 0}, "horizon: expected >= 1"),
        ({"discount": 0.9, "ridge": 0.0}, "ridge > 0"),
        ({"discount": 0.9, "confidence": 1.0}, r"confidence in \(0, 1\)"),
    ],
)
def test_arguments_out_of_range_are_refused(given: dict[str, Any], message: str) -> None:
    """Naming what was expected."""
    with pytest.raises(ValueError, match=message):
        off_policy_value(*walk(0, episodes=3), **given)


def test_too_little_and_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One episode has no spread; a log has to fit into memory."""
    with pytest.raises(ValueError, match="expected 2 episodes, a first step each, got 1 in 1"):
        off_policy_value(*walk(0, episodes=1), **WALK)
    monkeypatch.setattr("jormungandr.numerics.off_policy.LARGEST", 53 * 3 * 100)
    assert largest_log(2, 2) == 100
    with pytest.raises(ValueError, match="expected at most 100, got 160"):
        off_policy_value(*walk(0), **WALK)


def test_a_fit_that_amplifies_itself_is_refused() -> None:
    """Values far beyond what any policy could earn are no estimate."""
    steps, choice, following = walk(0, episodes=6)
    # As if each step led from near to far, where all is worth more, and on from there.
    away = replace(
        steps,
        observation=0.2 * steps.next_observation,
        terminated=np.zeros_like(steps.terminated),
    )
    with pytest.raises(ValueError, match="runs away; take more episodes"):
        off_policy_value(away, choice, following, discount=1.0, horizon=2_000)


def test_features_are_of_unit_size_and_bear_constants_and_outliers() -> None:
    """A constant element says nothing, an outlier is clipped, and the seed decides the rest."""
    seen = np.random.default_rng(0).normal(size=(500, 3))
    seen[:, 1] = 7.1
    features = RandomFeatures(seen, cosines=400, seed=0)
    found = features(seen)

    assert found.shape == (500, features.size) == (500, 404)
    assert (found[:, 0] == 1).all()
    assert np.abs(found[:, 2]).max() < 1e-6
    assert (found[:, 4:] ** 2).sum(axis=1).mean() == pytest.approx(1.0, abs=0.05)
    assert np.abs(features(seen + 1e9)).max() <= 2.5
    assert not np.array_equal(found, RandomFeatures(seen, cosines=400, seed=1)(seen))


def test_blocks_of_actions() -> None:
    """A shared block, then one per action, weighed by how likely the action is."""
    found = by_action(np.array([[1.0, 2.0]]), np.array([[0.25, 0.0, 0.75]]))

    assert found.tolist() == [[1.0, 2.0, 0.25, 0.5, 0.0, 0.0, 0.75, 1.5]]
