"""What a network sees of an observation: the one form that learning, acting and export share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.row_forward import Floats
from jormungandr.spaces import pixels_first
from jormungandr.spec import ModelSpec

__all__ = ["RAW_BOUND", "VARIANCE_FLOOR", "normalize", "prepared", "scaled"]

#: Added to the variance under the root, so that a constant feature does not divide by zero.
VARIANCE_FLOOR = 1e-8
#: Largest magnitude of an element that is not normalised.
RAW_BOUND = np.float32(1e6)


def normalize(
    observation: NDArray[Any], mean: NDArray[np.float64], var: NDArray[np.float64], clip: float
) -> Floats:
    """Return ``clip((observation - mean) / sqrt(var + 1e-8), -clip, clip)`` as float32, (B, D).

    The one form that sampling, evaluation, acting and export share. The difference is taken in
    float64, so that a large common offset does not eat the digits.
    """
    return scaled(observation, mean, np.sqrt(var + VARIANCE_FLOOR), clip)


def scaled(
    observation: NDArray[Any], mean: NDArray[np.float64], root: NDArray[np.float64], clip: float
) -> Floats:
    """Return what `normalize` does, given the root that it divides by."""
    scaled = observation - mean
    scaled /= root
    return np.asarray(scaled.clip(-clip, clip), dtype=np.float32)


def prepared(
    observation: NDArray[Any],
    spec: ModelSpec,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> Floats:
    """Return what the network sees of stored observations: (B, D), or (B, C, H, W) of images.

    Raw ones are bounded too: 3e38 is a fair float32, and the sum of two of them is none.
    """
    o = spec.observation
    if o.is_image:
        pixels = pixels_first(observation, o.shape).astype(np.float32)
        return np.asarray(pixels / np.float32(255), dtype=np.float32)
    if o.normalize:
        return normalize(observation, mean, var, o.clip)
    return np.asarray(np.clip(observation, -RAW_BOUND, RAW_BOUND), dtype=np.float32)
