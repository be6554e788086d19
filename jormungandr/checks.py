"""Checks of numbers and lists that come from outside; an error says where, expected and got.

`at` maps the index of a value to the name of its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import (
    ActionRange,
    DtypeMismatch,
    InvalidInput,
    InvalidType,
    InvalidValue,
    NonFinite,
    ShapeMismatch,
    shown,
)

INTEGERS = (int, np.integer)
NUMBERS = (int, float, np.integer, np.floating)
#: Sequences of something else than numbers, and what has no order.
NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)

At = Callable[[Any], str]


def listed(values: Any, where: str, expected: str) -> list[Any]:
    """Return what a caller handed over as a list; refuse what cannot be one."""
    try:
        if not isinstance(values, Iterable) or isinstance(values, NO_LISTS):
            raise TypeError
        iterator = iter(values)  # an array without axes raises TypeError
    except TypeError:
        raise InvalidType(where, expected, type(values).__name__) from None
    return list(iterator)


def is_number(value: Any, kinds: tuple[type, ...] = NUMBERS) -> bool:
    """Whether a value is a number; bool and timedelta64 are integers by inheritance only."""
    return isinstance(value, kinds) and not isinstance(value, bool | np.timedelta64)


def check_no_pair(observation: Any) -> None:
    """Refuse the pair that ``env.reset()`` returns where its first part is meant.

    Raises:
        InvalidType: with the line that is right.
    """
    pair = isinstance(observation, tuple) and len(observation) == 2
    if pair and isinstance(observation[1], Mapping):
        raise InvalidType(
            "observation",
            "an observation",
            "the (observation, info) pair of env.reset()",
            "write `obs, info = env.reset()` and pass `obs`",
        )


def as_array(values: Any, where: str) -> NDArray[Any]:
    """Return an array; refuse a ragged list."""
    try:
        return np.asarray(values)
    except ValueError:  # a ragged list
        raise ShapeMismatch(where, "an array", "lists of different lengths") from None


def refuse_first(
    bad: Any, error: type[InvalidInput], at: At, expected: str, values: NDArray[Any]
) -> None:
    """Refuse the first value where `bad` is true, (B,)."""
    if bad.any():
        i = int(np.argmax(bad))
        raise error(at(i), expected, values[i])


def integer_range(
    values: NDArray[Any], low: int, high: int, error: type[InvalidInput], at: At
) -> None:
    """Refuse the first of an array that is no integer in low..high."""
    if values.dtype.kind not in "iu":
        raise error(at("…"), "integers", values.dtype)
    if values.size and (values.min() < low or values.max() > high):
        refuse_first((values < low) | (values > high), error, at, f"{low}..{high}", values)


def typed(
    values: list[Any], kinds: tuple[type, ...], expected: str, error: type[InvalidInput], at: At
) -> None:
    """Refuse the first value whose type is not one of `kinds`."""
    if set(map(type, values)) <= set(kinds):
        return
    for i, value in enumerate(values):
        if not (isinstance(value, kinds) if bool in kinds else is_number(value, kinds)):
            raise error(at(i), expected, shown(value))


def integers(
    values: list[Any], error: type[InvalidInput], at: At, largest: int
) -> NDArray[np.int64]:
    """Return integers of -1..largest; of actions, 0..largest."""
    expected = f"an integer in 0..{largest}" if error is ActionRange else "an integer"
    typed(values, INTEGERS, expected, error, at)
    for i, value in enumerate(values):
        # Looked at as Python integers, since 2**70 does not fit an int64 array.
        if not -1 <= value <= largest:
            kind = error if error is ActionRange else InvalidValue
            raise kind(at(i), f"{0 if error is ActionRange else -1}..{largest}", value)
    return np.array(values, dtype=np.int64)


def floats(values: list[Any], at: At) -> NDArray[np.float64]:
    """Return numbers as float64."""
    typed(values, NUMBERS, "a number", InvalidType, at)
    return numbers(values, at)


def bools(values: list[Any], at: At) -> NDArray[np.bool_]:
    """Return booleans; 0 and 1 are none."""
    typed(values, (bool, np.bool_), "true or false", InvalidType, at)
    return np.array(values, dtype=np.bool_)


def numbers(values: Sequence[Any], at: At) -> NDArray[np.float64]:
    """Return numbers, or rows of them, as float64."""
    try:
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
            return np.array(values, dtype=np.float64)
    except ValueError:  # a sequence that is not as long as it says
        raise ShapeMismatch(at(0), "numbers", "another sequence") from None
    except OverflowError:  # an integer beyond float64
        if len(values) > 1:
            for i, value in enumerate(values):
                numbers([value], _only(at, i))
        raise NonFinite(at(0), "numbers that are finite in float32", "an integer beyond") from None


def numeric_dtype(array: NDArray[Any], where: str) -> None:
    """Refuse an array of something else than integers or floats."""
    if array.dtype.kind not in "fiu":
        raise DtypeMismatch(where, "numbers", array.dtype)


def finite_float32(array: NDArray[Any], at: At) -> NDArray[np.float32]:
    """Cast, then look: 1e39 is finite in float64 and infinite in float32."""
    cast = float32(array)
    finite = np.isfinite(cast)
    if not finite.all():
        i = int(np.argmin(finite.all(axis=tuple(range(1, cast.ndim)))))
        raise NonFinite(at(i), "numbers that are finite in float32", array[i])
    return cast


def float32(array: NDArray[Any]) -> NDArray[np.float32]:
    """Cast, to an array of one's own; what is beyond float32 becomes infinite.

    By way of float64, as a number in JSON goes: rounded at once, an integer beyond 2^53 could come
    to something else alone than beside a fraction.
    """
    if array.dtype == np.float32:
        return array.copy()
    with np.errstate(over="ignore"):
        return array.astype(np.float64, copy=False).astype(np.float32)


def _only(at: At, i: int) -> At:
    """Return the place of value i as that of the only one."""
    return lambda _: at(i)
