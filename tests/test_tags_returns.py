"""Returns by tag, and records of episodes: bounded whatever comes, the same however it is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import ModelSpec, RemoteLearner
from jormungandr import records as module
from jormungandr.columns import columns
from jormungandr.learner.episodes import EpisodeReturns
from jormungandr.learner.recent import KEYS, OTHER, VALUES, TagReturns
from jormungandr.records import TAG_ROOM, EpisodeRecord, WholeEpisodes
from tests.service.serving import BEARER, QUIET, connect, memory

SPEC = ModelSpec.from_dict({"observation": {"shape": [1]}, "actions": 2})


def row(episode: str, timestep: int, **fields: Any) -> dict[str, Any]:
    """Return a transition."""
    known = {
        "actor_id": "a",
        "episode_id": episode,
        "timestep": timestep,
        "split": "validation",
        "policy_version": 3,
        "observation": [0.0],
        "action": 0,
        "reward": 1.0,
        "next_observation": [0.0],
        "terminated": False,
        "truncated": False,
    }
    return {**known, **fields}


def record(total: float = 1.0, split: int = 1, version: int = 3, **tags: str) -> EpisodeRecord:
    """Return an episode."""
    return EpisodeRecord("a", "e", split, 1, total, version, version, True, (*tags.items(),))


# -- bounds ---------------------------------------------------------------------------------------


def test_pairs_have_no_figures() -> None:
    """Each value is of two episodes; the other tags of those have theirs, and nothing warns."""
    returns = TagReturns()
    for i in range(VALUES + 20):
        returns.add(record(float(i), pair=f"p{i}", map="dust"))
    assert returns.info(1).keys() == {"map"}
    assert returns.info(1)["map"]["dust"]["episodes"] == VALUES + 20
    assert returns.warnings() == []
    old = returns.state()
    old["found"] = [["pair", "p0", [0, []], [1, [1.0]]], *old["found"]]
    read = TagReturns()
    read.restore(old)

    assert read.state() == returns.state()


def test_values_beyond_the_bound_count_as_other() -> None:
    """The first so many values are told apart; further ones, and one of that name, are together."""
    returns = TagReturns()
    for i in range(VALUES + 20):
        returns.add(record(float(i), day=f"d{i}"))
    assert returns.info(1)["day"]["d0"]["episodes"] == 1
    returns.add(record(7.0, day="d0"))
    returns.add(record(9.0, day=OTHER))
    found = returns.info(1)["day"]

    assert len(found) == VALUES + 1
    assert (found["d0"]["episodes"], found["d0"]["mean_return"]) == (2, 3.5)
    assert found[OTHER]["episodes"] == 21
    assert returns.warnings() == []


def test_keys_beyond_the_bound_have_no_figures() -> None:
    """An actor that sends ever new keys is told of, and known keys go on."""
    returns = TagReturns()
    for i in range(KEYS + 5):
        returns.add(record(1.0, **{f"k{i}": "v"}))
    returns.add(record(1.0, k0="v"))

    assert len(returns.info(1)) == KEYS
    assert returns.info(1)["k0"]["v"]["episodes"] == 2
    assert returns.untracked == 5
    assert "tags_untracked: 5 tags" in returns.warnings()[0]


@settings(max_examples=60)
@given(
    tags=st.lists(
        st.dictionaries(
            st.sampled_from([f"k{i}" for i in range(KEYS + 4)]),
            st.integers(0, VALUES + 9).map(str),
            max_size=8,
        ),
        max_size=200,
    )
)
def test_size_is_bounded_and_state_goes_on(tags: list[dict[str, str]]) -> None:
    """Whatever comes there are so many figures at most; a state that is taken over is the same."""
    returns, half = TagReturns(), len(tags) // 2
    for one in tags[:half]:
        returns.add(record(1.0, len(one) % 2, **one))
    other = TagReturns()
    other.restore(json.loads(json.dumps(returns.state())))
    for one in tags[half:]:
        returns.add(record(2.0, 1, **one))
        other.add(record(2.0, 1, **one))

    assert other.state() == returns.state()
    assert len(returns.info(1)) <= KEYS
    assert all(len(values) <= VALUES + 1 for values in returns.info(1).values())


# -- records --------------------------------------------------------------------------------------


@given(cuts=st.lists(st.integers(0, 7), max_size=4))
def test_records_of_whole_episodes(cuts: list[int]) -> None:
    """Version, return and tags of each, in the order of the ends, however requests are cut."""
    rows = [
        row("e0", 0, tags={"pair": "x"}),
        row("e1", 0, tags={"pair": "y"}, policy_version=4),
        row("e2", 0, split="train", tags={"pair": "z"}),
        row("e1", 1, policy_version=5, truncated=True, reward=-2.0),
        row("e2", 1, split="train", terminated=True),
        row("e0", 1, policy_version=2, terminated=True),
        row("e3", 1, terminated=True),  # it never began
    ]
    whole, found = WholeEpisodes(), []
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        found += whole.add(columns(rows[start:stop], SPEC))

    assert found == [
        EpisodeRecord("a", "e1", 1, 2, -1.0, 4, 5, False, (("pair", "y"),)),
        EpisodeRecord("a", "e2", 0, 2, 2.0, 3, 3, True, (("pair", "z"),)),
        EpisodeRecord("a", "e0", 1, 2, 2.0, 2, 3, True, (("pair", "x"),)),
    ]
    assert whole.state() == []


def test_state_of_before_there_were_tags() -> None:
    """An older checkpoint loads: its open episodes go on, with no version and no tags."""
    returns, whole = EpisodeReturns(), WholeEpisodes()
    before = [["a", "e0", 1, 0.5, 1]]
    returns.restore({"open": before, "recent": [[1.0], [2.0, 4.0]], "finished": [1, 200]})
    whole.restore(before)
    end = columns([row("e0", 1, terminated=True)], SPEC)
    returns.add(end)

    assert whole.add(end) == [EpisodeRecord("a", "e0", 1, 2, 1.5, -1, 3, True)]
    assert returns.info()["validation"]["episodes"] == 201
    assert returns.figures()["validation"]["by_tag"] == {}
    again = EpisodeReturns()
    again.restore(json.loads(json.dumps(returns.state())))
    assert again.state() == returns.state()


def full(n: int) -> dict[str, str]:
    """Return as many tags of full size as an episode may have, other ones for each n."""
    return {f"k{i}".ljust(32, "_"): f"{n}-{i}".ljust(64, "_") for i in range(8)}


def test_tags_of_open_episodes_are_bounded() -> None:
    """Ever new tags of full size: the least recent of those with tags go, and none without."""
    whole, largest = WholeEpisodes(), TAG_ROOM // (8 * (160 + 32 + 64))
    whole.add(columns([row("without", 0), row("short", 0, tags={"map": "dust"})], SPEC))
    for start in range(0, largest + 100, 1_000):
        batch = range(start, min(start + 1_000, largest + 100))
        whole.add(columns([row(f"e{n}", 0, tags=full(n)) for n in batch], SPEC))
    state = whole.state()

    assert [kept[1] for kept in state] == ["without", *(f"e{n}" for n in range(100, largest + 100))]
    assert len(json.dumps(state)) < TAG_ROOM
    # Once they end there is room again.
    ends = [row(f"e{n}", 1, terminated=True) for n in range(200, 300)]
    assert len(whole.add(columns(ends, SPEC))) == 100
    whole.add(columns([row(f"f{n}", 0, tags=full(n)) for n in range(100)], SPEC))
    assert len(whole.state()) == largest + 1


def test_tags_that_many_have_are_written_once() -> None:
    """A state names the place of the first that has them, and is taken over as it was."""
    whole = WholeEpisodes()
    tags = [{"map": "dust"}, None, full(0), {"map": "dust"}, full(0)]
    whole.add(columns([row(f"e{n}", 0, tags=given) for n, given in enumerate(tags)], SPEC))
    state = json.loads(json.dumps(whole.state()))
    again = WholeEpisodes()
    again.restore(state)

    assert [kept[-1] for kept in state] == [
        *([["map", "dust"]], [], [list(pair) for pair in sorted(full(0).items())], 0, 2)
    ]
    ends = columns([row(f"e{n}", 1, terminated=True) for n in range(5)], SPEC)
    assert again.add(ends) == (found := whole.add(ends))
    assert [dict(r.tags) or None for r in found] == tags


_STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from([False, False, True])),
    max_size=40,
)


@pytest.mark.parametrize(("room", "most"), [(170, 100), (400, 100), (400, 3)])
@settings(max_examples=60)
@given(steps=_STEPS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_what_is_forgotten_is_a_function_of_the_rows(
    room: int, most: int, steps: list[tuple[int, int, bool]], cuts: list[int]
) -> None:
    """One step at a time, cut anywhere, or restored at each cut: the same records and memory."""
    rows = []
    for episode, t, end in steps:
        tags = {"k": f"v{episode}"} if t == 0 and episode else None
        rows.append(row(f"e{episode}", t, terminated=end, tags=tags))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TAG_ROOM", room)
        patch.setattr(module, "OPEN", most)
        slow, fast, restored = WholeEpisodes(), WholeEpisodes(), WholeEpisodes()
        expected = [r for one in rows for r in slow.add(columns([one], SPEC))]
        found, after = [], []
        for start, stop in pairwise([0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]):
            found += fast.add(columns(rows[start:stop], SPEC))
            after += restored.add(columns(rows[start:stop], SPEC))
            state, restored = restored.state(), WholeEpisodes()
            restored.restore(json.loads(json.dumps(state)))

    assert found == after == expected
    assert fast.state() == restored.state() == slow.state()


# -- a service ------------------------------------------------------------------------------------


def test_a_service_tells_them(tmp_path: Any) -> None:
    """In the model's metrics, and as figures for Prometheus, whatever the value is written with."""
    value = 'a "b\\c'
    with memory(tmp_path) as http, connect(http, "m") as endpoint:
        assert isinstance(endpoint, RemoteLearner)
        endpoint.create(QUIET)
        assert endpoint.metrics()["returns"]["train"] == {"episodes": 0, "by_tag": {}}
        first = {"observation": [0.0, 1.0], "next_observation": [0.0, 1.0], "policy_version": 0}
        ends = [
            row(f"e{i}", 0, **first, terminated=True, reward=i, tags={"regime": value})
            for i in (1, 2)
        ]
        endpoint.wait(endpoint.add(ends).lsn)
        returns = endpoint.metrics()["returns"]
        text = http.get("/metrics", headers=BEARER).text

    assert returns["validation"]["by_tag"]["regime"][value]["mean_return"] == 1.5
    labels = 'model="m",split="validation",tag="regime",value="a \\"b\\\\c"'
    assert f"jormungandr_tag_episode_return{{{labels}}} 1.5\n" in text
    assert f"jormungandr_tag_episodes_total{{{labels}}} 2\n" in text
    assert 'jormungandr_episode_return{model="m",split="validation"} 1.5\n' in text
