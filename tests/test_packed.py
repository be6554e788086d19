"""Columns on the wire: the golden bytes, the same content as JSON, and what is refused where."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import ModelSpec
from jormungandr import errors as e
from jormungandr.columns import ARRAYS, Columns, columns
from jormungandr.packed import KNOWN, REQUIRED, pack, unpack
from jormungandr.protocol import LIMITS
from jormungandr.wire import decode_object, encode_transitions

GOLDEN = Path(__file__).parent / "golden" / "columns-1.msgpack"
MEANING = json.loads(GOLDEN.with_suffix(".json").read_text(encoding="utf-8"))
SPEC, ROWS = ModelSpec.from_dict(MEANING["spec"]), MEANING["transitions"]


def same(found: Columns, expected: Columns) -> None:
    """Assert that two batches are equal bit for bit."""
    assert (found.actors, found.episodes) == (expected.actors, expected.episodes)
    for name in ARRAYS:
        mine, other = getattr(found, name), getattr(expected, name)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        assert mine.tobytes() == other.tobytes(), name
    assert [found.tags_of(i) for i in range(len(found))] == [
        expected.tags_of(i) for i in range(len(expected))
    ]
    assert found.digests().tolist() == expected.digests().tolist()


def through_json(rows: Any, spec: ModelSpec) -> Columns:
    """Return what a service makes of rows that come as JSON."""
    return columns(decode_object(encode_transitions(rows))["transitions"], spec)


# -- golden bytes ---------------------------------------------------------------------------------


def test_golden_bytes_mean_what_is_written_beside_them() -> None:
    """The committed bytes are these transitions, for good."""
    same(unpack(GOLDEN.read_bytes(), SPEC, MEANING["generation"]), columns(ROWS, SPEC))


def test_golden_bytes_are_written() -> None:
    """What we write of these transitions are the committed bytes, for good."""
    assert pack(columns(ROWS, SPEC), MEANING["generation"]) == GOLDEN.read_bytes()


# -- the same content as JSON ---------------------------------------------------------------------

OBSERVATIONS: dict[str, tuple[dict[str, Any], Callable[[np.random.Generator], Any]]] = {
    "vector": ({"shape": [3]}, lambda r: r.standard_normal(3).tolist()),
    "axes": ({"shape": [2, 3]}, lambda r: r.standard_normal((2, 3)).astype(np.float32)),
    "bytes": ({"shape": [5], "dtype": "uint8"}, lambda r: r.integers(0, 256, 5).tolist()),
    "image": (
        {"shape": [36, 37], "dtype": "uint8"},
        lambda r: r.integers(0, 256, (36, 37)).astype(np.uint8),
    ),
    "stack": (
        {"shape": [2], "space": {"type": "box", "shape": [2]}, "frame_stack": 3},
        lambda r: r.standard_normal((3, 2)).tolist(),
    ),
    "discrete": ({"space": {"type": "discrete", "n": 4, "start": 2}}, lambda r: r.integers(2, 6)),
    "dict": (
        {
            "space": {
                "type": "dict",
                "spaces": {
                    "b": {"type": "multi_binary", "shape": [2]},
                    "a": {"type": "multi_discrete", "nvec": [2, 3]},
                    "c": {"type": "box", "shape": [2]},
                },
            }
        },
        lambda r: {
            "c": r.standard_normal(2).tolist(),
            "a": [int(r.integers(2)), int(r.integers(3))],
            "b": r.integers(0, 2, 2).tolist(),
        },
    ),
}
IDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=32
) | st.sampled_from(["a", "b"])
TAGS = st.none() | st.dictionaries(
    st.from_regex("[a-z][a-z0-9_]{0,5}", fullmatch=True), IDS.map(lambda v: v[:16]), max_size=3
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def batches(draw: st.DrawFn) -> tuple[ModelSpec, list[dict[str, Any]]]:
    """Draw a specification of any kind, and transitions with every optional field or without."""
    observation, shown = OBSERVATIONS[draw(st.sampled_from(sorted(OBSERVATIONS)))]
    masks, classes = draw(st.booleans()), draw(st.booleans())
    spec = ModelSpec.from_dict(
        {
            "observation": observation,
            "actions": 3,
            "action_masks": masks,
            **({"auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1}} if classes else {}),
        }
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        end = draw(st.booleans())
        row = {
            "actor_id": draw(IDS),
            "episode_id": draw(IDS),
            "timestep": draw(st.integers(0, 2**53 - 1)),
            "split": draw(st.sampled_from(["train", "validation"])),
            "policy_version": draw(st.integers(-1, 2**53 - 1)),
            "observation": shown(rng),
            "action": draw(st.integers(0, 2)),
            "reward": draw(FLOATS),
            "next_observation": shown(rng),
            "terminated": end,
            "truncated": draw(st.booleans()),
            "behavior_prob": draw(st.none() | st.floats(2**-126, 1, width=32)),
        }
        if classes:
            row["label"] = draw(st.sampled_from([None, 0, 1, "UP"]))
        if masks and not (end and draw(st.booleans())):
            row["next_action_mask"] = draw(st.sampled_from([[True, False, True], [0, 1, 0]]))
        if draw(st.booleans()):
            row |= {"timestep": 0, "tags": draw(TAGS)}
        rows.append(row)
    return spec, rows


@settings(max_examples=150)
@given(batch=batches())
def test_columns_are_the_same_content_as_json(batch: tuple[ModelSpec, list[Any]]) -> None:
    """Rows through columns and rows through JSON are equal bit for bit, with one digest."""
    spec, rows = batch
    found = unpack(pack(columns(rows, spec)), spec)

    same(found, columns(rows, spec))
    same(found, through_json(rows, spec))
    same(unpack(pack(found, 3), spec, 3), found)


def test_columns_that_say_nothing_are_left_out() -> None:
    """Without labels, probabilities and masks there are no columns of them."""
    spec = ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 3})
    row = {k: v for k, v in ROWS[0].items() if k in REQUIRED or k.endswith("_id")}
    body = msgspec.msgpack.decode(pack(columns([row], spec)))

    assert body.keys() == set(REQUIRED)
    same(unpack(pack(columns([row], spec)), spec), columns([row], spec))


@pytest.mark.parametrize("shift", range(8))
def test_any_alignment(shift: int) -> None:
    """Where in memory a body begins makes no difference."""
    body = GOLDEN.read_bytes()
    room = memoryview(bytes(shift) + body)[shift:]

    same(unpack(room, SPEC, 1), columns(ROWS, SPEC))  # type: ignore[arg-type]


# -- what is refused ------------------------------------------------------------------------------


def body(**changes: Any) -> bytes:
    """Return the golden body with fields changed; ... leaves one out."""
    fields = {**msgspec.msgpack.decode(GOLDEN.read_bytes()), **changes}
    return msgspec.msgpack.encode({k: v for k, v in fields.items() if v is not ...})


def column(name: str, values: list[Any], dtype: str | None = None) -> dict[str, bytes]:
    """Return one column's bytes under its name."""
    return {name: np.array(values).astype(dtype or ARRAYS[name]).tobytes()}


NAN, INF = float("nan"), float("inf")
#: What of the golden transitions is changed, and how the fault is named; B is 3, A is 3, D is 2.
BAD: list[tuple[dict[str, Any], type[e.JormungandrError], str]] = [
    *[
        ({name: gone}, e.MissingField, name if name in REQUIRED[:4] else f"transitions.{name}")
        for name in (*REQUIRED, "next_action_mask")
        for gone in (..., None)
    ],
    *[
        ({name: value}, e.InvalidType, name if name in REQUIRED[:4] else f"transitions.{name}")
        for name in sorted(KNOWN)
        for value in (True, 1.5, {}, [1.5], msgspec.msgpack.Ext(5, b"x"))
    ],
    *[({name: "text"}, e.InvalidType, f"transitions.{name}") for name in ARRAYS],
    *[({name: [0, 1, 2]}, e.InvalidType, f"transitions.{name}") for name in ARRAYS],
    ({"actor_id": ["a"]}, e.UnknownField, "transitions.actor_id"),
    ({"Format": 1}, e.UnknownField, "transitions.Format"),
    ({"format": 2}, e.InvalidValue, "format"),
    ({"format": 0}, e.InvalidValue, "format"),
    ({"format": 2**63}, e.InvalidValue, "format"),
    ({"generation": 2}, e.ModelConflict, "generation"),
    ({"count": -1}, e.InvalidValue, "count"),
    ({"count": 4}, e.ShapeMismatch, "transitions.actor"),
    ({"count": 2}, e.ShapeMismatch, "transitions.actor"),
    ({"count": 0}, e.ShapeMismatch, "transitions.actor"),
    ({"count": 4_097}, e.BodyTooLarge, "transitions"),
    ({"count": 2**63}, e.BodyTooLarge, "transitions"),
    ({"shape": []}, e.ShapeMismatch, "shape"),
    ({"shape": [3]}, e.ShapeMismatch, "shape"),
    ({"shape": [2, 1]}, e.ShapeMismatch, "shape"),
    ({"shape": [-2]}, e.ShapeMismatch, "shape"),
    ({"shape": [2**63]}, e.ShapeMismatch, "shape"),
    ({"shape": [1] * 9}, e.InvalidType, "shape"),
    ({"dtype": "float16"}, e.DtypeMismatch, "dtype"),
    ({"dtype": "object"}, e.DtypeMismatch, "dtype"),
    ({"dtype": "<f4"}, e.DtypeMismatch, "dtype"),
    ({"dtype": "float64"}, e.ShapeMismatch, "transitions.observation"),
    *[
        ({name: bytes(size + 1)}, e.ShapeMismatch, f"transitions.{name}")
        for name, size in (("action", 24), ("reward", 12), ("terminated", 3))
    ],
    ({"next_action_mask": bytes(6)}, e.ShapeMismatch, "transitions.next_action_mask"),
    ({"behavior_prob": b""}, e.ShapeMismatch, "transitions.behavior_prob"),
    ({"actors": ["a1"]}, e.InvalidValue, "transitions[1].actor_id"),
    ({"actors": ["a1", "a1"]}, e.InvalidValue, "transitions.actors"),
    ({"actors": ["a1", ""]}, e.InvalidValue, "transitions[1].actor_id"),
    ({"actors": ["a1", "x" * 129]}, e.InvalidValue, "transitions[1].actor_id"),
    ({"actors": ["a1", "a\n"]}, e.InvalidValue, "transitions[1].actor_id"),
    ({"actors": ["a1", "b", "\x9f"]}, e.InvalidValue, "transitions[?].actor_id"),
    ({"actors": ["a1", "b", "c", "d"]}, e.InvalidValue, "transitions.actors"),
    ({"actors": ["a1", 1]}, e.InvalidType, "transitions.actors"),
    ({"actors": ["x"] * 4_097}, e.InvalidType, "transitions.actors"),
    ({"episodes": ["e7", b"e8"]}, e.InvalidType, "transitions.episodes"),
    ({"episodes": ["e7", "\x00"]}, e.InvalidValue, "transitions[2].episode_id"),
    (column("actor", [0, -1, 0]), e.InvalidValue, "transitions[1].actor_id"),
    (column("actor", [0, 2, 0]), e.InvalidValue, "transitions[1].actor_id"),
    (column("episode", [0, 0, 2**31 - 1]), e.InvalidValue, "transitions[2].episode_id"),
    (column("timestep", [0, 1, -1]), e.InvalidValue, "transitions[2].timestep"),
    (column("timestep", [0, 2**53, 1]), e.InvalidValue, "transitions[1].timestep"),
    (column("split", [0, 2, 1]), e.UnknownSplit, "transitions[1].split"),
    (column("policy_version", [0, 0, -2]), e.InvalidValue, "transitions[2].policy_version"),
    (column("action", [0, 3, 0]), e.ActionRange, "transitions[1].action"),
    (column("action", [0, 0, -1]), e.ActionRange, "transitions[2].action"),
    (column("action", [2**62, 0, 0]), e.ActionRange, "transitions[0].action"),
    *[(column("reward", [0, v, 0]), e.NonFinite, "transitions[1].reward") for v in (NAN, INF)],
    *[
        (column(name, [0, 0, 0, 0, v, 0]), e.NonFinite, f"transitions[2].{name}")
        for name in ("observation", "next_observation")
        for v in (NAN, INF, -INF)
    ],
    (column("terminated", [0, 2, 1], "u1"), e.InvalidType, "transitions[1].terminated"),
    (column("truncated", [0, 0, 255], "u1"), e.InvalidType, "transitions[2].truncated"),
    *[
        (column("behavior_prob", [1, v, 1]), e.InvalidValue, "transitions[1].behavior_prob")
        for v in (0, -0.5, 1.5, INF)
    ],
    (column("label", [0, 2, 0]), e.LabelRange, "transitions[1].label"),
    (column("label", [0, 0, -2]), e.LabelRange, "transitions[2].label"),
    (
        column("next_action_mask", [1, 0, 1, 0, 3, 0, 1, 1, 1], "u1"),
        e.InvalidType,
        "transitions[1].next_action_mask",
    ),
    (
        column("next_action_mask", [1, 0, 1, 0, 0, 0, 1, 1, 1], "u1"),
        e.InvalidValue,
        "transitions[1].next_action_mask",
    ),
]


@pytest.mark.parametrize(("changes", "error", "where"), BAD, ids=lambda v: repr(v)[:40])
def test_fault(changes: dict[str, Any], error: type[e.JormungandrError], where: str) -> None:
    """Each fault is refused as the class and at the place that it has as JSON."""
    if "generation" in changes and error is e.InvalidType:
        where = "generation"
    with pytest.raises(e.JormungandrError) as caught:
        unpack(body(**changes), SPEC, 1)

    assert type(caught.value) is error, caught.value
    assert caught.value.where == where
    assert "" not in (caught.value.expected, caught.value.got)


def test_float64_beyond_float32() -> None:
    """What is finite in float64 alone is refused at its place; the rest is cast."""
    wide = {"dtype": "float64", **column("next_observation", [0.5] * 6, "<f8")}
    fine = unpack(body(**wide, **column("observation", [0.1] * 6, "<f8")), SPEC)
    with pytest.raises(e.NonFinite) as caught:
        unpack(body(**wide, **column("observation", [0, 0, 0, 1e39, 0, 0], "<f8")), SPEC)

    assert fine.observation.tobytes() == np.full(6, 0.1, np.float32).tobytes()
    assert caught.value.where == "transitions[1].observation"


@pytest.mark.parametrize(
    ("kind", "values", "where"),
    [
        ("discrete", [[1, 0, 0, 0], [0, 0, 0, 0]], "transitions[1].observation"),
        ("discrete", [[0.5, 0.5, 0, 0], [1, 0, 0, 0]], "transitions[0].observation"),
        ("dict", [[1, 0, 1, 0, 0, 1, 1, 9, 9], [1, 1, 1, 0, 0, 1, 1, 9, 9]], ".a"),
        ("dict", [[1, 0, 1, 0, 0, 1, 1, 9, 9], [1, 0, 1, 0, 0, 1, 2, 9, 9]], ".b"),
    ],
)
def test_encoded_observations_are_what_their_space_allows(
    kind: str, values: list[list[float]], where: str
) -> None:
    """A vector that is no one-hot, or no bits, where its space has such is refused by its part."""
    observation, shown = OBSERVATIONS[kind]
    spec = ModelSpec.from_dict({"observation": observation, "actions": 3})
    rng = np.random.default_rng(0)
    keep = {k: v for k, v in ROWS[0].items() if k not in ("label", "next_action_mask")}
    rows = [
        {**keep, "timestep": t, "observation": shown(rng), "next_observation": shown(rng)}
        for t in range(2)
    ]
    fields = msgspec.msgpack.decode(pack(columns(rows, spec)))
    fields["observation"] = np.array(values, "<f4").tobytes()
    with pytest.raises(e.InvalidValue) as packed:
        unpack(msgspec.msgpack.encode(fields), spec)
    with pytest.raises(e.InvalidValue) as rowwise:
        columns([{**r, "observation": v} for r, v in zip(rows, values, strict=True)], spec)

    assert packed.value.where == rowwise.value.where
    assert packed.value.where.endswith(where)


def test_images_have_their_own_dtype_and_shape() -> None:
    """Floats, and the same bytes in another shape, are no image."""
    spec = ModelSpec.from_dict({"observation": OBSERVATIONS["image"][0], "actions": 3})
    keep = {k: v for k, v in ROWS[0].items() if k not in ("label", "next_action_mask")}
    image = np.zeros((36, 37), np.uint8)
    good = pack(columns([{**keep, "observation": image, "next_observation": image}], spec))
    fields = msgspec.msgpack.decode(good)
    for change, error in (
        ({"dtype": "float32"}, e.DtypeMismatch),
        ({"shape": [37, 36]}, e.ShapeMismatch),
        ({"shape": [36 * 37]}, e.ShapeMismatch),
    ):
        with pytest.raises(error):
            unpack(msgspec.msgpack.encode({**fields, **change}), spec)


def test_mask_of_a_model_without() -> None:
    """Masks are refused where the model has none."""
    spec = ModelSpec.from_dict({**MEANING["spec"], "action_masks": False})
    with pytest.raises(e.UnknownField) as caught:
        unpack(GOLDEN.read_bytes(), spec)

    assert caught.value.where == "transitions.next_action_mask"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x90",
        b"\x01",
        b"{}",
        b"\x81\x01\x01",
        b"\x81\xc4\x01a\x01",
        b"\x81\xa1\xff\x01",
        b"\x81\xa1a",
        b"\x80\x80",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\xff\xff\xff\xff",
        b"\x81\xa1a" + b"\x91" * 100_000,
        b"\x81\xa1a" + b"\x81\xa1a" * 100_000,
        GOLDEN.read_bytes()[:-1],
        GOLDEN.read_bytes() + b"\x00",
    ],
    ids=lambda given: repr(given)[:24],
)
def test_malformed(given: bytes) -> None:
    """What is no whole MessagePack map of names is malformed, however deep or long."""
    with pytest.raises(e.Malformed) as caught:
        unpack(given, SPEC)

    assert caught.value.status == 400


@pytest.mark.parametrize("head", [b"\x82", b"\xde\x00\x02", b"\xdf\x00\x00\x00\x02"], ids=repr)
def test_a_name_twice(head: bytes) -> None:
    """A parser would keep the last of two, and another reader the first."""
    with pytest.raises(e.Malformed, match="each name once"):
        unpack(head + b"\xa6format\x01" * 2, SPEC)
    with pytest.raises(e.MissingField, match="dtype"):
        unpack(head + b"\xa6format\x01\xa5count\x01", SPEC)


def test_too_much_is_not_written() -> None:
    """More rows or bytes than a request may have are refused before they travel."""
    rows = [{**ROWS[0], "timestep": t} for t in range(LIMITS["transitions_per_request"] + 1)]
    many = columns(rows, SPEC)
    with pytest.raises(e.BodyTooLarge, match="transitions: expected at most 4096, got 4097"):
        pack(many)
    wide = ModelSpec.from_dict({"observation": {"shape": [65_536]}, "actions": 3})
    row = {k: v for k, v in ROWS[0].items() if k not in ("label", "next_action_mask")}
    row["observation"] = row["next_observation"] = np.zeros(65_536, np.float32)
    for count in (16, 17):  # 8 MiB are sixteen of them, without all that is said about them
        given = columns([{**row, "timestep": t} for t in range(count)], wide)
        with pytest.raises(e.BodyTooLarge, match="body: expected at most 8388608 bytes"):
            pack(given)
    assert len(pack(columns([row] * 15, wide))) < LIMITS["columns_body_bytes"]


def outcome_of(body: bytes) -> str:
    """Return what becomes of a body: it is read, or refused with a status and a code."""
    try:
        unpack(body, SPEC, 1)
    except e.JormungandrError as error:
        return f"{error.status} {error.code}"
    return "read"


def test_ten_thousand_mutations() -> None:
    """Bytes flipped, cut or doubled are read, or refused in our own words; nothing crashes."""
    good, rng = GOLDEN.read_bytes(), random.Random(7)
    outcomes: dict[str, int] = {}
    for _ in range(10_000):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            at, how = rng.randrange(len(data)), rng.randrange(5)
            if how == 0:
                data[at] = rng.randrange(256)
            elif how == 1:
                data[at] ^= 1 << rng.randrange(8)
            elif how == 2:
                del data[at : at + rng.randrange(1, 9)]
            elif how == 3:
                data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(1, 9)]
            else:
                data[at : at + 1] = rng.choice([b"\xc0", b"\xdf\xff\xff\xff\xff", b"\xff" * 8])
        outcome = outcome_of(bytes(data))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    assert all(kind == "read" or kind.startswith("4") for kind in outcomes), outcomes
    assert len(outcomes) >= 12, outcomes
    assert outcomes["read"] > 500
