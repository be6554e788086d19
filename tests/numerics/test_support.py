"""The support that fits itself: where it begins, how far it grows, and that logits move with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr.numerics.support import (
    UNKNOWN,
    first_bounds,
    resampling,
    widened,
    widest_bounds,
)

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def _softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("rewards", "gamma", "expected"),
    [
        ([1.0] * 50, 0.99, (0, 100)),  # CartPole
        ([-1.0] * 50, 0.99, (-100, 0)),  # MountainCar
        ([0.0] * 49 + [1.0], 0.0, (0, 1)),
        ([0.0] * 50, 0.99, UNKNOWN),
        ([1e-35] * 50, 0.99, UNKNOWN),
    ],
)
def test_it_begins_where_independent_rewards_would_lie(rewards, gamma, expected):
    """Exact where rewards are all the same; 1e-35 is nothing in float32."""
    r = np.array(rewards)
    assert first_bounds(r.mean(), r.std(), r.min(), r.max(), gamma) == pytest.approx(expected)


def test_three_standard_deviations_of_simulated_returns_lie_inside():
    """The formula's mean and deviation are those of simulated sums of independent rewards."""
    rng, gamma = np.random.default_rng(0), 0.9
    rewards = rng.normal(0.5, 2.0, (20_000, 150))
    returns = rewards @ gamma ** np.arange(150)
    low, high = first_bounds(0.5, 2.0, -8.0, 8.0, gamma)
    assert (low + high) / 2 == pytest.approx(returns.mean(), abs=0.1)
    assert high - low == pytest.approx(6 * returns.std(), rel=0.02)


@given(mean=FINITE, std=st.floats(0, 1e6), ends=st.tuples(FINITE, FINITE), gamma=st.floats(0, 1))
def test_bounds_are_always_usable(mean, std, ends, gamma):
    """Increasing, finite, with 0 and every single reward inside."""
    lowest, highest = min(ends), max(ends)
    low, high = first_bounds(min(max(mean, lowest), highest), std, lowest, highest, gamma)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    if (low, high) != UNKNOWN:
        assert low <= min(lowest, 0) + 1e-6
        assert high >= max(highest, 0) - 1e-6


@given(scale=st.sampled_from([0.01, 1.0, 100.0]), mean=st.floats(-1, 1), std=st.floats(0.01, 3))
def test_scaled_rewards_scale_the_bounds(scale, mean, std):
    """What is learned on them is the same in another unit."""
    plain = first_bounds(mean, std, -5.0, 4.0, 0.97)
    scaled = first_bounds(scale * mean, scale * std, -5.0 * scale, 4.0 * scale, 0.97)
    assert scaled == pytest.approx([scale * x for x in plain], rel=1e-9)


def test_without_a_discount_nothing_limits_it():
    """A sum of any number of rewards has no bound, on the side on which rewards lie."""
    assert widest_bounds(0.0, 1.0, 1.0) == (0.0, math.inf)
    assert widest_bounds(-1.0, 0.0, 1.0) == (-math.inf, 0.0)
    assert math.isfinite(first_bounds(1.0, 0.0, 1.0, 1.0, 1.0)[1])


def test_it_grows_by_a_quarter_and_stops_past_the_widest():
    """At one end at a time; an end that has reached the widest bound stays."""
    assert widened((0.0, 40.0), 1, (-0.0, 100.0)) == (0.0, 50.0)
    assert widened((0.0, 40.0), 0, (-3.0, 100.0)) == (-10.0, 40.0)
    assert widened((-10.0, 40.0), 0, (-3.0, 100.0)) == (-10.0, 40.0)
    bounds = (0.0, 1.0)
    for _ in range(100):
        bounds = widened(bounds, 1, (0.0, 100.0))
    assert 100 <= bounds[1] < 125


def test_the_same_bounds_change_nothing():
    """The matrix is the identity, the shift zero."""
    matrix, shift = resampling((-3.0, 7.0), (-3.0, 7.0), 51)
    np.testing.assert_allclose(matrix, np.eye(51), atol=1e-9)
    assert not shift.any()


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("atoms", [51, 101])
def test_expected_values_survive_a_step(end, atoms):
    """Of distributions as networks give them, smooth or with mass at the end, to about a gap."""
    old = (-20.0, 60.0)
    new = widened(old, end, (-math.inf, math.inf))
    before, after = np.linspace(*old, atoms), np.linspace(*new, atoms)
    centers = np.linspace(-10, 60, 15)[:, None]
    logits = -(((before - centers) / 6) ** 2) / 2
    matrix, shift = resampling(old, new, atoms)
    values = _softmax(logits) @ before
    moved = _softmax(logits @ matrix.T + shift) @ after
    gap = after[1] - after[0]
    assert np.abs(moved - values).max() < gap
    assert (np.argsort(moved) == np.argsort(values)).all()
    # The end that was is an atom again.
    assert np.abs(after - old[end]).min() < 1e-9


def test_hardly_any_mass_appears_beyond_the_old_ends():
    """Less than one part in a hundred of an even distribution, half of it at either new side."""
    matrix, shift = resampling((0.0, 10.0), (0.0, 12.5), 51)
    moved = _softmax(matrix @ np.zeros(51) + shift)
    assert moved[np.linspace(0, 12.5, 51) > 10].sum() < 0.01
