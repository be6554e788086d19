"""The sum tree against a plain list: sums, search, sampling frequencies, refusals."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.numerics.sum_tree import SumTree

PROPERTY = settings(derandomize=True, deadline=None, max_examples=80)
# Around every boundary of the layout: one root, its widest form, and two and three levels below it.
CAPACITIES = [1, 2, 3, 5, 15, 16, 17, 1000, 1023, 1024, 1025, 1040, 5000, 16_384, 16_385, 300_000]


def tree_of(leaves: list[float] | np.ndarray) -> SumTree:
    """Return a tree that holds some leaves."""
    tree = SumTree(len(leaves))
    tree.set(np.arange(len(leaves)), leaves)
    return tree


def oracle_find(leaves: list[float], mass: float) -> int:
    """Walk along the leaves; the last positive one takes what rounding left over."""
    below = 0.0
    for i, leaf in enumerate(leaves):
        if leaf > 0 and below <= mass < below + leaf:
            return i
        below += leaf
    return max(i for i, leaf in enumerate(leaves) if leaf > 0)


def same_tree(one: SumTree, two: SumTree) -> bool:
    """Tell whether two trees have the same bits, as far as sums and searches can show."""
    slots = np.arange(one.capacity)
    if one.get(slots).tobytes() != two.get(slots).tobytes() or one.total != two.total:
        return False
    if one.total == 0:
        return True
    mass = np.nextafter(np.linspace(0, one.total, 400), 0).clip(0)
    mass = np.concatenate([mass, np.cumsum(one.get(slots)).clip(0, one.total)])
    return one.find(mass).tobytes() == two.find(mass).tobytes()


def test_a_small_tree_by_hand() -> None:
    """Leaves 1, 0, 2, 3 own the masses [0, 1), nothing, [1, 3) and [3, 6)."""
    tree = tree_of([1.0, 0.0, 2.0, 3.0])
    assert tree.total == 6.0
    assert type(tree.total) is float
    assert tree.find(np.array([0, 0.5, 1, 2.9, 3, 5.9])).tolist() == [0, 0, 2, 2, 3, 3]
    assert tree.get(np.array([3, 0, 0])).tolist() == [3.0, 1.0, 1.0]
    assert tree.find(np.array([0.0])).dtype == np.int64
    tree.set([0, 3], [0.0, 0.25])
    assert tree.total == 2.25
    assert tree.find([0.0, 1.99, 2.0]).tolist() == [2, 2, 3]


def test_a_new_tree_is_all_zero() -> None:
    """Nothing has been set, so nothing can be found."""
    tree = SumTree(5)
    assert tree.total == 0.0
    assert tree.get(np.arange(5)).tolist() == [0.0] * 5
    with pytest.raises(ValueError, match=r"find: expected a positive priority"):
        tree.find([0.0])
    with pytest.raises(ValueError, match=r"minimum: expected a positive priority"):
        tree.minimum()


def test_the_last_of_several_values_for_a_slot_stays() -> None:
    """Duplicate indices in one call are written in order."""
    tree = SumTree(2000)
    tree.set([7, 1999, 7, 7, 1999], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert tree.get([7, 1999]).tolist() == [4.0, 5.0]
    assert tree.total == 9.0
    many = np.resize([11, 12], 4001)
    tree.set(many, np.arange(4001.0))
    assert tree.get([11, 12]).tolist() == [4000.0, 3999.0]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_every_slot_of_any_capacity_can_be_found(capacity: int) -> None:
    """With whole numbers as leaves, each slot owns exactly its interval, up to the last."""
    rng = np.random.default_rng(capacity)
    leaves = rng.integers(0, 4, capacity).astype(float)
    leaves[rng.integers(capacity)] = 2.0
    tree = tree_of(leaves)
    assert tree.total == leaves.sum()
    bounds = np.cumsum(leaves)
    owners = np.flatnonzero(leaves)
    picked = owners[rng.integers(0, len(owners), 3000)] if len(owners) > 3000 else owners
    starts = bounds[picked] - leaves[picked]
    assert tree.find(starts).tolist() == picked.tolist()
    assert tree.find(starts + leaves[picked] / 2).tolist() == picked.tolist()
    assert tree.find(np.nextafter(bounds[picked], 0)).tolist() == picked.tolist()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_a_single_positive_slot_takes_every_mass(capacity: int) -> None:
    """Wherever it sits, also between zeros and at mass 0 or the total."""
    for slot in {0, capacity // 2, capacity - 1}:
        tree = SumTree(capacity)
        tree.set([slot], [0.1])
        assert tree.find([0.0, 0.05, math.nextafter(0.1, 0), 0.1]).tolist() == [slot] * 4


@PROPERTY
@given(st.data())
def test_the_tree_agrees_with_a_list(data: st.DataObject) -> None:
    """After random writes the sum, the leaves and every search equal those of a plain list."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    capacity = data.draw(st.sampled_from([1, 3, 5, 40, 1025, 1500]))
    tree, leaves = SumTree(capacity), [0.0] * capacity
    for _ in range(data.draw(st.integers(1, 6))):
        indices = rng.integers(0, capacity, rng.integers(0, 80))
        values = rng.integers(0, 3, len(indices)) * rng.integers(0, 1000, len(indices)) / 8
        tree.set(indices, values)
        for i, value in zip(indices.tolist(), values.tolist(), strict=True):
            leaves[i] = value
    assert tree.get(np.arange(capacity)).tolist() == leaves
    assert tree.total == sum(leaves)  # eighths: exact in any order
    if tree.total > 0:
        mass = np.floor(rng.random(60) * tree.total * 8) / 8
        assert tree.find(mass).tolist() == [oracle_find(leaves, m) for m in mass.tolist()]
        assert tree.minimum() == min(leaf for leaf in leaves if leaf > 0)


@PROPERTY
@given(st.data())
def test_the_bits_depend_on_the_leaves_alone(data: st.DataObject) -> None:
    """However the writes were cut into calls, and whatever was written before, trees are equal."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    capacity = data.draw(st.sampled_from([1, 5, 30, 1025, 3000, 20_000]))
    count = data.draw(st.integers(1, 3000))
    indices = rng.integers(0, capacity, count)
    values = rng.lognormal(0, data.draw(st.sampled_from([0.5, 5])), count)
    values[rng.random(count) < 0.2] = 0.0
    whole, pieces, fresh = SumTree(capacity), SumTree(capacity), SumTree(capacity)
    whole.set(indices, values)
    pieces.set(rng.integers(0, capacity, 50), 1e9)
    pieces.set(np.arange(capacity), 0.0)
    cuts = sorted(rng.integers(0, count + 1, data.draw(st.integers(0, 20))))
    for start, stop in pairwise([0, *cuts, count]):
        pieces.set(indices[start:stop], values[start:stop])
    slots = rng.permutation(capacity)
    fresh.set(slots, whole.get(slots))
    assert same_tree(whole, pieces)
    assert same_tree(whole, fresh)


@PROPERTY
@given(st.data())
def test_find_never_returns_a_slot_without_priority(data: st.DataObject) -> None:
    """Leaves of wildly different sizes and masses at every rounded boundary find positive slots."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    capacity = data.draw(st.sampled_from([1, 3, 33, 1025, 17_000]))
    leaves = 10.0 ** rng.uniform(-300, data.draw(st.sampled_from([-290, 3])), capacity)
    leaves *= rng.random(capacity) < data.draw(st.sampled_from([0.02, 0.5]))
    leaves[rng.integers(capacity)] = data.draw(st.sampled_from([5e-324, 1e-300, 0.1, 1.0]))
    tree = tree_of(leaves)
    bounds = np.cumsum(leaves)
    mass = np.concatenate([bounds, np.nextafter(bounds, 0), np.nextafter(bounds, np.inf)])
    mass = np.concatenate(
        [mass.clip(0, tree.total), [0.0, tree.total], rng.random(50) * tree.total]
    )
    found = tree.find(mass)
    assert found.min() >= 0
    assert found.max() < capacity
    assert (leaves[found] > 0).all()
    assert (np.diff(found[np.argsort(mass, kind="stable")]) >= 0).all()


def test_slots_are_found_in_proportion_to_their_priorities() -> None:
    """A chi-square statistic over 200,000 draws stays where chance leaves it."""
    rng = np.random.default_rng(7)
    leaves = rng.gamma(0.5, size=3000)
    leaves[rng.random(3000) < 0.3] = 0.0
    tree = tree_of(leaves)
    draws = 200_000
    counts = np.bincount(tree.find(rng.random(draws) * tree.total), minlength=3000)
    assert counts[leaves == 0].sum() == 0
    expected = draws * leaves / tree.total
    common = expected >= 5
    statistic = float((((counts - expected) ** 2)[common] / expected[common]).sum())
    freedom = int(common.sum())
    assert abs(statistic - freedom) < 4 * math.sqrt(2 * freedom)


def test_a_mass_that_rounding_took_past_the_total_finds_the_last_positive_slot() -> None:
    """Ten tenths sum to less than 1; a mass of the total, or of 1, still finds a slot."""
    leaves = [0.1] * 10 + [0.0] * 3
    tree = tree_of(leaves)
    assert tree.total < 1.0  # the premise
    assert tree.find([tree.total, 1.0]).tolist() == [9, 9]


def test_a_remainder_that_rounds_up_to_a_node_finds_a_positive_slot_in_it() -> None:
    """Below the root, mass 2⁵² + 3 less 1.5 rounds to 2⁵² + 2, all there is in its node."""
    tree = SumTree(1025)
    tree.set([0, 20], [1.5, 2.0**52 + 2])
    mass = math.nextafter(tree.total, 0)
    assert mass - 1.5 == tree.get(20)  # the premise
    assert tree.find([mass]).tolist() == [20]


def test_the_sums_do_not_drift() -> None:
    """Overwriting a slot by huge values and back leaves the total of the leaves."""
    tree = tree_of(np.full(2000, 0.1))
    expected = tree.total
    for value in (1e17, 3.3, 1e300, 0.1):
        tree.set([1234], [value])
    assert tree.total == expected


def test_shapes_follow_the_arguments() -> None:
    """Scalars, lists and matrices are accepted; results have the shape of what was asked."""
    tree = tree_of([1.0, 2.0, 3.0])
    assert tree.find(2.5).shape == ()
    assert int(tree.find(2.5)) == 1
    assert tree.find([[0.5, 1.5], [3.5, 5.5]]).tolist() == [[0, 1], [2, 2]]
    assert tree.get([[0, 1], [2, 2]]).tolist() == [[1.0, 2.0], [3.0, 3.0]]
    tree.set([0, 2], 7.0)
    assert tree.get([0, 1, 2]).tolist() == [7.0, 2.0, 7.0]
    tree.set(1, 4.0)
    assert tree.total == 18.0
    tree.set(np.array([0], dtype=np.uint8), np.array([1], dtype=np.int32))
    assert tree.get(0) == 1.0


def test_nothing_in_means_nothing_done() -> None:
    """Empty indices and masses are fine, on an empty tree too."""
    tree = SumTree(3)
    tree.set([], [])
    assert tree.get([]).shape == (0,)
    assert tree.find([]).shape == (0,)
    tree.set([1], [2.0])
    tree.set(np.zeros(0, dtype=np.int64), np.zeros(0))
    assert tree.total == 2.0


def test_what_is_handed_out_is_a_copy() -> None:
    """Neither the caller's arrays nor the tree's are changed through the other."""
    leaves, mass = np.array([1.0, 2.0, 3.0]), np.array([0.5, 6.0])
    tree = tree_of(leaves)
    leaves[:] = 9.0
    tree.get([0, 1, 2])[:] = 9.0
    tree.find(mass)
    assert mass.tolist() == [0.5, 6.0]
    assert tree.get([0, 1, 2]).tolist() == [1.0, 2.0, 3.0]


def test_minus_zero_is_zero() -> None:
    """Equal leaves have equal bits."""
    tree = tree_of([-0.0, 1.0])
    assert math.copysign(1.0, tree.get(0)) == 1.0


@pytest.mark.parametrize("bad", [-1e-300, -1.0, math.nan, math.inf, -math.inf, 1e308])
@pytest.mark.parametrize("capacity", [3, 5000])
def test_bad_values_are_refused_and_change_nothing(bad: float, capacity: int) -> None:
    """Negative, NaN, infinite and overflowing priorities raise before anything is written."""
    tree = tree_of(np.arange(1.0, capacity + 1))
    before = tree_of(np.arange(1.0, capacity + 1))
    with pytest.raises(ValueError, match=r"set\.values: expected .* got"):
        tree.set([0, 1, 2], [5.0, bad, 5.0])
    assert same_tree(tree, before)


@pytest.mark.parametrize("bad", [[-1], [3], [0, 99], [0.5], [True], ["0"]])
def test_bad_indices_are_refused_and_change_nothing(bad: list[object]) -> None:
    """Indices that are negative, too large or no integers raise IndexError."""
    tree = tree_of([1.0, 2.0, 3.0])
    with pytest.raises(IndexError, match=r"set\.indices: expected .* got"):
        tree.set(bad, np.ones(len(bad)))
    with pytest.raises(IndexError, match=r"get\.indices: expected .* got"):
        tree.get(bad)
    assert same_tree(tree, tree_of([1.0, 2.0, 3.0]))


def test_the_padding_of_a_wide_tree_is_out_of_reach() -> None:
    """The first index past the capacity is refused, although the tree has room for it."""
    tree = SumTree(1025)
    with pytest.raises(IndexError, match=r"expected 0\.\.1024, got 1025"):
        tree.set([1025], [1.0])
    with pytest.raises(IndexError, match=r"expected 0\.\.1024, got 1025"):
        tree.get([1025])


def test_shapes_that_do_not_fit_are_refused() -> None:
    """Values are one per index, or one for all."""
    tree = tree_of([1.0, 2.0, 3.0])
    for indices, values in (
        ([0, 1], [1.0]),
        ([0], [1.0, 2.0]),
        ([0, 1], [[1.0, 2.0]]),
        ([], [1.0]),
    ):
        with pytest.raises(ValueError, match=r"set\.values: expected shape .* got"):
            tree.set(indices, values)
    assert same_tree(tree, tree_of([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("bad", [-1e-9, math.nan, 6.01, math.inf])
def test_masses_outside_the_tree_are_refused(bad: float) -> None:
    """A mass is not negative, not NaN and not beyond the total."""
    with pytest.raises(ValueError, match=r"find\.mass: expected .* got"):
        tree_of([1.0, 2.0, 3.0]).find([0.5, bad])


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_tree_has_at_least_one_slot(capacity: int) -> None:
    """Capacities below 1 raise."""
    with pytest.raises(ValueError, match=r"capacity: expected at least 1, got"):
        SumTree(capacity)
