"""What runs say: first solves, falls, curves, targets."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.learning.scores import Group, interval
from benchmarks.learning.targets import TARGETS
from tests.learning_benchmark.made import cartpole, run


def test_first_and_after() -> None:
    """Steps of the first solved evaluation, and what follows it."""
    group = cartpole([10, 480, 300, 500], [10, 20, 30, 476], [1, 2, 3, 4])

    assert group.first(475.0) == [4_000, 8_000, None]
    assert [row.tolist() for row in group.after(475.0)] == [[300, 500], []]


def test_largest_fall_is_from_the_best_so_far_to_anything_later() -> None:
    """Before `since` nothing counts; rises in between do not help."""
    group = cartpole([900, 100, 300, 250, 280, 150], [0, 1, 2, 3, 4, 5])

    assert group.largest_fall(4_000) == 150
    assert group.largest_fall(2_000) == 800


def test_a_curve_is_the_interval_of_each_evaluation() -> None:
    """The middle is the IQM; the band is close to that of an evaluation alone."""
    rng = np.random.default_rng(0)
    group = cartpole(*rng.normal(100, 20, size=(10, 6)).tolist())
    middle, low, high = group.curve()
    for i in range(6):
        alone = interval(group.scores[:, i])
        assert middle[i] == alone.estimate
        assert low[i] == pytest.approx(alone.low, abs=2.0)
        assert high[i] == pytest.approx(alone.high, abs=2.0)


def verdict(text: str, task: str, mine: Group, **others: Group) -> str:
    """Return what a target says of a group."""
    target = next(t for t in TARGETS if t.task == task and text in t.text)
    return str(target.judge(mine, {"ours": mine, **others}))


def test_targets_of_cartpole() -> None:
    """Nine of ten seeds by then; no evaluation under 400 after."""
    good, late = [480.0] * 75, [10.0] * 30 + [480.0] * 45
    fallen = [480.0] * 70 + [390.0, 480.0, 480.0, 480.0, 480.0]

    assert verdict("by 50,000", "cartpole", cartpole(*[good] * 9, late)) == "met: 9 of 10 seeds"
    missed = verdict("by 50,000", "cartpole", cartpole(*[good] * 8, late, late))
    assert missed == "**missed by 1**: 8 of 10 seeds"
    assert verdict("under 400", "cartpole", cartpole(good, late)).startswith("met: lowest 480")
    fell = verdict("under 400", "cartpole", cartpole(good, fallen))
    assert fell == "**missed by 10**: lowest 390, 1 of 148 under"
    assert verdict("under 400", "cartpole", cartpole([1.0] * 75)) == "never solved"


def test_targets_of_ouspread() -> None:
    """Beside the best of the rivals, with its slack; and no seed falls back."""

    def ou(*means: list[float]) -> Group:
        return Group(tuple(run(seed=i, task="ou", means=m) for i, m in enumerate(means)))

    ours = ou([0.5, 0.6, 0.7, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.96])
    weak, strong = ou([0.1] * 10), ou([0.97] * 10)

    near = verdict("within 0.03", "ou", ours, **{"SB3 DQN": weak, "SB3 DQN, tuned": strong})
    assert near.startswith("met: 0.950 against 0.970 (SB3 DQN, tuned)")
    assert verdict("above QR-DQN", "ou", ours, **{"QR-DQN": strong}).startswith(
        "**missed by 0.02**"
    )
    assert verdict("above QR-DQN", "ou", ours) == "nobody to compare with yet"
    assert verdict("falls back", "ou", ours) == "met: largest fall 0.000"
    dip = ou([0.5, 0.6, 0.7, 0.95, 0.85, 0.95, 0.95, 0.95, 0.95, 0.96])
    assert verdict("falls back", "ou", dip) == "**missed by 0.05**: largest fall 0.100"
