"""Tags of episodes: what they may be, where they come, that they are kept, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr import errors as e
from jormungandr.cli import main
from jormungandr.cli.fields import Fields
from jormungandr.cli.logged import read_records
from jormungandr.cli.steps import Steps
from jormungandr.client.merging import merged
from jormungandr.columns import columns
from jormungandr.packed import pack, unpack
from jormungandr.rows import TransitionsRow, decode_row, encode_row
from jormungandr.service.tools.flat import Layout
from jormungandr.service.tools.query import Query
from jormungandr.service.tools.stored import StoredModel, find_model
from jormungandr.service.tools.verification import verify
from jormungandr.tags import check_tags
from jormungandr.wire import JSON, MSGPACK, decode_object, encode_transitions
from tests.cli.journals import written

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
CALM = {"regime": "calm", "map": "Ünder"}


# -- what tags may be -----------------------------------------------------------------------------


def test_one_form() -> None:
    """Pairs in the order of their keys; none, in either form, is none."""
    assert check_tags(CALM, "tags") == (("map", "Ünder"), ("regime", "calm"))
    assert check_tags({}, "tags") == check_tags(None, "tags") == ()


FAULTS: list[tuple[Any, type[e.InvalidInput], str]] = [
    ("calm", e.InvalidType, "tags"),
    ([("a", "b")], e.InvalidType, "tags"),
    ({f"k{i}": "v" for i in range(9)}, e.InvalidValue, "tags"),
    ({"Regime": "calm"}, e.InvalidValue, "tags"),
    ({"": "calm"}, e.InvalidValue, "tags"),
    ({"a b": "calm"}, e.InvalidValue, "tags"),
    ({"a\n": "calm"}, e.InvalidValue, "tags"),
    ({"9a": "calm"}, e.InvalidValue, "tags"),
    ({"k" * 33: "calm"}, e.InvalidValue, "tags"),
    ({3: "calm"}, e.InvalidValue, "tags"),
    ({"regime": 3}, e.InvalidType, "tags.regime"),
    ({"regime": None}, e.InvalidType, "tags.regime"),
    ({"regime": ""}, e.InvalidValue, "tags.regime"),
    ({"regime": "é" * 33}, e.InvalidValue, "tags.regime"),
    ({"regime": "a\x00"}, e.InvalidValue, "tags.regime"),
    ({"regime": "\ud800"}, e.InvalidValue, "tags.regime"),
]


@pytest.mark.parametrize(("given", "error", "where"), FAULTS)
def test_what_is_no_tag(given: Any, error: type[e.InvalidInput], where: str) -> None:
    """Every bound is held, and the place is named."""
    with pytest.raises(error) as caught:
        check_tags(given, "tags")

    assert caught.value.where == where


def test_bounds_are_reached() -> None:
    """Eight keys of 32 bytes with values of 64 are fine."""
    most = {f"k{i}{'x' * 30}": "é" * 32 for i in range(8)}

    assert dict(check_tags(most, "tags")) == most


# -- as columns, as JSON, in a journal ------------------------------------------------------------


def test_only_with_the_first_step(small: Small, step: Step) -> None:
    """They are the episode's: with another step they are refused, in each form at its place."""
    rows = [step(0, tags=CALM), step(1)]
    late = replace(columns(rows, small()), tag=np.array([-1, 0]))
    for batch in ([rows[0], {**rows[1], "tags": CALM}], late):
        with pytest.raises(e.InvalidValue, match="timestep 0") as caught:
            columns(batch, small())
        assert caught.value.where == "transitions[1].tags"


def test_without_tags_nothing_changes(small: Small, step: Step) -> None:
    """Body, journal row and digest of transitions without tags are what they always were."""
    plain, empty = (columns([step(0, **more)], small()) for more in ({}, {"tags": {}}))

    assert (empty.tags, empty.tag) == ((), None)
    assert pack(plain) == pack(empty)
    assert plain.digests() == empty.digests()
    row = TransitionsRow(1, empty, np.ones(1, np.uint8))
    assert msgspec.msgpack.decode(encode_row(row))["format"] == 2


def test_they_are_content(small: Small, step: Step) -> None:
    """The order of keys is none; another value, another key or none is another content."""
    turned = dict(reversed(CALM.items()))
    given = [CALM, turned, {**CALM, "map": "x"}, {"regime": "calm"}, None]
    found = [int(columns([step(0, tags=tags)], small()).digests()[0]) for tags in given]

    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_content_does_not_depend_on_the_batch(small: Small, step: Step) -> None:
    """A step with tags has the same digest alone and among others."""
    rows = [
        step(0, episode_id=f"e{i}", reward=float(i), tags=tags)
        for i, tags in enumerate([None, CALM, {"map": "x"}])
    ]
    alone = [int(columns([row], small()).digests()[0]) for row in rows]

    assert columns(rows, small()).digests().tolist() == alone


def test_in_a_journal_row(small: Small, step: Step) -> None:
    """They come back from the bytes; a program of before reads no such row as one without."""
    rows = [step(0, tags=CALM), step(1), step(0, episode_id="f", tags={"map": "x"})]
    given = columns(rows, small())
    payload = encode_row(TransitionsRow(1, given, np.ones(3, np.uint8)))
    row = decode_row(1, "transitions", payload)

    assert isinstance(row, TransitionsRow)
    assert [dict(row.columns.tags_of(i)) for i in range(3)] == [CALM, {}, {"map": "x"}]
    assert row.columns.digests().tolist() == given.digests().tolist()
    assert msgspec.msgpack.decode(payload)["format"] == 3


@given(picked=st.lists(st.integers(0, 4), max_size=8))
def test_taken_and_joined(small: Small, step: Step, picked: list[int]) -> None:
    """Any selection keeps each transition's own tags; requests that are joined keep them too."""
    tags = [CALM, None, {"map": "x"}, None, CALM]
    rows = [step(0, episode_id=f"e{i}", tags=t) for i, t in enumerate(tags)]
    given, spec = columns(rows, small()), small()
    taken = given.take(np.array(picked, dtype=np.int64))
    one, two = encode_transitions(rows[:3]), pack(columns(rows[3:], spec))
    again = columns(decode_object(encode_transitions(given))["transitions"], spec)
    joined = unpack(merged([(JSON, one), (MSGPACK, two)], spec, 1), spec)

    assert [dict(taken.tags_of(i)) or None for i in range(len(taken))] == [tags[k] for k in picked]
    for same in (joined, again):
        assert [dict(same.tags_of(i)) or None for i in range(5)] == tags


def packed(small: Small, step: Step, **fields: Any) -> bytes:
    """Return a body of two tagged transitions with other fields."""
    rows = [step(0, tags=CALM), step(0, episode_id="f", tags={"map": "x"})]
    body = msgspec.msgpack.decode(pack(columns(rows, small())))
    return msgspec.msgpack.encode({**body, **fields})


def codes(*given: int) -> bytes:
    """Return a column of codes."""
    return np.array(given, "<i4").tobytes()


PACKED: list[tuple[dict[str, Any], type[e.JormungandrError], str]] = [
    ({"tag": None}, e.MissingField, "transitions.tag"),
    ({"tags": None}, e.MissingField, "transitions.tags"),
    ({"tag": codes(0)}, e.ShapeMismatch, "transitions.tag"),
    ({"tag": codes(0, 2)}, e.InvalidValue, "transitions[1].tags"),
    ({"tag": codes(-2, 0)}, e.InvalidValue, "transitions[0].tags"),
    ({"tags": [{}, {"Map": "x"}]}, e.InvalidValue, "transitions[1].tags"),
    ({"tags": [{}, {"map": 1}]}, e.InvalidType, "transitions.tags"),
    ({"tags": [{}, {}, {}]}, e.InvalidValue, "transitions.tags"),
    ({"tags": [{}, {f"k{i}": "v" for i in range(9)}]}, e.InvalidValue, "transitions[1].tags"),
    ({"tags": [{}, {f"k{i}": "v" for i in range(99)}]}, e.InvalidType, "transitions.tags"),
    ({"tags": [{}, msgspec.Raw(b"\x82\xa1a\xa1b\xa1a\xa1c")]}, e.Malformed, "body"),
]


@pytest.mark.parametrize(("fields", "error", "where"), PACKED)
def test_columns_are_refused(
    small: Small, step: Step, fields: Any, error: type[e.JormungandrError], where: str
) -> None:
    """What is no column of tags, and tags that are none, at their places."""
    with pytest.raises(error) as caught:
        unpack(packed(small, step, **fields), small())

    assert caught.value.where == where


def test_no_tags_for_an_empty_map(small: Small, step: Step) -> None:
    """An entry without a tag is none, as in JSON."""
    found = unpack(packed(small, step, tags=[{}, CALM]), small())

    assert [dict(found.tags_of(i)) for i in range(2)] == [{}, CALM]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_out_and_in(tmp_path: Path, small: Small, step: Step, form: str) -> None:
    """What is exported with tags is imported with the same ones, at their steps."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    rows = [step(0, tags=CALM), step(1), step(0, episode_id="f", terminated=True)]
    written(tmp_path / "data", small(), rows)
    file = tmp_path / f"out.{form}"
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0
    fields = Fields(Layout(small()), split="split")
    found = [s.transition() for s in Steps(fields, lambda key: "").read(read_records(file, form))]

    assert [dict(row.tags or {}) for row in found] == [CALM, {}, {}]
    given = [dict(row, policy_version=-1) for row in rows]
    assert columns(found, small()).digests().tolist() == (
        columns(given, small()).digests().tolist()
    )


def test_no_tags_in_a_file(tmp_path: Path, small: Small) -> None:
    """A cell that is no JSON names its place."""
    (tmp_path / "x.csv").write_text("tags\ncalm\n", encoding="utf-8")
    (record,) = read_records(tmp_path / "x.csv", "csv")

    with pytest.raises(e.InvalidType, match="column 'tags': expected a JSON object of strings"):
        Fields(Layout(small())).read(record)


# -- what becomes of them -------------------------------------------------------------------------


def played(step: Step, episode: str, rewards: list[float], **first: Any) -> list[dict[str, Any]]:
    """Return a whole episode with further fields for its first step."""
    last = len(rewards) - 1
    return [
        step(t, episode_id=episode, reward=r, terminated=t == last, **(first if t == 0 else {}))
        for t, r in enumerate(rewards)
    ]


ROWS = [
    *[("e0", [1.0, 2.0], {"tags": CALM}), ("e1", [4.0], {"tags": {"regime": "wild"}})],
    *[("e2", [8.0, 8.0], {}), ("e3", [16.0], {"tags": {"regime": "calm"}})],
]


def test_query_and_verify(tmp_path: Path, small: Small, step: Step) -> None:
    """SQL groups whole episodes by tag; `verify` proves the ledger of them from the rows."""
    rows = [row for name, rewards, first in ROWS for row in played(step, name, rewards, **first)]
    unfinished = step(0, episode_id="e4", tags=CALM)
    written(tmp_path, small(), [*rows, unfinished], 3)
    asked = {
        "SELECT tags ->> '$.regime' AS regime, count(*), sum(return) FROM episodes"
        " GROUP BY 1 ORDER BY 1": [(None, 1, 16.0), ("calm", 2, 19.0), ("wild", 1, 4.0)],
        "SELECT actor_id, length, split, low_version, high_version, terminated FROM episodes"
        " WHERE episode_id = 'e0'": [("a", 2, "train", 0, 0, 1)],
        "SELECT episode_id FROM transitions WHERE tags ->> '$.map' = 'Ünder' ORDER BY 1": [
            ("e0",),
            ("e4",),
        ],
    }
    for statement, expected in asked.items():
        with StoredModel(find_model(tmp_path, "m")) as stored:
            assert list(Query(stored, statement).rows()) == expected
    findings = list(verify(tmp_path))
    assert [f for f in findings if f.status == "damage"] == []
    assert any("identities, as the rows say" in f.text for f in findings)


def test_learner_keeps_returns_by_tag(tmp_path: Path, small: Small, step: Step) -> None:
    """`metrics()` has the returns of each value, also after save and load in mid-episode."""
    learner = Learner(small())
    rows = [row for name, rewards, first in ROWS for row in played(step, name, rewards, **first)]
    learner.add(rows[:1])
    learner.save(tmp_path / "saved")
    learner = Learner.load(tmp_path / "saved")
    learner.add(rows[1:])
    returns = learner.metrics()["returns"]

    train = returns["train"]
    assert (train["episodes"], train["mean_return"]) == (4, 9.75)
    by_tag = {k: {v: f["mean_return"] for v, f in vs.items()} for k, vs in train["by_tag"].items()}
    assert by_tag == {"regime": {"calm": 9.5, "wild": 4.0}, "map": {"Ünder": 3.0}}
    assert returns["validation"] == {
        "episodes": 0,
        "over_newest": 0,
        "mean_return": None,
        "interval_95": None,
        "by_tag": {},
    }
    assert (
        learner.metrics()["returns"] == Learner.load(_saved(learner, tmp_path)).metrics()["returns"]
    )


def _saved(learner: Learner, path: Path) -> Path:
    learner.save(path / "again")
    return path / "again"
