"""Transitions by their fields: what is made of them, and what is sent, is what rows would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple

from jormungandr import Learner
from jormungandr.columns import ARRAYS, columns
from jormungandr.columns.plain import plain_rows
from jormungandr.encoder import TransitionEncoder
from jormungandr.episode import Choice, Episode
from jormungandr.errors import BodyTooLarge, EpisodeClosed, JormungandrError
from jormungandr.outbox import Outbox
from jormungandr.protocol import Transition
from jormungandr.spec import ModelSpec
from jormungandr.steps import Steps, joined
from jormungandr_wrappers.lockstep import next_steps, picked
from tests.fake_endpoint import FakeEndpoint

SPEC = ModelSpec.from_dict(
    {"observation": {"shape": [2]}, "actions": 3, "auxiliary": {"classes": ["down", "up"]}}
)
COUNT = 3


def episodes(tags: dict[str, str] | None = None) -> list[Episode]:
    """Return episodes of one actor, two of them for training."""
    splits: Any = ("train", "validation", "train")
    return [
        Episode(actor_id="a", episode_id=f"e{i}", split=split, tags=tags)
        for i, split in enumerate(splits)
    ]


def given(seed: int = 0, **other: Any) -> dict[str, Any]:
    """Return what became of a step in each of them."""
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.standard_normal((COUNT, 2)).astype(np.float32),
        "choices": [Choice(i, 7 - i, None if i == 1 else 0.25) for i in range(COUNT)],
        "rewards": rng.standard_normal(COUNT).tolist(),
        "next_observations": rng.standard_normal((COUNT, 2)).astype(np.float32),
        "terminated": [False, False, True],
        "truncated": [False, True, False],
        "labels": [None, "up", 0],
        "next_action_masks": [None] * COUNT,
        **other,
    }


def plain(row: Transition) -> tuple[Any, ...]:
    """Return the fields of a transition as values that can be compared."""
    return tuple((v.dtype, v.tolist()) if isinstance(v, np.ndarray) else v for v in astuple(row))


def alike(mine: Any, other: Any) -> bool:
    """Whether two sequences hold the same transitions."""
    return list(map(plain, mine)) == list(map(plain, other))


def steps(seed: int = 0, **other: Any) -> Steps:
    """Return steps of new episodes."""
    return next_steps(episodes(), **given(seed, **other))


@pytest.mark.parametrize("tags", [None, {"map": "dust"}])
def test_together_as_one_by_one(tags: dict[str, str] | None) -> None:
    """Names, timesteps, tags and ends are those of each episode's own steps."""
    mine, other = episodes(tags), episodes(tags)
    first, second = given(0, terminated=[False] * 3, truncated=[False] * 3), given(1)
    together = [row for each in (first, second) for row in next_steps(mine, **each)]
    apart = [
        episode.transition(*(each[name][i] for name in each))
        for each in (first, second)
        for i, episode in enumerate(other)
    ]

    assert alike(together, apart)
    assert [row.tags for row in together] == [tags] * 3 + [None] * 3
    assert [(e.timestep, e.over) for e in mine] == [(e.timestep, e.over) for e in other]


def test_no_step_after_an_end() -> None:
    """One episode that is over refuses the step of all; none has moved on."""
    mine = episodes()
    next_steps(mine, **given())
    with pytest.raises(EpisodeClosed, match="'e1'"):
        next_steps(mine, **given())

    assert [episode.timestep for episode in mine] == [1, 1, 1]


def test_is_a_sequence() -> None:
    """By index, from the end, in slices and in order: the same transitions."""
    found, rows = steps(), list(steps())

    assert len(found) == COUNT
    assert alike([found[0], found[1], found[-1]], rows)
    assert isinstance(found[1:], Steps)
    assert alike(found[1:], rows[1:])
    assert not found[3:]
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(
    "parts",
    [
        [steps(0), steps(1), steps(2)],
        [steps(0), list(steps(1))],
        [steps(0), steps(1, observations=list(given()["observations"]))],
        [steps(0), steps(1, observations=given()["observations"].astype(np.float64))],
        [steps(0), steps(1, observations=np.zeros((COUNT, 5), np.float32))],
        [steps(0)[:0], steps(1)[1:]],
        [],
    ],
    ids=["columns", "rows", "lists", "dtypes", "shapes", "none in one", "none"],
)
def test_joined(parts: list[Any]) -> None:
    """What came in parts stays in order, whatever it came as."""
    assert alike(joined(parts), [row for part in parts for row in part])


def test_picked() -> None:
    """Some of a list or an array, none, or all as they are."""
    values, array = [1, 2, 3], np.arange(6).reshape(3, 2)

    assert picked(values, [0, 2]) == [1, 3]
    assert picked(array, [0, 2]).tolist() == [[0, 1], [4, 5]]
    assert picked(array, []).shape == (0, 2)
    assert picked(array, [0, 1, 2]) is array


@pytest.mark.parametrize(
    ("dtype", "at_once"), [(np.float32, True), (np.float64, True), (np.int64, False)]
)
def test_columns_of_them(dtype: Any, at_once: bool) -> None:
    """The same arrays as of rows, without a look at each where they are plain."""
    both = {name: (given()[name] * 9).astype(dtype) for name in given() if "obs" in name}
    found = joined([steps(0, **both, labels=[None] * 3), steps(1, **both, labels=[0, 1, None])])
    assert (plain_rows(found, SPEC) is not None) == at_once
    mine, other = columns(found, SPEC), columns(list(found), SPEC)

    assert (mine.actors, mine.episodes) == (other.actors, other.episodes)
    for name in ARRAYS:
        one, two = getattr(mine, name), getattr(other, name)
        assert (one.dtype, one.tobytes()) == (two.dtype, two.tobytes())


@pytest.mark.parametrize(
    "wrong",
    [
        {"observations": np.full((3, 2), np.nan)},
        {"next_observations": np.zeros((3, 4))},
        {"observations": np.zeros((3, 2), np.complex64)},
        {"choices": [Choice(0), Choice(1), Choice(3)]},
        {"choices": [Choice(0), Choice(1, -2), Choice(2)]},
        {"choices": [Choice(0), Choice(1, 0, 1.5), Choice(2)]},
        {"labels": [0, 1, 2]},
        {"labels": [0, "sideways", 1]},
        {"next_action_masks": [None, np.ones(3, np.bool_), None]},
    ],
)
def test_faults_are_those_of_rows(wrong: dict[str, Any]) -> None:
    """What a model does not take is told in the same words."""
    found = steps(**wrong)
    with pytest.raises(JormungandrError) as told:
        columns(found, SPEC)
    with pytest.raises(JormungandrError) as other:
        columns(list(found), SPEC)

    assert (type(told.value), str(told.value)) == (type(other.value), str(other.value))


def test_learned_as_rows_are() -> None:
    """An endpoint in this process takes them; what it learns from is the same."""
    found = steps(choices=[Choice(i, 0, 0.5) for i in range(COUNT)])
    held: list[dict[str, Any]] = []
    for given in (found, list(found)):
        learner = Learner(SPEC)
        assert learner.add(given).accepted == COUNT
        newest = {**learner.replay.newest(9), **learner.validation.in_order()}
        held.append({name: array.tolist() for name, array in newest.items()})

    assert held[0] == held[1]


@pytest.mark.parametrize("columns_from", [None, 1, 100])
def test_bodies_of_them(columns_from: int | None) -> None:
    """A request is the same bytes."""
    encode = TransitionEncoder(lambda: {"spec": SPEC.to_dict(), "generation": 1}, columns_from)

    assert encode(steps()) == encode(list(steps()))


def test_outbox_keeps_their_order() -> None:
    """Columns and rows, kept in turn, go in order; what did not fit goes in halves."""

    class Small(FakeEndpoint):
        def add(self, transitions: Any) -> Any:
            """Take two at a time."""
            if len(transitions) > 2:
                raise BodyTooLarge("body", "two", len(transitions))
            return super().add(transitions)

    for endpoint, requests in ((FakeEndpoint(), [10]), (Small(), [2] * 5)):
        outbox, parts = Outbox(endpoint, 10), [steps(0), list(steps(1)), steps(2), steps(3)[:1]]
        for n, part in enumerate(parts):
            assert alike(outbox.unsent, [row for before in parts[:n] for row in before])
            outbox.put(part)

        assert endpoint.requests == requests
        assert alike(endpoint.rows, [row for part in parts for row in part])
        assert outbox.unsent == ()
