"""Which actions are allowed, as sb3-contrib's MaskablePPO takes it: B observations, A actions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import as_array, refuse_first
from jormungandr.errors import InvalidType, InvalidValue, ShapeMismatch

__all__ = ["checked_masks"]


def checked_masks(action_masks: Any, count: int, actions: int) -> NDArray[np.bool_]:
    """Return masks as (B, A) booleans.

    Args:
        action_masks: (B, A), or (A,) of a single observation; true and false, or 1 and 0.
        count: B.
        actions: A.

    Raises:
        ShapeMismatch: the shape is another.
        InvalidType: an element is something else.
        InvalidValue: a row allows nothing.
    """
    given = as_array(action_masks, "action_masks")
    masks = given[None] if count == 1 and given.ndim == 1 else given
    if masks.shape != (count, actions):
        expected = f"({count}, {actions}), a row of each observation"
        raise ShapeMismatch("action_masks", expected, given.shape)
    if masks.dtype.kind not in "biu" or not ((masks == 0) | (masks == 1)).all():
        raise InvalidType("action_masks", "true or false for each action", masks.dtype)
    masks = masks.astype(np.bool_)
    nothing = ~masks.any(axis=1)
    refuse_first(
        nothing, InvalidValue, lambda i: f"action_masks[{i}]", "at least one action allowed", masks
    )
    return masks
