"""Returns of whole episodes: against one transition at a time, however actors are interleaved."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import records as module
from jormungandr.columns import Columns
from jormungandr.learner.episodes import EpisodeReturns

#: (actor, episode, timestep, split, reward, ended)
Steps = list[tuple[int, int, int, int, float, bool]]


def columns(steps: Steps) -> Columns:
    """Return transitions of two-element observations that hold nothing."""
    n = len(steps)
    actor, episode, t, split, reward, ended = zip(*steps, strict=True) if steps else [()] * 6
    return Columns(
        actors=("a", "b", "c"),
        episodes=("e0", "e1", "e2"),
        actor=np.array(actor, dtype=np.int32),
        episode=np.array(episode, dtype=np.int32),
        timestep=np.array(t, dtype=np.int64),
        split=np.array(split, dtype=np.uint8),
        policy_version=np.zeros(n, dtype=np.int64),
        observation=np.zeros((n, 2), dtype=np.float32),
        action=np.zeros(n, dtype=np.int64),
        reward=np.array(reward, dtype=np.float32),
        next_observation=np.zeros((n, 2), dtype=np.float32),
        terminated=np.array(ended, dtype=np.bool_),
        truncated=np.zeros(n, dtype=np.bool_),
        behavior_prob=np.full(n, np.nan, dtype=np.float32),
        label=np.full(n, -1, dtype=np.int32),
        next_action_mask=np.zeros((n, 0), dtype=np.bool_),
    )


class Oracle:
    """The same, one transition at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.open: OrderedDict[tuple[str, str], tuple[int, float, int]] = OrderedDict()
        self.recent: list[list[float]] = [[], []]

    def add(self, steps: Steps) -> None:
        """Take transitions, in order."""
        for actor, episode, t, split, reward, ended in steps:
            key = ("abc"[actor], f"e{episode}")
            expected, total, known = self.open.pop(key, (0, 0.0, split))
            if t != expected or known != split:
                continue
            total += float(np.float32(reward))
            if ended:
                self.recent[split].append(total)
                continue
            self.open[key] = (t + 1, total, split)
            if len(self.open) > self.room:
                self.open.popitem(last=False)


_STEP = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([0, 0, 1, 1, 2, 3]),
    st.sampled_from([0, 0, 0, 1]),
    st.floats(-10, 10, width=32),
    st.sampled_from([False, False, False, True]),
)


@pytest.mark.parametrize("room", [2, 5, 100])
@settings(max_examples=150)
@given(steps=st.lists(_STEP, max_size=40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_one_at_a_time(room: int, steps: Steps, cuts: list[int]) -> None:
    """Any stream, cut anywhere, gives the returns and the memory of one transition at a time.

    Also where more episodes are open than are remembered.
    """
    oracle, returns = Oracle(room), EpisodeReturns()
    oracle.add(steps)
    places = [0, *sorted(min(cut, len(steps)) for cut in cuts), len(steps)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPEN", room)
        for start, stop in pairwise(places):
            returns.add(columns(steps[start:stop]))
    state: dict[str, Any] = returns.state()

    assert [kept[:5] for kept in state["open"]] == [
        [*key, *value] for key, value in oracle.open.items()
    ]
    assert state["recent"] == oracle.recent
    assert state["finished"] == [len(recent) for recent in oracle.recent]


def test_forgotten_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode that others push out of memory is not taken up again by its next step."""
    monkeypatch.setattr(module, "OPEN", 2)
    steps: Steps = [(a, 0, t, 0, 1.0, False) for a, t in ((0, 0), (1, 0), (2, 0), (0, 1))]
    one, two = EpisodeReturns(), EpisodeReturns()
    one.add(columns(steps))
    for step in steps:
        two.add(columns([step]))

    assert one.state() == two.state()
    assert [key[0] for key in one.state()["open"]] == ["b", "c"]


def test_a_beginning_pushes_out_even_if_its_end_comes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An episode that comes whole in one batch was in progress for a step, as when it comes so."""
    monkeypatch.setattr(module, "OPEN", 2)
    steps: Steps = [(a, 0, 0, 0, 1.0, False) for a in (0, 1, 2)] + [(2, 0, 1, 0, 1.0, True)]
    returns = EpisodeReturns()
    returns.add(columns(steps[:2]))
    returns.add(columns(steps[2:]))

    assert [key[0] for key in returns.state()["open"]] == ["b"]


def test_interleaved_whole_episodes() -> None:
    """Three actors step in turn: each episode's return is its own, in the order of the ends."""
    returns = EpisodeReturns()
    steps: Steps = [(a, a, t, 0, 10.0 * a + t, t == 3 - a) for t in range(4) for a in range(3)]
    returns.add(columns([step for step in steps if step[2] <= 3 - step[0]]))

    assert returns.state()["recent"] == [[41.0, 33.0, 6.0], []]
    assert returns.state()["open"] == []
