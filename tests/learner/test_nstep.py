"""n-step windows: literal cases, and a slow oracle that looks at whole episodes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.columns import columns
from jormungandr.learner.nstep import Item, NStepWindows

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
#: Start ordinal, summed reward, ordinal of the step whose successor bootstraps, discount.
Plain = tuple[int, float, int, float]


def run(spec: ModelSpec, windows: NStepWindows, rows: list[dict[str, Any]]) -> list[Item]:
    """Hand transitions to the windows one by one and return the items, in order."""
    checked = columns(rows, spec)
    return [item for i in range(len(rows)) for item in windows.add(checked.take(np.array([i])), i)]


def plain(items: list[Item]) -> list[Plain]:
    """Return items by the ordinals that the builder below hides in the observations."""
    return [
        (i.ordinal, i.reward, int(i.next_observation[0]) - 1000, i.discount)
        for i in items
        if i.observation[0] == i.ordinal
    ]


def numbered(step: Step, moves: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return steps whose reward is 10^ordinal and whose observations carry the ordinal."""
    return [
        step(
            t,
            observation=[k, 0],
            next_observation=[1000 + k, 0],
            reward=10.0**k,
            **fields,
        )
        for k, (t, fields) in enumerate(moves)
    ]


END, CUT = {"terminated": True}, {"truncated": True}

CASES: list[tuple[str, int, list[tuple[int, dict[str, Any]]], list[Plain]]] = [
    (
        "a window fills and slides",
        3,
        [(0, {}), (1, {}), (2, {}), (3, {})],
        [(0, 1 + 5 + 25, 2, 0.125), (1, 10 + 50 + 250, 3, 0.125)],
    ),
    (
        "a termination flushes the shortened windows, without bootstrap",
        3,
        [(0, {}), (1, {}), (2, {}), (3, END)],
        [
            (0, 1 + 5 + 25, 2, 0.125),
            (1, 10 + 50 + 250, 3, 0.0),
            (2, 100 + 500, 3, 0.0),
            (3, 1000, 3, 0.0),
        ],
    ),
    (
        "a truncation flushes them too, and keeps the bootstrap of as many steps",
        3,
        [(0, {}), (1, CUT)],
        [(0, 1 + 5, 1, 0.25), (1, 10, 1, 0.5)],
    ),
    (
        "an episode shorter than n gives every start once",
        10,
        [(0, {}), (1, {}), (2, END)],
        [(0, 1 + 5 + 25, 2, 0.0), (1, 10 + 50, 2, 0.0), (2, 100, 2, 0.0)],
    ),
    (
        "a gap closes the window at the true successor of its last step",
        3,
        [(0, {}), (1, {}), (5, {}), (6, {}), (7, {})],
        [(0, 1 + 5, 1, 0.25), (1, 10, 1, 0.5), (2, 100 + 500 + 2500, 4, 0.125)],
    ),
    (
        "a late step is an item of one step, and the window goes on",
        2,
        [(0, {}), (5, {}), (3, {}), (6, {})],
        [(0, 1, 0, 0.5), (2, 100, 2, 0.5), (1, 10 + 500, 3, 0.25)],
    ),
    (
        "a step that fills a gap after the end is late too",
        3,
        [(0, {}), (1, {}), (3, {}), (4, END), (2, {})],
        [
            (0, 1 + 5, 1, 0.25),
            (1, 10, 1, 0.5),
            (2, 100 + 500, 3, 0.0),
            (3, 1000, 3, 0.0),
            (4, 10_000, 4, 0.5),
        ],
    ),
    (
        "episodes and actors do not mix",
        2,
        [
            (0, {}),
            (0, {"actor_id": "b"}),
            (1, {}),
            (1, {"actor_id": "b"}),
            (1, {"episode_id": "f"}),
        ],
        [(0, 1 + 50, 2, 0.25), (1, 10 + 500, 3, 0.25)],
    ),
    (
        "n = 1 is every step by itself",
        1,
        [(0, {}), (2, {}), (1, {}), (3, END)],
        [(0, 1, 0, 0.5), (1, 10, 1, 0.5), (2, 100, 2, 0.5), (3, 1000, 3, 0.0)],
    ),
]


@pytest.mark.parametrize(("claim", "n", "moves", "items"), CASES, ids=[c[0] for c in CASES])
def test_case(
    small: Small,
    step: Step,
    claim: str,
    n: int,
    moves: list[tuple[int, dict[str, Any]]],
    items: list[Plain],
) -> None:
    """The claim in the table, with γ = 0.5 and rewards of powers of ten."""
    windows = NStepWindows(n, 0.5, idle=1000)

    assert plain(run(small(), windows, numbered(step, moves))) == items


def test_idle_window_is_closed_as_a_truncation(small: Small, step: Step) -> None:
    """A window that `idle` training transitions have passed by closes with a bootstrap."""
    moves = [(0, {}), (1, {})] + [(t, {"actor_id": "b"}) for t in range(4)]
    windows = NStepWindows(3, 0.5, idle=3)
    items = plain(run(small(), windows, numbered(step, moves)))

    # Transitions 2, 3 and 4 pass by the window last touched by 1; the next arrival closes it.
    assert items == [
        (2, 100 + 500 + 2500, 4, 0.125),
        (0, 1 + 5, 1, 0.25),
        (1, 10, 1, 0.5),
        (3, 1000 + 5000 + 25000, 5, 0.125),
    ]


def test_labels_reach_steps_that_wait(small: Small, step: Step) -> None:
    """A label finds its step in an open window, and travels with the item that starts there."""
    windows = NStepWindows(3, 0.5, idle=1000)
    run(small(), windows, numbered(step, [(0, {}), (1, {})]))

    assert windows.set_label(1, 1)
    assert not windows.set_label(5, 1)
    checked = columns(numbered(step, [(2, END)]), small())
    assert [item.label for item in windows.add(checked, 2)] == [-1, 1, -1]


def test_state_round_trip(small: Small, step: Step) -> None:
    """Open windows survive a checkpoint bit for bit, in their order."""
    windows = NStepWindows(3, 0.5, idle=4)
    moves = [(0, {}), (0, {"actor_id": "b"}), (1, {}), (0, {"actor_id": "c"})]
    rows = [{**row, "observation": [1 / 3, 1e-40], "reward": 0.1} for row in numbered(step, moves)]
    run(small(), windows, rows)
    back = NStepWindows(3, 0.5, idle=4)
    entries, arrays = windows.state()
    back.restore(entries, arrays)
    rest = columns([step(2), step(1, actor_id="c", terminated=True), step(3)], small())

    assert back.state()[0] == entries
    assert {n: a.tobytes() for n, a in back.state()[1].items()} == {
        n: a.tobytes() for n, a in arrays.items()
    }
    for one, other in zip(windows.add(rest, 4), back.add(rest, 4), strict=True):
        assert (one.ordinal, one.reward, one.discount) == (
            other.ordinal,
            other.reward,
            other.discount,
        )
        assert one.observation.tobytes() == other.observation.tobytes()


def oracle(moves: list[tuple[int, dict[str, Any]]], n: int, gamma: float) -> set[Plain]:
    """Return the items of one episode whose steps all come in order, by looking ahead."""
    items = set()
    for k, (t, _) in enumerate(moves):
        total, last = 0.0, k
        for j in range(n):
            if k + j >= len(moves) or moves[k + j][0] != t + j:
                break
            last = k + j
            total += gamma**j * 10.0**last
            if moves[last][1]:
                break
        steps = last - k + 1
        items.add((k, total, last, 0.0 if moves[last][1] == END else gamma**steps))
    return items


@settings(max_examples=200)
@given(
    gaps=st.lists(st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1, max_size=9),
    n=st.integers(1, 6),
    end=st.sampled_from([END, CUT]),
)
def test_against_looking_ahead(
    small: Small, step: Step, gaps: list[int], n: int, end: dict[str, Any]
) -> None:
    """For steps in order with any gaps, windows give what looking at the whole episode gives."""
    times = np.cumsum(gaps).tolist()
    moves = [(t, end if t == times[-1] else {}) for t in times]
    items = plain(run(small(), NStepWindows(n, 0.5, idle=1000), numbered(step, moves)))

    assert set(items) == oracle(moves, n, 0.5)
    assert len(items) == len(moves)


@settings(max_examples=100)
@given(order=st.permutations(range(6)), n=st.integers(1, 4))
def test_every_step_starts_one_item(small: Small, step: Step, order: list[int], n: int) -> None:
    """In any order of arrival each step starts exactly one item, once its window is closed.

    The last step is sent as the end of the episode; rewards inside an item are those of consecutive
    steps, and the bootstrap is at the successor of the last of them.
    """
    moves = [(t, END if t == 5 else {}) for t in order]
    windows = NStepWindows(n, 0.5, idle=2)
    rows = numbered(step, moves)
    others = [step(t, actor_id="b", observation=[-1, 0]) for t in range(4)]
    items = plain(run(small(), windows, rows + others))

    assert sorted(item[0] for item in items) == list(range(6))
    for start, total, last, discount in items:
        run_of = range(moves[start][0], moves[last][0] + 1)
        ordinals = [order.index(t) for t in run_of]
        assert 1 <= len(ordinals) <= n
        assert total == sum(0.5**j * 10.0**k for j, k in enumerate(ordinals))
        assert discount == (0.0 if moves[last][0] == 5 else 0.5 ** len(ordinals))


def test_replay_holds_as_many_items_as_transitions(small: Small, step: Step) -> None:
    """Through the learner: no start is lost and none is doubled, whatever the episodes' lengths."""
    learner = Learner(
        small(c51={"n_step": 4}, replay={"capacity": 1000}, pacing={"learning_starts": 1000})
    )
    for episode, length in enumerate([1, 2, 3, 4, 5, 9]):
        ended = ["terminated", "truncated"][episode % 2]
        learner.add(
            [step(t, episode_id=str(episode), **{ended: t == length - 1}) for t in range(length)]
        )

    assert len(learner.replay) == 24
    assert sorted(learner.replay.ordinal[:24].tolist()) == list(range(24))
