"""`typed_rows` takes a part of what the general way takes, and makes the same of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jormungandr.columns import ARRAYS, Columns, columns
from jormungandr.encoding import observations
from jormungandr.errors import JormungandrError, NonFinite
from jormungandr.nesting import scan_json
from jormungandr.spec import ModelSpec
from jormungandr.typed_rows import typed_rows
from jormungandr.wire import decode_object, fields
from tests.service.serving import QUIET, experience

SPEC = ModelSpec.from_dict(QUIET)
ROW = experience(1, 1)[0]
ODD: Any = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 - 1, 2**53, 2**63, 2**64, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=3),
    st.sampled_from(["a:b", "UP", "train", "validation", "\\", '"', "a\nb", "é" * 70]),
    st.lists(st.one_of(st.integers(-2, 2), st.floats(-9, 9), st.booleans()), max_size=3),
    st.just({}),
    st.just({"a": "b"}),
)
NAMES = [*ROW, "behavior_prob", "label", "tags", "next_action_mask", "other"]


@st.composite
def bodies(draw: Any) -> bytes:
    """Return a body of one to three transitions in which something may be odd."""
    rows = []
    for t in range(draw(st.integers(1, 3))):
        row = {**ROW, "timestep": t}
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=2)):
            if draw(st.booleans()):
                row[name] = draw(ODD)
            else:
                row.pop(name, None)
        rows.append(row)
    return json.dumps({"transitions": rows}, ensure_ascii=draw(st.booleans())).encode()


def general(body: bytes, spec: ModelSpec = SPEC) -> Columns:
    """Return what the general way makes of a body."""
    scan_json(body)
    return columns(fields(decode_object(body), {"transitions": list}, {})["transitions"], spec)


def fast(body: bytes, spec: ModelSpec = SPEC) -> Columns | None:
    """Return what the typed way makes of it; None where it leaves it to the other one."""
    found = typed_rows(body, spec)
    try:
        return None if found is None else columns(found, spec)
    except JormungandrError:
        return None


def assert_same(one: Columns, other: Columns) -> None:
    """Two batches are the same down to their bits."""
    assert (one.actors, one.episodes, one.tags) == (other.actors, other.episodes, other.tags)
    for name in ARRAYS:
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes(), name
    assert (one.digests() == other.digests()).all()


@given(bodies())
@example(json.dumps({"transitions": [{**ROW, "label": -1}] * 2}).encode())
@example(json.dumps({"transitions": [{**ROW, "reward": 16777217}]}).encode())
@example(json.dumps({"transitions": [{**ROW, "observation": [-0.0, 10**15 + 1]}] * 2}).encode())
def test_a_part_of_the_general_way(body: bytes) -> None:
    """Whatever it takes, the general way takes too, and finds the same."""
    found = fast(body)
    if found is not None:
        assert_same(found, general(body))


#: Of two elements: a vector, and one of two axes, which may come as a vector too.
WIDE = [ModelSpec.from_dict({**QUIET, "observation": {"shape": s}}) for s in ([2], [2, 1])]
#: A little more than half way between two float32, by less than float64 tells apart.
HALFWAY = 2**60 + 2**36 + 1


@given(
    st.one_of(st.integers(-(2**64), 2**65), st.integers(-(2**130), 2**130)),
    st.sampled_from([1, 1.5, -1]),
    st.sampled_from(WIDE),
    st.booleans(),
)
@example(HALFWAY, 1, WIDE[1], False)
@example(HALFWAY, 1.5, WIDE[0], True)
@example(2**64, 1, WIDE[1], False)
@example(2**64, -1, WIDE[1], True)
@example(2**128, 1, WIDE[1], False)
@example(-(2**63), 1, WIDE[1], False)
def test_integers_of_any_size(x: int, beside: float, spec: ModelSpec, nested: bool) -> None:
    """A number is a float64 first, however it comes, alone or beside others; or is refused."""
    seen: Any = [x, beside]
    shape = spec.observation.shape if nested else (2,)
    seen, other = (np.array(v, dtype=object).reshape(shape).tolist() for v in (seen, [0.5, 0.5]))
    row = {**ROW, "observation": seen, "next_observation": seen, "reward": x}
    plain = {**ROW, "observation": other, "next_observation": other}
    with np.errstate(over="ignore"):
        expected = np.array([[x, beside]], dtype=np.float64).astype(np.float32)
    for before in range(2):
        rows = [{**plain, "timestep": t} for t in range(before)] + [{**row, "timestep": before}]
        body = json.dumps({"transitions": rows}).encode()
        found = fast(body, spec)
        if not np.isfinite(expected).all():
            assert found is None
            with pytest.raises(NonFinite):
                general(body, spec)
            continue
        assert found is not None or nested
        assert_same(found or general(body, spec), general(body, spec))
        taken = general(body, spec).take([before])
        for array in (taken.observation, taken.next_observation, observations([seen], spec)):
            assert array.tobytes() == expected.tobytes()
        assert taken.reward.tolist() == expected[0, :1].tolist()


@pytest.mark.parametrize("spec", WIDE, ids=["vector", "axes"])
def test_arrays_of_integers(spec: ModelSpec) -> None:
    """An array of integers comes to what the same numbers in JSON come to, in any company."""
    seen = np.array([HALFWAY, 1]).reshape(spec.observation.shape)
    rows = [{**ROW, "observation": seen, "next_observation": seen.astype(np.float64)}]
    many = [*rows, {**rows[0], "timestep": 1, "observation": seen.tolist()}]

    assert columns(rows, spec).observation[0].tolist() == [2.0**60, 1.0]
    assert columns(rows, spec).digests()[0] == columns(many, spec).digests()[0]
    for name in ("observation", "next_observation"):
        assert (getattr(columns(many, spec), name) == columns(rows, spec).observation).all()


@pytest.mark.parametrize("count", [1, 2, 300])
def test_what_comes_mostly_is_taken(count: int) -> None:
    """Bodies of actors, with labels and probabilities, or ids with a colon, are decoded so."""
    rows = [
        {**ROW, "timestep": t, "actor_id": "host:1", "label": t % 2, "behavior_prob": 0.5}
        for t in range(count)
    ]
    body = json.dumps({"transitions": rows}).encode()
    found = fast(body)

    assert found is not None
    assert_same(found, general(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"transitions": []}',
        b'{"transitions": [], "transitions": []}',
        b"[" * 10_000,
        b'{"transitions": ' + b"[" * 10_000,
        b'{"transitions": [{"observation": ' + b"[" * 10_000,
        b'{"transitions": [{"tags": ' + b'{"a":' * 10_000,
        b"\xff",
        b"",
    ],
    ids=lambda body: str(body[:40]),
)
def test_no_bodies(body: bytes) -> None:
    """What is deep, twice or nothing is not even begun."""
    assert typed_rows(body, SPEC) is None


@pytest.mark.parametrize("name", sorted(ROW))
def test_a_name_twice(name: str) -> None:
    """A body in which a name is there twice is left to whoever refuses it."""
    text = json.dumps({"transitions": [ROW]})
    twice = text.replace(f'"{name}"', f'"{name}": {json.dumps(ROW[name])}, "{name}"', 1)

    assert typed_rows(text.encode(), SPEC) is not None
    assert typed_rows(twice.encode(), SPEC) is None


@pytest.mark.parametrize("count", [1, 2])
def test_of_other_widths(count: int) -> None:
    """Observations and successors that are not as wide as the model's, first or last."""
    for name in ("observation", "next_observation"):
        for wrong in ([], [0.0], [0.0] * 3):
            for i in {0, count - 1}:
                rows = [{**ROW, "timestep": t} for t in range(count)]
                rows[i][name] = wrong
                assert typed_rows(json.dumps({"transitions": rows}).encode(), SPEC) is None


def test_of_other_spaces() -> None:
    """Models of images, dicts, integers or masks are for the general way."""
    for changes in (
        {"observation": {"shape": [36, 36], "dtype": "uint8"}},
        {
            "observation": {
                "space": {"type": "dict", "spaces": {"x": {"type": "box", "shape": [2]}}}
            }
        },
        {"action_masks": True},
        {"observation": {"space": {"type": "discrete", "n": 3}}},
    ):
        spec = ModelSpec.from_dict({**QUIET, **changes})
        assert typed_rows(json.dumps({"transitions": [ROW]}).encode(), spec) is None
