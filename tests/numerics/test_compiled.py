"""The loops that numba compiles give the bits of NumPy: trees, projections, whole learners."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.inputs import prepared
from jormungandr.learner.batches import normalized
from jormungandr.learner.room import Room
from jormungandr.numerics import compiled
from jormungandr.numerics.projection import Projection
from jormungandr.numerics.sum_tree import SumTree

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="no numba here")
#: Where the loops are used.
USERS = ("numerics.sum_tree", "numerics.projection", "learner.room", "learner.batches")


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are equal bit for bit, but for which NaN a NaN is."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    nan = np.isnan(one) & np.isnan(other)
    return np.where(nan, 0, one).tobytes() == np.where(nan, 0, other).tobytes()


@numba
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.sampled_from([1, 2, 5, 1024, 1025, 5000, 17_000, 300_000]),
    smallest=st.sampled_from([-300, -3, 0]),
    zeros=st.sampled_from([0.0, 0.3, 0.99]),
)
def test_trees_are_equal(seed: int, capacity: int, smallest: int, zeros: float) -> None:
    """The same sums after any writes, and the same slots for any mass, at the ends as well."""
    rng = np.random.default_rng(seed)
    trees = [SumTree(capacity), SumTree(capacity, compiled=False)]
    for _ in range(rng.integers(1, 5)):
        where = rng.integers(capacity, size=rng.integers(1, 200))
        values = 10.0 ** rng.uniform(smallest, 3, len(where)) * (rng.random(len(where)) >= zeros)
        values[rng.integers(len(where))] = rng.choice([5e-324, 1e-300, 0.1, 1e100])
        for tree in trees:
            tree.set(where, values)
        total = trees[0].total
        if not total:
            continue
        mass = rng.random(100) * total
        borders = np.cumsum(trees[0].get(np.sort(rng.integers(capacity, size=50))))
        mass = np.concatenate([mass, borders.clip(0, total), [0.0, total, np.nextafter(total, 0)]])
        first, second = (tree.find(mass) for tree in trees)

        assert trees[0]._nodes.tobytes() == trees[1]._nodes.tobytes()
        assert trees[0]._prefix.tobytes() == trees[1]._prefix.tobytes()
        assert first.tolist() == second.tolist()


@numba
def test_they_are_used() -> None:
    """Where numba is installed it computes: the rest would compare NumPy with itself."""
    assert compiled.kernels() is not None
    for user in (SumTree(5), Projection(-1, 1, 5), Room(ModelSpec.preset("ou-note"), 4)):
        assert user._kernels is compiled.kernels()
    assert SumTree(5, compiled=False)._kernels is None
    assert Projection(-1, 1, 5, compiled=False)._kernels is None


@pytest.mark.parametrize("loops", [False, pytest.param(True, marks=numba)])
def test_a_remainder_that_rounds_up_to_a_sum(loops: bool) -> None:
    """Less than what lies before and in a node, and by rounding all of it: its last slot."""
    ulp = 2.0**-52
    tree = SumTree(5000, compiled=loops)
    tree.set([0, 16, 20], [1.5 * ulp, 1.0, 2 * ulp])
    mass = 1 + 3 * ulp
    assert mass < tree.total
    assert mass - 1.5 * ulp == tree.get([16, 20]).sum()

    assert tree.find([mass]).tolist() == [20]


@numba
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 70),
    atoms=st.integers(2, 60),
    low=st.floats(-50, 0),
    width=st.floats(0.5, 100),
    scale=st.sampled_from([0.0, 0.1, 1.0, 100.0, 1e37]),
    spoiled=st.sampled_from(["", "reward", "probs"]),
)
def test_projections_are_equal(
    seed: int, rows: int, atoms: int, low: float, width: float, scale: float, spoiled: str
) -> None:
    """For any support, reward and discount, also far beyond the ends, and with a NaN."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(atoms, 0.3), rows).astype(np.float32)
    reward = (scale * rng.standard_normal(rows)).astype(np.float32)
    discount = np.where(rng.random(rows) < 0.4, 0, rng.random(rows)).astype(np.float32)
    discount[rng.random(rows) < 0.2] = 1
    # By so little beyond an end that it may be rounding, or hardly not.
    gap, slack = Projection(low, low + width, atoms, compiled=False)._shape[1:]
    edge = (discount == 1) & (rng.random(rows) < 0.7)
    reward[edge] = rng.uniform(-2, 2, edge.sum()) * gap * slack
    if spoiled:
        {"reward": reward, "probs": probs.reshape(-1)}[spoiled][rng.integers(rows)] = np.nan
    with np.errstate(all="ignore"):
        one, other = (
            Projection(low, low + width, atoms, compiled=c)(probs, reward, discount)
            for c in (True, False)
        )

    assert same_bits(one[0], other[0])
    assert same_bits(np.array(one[1:]), np.array(other[1:]))


@numba
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), masked=st.booleans(), spoiled=st.booleans())
def test_choices_and_slopes_are_equal(seed: int, masked: bool, spoiled: bool) -> None:
    """The same action, of equal ones the first, and the same gradient by the logits."""
    rng = np.random.default_rng(seed)
    spec = ModelSpec.from_dict(
        {"observation": {"shape": [2]}, "actions": int(rng.integers(1, 6)), "c51": {"hidden": 3}}
    )
    rooms = [Room(spec, int(rng.integers(1, 40)))]
    rooms.append(copy.copy(rooms[0]))
    rooms[1]._kernels = None
    first, shape = rooms[0], rooms[0].values.shape
    values = rng.integers(-3, 3, shape).astype(np.float32)
    total = rng.uniform(0.5, 2, shape[0] * shape[1]).astype(np.float32)
    values[rng.random(shape) < 0.3] = 0
    if spoiled:
        values[rng.random(shape) < 0.2] = np.nan
    allowed = rng.random(shape) < 0.6 if masked else None
    logits, target = rng.standard_normal((2, shape[0], 51)).astype(np.float32)
    p, share = np.exp(logits), rng.random(shape[0]).astype(np.float32)
    found = []
    for room in rooms:
        room._best, room._products = room._best.copy(), room._products.copy()
        first.values[:], first.total[:] = values, total
        first.sums[:], first.head.slope[:] = p.sum(axis=1), p
        found.append((room.best(allowed), room.slopes(target, logits.copy(), share)))
        found[-1] = (*found[-1], first.head.slope.copy())

    assert found[0][0].tolist() == found[1][0].tolist()
    assert same_bits(found[0][1], found[1][1])
    assert same_bits(found[0][2], found[1][2])


@numba
def test_observations_are_normalised_alike() -> None:
    """As `policy.prepared` does it, of records that lie apart in memory."""
    rng = np.random.default_rng(0)
    spec = ModelSpec.from_dict({"observation": {"shape": [5], "clip": 2.0}, "actions": 2})
    held = np.zeros(300, dtype=[("a", np.int32), ("o", np.float32, (2, 5))])
    held["o"] = rng.normal(3, 4, (300, 2, 5))
    mean, var = rng.normal(3, 1, 5), rng.uniform(0, 9, 5)
    var[0] = 0

    found = normalized(held["o"], spec, mean, var)

    assert found.tobytes() == prepared(held["o"], spec, mean, var).tobytes()


@numba
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"c51": {"double": True, "dueling": True, "n_step": 3, "averaging": 0.9}},
        {"c51": {"support": "auto"}, "replay": {"priority": "kl", "capacity": 2000}},
        {"observation": {"shape": [2], "normalize": False}, "replay": {"is_normalizer": "buffer"}},
    ],
)
def test_learners_are_equal(
    small: Small, step: Step, state: State, fields: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the loops: after many updates every bit of the state is the same."""
    states = []
    for without in (False, True):
        if without:
            for user in USERS:
                monkeypatch.setattr(f"jormungandr.{user}.kernels", lambda: None)
        learner = Learner(small(**fields))
        for t in range(60):
            learner.add([step(t, reward=float(t % 7) - 2.5, action=t % 3)])
        learner.update(20)
        states.append(state(learner))

    assert states[0] == states[1]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))])
@pytest.mark.parametrize("capacity", [7, 5000])
def test_copied_tree_is_a_tree_of_its_own(how: Callable[[Any], Any], capacity: int) -> None:
    """It has the same sums, and goes on apart from the original."""
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), np.random.default_rng(0).random(capacity))
    other = how(tree)
    before = tree.total
    assert other._prefix.tobytes() == tree._prefix.tobytes()
    other.set([3], [1000.0])

    assert tree.total == before
    assert other.total > 1000
    assert other.find([500.0]).tolist() == [3]


@pytest.mark.parametrize("fault", [ImportError, RuntimeError, OSError])
def test_without_numba_there_are_none(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed, or with nowhere to keep what it compiles: NumPy computes."""

    def refuse(name: str) -> None:
        raise fault(name)

    monkeypatch.setattr(compiled.importlib, "import_module", refuse)
    compiled.kernels.cache_clear()
    try:
        assert compiled.kernels() is None
        tree = SumTree(5000)
        tree.set([4000], [1.0])
        assert tree.find([0.5]).tolist() == [4000]
    finally:
        compiled.kernels.cache_clear()


@numba
def test_numba_waits_for_a_learner() -> None:
    """Importing what may use it does not import it: the command line has to start fast."""
    code = (
        "import sys, jormungandr.numerics.sum_tree, jormungandr.numerics.projection;"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
