"""Running moments: hand cases, a two-pass oracle, bitwise independence of batching, refusals."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.numerics.moments import RunningMoments

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)


def moments_of(stream: np.ndarray) -> RunningMoments:
    """Return the moments of a whole stream, taken in at once."""
    moments = RunningMoments(stream.shape[1:])
    moments.update(stream)
    return moments


def bits(moments: RunningMoments) -> tuple[int, bytes, bytes]:
    """Return everything observable, bit for bit."""
    return moments.count, moments.mean.tobytes(), moments.var.tobytes()


def oracle(column: np.ndarray) -> tuple[float, float]:
    """Return mean and population variance of one component, two-pass and correctly rounded."""
    values = column.tolist()
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((x - mean) ** 2 for x in values) / len(values)


def test_before_any_data_the_moments_are_the_identity() -> None:
    """Mean 0, variance 1, count 0, in float64; an empty batch changes nothing."""
    moments = RunningMoments((2, 3))
    moments.update(np.zeros((0, 2, 3)))
    assert moments.count == 0
    assert moments.shape == (2, 3)
    assert moments.mean.tolist() == [[0.0] * 3] * 2
    assert moments.var.tolist() == [[1.0] * 3] * 2
    assert (moments.mean.dtype, moments.var.dtype) == (np.float64, np.float64)


def test_moments_by_hand() -> None:
    """1, 2, 3, 6 have mean 3 and population variance 3½; one observation has variance 0."""
    moments = RunningMoments(2)
    moments.update([[1, 10]])
    assert (moments.count, moments.mean.tolist(), moments.var.tolist()) == (1, [1, 10], [0, 0])
    moments.update([[2, 10], [3, 10]])
    moments.update([[6, 10]])
    assert isinstance(moments.count, int)
    assert (moments.count, moments.mean.tolist(), moments.var.tolist()) == (4, [3, 10], [3.5, 0])


def test_an_observation_may_be_a_scalar_or_have_many_axes() -> None:
    """Shape () takes vectors of observations, shape (2, 2) takes batches of matrices."""
    scalar = RunningMoments(())
    scalar.update([1.0, 3.0])
    assert (scalar.mean.shape, scalar.mean.item(), scalar.var.item()) == ((), 2.0, 1.0)
    matrix = RunningMoments((2, 2))
    matrix.update(np.arange(8.0).reshape(2, 2, 2))
    assert matrix.mean.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert matrix.var.tolist() == [[4.0, 4.0], [4.0, 4.0]]


@PROPERTY
@given(st.data())
def test_the_bits_do_not_depend_on_the_batching(data: st.DataObject) -> None:
    """A stream cut anywhere gives the bits of the same stream taken one by one."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(st.sampled_from([(), (1,), (4,), (2, 3)]))
    count = data.draw(st.integers(1, 400))
    stream = rng.normal(data.draw(st.sampled_from([0, 1e6])), 1, (count, *shape))
    stream *= 10.0 ** rng.integers(-3, 4, (count, *shape))
    single, pieces = RunningMoments(shape), RunningMoments(shape)
    for observation in stream:
        single.update(observation[None])
    cuts = sorted(rng.integers(0, count + 1, data.draw(st.integers(0, 10))))
    for start, stop in pairwise([0, *cuts, count]):
        pieces.update(stream[start:stop])
    assert bits(single) == bits(pieces) == bits(moments_of(stream))


@PROPERTY
@given(st.data())
def test_the_bits_do_not_depend_on_the_memory_layout(data: st.DataObject) -> None:
    """Strided, transposed and float32 batches of the same numbers give the same bits."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    stream = rng.normal(size=(data.draw(st.integers(1, 200)), 3)).astype(np.float32)
    expected = bits(moments_of(stream.astype(np.float64)))
    assert bits(moments_of(stream)) == expected
    assert bits(moments_of(np.asfortranarray(stream))) == expected
    assert bits(moments_of(np.repeat(stream, 2, axis=1)[:, ::2])) == expected


@PROPERTY
@given(st.data())
def test_moments_equal_a_two_pass_computation(data: st.DataObject) -> None:
    """Mean and variance agree with correctly rounded sums, also on a large offset."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    offset = data.draw(st.sampled_from([0.0, -3.0, 1e8]))
    scale = data.draw(st.sampled_from([1e-3, 1.0, 1e4]))
    stream = offset + scale * rng.normal(size=(data.draw(st.integers(2, 300)), 2))
    moments = moments_of(stream)
    for component in range(2):
        mean, var = oracle(stream[:, component])
        assert moments.mean[component] == pytest.approx(mean, rel=1e-12, abs=1e-12 * scale)
        assert moments.var[component] == pytest.approx(var, rel=1e-11)
    assert (moments.var >= 0).all()


def test_a_large_offset_costs_no_accuracy() -> None:
    """Unit noise around 10⁸ keeps twelve digits of its variance."""
    stream = 1e8 + np.random.default_rng(0).normal(size=(100_000, 1))
    mean, var = oracle(stream[:, 0])
    assert moments_of(stream).mean.item() == pytest.approx(mean, rel=1e-15)
    assert moments_of(stream).var.item() == pytest.approx(var, rel=1e-12)


def test_a_far_first_observation_costs_the_accuracy_documented() -> None:
    """After a first value of 10⁶, unit noise and a constant stay within the documented errors."""
    noise = np.random.default_rng(0).normal(size=(300_000, 1))
    constant = np.full((300_000, 1), 3.0)
    for stream, bound in ((noise, 1e-8), (constant, 7e-6)):
        stream[0] = 1e6
        mean, var = oracle(stream[:, 0])
        assert moments_of(stream).mean.item() == pytest.approx(mean, abs=1e-10 * math.sqrt(var))
        assert moments_of(stream).var.item() == pytest.approx(var, rel=bound)


@pytest.mark.parametrize("constant", [0.1, -7.3, 1e8 + 0.1, 1e-30])
def test_a_constant_has_no_variance(constant: float) -> None:
    """A feature that never moves has variance 0 and itself as mean, exactly."""
    moments = moments_of(np.full((1000, 1), constant))
    assert (moments.mean.item(), moments.var.item()) == (constant, 0.0)


def test_variance_is_never_negative() -> None:
    """Where rounding takes the difference of the sums below 0, here by underflow, it is 0."""
    stream = np.array([[0, 1, 1, 1, 2, 2, 1, 1]]).T * 1.4648582475747356e-162
    first, second = moments_of(stream).state()["sums"] / 8
    assert second - first * first < 0  # the premise
    assert moments_of(stream).var.item() == 0.0


def test_a_checkpoint_restores_every_bit() -> None:
    """A fresh object made from the state goes on as if nothing had happened."""
    rng = np.random.default_rng(1)
    original = moments_of(1e3 + rng.normal(size=(101, 2, 3)))
    state = original.state()
    restored = RunningMoments.from_state({key: array.copy() for key, array in state.items()})
    assert bits(restored) == bits(original)
    more = rng.normal(size=(57, 2, 3))
    original.update(more)
    restored.update(more)
    assert bits(restored) == bits(original)
    assert (restored.shape, type(restored.count)) == ((2, 3), int)


def test_a_checkpoint_of_nothing_restores_nothing() -> None:
    """The identity survives, and the next observation becomes the shift."""
    restored = RunningMoments.from_state(RunningMoments(3).state())
    assert bits(restored) == bits(RunningMoments(3))
    restored.update([[5.0, 6.0, 7.0]])
    assert restored.mean.tolist() == [5.0, 6.0, 7.0]


def test_what_is_handed_out_is_a_copy() -> None:
    """Changing a mean, a variance, a state or a batch afterwards changes no moments."""
    batch = np.array([[1.0, 2.0], [3.0, 5.0]])
    moments = moments_of(batch)
    state = moments.state()
    expected = bits(moments)
    restored = RunningMoments.from_state(state)
    for array in (batch, moments.mean, moments.var, *state.values()):
        array[...] = 99
    assert bits(moments) == expected
    assert bits(restored) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("before", [0, 3])
def test_numbers_that_are_not_finite_are_refused(bad: float, before: int) -> None:
    """One such number raises, and the moments stay as they were, first observation included."""
    moments = RunningMoments(2)
    moments.update(np.arange(2.0 * before).reshape(before, 2))
    expected, state = bits(moments), moments.state()
    with pytest.raises(ValueError, match=r"update: expected finite .* got"):
        moments.update([[1.0, 2.0], [3.0, bad]])
    assert bits(moments) == expected
    assert all(np.array_equal(moments.state()[key], state[key]) for key in state)


@pytest.mark.parametrize("shape", [(), (2,), (3,), (4, 3), (4, 2, 1), (0, 3), (0,)])
def test_batches_of_the_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    """The batch axis is required, and the rest must be the shape of an observation."""
    moments = RunningMoments(2)
    with pytest.raises(ValueError, match=r"update: expected shape \(B, 2\), got"):
        moments.update(np.zeros(shape))
    assert moments.count == 0
    with pytest.raises(ValueError, match=r"update: expected shape \(B\), got \(\)"):
        RunningMoments(()).update(3.0)


def test_states_that_do_not_fit_are_refused() -> None:
    """Missing keys, a negative count and sums of another shape raise."""
    state = RunningMoments(2).state()
    with pytest.raises(ValueError, match=r"from_state: expected keys .* missing \['sums'\]"):
        RunningMoments.from_state({"count": state["count"], "shift": state["shift"]})
    with pytest.raises(ValueError, match=r"from_state: expected one count ≥ 0 .* got"):
        RunningMoments.from_state({**state, "count": np.asarray(-1)})
    with pytest.raises(ValueError, match=r"from_state: expected .* sums of shape \(2, 2\), got"):
        RunningMoments.from_state({**state, "sums": np.zeros((2, 3))})


def test_both_at_once() -> None:
    """The same bits as one after the other; before any data the identity."""
    rng = np.random.default_rng(3)
    moments = RunningMoments(4)
    assert [m.tolist() for m in moments.both()] == [[0.0] * 4, [1.0] * 4]
    for _ in range(20):
        moments.update(rng.normal(1e3, 2, (7, 4)))
        mean, var = moments.both()
        assert mean.tobytes() == moments.mean.tobytes()
        assert var.tobytes() == moments.var.tobytes()
