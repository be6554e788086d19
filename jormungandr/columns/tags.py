"""Tags of episodes in a batch: the distinct ones, and codes into them. B transitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import At, as_array, integer_range, refuse_first
from jormungandr.columns.batch import Columns
from jormungandr.errors import InvalidInput, InvalidType, InvalidValue, ShapeMismatch
from jormungandr.tags import Tags, check_tags

__all__ = ["Coded", "checked_codes", "encode_tags", "joined_tags"]

#: The distinct tags, and (B,) int32 codes into them, -1 without; None where none has any.
Coded: TypeAlias = tuple[tuple[Tags, ...], NDArray[np.int32] | None]

FIRST = "tags with timestep 0 only: they are the episode's"


def encode_tags(values: Sequence[Any], at: At) -> Coded:
    """Dictionary-encode the tags of B transitions, each a mapping, or None without."""
    if all(value is None for value in values):
        return (), None
    checked = [check_tags(value, at(i)) for i, value in enumerate(values)]
    return _coded([(checked, np.arange(len(checked)))])


def checked_codes(tags: Any, code: Any, timestep: NDArray[Any], at: At) -> Coded:
    """Check distinct tags and codes into them; return them in their one form.

    Args:
        tags: mappings, or sequences of pairs.
        code: (B,) integers, -1 for none; None without any.
        timestep: (B,) of the transitions.
        at: the place of transition i in an error.

    Raises:
        InvalidInput: (one of its classes) for the first fault found; tags with a timestep other
            than 0 are one.
    """
    if code is None:
        return (), None
    codes = as_array(code, "transitions.tag")
    if codes.shape != timestep.shape:
        raise ShapeMismatch("transitions.tag", str(timestep.shape), codes.shape)
    if not isinstance(tags, Sequence) or isinstance(tags, str):
        raise InvalidType("transitions.tags", "a list of objects", type(tags).__name__)
    integer_range(codes, -1, len(tags) - 1, InvalidValue, at)
    checked = []
    for k, value in enumerate(tags):
        given = _mapping(value)
        try:
            checked.append(check_tags(given, ""))
        except InvalidInput:  # only now it matters where it is
            used = np.flatnonzero(codes == k)
            checked.append(check_tags(given, at(used[0] if used.size else "?")))
    refuse_first((codes >= 0) & (timestep != 0), InvalidValue, at, FIRST, timestep)
    return _coded([(checked, codes)])


def joined_tags(parts: Sequence[Columns]) -> Coded:
    """Return the tags of several batches, one after another."""
    none = [np.full(len(part), -1) if part.tag is None else part.tag for part in parts]
    return _coded([(part.tags, code) for part, code in zip(parts, none, strict=True)])


def _mapping(value: Any) -> Any:
    """Return pairs as a mapping; whatever else it is, it is judged by who checks it."""
    if not isinstance(value, tuple):
        return value
    try:
        return dict(value)
    except (TypeError, ValueError):
        return value


def _coded(parts: Iterable[tuple[Sequence[Tags], NDArray[Any]]]) -> Coded:
    """Return codes into one list of distinct tags; the empty ones are none."""
    known: dict[Tags, int] = {(): -1}
    moved = []
    for tags, codes in parts:
        new = [known.setdefault(value, len(known) - 1) for value in tags]
        moved.append(np.array([*new, -1], dtype=np.int32)[codes])
    code = np.concatenate(moved)
    if not (code >= 0).any():
        return (), None
    return tuple(known)[1:], code
