"""The lower-tail mean for acting: torch's, an oracle's, and the exact answers of small cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jormungandr.numerics import categorical
from jormungandr.numerics.risk import lower_tail_mean, mean


@given(seed=st.integers(0, 1_000), level=st.floats(0.001, 1.0))
def test_it_is_the_one_in_torch(seed, level):
    """Two implementations of one definition."""
    rng = np.random.default_rng(seed)
    support, probs = np.linspace(-3, 5, 11), rng.dirichlet(np.full(11, 0.3), (4, 2))
    expected = categorical.cvar(torch.from_numpy(support), torch.from_numpy(probs), level)
    np.testing.assert_allclose(lower_tail_mean(support, probs, level), expected.numpy(), atol=1e-9)


def test_a_sample_has_the_same_mean_of_its_worst():
    """An oracle without a formula: the mean of the worst tenth of a large sorted sample."""
    support, probs = np.array([-10.0, 0.0, 4.0]), np.array([0.04, 0.46, 0.5])
    sample = np.sort(np.repeat(support, (probs * 10_000).astype(int)))
    assert lower_tail_mean(support, probs, 0.1) == pytest.approx(sample[:1_000].mean())


def test_all_of_it_is_the_mean():
    """Level 1, to the last bit: choosing by it is choosing by the mean."""
    support, probs = np.linspace(0, 1, 5), np.full((3, 5), 0.2)
    assert (lower_tail_mean(support, probs, 1.0) == probs @ support).all()


def test_means_are_those_of_the_product():
    """To the last bit, in batches too; a flag that the processor raises on the way is no warning.

    A BLAS raises one now and then though all is finite; infinity times nothing always does.
    """
    rng = np.random.default_rng(0)
    for shape in ((5,), (3, 5), (64, 3, 51)):
        support = np.linspace(-2, 2, shape[-1]).astype(np.float32)
        probs = rng.random(shape).astype(np.float32)
        assert mean(support, probs).tobytes() == (probs @ support).tobytes()
    support, probs = np.array([0.0, 1.0]), np.array([[np.inf, 0.5], [0.5, 0.5]])

    for found in (mean(support, probs), lower_tail_mean(support, probs, 1.0)):
        np.testing.assert_array_equal(found, [np.nan, 0.5])
