"""What names a transition: ids, timesteps, and dictionaries of ids with codes into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import INTEGERS, At, integer_range, is_number
from jormungandr.errors import InvalidInput, InvalidType, InvalidValue, shown
from jormungandr.ids import check_id
from jormungandr.protocol import LIMITS

__all__ = ["check_id", "check_timestep", "checked_ids", "encode_ids"]


def check_timestep(value: Any, where: str) -> None:
    """Refuse a timestep that is not an integer in 0 … 2**53 - 1."""
    if not is_number(value, INTEGERS):
        raise InvalidType(where, "an integer", shown(value))
    if not 0 <= value <= LIMITS["timestep_max"]:
        raise InvalidValue(where, f"0..{LIMITS['timestep_max']}", value)


def encode_ids(values: Iterable[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Dictionary-encode ids in order of first appearance, as plain strings."""
    codes: dict[str, int] = {}
    index = np.fromiter((codes.setdefault(v, len(codes)) for v in values), dtype=np.int32)
    return tuple(map(str, codes)), index


def checked_ids(ids: Any, code: NDArray[Any], kind: str, at: At) -> tuple[str, ...]:
    """Check a dictionary of ids and the codes into it; return plain strings."""
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise InvalidType(f"transitions.{kind}s", "a list of ids", type(ids).__name__)
    integer_range(code, 0, len(ids) - 1, InvalidValue, at)
    for k, value in enumerate(ids):
        try:
            check_id(value, "")
        except InvalidInput:  # only now it matters where it is
            used = np.flatnonzero(code == k)
            check_id(value, at(used[0] if used.size else "?"))
    if len(set(ids)) < len(ids):  # two codes for one id would hide a repeated identity
        raise InvalidValue(f"transitions.{kind}s", "different ids", "one of them twice")
    return tuple(map(str, ids))
