"""JSON bodies: what a client encodes is decoded to the same bits, or refused in the same words."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Label, ModelSpec, Transition
from jormungandr.admission import check_labels
from jormungandr.columns import ARRAYS, columns
from jormungandr.errors import (
    InvalidType,
    InvalidValue,
    Malformed,
    MissingField,
    NonFinite,
    UnknownField,
)
from jormungandr.wire import decode_object, encode, encode_labels, encode_transitions, fields

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


def same(spec: ModelSpec, sent: Any, local: Any) -> None:
    """Assert that what comes out of the wire is what the learner would take in process."""
    there = columns(decode_object(encode_transitions(sent))["transitions"], spec)
    here = columns(local, spec)
    assert (there.actors, there.episodes) == (here.actors, here.episodes)
    for name in ARRAYS:
        assert getattr(there, name).tobytes() == getattr(here, name).tobytes(), name
    assert there.digests().tolist() == here.digests().tolist()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"label": "UP"},
        {"label": 0, "behavior_prob": 0.25},
        {"observation": np.array([0.1, 1 / 3], dtype=np.float32)},
        {"observation": np.array([0.1, 1 / 3], dtype=">f8"), "reward": np.float32(0.1)},
        {"observation": [np.float32(0.1), np.int8(3)], "action": np.int64(2)},
        {"observation": (0.1, 1), "next_observation": collections.deque([1, 2])},
        {"observation": range(2), "reward": np.longdouble(0.5)},
        {"observation": np.arange(4.0)[::2], "reward": -0.0},
        {"terminated": np.True_, "timestep": np.uint64(2**53 - 1)},
        {"actor_id": np.str_("ψ"), "episode_id": 'quote " and \\ and \u2028'},
        {"reward": 3.4028234663852886e38, "behavior_prob": np.float32(1e-30)},
        {"reward": 1e-45, "observation": [5e-324, -1e-40]},
    ],
    ids=range(13),
)
def test_round_trip(small: Small, step: Step, change: dict[str, Any]) -> None:
    """A transition crosses JSON with every bit, in whatever form it is given."""
    row = step(0, **change)
    spec = small()

    for form in ([row], [Transition(**row)], [collections.UserDict(row)], (r for r in [row])):
        same(spec, form, [row])
    same(spec, columns([row], spec), [row])


@settings(max_examples=50)
@given(
    x=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
    reward=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_every_float32_survives(small: Small, step: Step, x: list[float], reward: float) -> None:
    """Every finite float32 crosses JSON bit for bit."""
    row = step(0, observation=x[:2], next_observation=np.array(x[2:], np.float32), reward=reward)
    same(small(), [row], [row])


def test_labels_round_trip(small: Small) -> None:
    """Labels cross as structs or mappings, by index or name."""
    row = {"actor_id": np.str_("a"), "episode_id": "e", "timestep": np.int64(3), "label": "UP"}
    for form in ([row], [Label(**row)], (r for r in [row])):  # type: ignore[arg-type]
        body = decode_object(encode_labels(form))  # type: ignore[arg-type]
        assert check_labels(body["labels"], small()) == [(("a", "e", 3), 1)]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "change",
    [
        {"reward": NAN},
        {"reward": -INF},
        {"reward": np.float32(INF)},
        {"reward": np.longdouble("1e400")},
        {"observation": [0.0, NAN]},
        {"observation": [0.0, np.float32(NAN)]},
        {"next_observation": np.array([0.0, INF])},
        {"next_observation": np.array(["1e400", "0"], dtype=np.longdouble)},
        {"behavior_prob": NAN},
    ],
    ids=range(9),
)
def test_what_json_has_no_word_for(step: Step, change: dict[str, Any]) -> None:
    """NaN and infinity would become null on the way; they are refused where they are, by place."""
    with pytest.raises(NonFinite) as caught:
        encode_transitions([step(0), step(1, **change)])

    assert caught.value.where == f"transitions[1].{next(iter(change))}"


@pytest.mark.parametrize(
    "given", [None, 5, "x", b"x", {}, set(), object(), np.array(5), [None], [5]]
)
def test_not_a_list(given: Any) -> None:
    """Something that is no list of transitions or labels is refused before anything is sent."""
    with pytest.raises(InvalidType, match=r"^transitions(\[0\])?: expected an? (list|object)"):
        encode_transitions(given)
    if not isinstance(given, list):
        with pytest.raises(InvalidType, match=r"^labels: expected a list of labels"):
            encode_labels(given)


@pytest.mark.parametrize(
    "value",
    [object(), 1j, (x for x in (1, 2)), 10**5000, [[object()]]],
    ids=range(5),
)
def test_what_json_cannot_carry(step: Step, value: Any) -> None:
    """An object that has no JSON is refused in our own words."""
    with pytest.raises(InvalidType, match=r"^transitions: expected values that JSON can carry"):
        encode_transitions([step(0, observation=value)])
    with pytest.raises(InvalidType, match=r"^labels: expected values that JSON can carry"):
        encode_labels([{"label": value}])


def test_lone_surrogates(step: Step) -> None:
    """An id that is no UTF-8 is refused by the client as by the learner."""
    with pytest.raises(InvalidValue, match=r"^transitions: expected valid UTF-8"):
        encode_transitions([step(0, actor_id="\ud800")])
    with pytest.raises(InvalidValue, match=r"^labels: expected valid UTF-8"):
        encode_labels([{"actor_id": "\ud800"}])


def test_encode_numpy() -> None:
    """Arrays and scalars of NumPy are lists and numbers of JSON."""
    body = {"a": np.arange(4).reshape(2, 2), "b": np.float32(0.5), "c": np.True_, "d": np.int8(3)}

    assert json.loads(encode(body)) == {"a": [[0, 1], [2, 3]], "b": 0.5, "c": True, "d": 3}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b'"x"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"a":1}x',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":' + b"1" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{'a':1}",
        b'{"a":1,}',
    ],
    ids=lambda body: repr(body)[:20],
)
def test_malformed(body: bytes) -> None:
    """A body that is no JSON object is malformed, however deep or long."""
    with pytest.raises(Malformed, match=r"^body: expected a JSON object") as caught:
        decode_object(body)

    assert caught.value.status == 400


def test_a_name_twice_is_refused() -> None:
    """A parser would keep the last of two, and another reader the first."""
    with pytest.raises(Malformed):
        decode_object(b'{"a": 1, "a": 2}')
    with pytest.raises(Malformed):
        decode_object(b'{"a": [1, {"b": 1, "b": 2}]}')
    assert decode_object(b'{"a:": "b\\":\\\\", "c": [1, {"a:": 2}]}') == {
        "a:": 'b":\\',
        "c": [1, {"a:": 2}],
    }


def test_fields() -> None:
    """Top-level fields are checked by name and type, and a null optional one is absent."""
    required, optional = {"observations": list}, {"epsilon": int | float, "deterministic": bool}
    body = {"observations": [], "epsilon": 0.5, "deterministic": True}

    assert fields(body, required, optional) == body
    assert fields({"observations": [], "epsilon": None}, required, optional) == {"observations": []}


@pytest.mark.parametrize(
    ("body", "error", "where"),
    [
        ({}, MissingField, "observations"),
        ({"observations": None}, MissingField, "observations"),
        ({"observations": {}}, InvalidType, "observations"),
        ({"observations": [], "epsilon": True}, InvalidType, "epsilon"),
        ({"observations": [], "epsilon": "0.1"}, InvalidType, "epsilon"),
        ({"observations": [], "deterministic": 1}, InvalidType, "deterministic"),
        ({"observations": [], "epsilom": 1}, UnknownField, "epsilom"),
    ],
)
def test_bad_fields(body: dict[str, Any], error: type[Exception], where: str) -> None:
    """A field missing, misspelt or of another type is refused by name."""
    with pytest.raises(error) as caught:
        fields(body, {"observations": list}, {"epsilon": int | float, "deterministic": bool})

    assert caught.value.where == where  # type: ignore[attr-defined]


def test_nan_in_a_dict_is_refused_here(step: Step) -> None:
    """A part of a Dict that JSON cannot carry is named before anything is sent."""
    row = step(0, observation={"x": np.array([1.0, np.nan]), "n": 1})

    with pytest.raises(NonFinite, match=r"transitions\[0\]\.observation"):
        encode_transitions([row])
