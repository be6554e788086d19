"""Observations that are arrays of finite numbers, as most are: taken as stored in a few calls.

NumPy pays per call. What is beyond doubt is known here at once; whatever else it is, right or
wrong, `jormungandr.encoding` looks at, which alone says what is wrong with it. B observations of D
elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.settings import Observation
from jormungandr.spaces import Box

__all__ = ["plain_batch", "plain_vector", "plain_vectors"]

#: Numbers up to this one are finite in float32; of larger ones it is not decided here.
_LARGE = 1e38
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_FLOATS = frozenset((_FLOAT32, _FLOAT64))


def plain_vector(values: Any, o: Observation) -> NDArray[np.float32] | None:
    """Return one observation as stored, (1, D), copied; None of anything else than plain numbers.

    Args:
        values: perhaps an array of the space's shape, or of the stored one.
        o: says what it is.
    """
    if type(values) is not np.ndarray or o.is_image or not isinstance(o.space, Box):
        return None
    if values.shape not in (o.stored_shape, o.shown_shape):
        return None
    return _finite(values, (1, *o.stored_shape))


def plain_batch(values: Any, o: Observation) -> NDArray[np.float32] | None:
    """Return observations, or a single one as a batch of one, likewise: (B, D)."""
    if type(values) is not np.ndarray or o.is_image or not isinstance(o.space, Box):
        return None
    shapes = o.stored_shape, o.shown_shape
    if values.shape in shapes:
        return _finite(values, (1, *o.stored_shape))
    if values.shape[1:] not in shapes:
        return None
    return _finite(values, (len(values), *o.stored_shape))


def plain_vectors(
    values: Sequence[Any] | NDArray[Any], o: Observation
) -> NDArray[np.float32] | None:
    """Return observations given one by one, or as an array over at least one: (B, D) likewise."""
    if o.is_image or not isinstance(o.space, Box):
        return None
    if type(values) is np.ndarray:
        fits = values.shape[1:] in (o.stored_shape, o.shown_shape)
        return _finite(values, (len(values), *o.stored_shape)) if fits else None
    if set(map(type, values)) != {np.ndarray}:
        return None
    if {value.shape for value in values} - {o.stored_shape, o.shown_shape}:
        return None
    dtypes = {value.dtype for value in values}
    if len(dtypes) > 1 or not dtypes <= _FLOATS:
        return None
    try:
        numbers = np.frombuffer(b"".join(values), *dtypes)
    except TypeError:  # of one whose numbers do not lie one after another
        numbers = np.concatenate(values, axis=None)
    return _finite(numbers, (len(values), *o.stored_shape))


def _finite(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """Return numbers as float32 of a shape, copied; None of other dtypes, and if one is large."""
    if values.dtype == _FLOAT32:
        good = np.isfinite(values)
    elif values.dtype == _FLOAT64:
        good = np.abs(values) <= _LARGE  # a NaN compares false
    else:
        return None
    if np.count_nonzero(good) < good.size:
        return None
    return values.reshape(shape).astype(_FLOAT32)
