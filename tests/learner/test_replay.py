"""Prioritized replay: frequencies, weights, priorities, and the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.columns import columns
from jormungandr.learner.nstep import Item
from jormungandr.learner.priorities import Draw
from jormungandr.learner.replay import Replay
from jormungandr.spec import Replay as ReplaySpec

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


def replay(small: Small, step: Step, count: int, **fields: Any) -> Replay:
    """Return a buffer that `count` one-step items with rewards 0, 1, 2, … were added to."""
    buffer = Replay(ReplaySpec(**fields), (2,))
    if count:
        rows = columns([step(t, reward=float(t)) for t in range(count)], small())
        buffer.add_steps(rows, 0, 0.9)
    return buffer


def set_priorities(buffer: Replay, priorities: list[float]) -> None:
    """Give slot i priority i, through a draw as an update would."""
    slot = np.arange(len(priorities))
    draw = Draw(slot, buffer.priorities.added, np.ones(len(slot)))
    buffer.priorities.update(draw, np.array(priorities))


def test_frequencies_follow_the_priorities(small: Small, step: Step) -> None:
    """P(i) = p_i^α / Σ p^α: chi-square over 200 batches of 100, at the 0.1 % level."""
    buffer = replay(small, step, 6, capacity=8, alpha=0.6)
    set_priorities(buffer, [0.0, 0.01, 0.5, 1.0, 2.0, 30.0])
    rng = np.random.default_rng(1)
    counts = np.zeros(6)
    for _ in range(200):
        counts += np.bincount(buffer.sample(100, 1.0, rng).slot, minlength=6)
    raw = (np.array([0.0, 0.01, 0.5, 1.0, 2.0, 30.0]) + 1e-6) ** 0.6
    expected = 20_000 * raw / raw.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()

    assert chi_square < 20.5  # five degrees of freedom


def test_single_draws_follow_the_priorities(small: Small, step: Step) -> None:
    """One item at a time, where no strata help, the frequencies hold too."""
    buffer = replay(small, step, 4, capacity=4, alpha=1.0)
    set_priorities(buffer, [1.0, 2.0, 3.0, 4.0])
    rng = np.random.default_rng(2)
    counts = np.bincount([buffer.sample(1, 1.0, rng).slot[0] for _ in range(5000)], minlength=4)
    chi_square = ((counts - [500, 1000, 1500, 2000]) ** 2 / [500, 1000, 1500, 2000]).sum()

    assert chi_square < 16.3  # three degrees of freedom, 0.1 %


def test_draws_are_stratified(small: Small, step: Step) -> None:
    """Each of B draws comes from its own B-th of the mass, so that no large item is missed."""
    buffer = replay(small, step, 4, capacity=4, alpha=1.0)
    set_priorities(buffer, [1.0, 1.0, 1.0, 1.0])
    slots = buffer.sample(4, 1.0, np.random.default_rng(3)).slot

    assert slots.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("is_normalizer", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights(small: Small, step: Step, is_normalizer: str, beta: float) -> None:
    """w_i = (N·P(i))^-β / max w, the maximum over the batch or the whole buffer; at most 1."""
    priorities = np.array([0.0, 1e-3, 0.5, 1.0, 2.0, 30.0])
    buffer = replay(small, step, 6, capacity=8, alpha=0.6, is_normalizer=is_normalizer)
    set_priorities(buffer, priorities.tolist())
    sample = buffer.sample(3, beta, np.random.default_rng(5))
    raw = (priorities + 1e-6) ** 0.6
    weights = (6 * raw / raw.sum()) ** -beta
    largest = weights.max() if is_normalizer == "buffer" else weights[sample.slot].max()

    assert sample.weight == pytest.approx(weights[sample.slot] / largest, rel=1e-12)
    assert sample.weight.max() <= 1.0
    if is_normalizer == "batch":
        assert sample.weight.max() == 1.0


@settings(max_examples=50)
@given(
    exponents=st.lists(st.floats(-30, 30), min_size=1, max_size=8),
    alpha=st.sampled_from([0.1, 0.6, 1.0, 2.0]),
    beta=st.floats(0, 1),
    normalizer=st.sampled_from(["batch", "buffer"]),
)
def test_weights_are_in_the_unit_interval(
    small: Small, step: Step, exponents: list[float], alpha: float, beta: float, normalizer: str
) -> None:
    """Weights are positive and at most 1 for priorities sixty orders of magnitude apart."""
    buffer = replay(small, step, len(exponents), capacity=8, alpha=alpha, is_normalizer=normalizer)
    set_priorities(buffer, [10.0**e for e in exponents])
    weight = buffer.sample(16, beta, np.random.default_rng(0)).weight

    assert ((weight > 0) & (weight <= 1)).all()


def test_alpha_zero_is_uniform_and_costs_no_tree(small: Small, step: Step) -> None:
    """Without priorities every item is as likely, weights are 1, and there is no tree."""
    buffer = replay(small, step, 5, capacity=8, alpha=0.0)
    set_priorities(buffer, [0.0, 1.0, 2.0, 3.0, 1000.0])
    sample = buffer.sample(10_000, 0.4, np.random.default_rng(4))
    counts = np.bincount(sample.slot, minlength=5)

    assert buffer.priorities._tree is None
    assert set(sample.weight) == {1.0}
    assert ((counts - 2000) ** 2 / 2000).sum() < 18.5  # four degrees of freedom, 0.1 %


def test_new_items_get_the_maximum_priority(small: Small, step: Step) -> None:
    """A new item is as likely as the likeliest so far, so that each is seen soon."""
    buffer = replay(small, step, 2, capacity=8)
    set_priorities(buffer, [0.5, 7.0])
    buffer.add_steps(columns([step(2)], small()), 2, 0.9)

    assert buffer.priorities.priority[:3].tolist() == [0.5, 7.0, 7.0]
    assert buffer.priorities.max_priority == 7.0


def test_wrap_around_keeps_the_newest(small: Small, step: Step) -> None:
    """The oldest make room; slots, rewards and discounts stay together."""
    buffer = replay(small, step, 3, capacity=4)
    for t in range(3, 11):
        row = columns([step(t, reward=float(t), terminated=t == 10)], small())
        buffer.add_steps(row, t, 0.9)

    assert len(buffer) == buffer.size == 4
    assert buffer.arrays["reward"].tolist() == [8.0, 9.0, 10.0, 7.0]
    assert buffer.priorities.added == 11
    assert buffer.arrays["discount"].tolist() == pytest.approx([0.9, 0.9, 0.0, 0.9])
    newest = buffer.newest(3)
    assert newest["reward"].tolist() == [8.0, 9.0, 10.0]
    assert buffer.newest(100)["reward"].tolist() == [7.0, 8.0, 9.0, 10.0]


def test_truncation_keeps_the_discount(small: Small, step: Step) -> None:
    """A cut-off step bootstraps as any other, a terminated one does not."""
    buffer = Replay(ReplaySpec(capacity=4), (2,))
    rows = [step(0), step(1, truncated=True), step(0, episode_id="f", terminated=True)]
    buffer.add_steps(columns(rows, small()), 0, 0.5)

    assert buffer.arrays["discount"].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_stale_priorities_are_dropped_and_counted(small: Small, step: Step) -> None:
    """A priority computed for an item that was overwritten meanwhile is not its successor's."""
    buffer = replay(small, step, 4, capacity=4)
    sample = buffer.sample(4, 1.0, np.random.default_rng(0))
    buffer.add_steps(columns([step(t) for t in (4, 5)], small()), 4, 0.9)
    buffer.priorities.update(sample, np.full(4, 9.0))

    assert sample.slot.tolist() == [0, 1, 2, 3]
    assert buffer.priorities.priority.tolist() == [1.0, 1.0, 9.0, 9.0]
    assert buffer.priorities.stale_writes == 2


def test_all_stale_changes_nothing(small: Small, step: Step) -> None:
    """When every item is gone, not even the maximum moves."""
    buffer = replay(small, step, 4, capacity=4)
    sample = buffer.sample(4, 1.0, np.random.default_rng(0))
    buffer.add_steps(columns([step(t) for t in range(4, 8)], small()), 4, 0.9)
    buffer.priorities.update(sample, np.full(4, 9.0))

    assert buffer.priorities.max_priority == 1.0
    assert buffer.priorities.stale_writes == 4


def test_last_priority_of_a_doubled_item_stays(small: Small, step: Step) -> None:
    """An item drawn twice in a batch keeps the last of its two priorities."""
    buffer = replay(small, step, 1, capacity=4)
    sample = buffer.sample(3, 1.0, np.random.default_rng(0))
    buffer.priorities.update(sample, np.array([3.0, 1.0, 2.0]))

    assert buffer.priorities.priority[0] == 2.0
    assert buffer.priorities.max_priority == 3.0


def test_more_than_the_capacity_at_once(small: Small, step: Step) -> None:
    """A batch longer than the ring leaves what one by one would leave."""
    at_once = replay(small, step, 11, capacity=4)
    one_by_one = Replay(ReplaySpec(capacity=4), (2,))
    for t in range(11):
        one_by_one.add_steps(columns([step(t, reward=float(t))], small()), t, 0.9)

    for name, array in at_once.state().items():
        assert np.array_equal(array, one_by_one.state()[name]), name
    assert at_once.set_label(10, 1)
    assert not at_once.set_label(6, 1)


def test_state_round_trip(small: Small, step: Step) -> None:
    """A restored buffer draws the same items with the same weights, and takes the same labels."""
    buffer = replay(small, step, 6, capacity=4)
    set_priorities(buffer, [3.0, 0.1, 0.0, 1.0])
    back = Replay(buffer.spec, (2,))
    back.restore(buffer.state())
    one = buffer.sample(32, 0.5, np.random.default_rng(7))
    other = back.sample(32, 0.5, np.random.default_rng(7))

    assert one.slot.tolist() == other.slot.tolist()
    assert one.weight.tobytes() == other.weight.tobytes()
    assert [back.set_label(o, 1) for o in range(8)] == [False, False, *[True] * 4, False, False]


def test_without_labels_there_is_no_index(small: Small, step: Step) -> None:
    """A model that has no labels keeps none of what would find them."""
    buffer = Replay(ReplaySpec(capacity=4), (2,), labelled=False)
    buffer.add_steps(columns([step(t, reward=float(t)) for t in range(6)], small()), 0, 0.9)
    back = Replay(buffer.spec, (2,), labelled=False)
    back.restore(buffer.state())

    assert not buffer.set_label(5, 1)
    assert len(buffer.slot_of) == len(buffer.ordinal) == 0
    assert back.newest(4)["reward"].tolist() == [2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_priorities_are_finite(small: Small, step: Step, bad: float) -> None:
    """One that is no number, or none that a loss can be, is refused, and changes nothing."""
    buffer = replay(small, step, 4, capacity=4)
    sample = buffer.sample(4, 1.0, np.random.default_rng(0))

    with pytest.raises(ValueError, match="finite priorities"):
        buffer.priorities.update(sample, np.array([1.0, bad, 1.0, 2.0]))
    assert buffer.priorities.priority.tolist() == [1.0] * 4
    assert buffer.priorities.max_priority == 1.0


def test_observations_have_the_type_asked_for() -> None:
    """A buffer of bytes holds, draws and restores bytes."""
    buffer = Replay(ReplaySpec(capacity=4), (2, 3), np.uint8)
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    buffer.add_items([Item(0, image, 1, 0.5, 200 + image, 0.9, -1, np.zeros(0, np.bool_))])
    back = Replay(buffer.spec, (2, 3), np.uint8)
    back.restore(buffer.state())
    drawn = back.sample(1, 1.0, np.random.default_rng(0))

    assert (drawn.observation.dtype, drawn.next_observation.dtype) == (np.uint8, np.uint8)
    assert drawn.observation.tolist() == [image.tolist()]
    assert drawn.next_observation.tolist() == [(200 + image).tolist()]


def test_index_by_ordinal_after_a_restore(small: Small, step: Step) -> None:
    """When an old item entered late, labels of newer ones are found before and after a restore."""
    spec = small(c51={"n_step": 2}, replay={"capacity": 4}, pacing={"learning_starts": 1000})
    learner = Learner(spec)
    learner.add([step(0, actor_id="late")])
    learner.add([step(t, actor_id="b") for t in range(6)])
    learner.add([step(1, actor_id="late", terminated=True)])
    back = Replay(spec.replay, (2,))
    back.restore(learner.replay.state())

    assert [learner.replay.set_label(o, 1) for o in (4, 5, 7)] == [True, True, True]
    assert [back.set_label(o, 1) for o in (4, 5, 7)] == [True, True, True]


def test_priority_is_the_unweighted_loss(small: Small, step: Step) -> None:
    """What an update writes back is the loss of each item, not its importance-weighted loss."""
    learner = Learner(small(pacing={"learning_starts": 1000}))
    learner.add([step(t, reward=float(t)) for t in range(6)])
    learner.update()
    update = learner.last_update

    assert update is not None
    written = set(learner.replay.priorities.priority[:6].tolist()) - {1.0}
    assert written <= set(update.priority.astype(float).tolist())
    assert len(written) >= 3


@pytest.mark.parametrize(("updates", "beta"), [(0, 0.4), (10, 0.7), (20, 1.0), (1000, 1.0)])
def test_beta_rises_with_updates_and_stops_at_one(small: Small, updates: int, beta: float) -> None:
    """β goes linearly from its start to 1 over `beta_updates` updates, and stays."""
    learner = Learner(small())
    learner.progress.updates = updates

    assert learner._beta() == pytest.approx(beta)
