"""Observations as an environment shows them, as vectors and images: the rule and its checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from jormungandr.columns import columns
from jormungandr.encoding import count, is_single, observations
from jormungandr.errors import (
    BodyTooLarge,
    DtypeMismatch,
    InvalidInput,
    InvalidType,
    InvalidValue,
    MissingField,
    NonFinite,
    ShapeMismatch,
    UnknownField,
)
from jormungandr.spaces import Box, DictSpace, as_gymnasium, from_gymnasium, pixels_first
from jormungandr.spec import ModelSpec
from jormungandr.wire import decode_object, encode

Step = Callable[..., dict[str, Any]]

BOX = spaces.Box(-5, 5, (3,), np.float32)
VECTORS: dict[str, spaces.Space[Any]] = {
    "box": BOX,
    "box of float64": spaces.Box(-5, 5, (2,), np.float64),
    "box of integers": spaces.Box(-5, 5, (4,), np.int32),
    "box of two axes": spaces.Box(-5, 5, (2, 3), np.float32),
    "box of three axes": spaces.Box(-5, 5, (2, 1, 3), np.float32),
    "small pixels": spaces.Box(0, 255, (5, 5, 2), np.uint8),
    "discrete": spaces.Discrete(4),
    "discrete from -1": spaces.Discrete(3, start=-1),
    "bits": spaces.MultiBinary(3),
    "bits of two axes": spaces.MultiBinary([2, 2]),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-discrete from 5": spaces.MultiDiscrete([2, 3], start=[5, -2]),
    "multi-discrete of one": spaces.MultiDiscrete([4]),
    "dict": spaces.Dict(
        {"z": BOX, "a": spaces.Discrete(3), "m": spaces.MultiBinary(2), "b": spaces.Box(0, 1, (1,))}
    ),
    "nested dict": spaces.Dict(
        {
            "outer": spaces.Dict({"x": spaces.MultiDiscrete([2, 2]), "w": BOX}),
            "grid": spaces.Box(0, 255, (3, 4), np.uint8),
        }
    ),
}
IMAGES: dict[str, spaces.Box] = {
    "channels last": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (4, 36, 37), np.uint8),
    "one channel": spaces.Box(0, 255, (36, 38), np.uint8),
}
ALL = {**VECTORS, **IMAGES}


class Shows(gym.Env[Any, Any]):
    """An environment of which only the spaces matter."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)


def spec_of(space: spaces.Space[Any], **fields: Any) -> ModelSpec:
    """Return the specification of an environment that shows a space."""
    return ModelSpec.for_env(Shows(space), **fields)


def drawn(space: spaces.Space[Any], size: int) -> list[Any]:
    """Return the same observations each time."""
    space.seed(5)
    return [space.sample() for _ in range(size)]


def batched(space: spaces.Space[Any], rows: list[Any]) -> Any:
    """Return rows as Gymnasium's vector environments show them: one array, or a dict of arrays."""
    if isinstance(space, spaces.Dict):
        return {k: batched(part, [row[k] for row in rows]) for k, part in space.spaces.items()}
    return np.stack(rows) if np.ndim(rows[0]) else np.array(rows)


def as_json(value: Any) -> Any:
    """Return an observation as plain JSON has it."""
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def flat(space: spaces.Space[Any], rows: list[Any]) -> NDArray[Any]:
    """The oracle: Gymnasium's own flattening; an image stays."""
    if any(space is image for image in IMAGES.values()):
        return np.stack(rows)
    return np.stack([spaces.flatten(space, row) for row in rows]).astype(np.float32)


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_rule_is_gymnasiums(space: spaces.Space[Any]) -> None:
    """Rows, batches, JSON, packed pixels, one alone, and what is encoded: all the same array."""
    spec, rows = spec_of(space), drawn(space, 3)
    expected = flat(space, rows)
    over_the_wire = decode_object(encode({"observations": batched(space, rows)}))["observations"]
    forms = {
        "rows": rows,
        "batch": batched(space, rows),
        "JSON": json.loads(json.dumps([as_json(row) for row in rows])),
        "wire, rows": decode_object(encode({"observations": rows}))["observations"],
        "wire, batch": over_the_wire,
        "encoded": expected,
        "encoded rows": list(expected),
        "encoded JSON": expected.tolist(),
        "generator": (row for row in rows),
    }
    for name, form in forms.items():
        if name != "generator":
            assert not is_single(form, spec.observation), name
            assert count(form, spec.observation) == 3, name
        found = observations(form, spec)
        assert found.dtype == spec.observation.stored_dtype, name
        assert found.shape == (3, *spec.observation.stored_shape), name
        assert found.tolist() == expected.tolist(), name
    for form in (rows[1], as_json(rows[1]), decode_object(encode({"o": rows[1]}))["o"]):
        assert is_single(form, spec.observation)
        assert count(form, spec.observation) == 1
        assert observations(form, spec).tolist() == expected[1:2].tolist()


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_description_is_the_space(space: spaces.Space[Any]) -> None:
    """A space survives its description, which survives JSON, and sizes are Gymnasium's."""
    spec = spec_of(space)
    o = spec.observation
    back = as_gymnasium(o.described)

    assert ModelSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert from_gymnasium(back) == o.described
    assert spaces.flatdim(back) == spaces.flatdim(space) == o.described.size
    assert all(back.contains(row) or isinstance(space, spaces.Box) for row in drawn(space, 3))


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_transitions_hold_them(space: spaces.Space[Any], step: Step) -> None:
    """Both observations of a transition take the same way, in process and from JSON."""
    spec, rows = spec_of(space), drawn(space, 4)
    given = [step(i, observation=rows[i], next_observation=rows[i + 1], action=0) for i in range(3)]
    parsed = decode_object(encode({"transitions": given}))["transitions"]
    expected = flat(space, rows)
    here, there = columns(given, spec), columns(parsed, spec)

    assert here.observation.tolist() == expected[:3].tolist()
    assert here.next_observation.tolist() == expected[1:].tolist()
    assert here.digests().tolist() == there.digests().tolist()
    assert columns(here, spec).digests().tolist() == here.digests().tolist()


def test_only_measurements_have_moments() -> None:
    """Bits and one-hots stay 0 and 1 whatever the moments of their column are."""
    spec = spec_of(VECTORS["dict"])  # a: 3 one-hot, b: 1, m: 2 bits, z: 3
    mean, var = spec.observation.latched(np.full(9, 7.0), np.full(9, 4.0))

    assert mean.tolist() == [0, 0, 0, 7, 0, 0, 7, 7, 7]
    assert var.tolist() == [1, 1, 1, 4, 1, 1, 4, 4, 4]


@pytest.mark.parametrize("frames", [1, 3])
def test_pixels_come_first(frames: int) -> None:
    """Channels and frames are one axis, frame by frame, in any layout."""
    rng = np.random.default_rng(0)
    first = rng.integers(256, size=(2, frames, 4, 36, 37), dtype=np.uint8)  # B, k, C, H, W
    last = np.moveaxis(first, 2, -1)
    expected = np.concatenate([first[:, k] for k in range(frames)], axis=1)
    cut = slice(0, None) if frames > 1 else 0

    assert np.array_equal(pixels_first(first[:, cut], (4, 36, 37)), expected)
    assert np.array_equal(pixels_first(last[:, cut], (36, 37, 4)), expected)
    gray = pixels_first(first[:, cut, 1] if frames > 1 else first[:, 0, 1], (36, 37))
    assert np.array_equal(gray, first[:, :, 1])


def test_stacked_frames() -> None:
    """Stacks are taken as stacks or flat; a vector's frames lie one after another."""
    spec = spec_of(BOX, observation={"frame_stack": 2})
    stack = np.arange(6, dtype=np.float32).reshape(2, 3)

    assert (spec.observation.shown_shape, spec.observation.stored_shape) == ((2, 3), (6,))
    assert observations(stack, spec).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert observations(stack.tolist(), spec).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert observations(np.stack([stack, -stack]), spec).tolist()[1] == [-0, -1, -2, -3, -4, -5]
    assert observations([stack.ravel()], spec).tolist() == [[0, 1, 2, 3, 4, 5]]
    with pytest.raises(
        ShapeMismatch, match=r"observations: expected \(B, 2, 3\).*the newest 2 are"
    ):
        observations(np.zeros((1, 3)), spec)


REFUSED: list[tuple[str, Any, type[InvalidInput], str]] = [
    ("discrete", [4], InvalidValue, "observations[0]: expected 0..3"),
    ("discrete", [0, -1], InvalidValue, "observations[1]: expected 0..3"),
    ("discrete", [0.0], DtypeMismatch, "observations: expected integers"),
    ("discrete", [True], InvalidType, "observations[0]: expected an integer"),
    ("discrete", ["1"], ShapeMismatch, "observations[0]"),
    ("discrete", [None], DtypeMismatch, "observations[0]"),
    ("discrete", np.array([[1, 0]]), ShapeMismatch, "observations"),
    ("discrete from -1", 2, InvalidValue, "observations[0]: expected -1..1"),
    ("bits", [[0, 1, 2]], InvalidValue, "observations[0]: expected bits"),
    ("bits", [[0, 1]], ShapeMismatch, "observations[0]"),
    ("multi-discrete", [[0, 3]], InvalidValue, "observations[0]: expected [0..1, 0..2]"),
    ("multi-discrete", [[0.5, 1.0]], DtypeMismatch, "observations"),
    ("multi-discrete", [[0, 1, 1]], ShapeMismatch, "observations[0]"),
    ("box of two axes", [[[1, 2, 3], [4, 5]]], ShapeMismatch, "observations[0]"),
    ("box of two axes", [[[1, 2, 3], [4, 5, "6"]]], DtypeMismatch, "observations[0]"),
    ("box of two axes", [[[1, 2, 3], [4, 5, 1e39]]], NonFinite, "observations[0]"),
    ("box of two axes", [[1.0, 2.0]], ShapeMismatch, "observations[0]"),
    ("dict", [{}], MissingField, "observations[0].a"),
    ("dict", {}, MissingField, "observations[0].a"),
    ("dict", {"a": 0, "b": [0.5], "m": [0, 1]}, MissingField, "observations[0].z"),
    ("dict", [7], ShapeMismatch, "observations"),
    (
        "dict",
        [{"a": 0, "b": [0.5], "m": [0, 1], "z": [1, 2, 3]}, 7],
        InvalidType,
        "observations[1]",
    ),
    (
        "dict",
        [{"a": 0, "b": [0.5], "m": [0, 1], "z": [1, 2, 3], "y": 1}],
        UnknownField,
        "observations[0].y",
    ),
    (
        "dict",
        [{"a": 9, "b": [0.5], "m": [0, 1], "z": [1, 2, 3]}],
        InvalidValue,
        "observations[0].a",
    ),
    (
        "dict",
        {"a": [0, 1], "b": [[0.5]], "m": [[0, 1]] * 2, "z": [[1, 2, 3]] * 2},
        ShapeMismatch,
        "observations",
    ),
    (
        "nested dict",
        [{"grid": [[0] * 4] * 3, "outer": {"x": [0, 5], "w": [1, 2, 3]}}],
        InvalidValue,
        "observations[0].outer.x",
    ),
    ("one channel", [[[256] * 38] * 36], InvalidValue, "observations[0]: expected 0..255"),
    ("one channel", [[[0.5] * 38] * 36], DtypeMismatch, "observations[0]"),
    ("one channel", np.zeros((1, 36, 38)), DtypeMismatch, "observations[0]"),
    ("one channel", np.zeros((1, 38, 36), np.uint8), ShapeMismatch, "observations"),
    ("one channel", {"uint8": "AAAA", "shape": [1, 36, 38]}, InvalidValue, "observations"),
    ("one channel", {"uint8": "A?", "shape": [1]}, InvalidValue, "observations"),
    ("one channel", {"uint8": 7, "shape": [1]}, InvalidValue, "observations"),
    ("one channel", {"pixels": "AAAA"}, InvalidType, "observations"),
    ("box", {"x": [1, 2, 3]}, InvalidType, "observations"),
    # Packed arrays: the shape is a list of as many axes as an array may have.
    ("discrete", {"uint8": "AA==", "shape": []}, InvalidValue, "observations.shape: expected 1.."),
    ("box", {"uint8": "AA==", "shape": None}, InvalidValue, "observations.shape: expected a list"),
    ("box", {"uint8": "AAAA", "shape": 3}, InvalidValue, "observations.shape: expected a list"),
    ("bits", {"uint8": "AAAA", "shape": [-1]}, InvalidValue, "observations.shape"),
    ("bits", {"uint8": "AAAA", "shape": [3.0]}, InvalidValue, "observations.shape"),
    ("bits", {"uint8": "AAAA", "shape": [True, 3]}, InvalidValue, "observations.shape"),
    ("bits", {"uint8": "AAAA", "shape": "3"}, InvalidValue, "observations.shape"),
    ("bits", {"uint8": "AAAA", "shape": [2**40]}, InvalidValue, "observations: expected the base"),
    ("bits", {"uint8": "", "shape": [0, 2**70]}, InvalidValue, "observations: expected the base"),
    ("box", {"uint8": "AA==", "shape": [1] * 40}, InvalidValue, "observations.shape: expected 1.."),
    # What is no batch of the space.
    ("bits", {}, InvalidType, "observations: expected arrays"),
    ("nested dict", {"grid": 1}, MissingField, "observations.outer"),
    ("nested dict", {"grid": 1, "outer": 2}, InvalidType, "observations.grid: expected a batch"),
    # An unsigned integer beyond int64 is not the negative one of the same bits.
    ("discrete from -1", [2**64 - 1], InvalidValue, "observations[0]: expected -1..1"),
    (
        "multi-discrete from 5",
        np.array([[5, 2**64 - 2]], np.uint64),
        InvalidValue,
        "observations[0]: expected [5..6, -2..0]",
    ),
    # Flat vectors that no observation becomes, and integers beside them.
    ("discrete", [[0.0, 0.5, 0.5, 0.0]], InvalidValue, "observations[0]: expected one-hots"),
    ("discrete", [[0.0, 1.0, 1.0, 0.0]], InvalidValue, "observations[0]: expected one-hots"),
    ("discrete", [1, [0, 1, 0, 0]], ShapeMismatch, "observations[1]: expected (1,), as the first"),
    ("multi-discrete", [[1, 1, 0, 0, 0]], InvalidValue, "observations[0]: expected one-hots"),
    ("dict", [[0, 2, 0, 0.5, 0, 1, 1, 2, 3]], InvalidValue, "observations[0].a: expected one-hots"),
    ("dict", [[0, 1, 0, 0.5, 0, 3, 1, 2, 3]], InvalidValue, "observations[0].m: expected bits"),
    (
        "nested dict",
        np.array([[*[7.0] * 12, 1, 2, 3, 1, 0, 0, 0]]),
        InvalidValue,
        "observations[0].outer.x: expected one-hots",
    ),
]


@pytest.mark.parametrize(("name", "given", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refused(name: str, given: Any, error: type[InvalidInput], text: str) -> None:
    """What does not fit its space is refused by the class that says why, at its place."""
    with pytest.raises(InvalidInput) as caught:
        observations(given, spec_of(ALL[name]))

    assert type(caught.value) is error
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"space": {"type": "text"}}, "observation.space"),
        ({"space": {"type": "discrete"}}, "observation.space.n"),
        ({"space": {"type": "discrete", "n": 0}}, "observation.space"),
        ({"space": {"type": "discrete", "n": 3}, "frame_stack": 2}, "observation.frame_stack"),
        ({"space": {"type": "discrete", "n": 3}, "shape": [4]}, "observation.shape"),
        ({"space": {"type": "discrete", "n": 3}, "dtype": "uint8"}, "observation.dtype"),
        ({"space": {"type": "discrete", "n": 3}, "features": ["x"]}, "observation.features"),
        ({"space": {"type": "dict", "spaces": {}}}, "observation.space"),
        (
            {
                "space": {"type": "dict", "spaces": {"i": {"type": "box", "shape": [1]}}},
                "shape": [2],
            },
            "observation.shape",
        ),
        ({"shape": [512, 512, 3], "dtype": "uint8"}, "observation.shape"),
        ({"shape": [84, 84], "dtype": "uint8", "features": ["x"]}, "observation.features"),
        ({"space": {"type": "box", "shape": []}}, "observation.space.shape"),
        ({"space": {"type": "box", "shape": [1] * 17}}, "observation.space.shape"),
        ({"space": {"type": "multi_binary", "shape": []}}, "observation.space.shape"),
        ({"space": {"type": "multi_discrete", "nvec": []}}, "observation.space.nvec"),
        ({"space": {"type": "multi_discrete", "nvec": [2, 2**70]}}, "observation.space.nvec[1]"),
        (
            {"space": {"type": "multi_discrete", "nvec": [2], "start": [1, 2]}},
            "observation.space.start",
        ),
        (
            {"space": {"type": "multi_discrete", "nvec": [2, 2], "start": [0, 2**63 - 1]}},
            "observation.space.start[1]",
        ),
        ({"space": {"type": "discrete", "n": 2, "start": -(2**63) - 1}}, "observation.space.start"),
        ({"space": {"type": "discrete", "n": 2, "start": 2**63 - 1}}, "observation.space.start"),
    ],
)
def test_refused_descriptions(fields: dict[str, Any], text: str) -> None:
    """A description that contradicts itself, or is too large, is refused by its path."""
    with pytest.raises(InvalidInput) as caught:
        ModelSpec.from_dict({"observation": fields, "actions": 2})

    assert caught.value.where.startswith(text)


def test_the_ends_of_int64_are_integers_too() -> None:
    """What Gymnasium counts with can be counted from, and is told apart from what wraps to it."""
    for start in (-(2**63), 2**63 - 2):
        spec = spec_of(spaces.Discrete(2, start=start))
        assert observations([start, start + 1], spec).tolist() == [[1, 0], [0, 1]]
        for wrong in (start - 1, start + 2, start % 2**64 if start < 0 else -start, 0):
            with pytest.raises(InvalidInput):
                observations([wrong], spec)


def test_a_shape_of_many_huge_sides_is_not_multiplied_out() -> None:
    """A megabyte of digits is refused before its product is taken, which would need seconds."""

    class Counted(int):
        def __mul__(self, other: object) -> Any:
            raise AssertionError("multiplied")

        __rmul__ = __mul__

    with pytest.raises(InvalidValue, match=r"1\.\.16 numbers"):
        Box(shape=(Counted(2),) * 17)


def dicts_inside_each_other(depth: int) -> dict[str, Any]:
    """Return the description of so many Dicts."""
    space: dict[str, Any] = {"type": "discrete", "n": 2}
    for _ in range(depth):
        space = {"type": "dict", "spaces": {"a": space}}
    return {"observation": {"space": space}, "actions": 2}


def test_dicts_inside_each_other() -> None:
    """Sixteen are taken; more could be made and not be read again, and are refused."""
    spec = ModelSpec.from_dict(dicts_inside_each_other(16))

    assert ModelSpec.from_dict(spec.to_dict()) == spec
    with pytest.raises(InvalidValue, match="at most 16 Dicts inside each other, got 17"):
        ModelSpec.from_dict(dicts_inside_each_other(17))
    with pytest.raises(InvalidInput, match="spec: expected values that JSON has"):
        ModelSpec.from_dict(dicts_inside_each_other(20_000))


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_a_batch_of_none(space: spaces.Space[Any]) -> None:
    """No observations are a batch of none in every form, for images and Dicts too."""
    spec = spec_of(space)
    forms: list[Any] = [[], np.zeros((0, *spec.observation.stored_shape), np.uint8)]
    if isinstance(space, spaces.Dict):
        forms.append(batched_none(space))
    for form in forms:
        assert count(form, spec.observation) == 0
        assert observations(form, spec).shape == (0, *spec.observation.stored_shape)


def batched_none(space: spaces.Dict) -> dict[str, Any]:
    """Return a dict of empty batches."""
    parts = space.spaces.items()
    return {k: batched_none(p) if isinstance(p, spaces.Dict) else [] for k, p in parts}


def test_pixels_of_a_batch_of_none() -> None:
    """The network's form of no images has their channels and sides."""
    for shape, stacked in (((36, 38), 1), ((36, 38), 4), ((40, 36, 3), 2), ((3, 36, 40), 2)):
        batch = np.zeros((5, stacked, *shape), np.uint8)
        assert pixels_first(batch[:0], shape).shape == (0, *pixels_first(batch, shape).shape[1:])


def test_count_is_that_of_the_longest_part() -> None:
    """One part of a dict may not hide how many observations another one has."""
    o = spec_of(VECTORS["nested dict"]).observation
    pair = {"x": [[0, 0]], "w": [[0, 0, 0]] * 9}

    assert count({"grid": [[0] * 12] * 2, "outer": pair}, o) == 9
    assert count({"grid": [[0] * 12] * 2, "outer": 3}, o) == 2
    assert count({"grid": 7, "outer": None}, o) == 1
    assert count(3, spec_of(VECTORS["bits"]).observation) == 1


def test_a_batch_that_would_become_too_large() -> None:
    """Short integers that stand for long vectors are refused before a vector is made of any."""
    large, pair = (
        spaces.Discrete(65_536),
        {"x": spaces.Discrete(65_000), "y": spaces.Box(0, 1, (1,))},
    )
    spec, of_dict = spec_of(large), spec_of(spaces.Dict(pair))
    assert observations([5] * 256, spec).shape == (256, 65_536)
    for values, where in (
        ([5] * 257, "observations: expected at most 256 at a time, got 257"),
        (np.zeros(257, np.int64), "observations: expected at most 256"),
        ({"uint8": "AAAA" * 100, "shape": [300]}, "observations: expected at most 256"),
    ):
        with pytest.raises(BodyTooLarge) as caught:
            observations(values, spec)
        assert str(caught.value).startswith(where)
    with pytest.raises(BodyTooLarge, match="got 100000"):
        observations({"x": [0] * 100_000, "y": [[0.5]]}, of_dict)
    encoded = np.zeros((300, 65_536), np.float32)  # as large as it will be
    encoded[:, 0] = 1
    assert observations(encoded, spec).shape == encoded.shape


@pytest.mark.parametrize("space", ALL.values(), ids=ALL)
def test_lists_without_an_end(space: spaces.Space[Any]) -> None:
    """A list that holds itself, and one a thousand lists deep, are refused, and not followed."""
    endless: list[Any] = []
    endless.append(endless)
    deep: Any = [0]
    for _ in range(1_000):
        deep = [deep]
    for given in (endless, [endless], [[endless]], deep):
        with pytest.raises(InvalidInput):
            observations(given, spec_of(space))


def test_integers_beyond_64_bits() -> None:
    """They are numbers where any are, in axes and in a Dict as well; elsewhere they are refused."""
    x = [[2**64], [1]]
    in_dict = spec_of(spaces.Dict({"x": spaces.Box(-1, 1, (2, 1), np.float32)}))
    for spec, given in (
        (spec_of(spaces.Box(-1, 1, (2, 1), np.float32)), x),
        (in_dict, {"x": x}),
        (in_dict, {"x": [x]}),
    ):
        assert observations(given, spec).tolist() == [[2.0**64, 1.0]]
    for space, wrong in (
        (spaces.Box(-1, 1, (2, 1), np.float32), np.array(x, dtype=object)),
        (spaces.Box(-1, 1, (2, 1), np.float32), [np.array(x, dtype=object)]),
        (spaces.Box(-1, 1, (2, 1), np.float32), [[[2**64], [True]]]),
        (spaces.Discrete(3), [2**64]),
        (spaces.MultiDiscrete([3, 3]), [[2**64, 1]]),
        (spaces.MultiBinary([2, 1]), [x]),
        (spaces.Box(0, 255, (40, 40), np.uint8), [[[2**64] * 40] * 40]),
    ):
        with pytest.raises(DtypeMismatch, match="expected numbers, got"):
            observations(wrong, spec_of(space))


def test_an_image_inside_a_dict_is_named() -> None:
    """What is not supported says so, and what to do."""
    space = spaces.Dict({"camera": spaces.Box(0, 255, (64, 64, 3), np.uint8), "v": BOX})
    with pytest.raises(InvalidValue, match=r"camera.*no image inside a Dict.*MultiInputPolicy"):
        spec_of(space)


def test_keys_are_sorted() -> None:
    """Two orders of the same parts are one space."""
    parts = {"b": from_gymnasium(BOX), "a": from_gymnasium(spaces.Discrete(2))}

    assert list(DictSpace(spaces=parts).spaces) == ["a", "b"]
    assert DictSpace(spaces=parts) == DictSpace(spaces=dict(reversed(parts.items())))
