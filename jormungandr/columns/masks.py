"""Action masks: which actions are allowed, one boolean each. A is the number of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import At, as_array, listed, refuse_first
from jormungandr.errors import (
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    UnknownField,
    shown,
)
from jormungandr.spec import ModelSpec

__all__ = ["ALLOWS", "action_masks", "check_given", "next_masks"]

#: What a mask must do.
ALLOWS = "at least one action allowed"


def action_masks(
    values: Any, spec: ModelSpec, count: int, where: str = "action_masks"
) -> NDArray[np.bool_] | None:
    """Return the masks of a request for actions as checked (B, A) booleans; None without masks.

    Args:
        values: B rows of A booleans, or of 0 and 1; of a single observation also one row.
        spec: says whether there are masks, and of how many actions.
        count: B.
        where: the name of their place in an error.

    Raises:
        InvalidInput: (one of its classes) masks of a model without, none of one with, another
            shape, or a row that allows nothing.
    """
    check_given(values, spec, where)
    if values is None:
        return None
    rows = listed(values, where, "a list of masks")
    single = count == 1 and len(rows) > 0 and np.ndim(rows[0]) == 0
    masks = _masks([rows] if single else rows, spec, lambda i: f"{where}[{i}]")
    if len(masks) != count:
        raise ShapeMismatch(where, f"one per observation ({count})", len(masks))
    refuse_first(~masks.any(axis=1), InvalidValue, lambda i: f"{where}[{i}]", ALLOWS, masks)
    return masks


def check_given(values: Any, spec: ModelSpec, where: str) -> None:
    """Refuse masks of a model without, and none of one with."""
    if values is None and spec.action_masks:
        remedy = "the model has action_masks; where everything is allowed, say so"
        raise MissingField(where, "a mask", "nothing", remedy)
    if values is not None and not spec.action_masks:
        remedy = "create the model with action_masks: true"
        raise UnknownField(where, "no mask: the model has none", "a mask", remedy)


def _masks(rows: Sequence[Any], spec: ModelSpec, at: At) -> NDArray[np.bool_]:
    """Return rows of booleans, or of 0 and 1, as (B, A)."""
    actions = len(spec.action_set)
    masks = np.zeros((len(rows), actions), dtype=np.bool_)
    for i, row in enumerate(rows):
        array = as_array(row, at(i))
        if array.shape != (actions,):
            got = array.shape if isinstance(row, Sequence | np.ndarray) else shown(row)
            raise ShapeMismatch(at(i), f"({actions},), one per action", got)
        if array.dtype.kind not in "biu" or not ((array == 0) | (array == 1)).all():
            raise InvalidType(at(i), "true or false for each action", shown(row))
        masks[i] = array
    return masks


def next_masks(rows: list[Mapping[str, Any]], spec: ModelSpec, at: At) -> NDArray[np.bool_]:
    """Return the masks of the successors, (B, A), or (B, 0) in a model without masks.

    The successor of a termination is bootstrapped from by nobody, so its mask may be left out.
    """
    given = [row.get("next_action_mask") for row in rows]
    for i, (mask, row) in enumerate(zip(given, rows, strict=True)):
        if mask is not None or not row["terminated"]:
            check_given(mask, spec, at(i))
    if not spec.action_masks:
        return np.zeros((len(rows), 0), dtype=np.bool_)
    every = [True] * len(spec.action_set)
    return _masks([every if mask is None else mask for mask in given], spec, at)
