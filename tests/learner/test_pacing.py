"""Pacing: how many updates have run is arithmetic on what was read, to the last transition."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.learner.pacing import Pacing
from jormungandr.spec import Pacing as PacingSpec

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


def due(starts: int, ratio: float, transitions: int) -> int:
    """Return the updates due after so many transitions, in decimal arithmetic."""
    return int(Decimal(repr(ratio)) * max(0, transitions - starts))


@pytest.mark.parametrize(
    ("ratio", "transitions", "updates"),
    [
        (0.1, 10, 1),
        (0.1, 9, 0),
        (0.1, 1_000_000, 100_000),
        (0.29, 100, 29),
        (0.29, 1_000_000, 290_000),
        (0.57, 100, 57),
        (0.25, 7, 1),
        (1.0, 344, 344),
        (1.5, 3, 4),
        (1000.0, 3, 3000),
        (1e-09, 10**9, 1),
        (1e-09, 10**9 - 1, 0),
        (0.0, 10**9, 0),
        (0.1 + 0.2, 10**17, 30000000000000004),
    ],
)
def test_ratio_is_the_decimal_it_is_written_as(
    ratio: float, transitions: int, updates: int
) -> None:
    """A ratio of 0.29 is 29 updates in a hundred, though 0.29 · 100 is 28.999999999999996."""
    pacing = Pacing(PacingSpec(learning_starts=5, updates_per_transition=ratio), transitions + 5)

    assert pacing.owed == updates == due(5, ratio, transitions + 5)


@given(
    starts=st.integers(0, 20),
    ratio=st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.29, 0.3, 0.57, 0.99, 1.0, 1.1, 2.5, 7.0]),
    steps=st.integers(1, 200),
)
def test_until_due_is_the_next_transition_that_owes(starts: int, ratio: float, steps: int) -> None:
    """Walking on by `until_due` meets every update at the transition that makes it due."""
    pacing = Pacing(PacingSpec(learning_starts=starts, updates_per_transition=ratio))
    met = {}
    while pacing.transitions < steps:
        ahead = pacing.until_due()
        if ahead is None:
            break
        pacing.transitions += ahead
        met[pacing.transitions] = pacing.owed
        pacing.paid += pacing.owed
    expected = {n: due(starts, ratio, n) - due(starts, ratio, n - 1) for n in range(1, steps + 1)}

    assert {n: k for n, k in met.items() if n <= steps} == {n: k for n, k in expected.items() if k}


def test_no_updates_when_the_ratio_is_zero(small: Small, step: Step) -> None:
    """A ratio of zero collects and never learns."""
    learner = Learner(small(pacing={"updates_per_transition": 0, "learning_starts": 0}))
    learner.add([step(t) for t in range(100)])

    assert learner.pacing.until_due() is None
    assert learner.update_count == 0


@pytest.mark.parametrize("chunk", [1, 48, 1344])
def test_release_note_counts(step: Step, chunk: int) -> None:
    """The preset's 1,344 training transitions give exactly 344 updates and 31 evaluations."""
    learner = Learner(ModelSpec.preset("ou-note"))
    rng = np.random.default_rng(0)
    rows = []
    for episode in range(35):
        split = "validation" if episode % 5 == 4 else "train"
        for t in range(48):
            x = rng.normal(size=4)
            fields = {"observation": x, "next_observation": x, "terminated": t == 47}
            rows.append(step(t, episode_id=f"e{episode}", split=split, **fields))
    for at in range(0, len(rows), chunk):
        learner.add(rows[at : at + chunk])

    assert learner.info()["transitions"] == {"train": 1344, "validation": 336}
    assert learner.update_count == learner.policy_version == 344
    assert len(learner.evaluations) == 31
    assert [e.version for e in learner.evaluations] == list(range(11, 345, 11))


def test_updates_run_where_they_fall_due(small: Small, step: Step) -> None:
    """A due update runs before the next training transition, and held-out ones make none due."""
    learner = Learner(small())  # starts after 4, then every second
    counts = []
    for t in range(12):
        learner.add([step(t), step(t, episode_id="v", split="validation")])
        counts.append(learner.update_count)

    assert counts == [0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_skipped_updates_are_not_owed(small: Small, step: Step) -> None:
    """An update due with too few items is skipped for good, not run in a burst later."""
    learner = Learner(
        small(
            c51={"batch_size": 8},
            pacing={"learning_starts": 0, "updates_per_transition": 1.0},
        )
    )
    for t in range(7):
        learner.add([step(t)])
    assert (learner.update_count, learner.info()["updates"]["skipped"]) == (0, 7)
    learner.add([step(7)])

    assert (learner.update_count, learner.info()["updates"]["skipped"]) == (1, 7)


def test_duplicates_and_dropped_transitions_make_nothing_due(small: Small, step: Step) -> None:
    """Only accepted training transitions count."""
    learner = Learner(small(staleness={"max_policy_lag": 0, "mode": "drop"}))
    learner.add([step(t) for t in range(6)])
    assert (learner.update_count, learner.pacing.transitions) == (1, 6)
    learner.add([step(t) for t in range(6)])
    receipt = learner.add([step(t) for t in range(6, 12)])

    assert receipt.stale_dropped == 6
    assert (learner.update_count, learner.pacing.transitions) == (1, 6)
