"""Returns by tag: bounded whatever comes, the same however it is cut; records, and their pairs."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import ModelSpec, RemoteLearner
from jormungandr.columns import columns
from jormungandr.learner import episodes as episodes_module
from jormungandr.learner.episodes import EpisodeReturns
from jormungandr.learner.recent import KEYS, OTHER, VALUES, TagReturns
from jormungandr.records import EpisodeRecord, paired
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
def test_records_of_held_out_episodes(cuts: list[int]) -> None:
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
    returns = EpisodeReturns()
    for start, stop in pairwise([0, *sorted(cuts), len(rows)]):
        returns.add(columns(rows[start:stop], SPEC))

    assert list(returns.records) == [
        EpisodeRecord("a", "e1", 1, 2, -1.0, 4, 5, False, (("pair", "y"),)),
        EpisodeRecord("a", "e0", 1, 2, 2.0, 2, 3, True, (("pair", "x"),)),
    ]
    assert returns.info()["train"]["episodes"] == 1


def test_records_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay."""
    monkeypatch.setattr(episodes_module, "RECORDS", 3)
    returns = EpisodeReturns()
    returns.add(columns([row(f"e{i}", 0, terminated=True) for i in range(5)], SPEC))

    assert [r.episode_id for r in returns.records] == ["e2", "e3", "e4"]


def test_state_of_before_there_were_tags() -> None:
    """An older checkpoint loads: its open episodes go on, with no version and no tags."""
    returns = EpisodeReturns()
    returns.restore(
        {
            "open": [["a", "e0", 1, 0.5, 1]],
            "recent": [[1.0], [2.0, 4.0]],
            "finished": [1, 200],
        }
    )
    returns.add(columns([row("e0", 1, terminated=True)], SPEC))

    assert returns.info()["validation"]["episodes"] == 201
    assert list(returns.records) == [EpisodeRecord("a", "e0", 1, 2, 1.5, -1, 3, True)]
    assert returns.figures()["validation"]["by_tag"] == {}
    again = EpisodeReturns()
    again.restore(json.loads(json.dumps(returns.state())))
    assert again.state() == returns.state()


def test_pairs() -> None:
    """Held-out episodes that one version played alone, with a value that both have."""
    records = [
        record(1.0, version=3, pair="b"),
        record(2.0, version=7, pair="b"),
        record(4.0, version=7, pair="b"),
        record(5.0, version=7, pair="a"),
        record(6.0, version=3, pair="a"),
        record(9.0, version=7, pair="c"),  # of one alone
        record(9.0, version=3, day="a"),  # of no pair
        record(9.0, 0, version=3, pair="a"),  # a training one
        record(9.0, pair="a")._replace(high_version=7),  # of both
    ]

    assert paired(records, 3, 7).tolist() == [[6.0, 5.0], [1.0, 3.0]]
    assert paired(records, 3, 8).shape == (0, 2)
    assert paired(records, 3, 3, tag="day").tolist() == [[9.0, 9.0]]


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
