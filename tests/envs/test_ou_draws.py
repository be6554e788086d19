"""Draws some episodes ahead are those drawn one after the other."""

import numpy as np
import pytest
from gymnasium.utils import seeding

from jormungandr_envs.ou_draws import Draws


class OneByOne:
    """The oracle: a call of its generator for each episode of each copy."""

    def __init__(self, count, length):
        self.generators = [None] * count
        self.length = length

    def seed(self, copy, seed):
        """As `Draws.seed`."""
        if seed is not None or self.generators[copy] is None:
            self.generators[copy] = seeding.np_random(seed)[0]

    def take(self, copies):
        """As `Draws.take`."""
        return np.array([self.generators[c].standard_normal(self.length) for c in copies])


@pytest.mark.parametrize("length", [1, 7, 49, 300, 600])
@pytest.mark.parametrize("seed", range(3))
def test_any_copies_in_any_order_draw_as_one_by_one(length, seed):
    """With new seeds in between, and with others that look at or draw from the generators."""
    rng = np.random.default_rng(seed)
    ours, oracle = Draws(5, length), OneByOne(5, length)
    for copy in range(5):
        for draws in (ours, oracle):
            draws.seed(copy, 10 * copy)
    for _ in range(60):
        what = rng.integers(12)
        if what == 0:
            copy, new = int(rng.integers(5)), [None, int(rng.integers(9))][rng.integers(2)]
            for draws in (ours, oracle):
                draws.seed(copy, new)
        elif what == 1:
            states = [generator.bit_generator.state for generator in ours.generators]
            assert states == [generator.bit_generator.state for generator in oracle.generators]
        elif what == 2:  # whoever has a generator may draw from it
            copy = int(rng.integers(5))
            assert ours.generators[copy].random() == oracle.generators[copy].random()
        else:
            copies = np.flatnonzero(rng.random(5) < [0.5, 1.0][rng.integers(2)])
            if len(copies):
                np.testing.assert_array_equal(ours.take(copies), oracle.take(copies))


def test_what_is_taken_is_not_written():
    """It may be the block that the next episodes come from."""
    draws = Draws(2, 3)
    for copy in range(2):
        draws.seed(copy, copy)
    with pytest.raises(ValueError, match="read-only"):
        draws.take(np.arange(2))[0, 0] = 1.0
