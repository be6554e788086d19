"""Observations of several sub-environments together: arrays over all of them, or dicts of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import InvalidType, ShapeMismatch, shown

__all__ = ["count", "joined", "separated", "subset"]


def separated(batch: Any) -> list[Any] | NDArray[Any]:
    """Return the observation of each sub-environment, copied.

    Args:
        batch: (B, …), or a dict of such arrays.

    Returns:
        An array over them, a list of Python's own numbers where `batch` has one axis, or of dicts.
    """
    if isinstance(batch, Mapping):
        parts = {key: separated(part) for key, part in batch.items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    array = np.array(batch)
    return array.tolist() if array.ndim == 1 else array


def joined(rows: Sequence[Any]) -> Any:
    """Return single observations of one shape as a batch that endpoints act on.

    Args:
        rows: B arrays, numbers or dicts of those, as `copied` makes them.
    """
    return list(rows) if isinstance(rows[0], Mapping) else np.stack(rows)


def subset(batch: Any, index: NDArray[np.intp]) -> Any:
    """Return the observations of some sub-environments, in the form that `batch` has.

    Args:
        batch: (B, …), or a dict of such arrays.
        index: which, (B',).

    Raises:
        ShapeMismatch: a ragged list.
    """
    if isinstance(batch, Mapping):
        return {key: subset(part, index) for key, part in batch.items()}
    try:
        return np.asarray(batch)[index]
    except ValueError:
        expected, got = "arrays of one shape", "lists of different lengths"
        raise ShapeMismatch("observations", expected, got) from None


def count(batch: Any) -> int:
    """Return B.

    Raises:
        InvalidType: this is no batch.
    """
    first = batch
    while isinstance(first, Mapping):
        first = next(iter(first.values()), None)
    try:
        return len(first)
    except TypeError:
        raise InvalidType("observations", "a batch", shown(batch)) from None
