"""From observations as an environment shows them to arrays as they are stored, checked on the way.

The rule is in `jormungandr.spaces`. What is encoded already, in the stored shape, is taken too, so
that a batch which was read back can be sent again. B is the number of observations.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import (
    INTEGERS,
    NO_LISTS,
    At,
    as_array,
    finite_float32,
    is_number,
    listed,
    numbers,
    numeric_dtype,
    refuse_first,
)
from jormungandr.errors import (
    BodyTooLarge,
    DtypeMismatch,
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    UnknownField,
    shown,
)
from jormungandr.settings import Observation
from jormungandr.spaces import (
    INT64,
    MOST_AXES,
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
)
from jormungandr.spec import ModelSpec
from jormungandr.vectors import plain_batch

__all__ = ["check_encoded", "count", "encoded", "is_single", "observations"]

Shapes = tuple[tuple[int, ...], ...]

#: What an array may travel as, little-endian, where a body can hold bytes.
RAW = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float32", "float64", "uint8", "int32", "int64")
}

#: A space that is no Dict.
_ANY = Box(shape=(1,))

#: Bytes of a batch that is made of something shorter: an integer becomes as many as its space has.
LARGEST_BATCH = 1 << 26


def observations(values: Any, spec: ModelSpec, where: str = "observations") -> NDArray[Any]:
    """Return observations as checked (B, *stored_shape); a single one becomes a batch of one.

    Args:
        values: an array or list of observations, for a Dict also a dict of batches; or one of them.
        spec: says what they are, and how they are stored.
        where: the name of their place in an error.

    Raises:
        InvalidInput: (one of its classes) naming the first that does not fit.
    """
    o = spec.observation
    plain = plain_batch(values, o)
    if plain is not None:
        return plain
    values = _unpacked(values, o.described, where)
    if is_single(values, o):
        batch: Any = values[None] if isinstance(values, np.ndarray) else [values]
    elif isinstance(values, np.ndarray | Mapping):
        batch = values
    else:
        batch = listed(values, where, "a list of observations")
    array = encoded(batch, o, lambda i: f"{where}[{i}]", where)
    return array if o.is_image else finite_float32(array, lambda i: f"{where}[{i}]")


def is_single(values: Any, o: Observation) -> bool:
    """Whether this is one observation, and not a batch of them."""
    if type(values) is np.ndarray and isinstance(o.space, Box):
        return values.shape in (o.shown_shape, o.stored_shape)
    values = _unpacked(values, o.described, "observation")
    natural = o.shown_shape if isinstance(o.described, Box) else _natural(o.described)
    return _is_single(values, o.described, natural, o.stored_shape)


def _natural(space: Space) -> tuple[int, ...]:
    """Return the shape that one observation of a space has as an array."""
    if isinstance(space, Discrete):
        return ()
    if isinstance(space, MultiDiscrete):
        return (len(space.nvec),)
    return (space.size,) if isinstance(space, DictSpace) else space.shape


def _is_single(
    values: Any, space: Space, natural: tuple[int, ...], stored: tuple[int, ...]
) -> bool:
    if isinstance(values, Mapping):
        parts = space.spaces if isinstance(space, DictSpace) else {}
        # Without a part that is known it counts as one, for `encoded` to say what is missing.
        known = next((key for key in parts if key in values), None)
        if known is None:
            return len(parts) > 0
        part = parts[known]
        below = _unpacked(values[known], part, known)
        return _is_single(below, part, _natural(part), (part.size,))
    if isinstance(values, np.ndarray):
        # Integers in a row are a batch of them, unless they are floats: one one-hot.
        hot = values.dtype.kind == "f" or natural != ()
        return values.shape == natural or (hot and values.shape == stored)
    if natural == ():
        return not isinstance(values, Iterable)
    depth = _depth(values)
    if len(natural) == 2 and depth == 2:  # one observation, or a batch of flat ones
        return np.shape(as_array(values, "observation")) == natural
    return depth in (1, len(natural)) and len(values) > 0 and not _holds_mappings(values)


def _depth(values: Any) -> int:
    """Return how many lists lie inside each other, along their first elements."""
    depth = 0
    while isinstance(values, Sequence) and not isinstance(values, NO_LISTS):
        depth += 1
        if not len(values) or depth > 2 * MOST_AXES:  # a list that holds itself has no end
            return depth
        values = values[0]
    return depth + (values.ndim if isinstance(values, np.ndarray) else 0)


def _holds_mappings(values: Any) -> bool:
    return isinstance(values, Sequence) and len(values) > 0 and isinstance(values[0], Mapping)


def count(values: Any, o: Observation) -> int:
    """Return how many observations `observations` would find, before any is looked at."""
    values = _unpacked(values, o.described, "observations")
    return 1 if is_single(values, o) else _rows(values, o.described, "observations")


def _rows(values: Any, space: Space, where: str) -> int:
    """Return how long a batch is; of a dict of batches, how long the longest."""
    values = _unpacked(values, space, where)
    if isinstance(values, Mapping) and isinstance(space, DictSpace):
        known = {key: part for key, part in space.spaces.items() if key in values}
        rows = (_rows(values[key], part, f"{where}.{key}") for key, part in known.items())
        return max(rows, default=1)
    try:
        return len(values)
    except TypeError:  # no batch at all, which is refused where it is looked at
        return 1


def _unpacked(value: Any, space: Space, where: str) -> Any:
    """Return the array that an object of bytes and shape stands for; other things as they are."""
    if not isinstance(value, Mapping) or isinstance(space, DictSpace):
        return value
    in_json = value.keys() == {"uint8", "shape"}
    if not in_json and value.keys() != {"dtype", "shape", "data"}:
        return value
    shape = value["shape"]
    axes = isinstance(shape, Sequence) and not isinstance(shape, NO_LISTS)
    if not axes or not all(is_number(n, INTEGERS) and n >= 0 for n in shape):
        raise InvalidValue(f"{where}.shape", "a list of numbers >= 0", shown(shape))
    if not 1 <= len(shape) <= MOST_AXES + 2:  # of a batch of stacked frames
        raise InvalidValue(f"{where}.shape", f"1..{MOST_AXES + 2} axes", len(shape))
    if in_json:
        expected, dtype = "the base64 of as many bytes as the shape has elements", np.dtype("u1")
    else:
        expected, dtype = "the bytes of as many elements as the shape has", _raw_dtype(value, where)
    try:
        data = base64.b64decode(value["uint8"], validate=True) if in_json else value["data"]
        array = np.frombuffer(data, dtype=dtype).reshape(shape)
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidValue(where, expected, error) from None
    return array


def _raw_dtype(value: Mapping[str, Any], where: str) -> np.dtype[Any]:
    name = value["dtype"]
    if not isinstance(name, str) or name not in RAW:
        raise DtypeMismatch(f"{where}.dtype", f"one of {list(RAW)}", shown(name))
    if not isinstance(value["data"], bytes):
        raise InvalidType(f"{where}.data", "raw bytes, which MessagePack has", shown(value["data"]))
    return RAW[name]


def encoded(values: Any, o: Observation, at: At, where: str) -> NDArray[Any]:
    """Return a batch of observations in their stored shape, (B, *stored_shape).

    A Box comes back in the dtype it came in, for its finiteness to be checked where it is cast.

    Args:
        values: an array (B, …), a list of B observations, or for a Dict a dict of such batches.
        o: says what they are.
        at: maps an index to the name of its place.
        where: the name of the place of all of them.
    """
    if not isinstance(values, Mapping | np.ndarray) and len(values) == 0:
        return np.zeros((0, *o.stored_shape), dtype=o.stored_dtype)
    if isinstance(o.described, Box):
        shapes = (o.shown_shape,) if o.is_image else (o.shown_shape, o.stored_shape)
        try:
            array = _boxes(values, tuple(dict.fromkeys(shapes)), at, where, real=not o.is_image)
        except ShapeMismatch as error:
            if o.frame_stack == 1:
                raise
            remedy = f"the newest {o.frame_stack} are one observation, as SpecifiedEnv stacks them"
            raise ShapeMismatch(error.where, error.expected, error.got, remedy) from None
        array = _pixels(array, at) if o.is_image else array
        return array.reshape(len(array), *o.stored_shape)
    if not isinstance(values, np.ndarray) or values.shape[1:] != o.stored_shape:
        largest = LARGEST_BATCH // (4 * o.described.size)
        rows = _rows(values, o.described, where)
        if rows > largest:
            raise BodyTooLarge(where, f"at most {largest} at a time", rows, "send fewer")
    return _part(o.described, values, at, where)


def _part(space: Space, values: Any, at: At, where: str) -> NDArray[np.float32]:
    """Return a batch of one space as vectors, (B, D)."""
    if not isinstance(values, Mapping | np.ndarray) and len(values) == 0:
        return np.zeros((0, space.size), dtype=np.float32)
    if isinstance(space, DictSpace):
        return _dicts(space, values, at, where)
    if isinstance(space, Box):
        shapes = tuple(dict.fromkeys((space.shape, (space.size,))))
        array = _boxes(values, shapes, at, where, real=True)
        return finite_float32(array.reshape(len(array), space.size), at)
    if isinstance(space, MultiBinary):
        shapes = tuple(dict.fromkeys((space.shape, (space.size,))))
        array = _bits(values, shapes, at, where)
        _check_hot(array, None, at)
        return array.astype(np.float32)
    nvec, start = (
        ((space.n,), (space.start,))
        if isinstance(space, Discrete)
        else (
            space.nvec,
            space.start,
        )
    )
    return _one_hot(space, values, nvec, start, at, where)


def _bits(values: Any, shapes: Shapes, at: At, where: str) -> NDArray[Any]:
    """Return (B, D) of numbers or booleans."""
    if isinstance(values, np.ndarray) and values.dtype == np.bool_:
        values = values.astype(np.uint8)
    elif not isinstance(values, np.ndarray | Mapping):
        rows = [as_array(row, at(i)) for i, row in enumerate(values)]
        values = [row.astype(np.uint8) if row.dtype == np.bool_ else row for row in rows]
    array = _boxes(values, shapes, at, where)
    return array.reshape(len(array), math.prod(shapes[0]))


def _one_hot(
    space: Space,
    values: Any,
    nvec: tuple[int, ...],
    start: tuple[int, ...],
    at: At,
    where: str,
) -> NDArray[np.float32]:
    """Return a batch of integers as one-hot vectors, (B, Σ nvec)."""
    natural = () if isinstance(space, Discrete) else (len(nvec),)
    array = _boxes(values, tuple(dict.fromkeys((natural, (space.size,)))), at, where)
    if array.shape[1:] != natural:  # encoded already
        _check_hot(array, nvec, at)
        return finite_float32(array, at)
    if array.dtype.kind not in "iu":
        raise DtypeMismatch(where, "integers", array.dtype)
    given = array.reshape(len(array), len(nvec))
    index = given.astype(np.int64) - np.array(start)
    beyond = given > INT64.max  # which an unsigned one may be
    out = (beyond | (index < 0) | (index >= np.array(nvec))).any(axis=1)
    ranges = [f"{s}..{s + n - 1}" for s, n in zip(start, nvec, strict=True)]
    expected = ranges[0] if isinstance(space, Discrete) else f"[{', '.join(ranges)}]"
    refuse_first(out, InvalidValue, at, expected, array)
    hot = np.zeros((len(array), space.size), dtype=np.float32)
    offsets = np.concatenate([[0], np.cumsum(nvec)[:-1]]).astype(np.int64)
    hot[np.arange(len(array))[:, None], index + offsets] = 1
    return hot


def _dicts(space: DictSpace, values: Any, at: At, where: str) -> NDArray[np.float32]:
    """Return dicts, or a dict of batches, as vectors (B, D)."""
    if not isinstance(values, Mapping):
        if isinstance(values, np.ndarray) or not isinstance(values[0], Mapping):
            array = _boxes(values, ((space.size,),), at, where)
            check_encoded(space, array, at)
            return finite_float32(array, at)
        for i, row in enumerate(values):
            if not isinstance(row, Mapping):
                raise InvalidType(at(i), "an object", shown(row))
            _check_keys(space, row, at(i))
        parts = [
            _part(part, [row[key] for row in values], _below(at, key), f"{where}.{key}")
            for key, part in space.spaces.items()
        ]
    else:
        _check_keys(space, values, where)
        parts = []
        for key, part in space.spaces.items():
            below = _unpacked(values[key], part, f"{where}.{key}")
            if not isinstance(below, np.ndarray | Mapping):
                below = listed(below, f"{where}.{key}", "a batch")
            parts.append(_part(part, below, _below(at, key), f"{where}.{key}"))
        counts = {key: len(part) for key, part in zip(space.spaces, parts, strict=True)}
        if len(set(counts.values())) > 1:
            raise ShapeMismatch(where, "batches of one length", counts)
    return np.concatenate(parts, axis=1)


def check_encoded(space: Space, array: NDArray[Any], at: At) -> None:
    """Refuse vectors (B, D) whose bits and one-hots are none."""
    if isinstance(space, DictSpace):
        begin = 0
        for key, part in space.spaces.items():
            own, begin = array[:, begin : begin + part.size], begin + part.size
            check_encoded(part, own, _below(at, key))
    elif not isinstance(space, Box):
        nvec = getattr(space, "nvec", (space.size,))
        _check_hot(array, None if isinstance(space, MultiBinary) else nvec, at)


def _check_hot(array: NDArray[Any], nvec: tuple[int, ...] | None, at: At) -> None:
    """Refuse vectors (B, Σ nvec) that are no one-hots side by side; without `nvec`, no bits."""
    good = ((array == 0) | (array == 1)).all(axis=1)
    if nvec is not None:
        begins = np.concatenate([[0], np.cumsum(nvec)[:-1]]).astype(np.int64)
        good &= (np.add.reduceat(array, begins, axis=1) == 1).all(axis=1)
    refuse_first(~good, InvalidValue, at, "bits" if nvec is None else "one-hots", array)


def _below(at: At, key: str) -> At:
    return lambda i: f"{at(i)}.{key}"


def _check_keys(space: DictSpace, row: Mapping[str, Any], where: str) -> None:
    for key in space.spaces:
        if key not in row:
            raise MissingField(f"{where}.{key}", "a value", "nothing")
    for key in row:
        if key not in space.spaces:
            name = shown(key, str)
            raise UnknownField(f"{where}.{name}", f"only {list(space.spaces)}", name)


def _pixels(array: NDArray[Any], at: At) -> NDArray[np.uint8]:
    """Return images as uint8."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iu":
        raise DtypeMismatch(at(0), "integers in 0..255", array.dtype)
    wrong = ((array < 0) | (array > 255)).reshape(len(array), -1)
    refuse_first(wrong.any(axis=1), InvalidValue, at, "0..255", array)
    return array.astype(np.uint8)


def _boxes(values: Any, shapes: Shapes, at: At, where: str, *, real: bool = False) -> NDArray[Any]:
    """Return a batch of arrays that all have one of the shapes, (B, *shape).

    Without `real` they are integers, or one-hots and bits: none beyond 64 bits is one.
    """
    if isinstance(values, np.ndarray):
        numeric_dtype(values, where)
        if values.ndim == 0 or values.shape[1:] not in shapes:
            expected = f"(B, {', '.join(map(str, shapes[0]))})"
            raise ShapeMismatch(where, expected, values.shape)
        return values
    if isinstance(values, Mapping):
        raise InvalidType(where, "arrays or lists of numbers", "an object")
    if len(shapes) == 1 and len(shapes[0]) == 1:
        return _stack(values, shapes[0], at)
    arrays = [_array(value, shapes, at(i), real=real) for i, value in enumerate(values)]
    if len({array.shape for array in arrays}) > 1:  # encoded ones beside others
        arrays = [array.reshape(-1) for array in arrays]
        for i, array in enumerate(arrays):
            if array.shape != arrays[0].shape:  # integers beside one-hots
                raise ShapeMismatch(at(i), f"{arrays[0].shape}, as the first", array.shape)
    return np.stack(arrays)


def _array(value: Any, shapes: Shapes, where: str, *, real: bool) -> NDArray[Any]:
    """Return one observation that may have several axes, or none."""
    value = _unpacked(value, _ANY, where)
    if shapes[0] == () and isinstance(value, bool | np.bool_):
        raise InvalidType(where, "an integer", shown(value))
    if isinstance(value, NO_LISTS):
        raise ShapeMismatch(where, f"numbers of shape {shapes[0]}", shown(value))
    array = as_array(value, where)
    if real and array.dtype.kind == "O" and all(map(is_number, array.flat)) and array is not value:
        array = numbers([value], lambda _: where)[0]  # integers beyond 64 bits
    if array.dtype.kind not in "fiu":
        got = shown(value) if array.dtype.kind == "O" or array.ndim == 0 else array.dtype
        raise DtypeMismatch(where, "numbers", got)
    if array.shape not in shapes:
        raise ShapeMismatch(where, str(shapes[0]), array.shape)
    return array


def _stack(values: Sequence[Any], shape: tuple[int, ...], at: At) -> NDArray[Any]:
    """Stack B vectors given as arrays or lists of numbers."""
    for i, v in enumerate(values):
        if isinstance(v, np.ndarray):
            numeric_dtype(v, at(i))
            given = v.shape
        elif isinstance(v, Sequence) and not isinstance(v, NO_LISTS):
            given = (len(v),)
        else:
            raise ShapeMismatch(at(i), f"a list of {shape[0]} numbers", shown(v))
        if given != shape:
            raise ShapeMismatch(at(i), str(shape), given)
    if all(isinstance(v, np.ndarray) for v in values):
        return np.stack(values)
    if not set(map(type, chain.from_iterable(values))) <= {int, float}:
        for i, v in enumerate(values):
            for j, x in enumerate(v):
                if isinstance(x, Sequence | np.ndarray) and not isinstance(x, str):
                    raise ShapeMismatch(f"{at(i)}[{j}]", "a number", shown(x))
                if not is_number(x):
                    raise DtypeMismatch(f"{at(i)}[{j}]", "a number", shown(x))
    array = numbers(values, at)
    if array.shape[1:] != shape:  # a sequence that is not as long as it says
        raise ShapeMismatch(at(0), str(shape), array.shape[1:])
    return array
