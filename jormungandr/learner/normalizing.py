"""What an update's network sees of its observations: `policy.prepared`, fast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.inputs import VARIANCE_FLOOR, prepared
from jormungandr.numerics.compiled import kernels
from jormungandr.spec import ModelSpec

__all__ = ["normalized"]


def normalized(
    observations: NDArray[Any],
    spec: ModelSpec,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return what `policy.prepared` does, bit for bit, of observations and successors at once.

    Args:
        observations: (B, 2, D) as stored, of no image.
        spec: the model's.
        mean: (D,).
        var: (D,).
    """
    compiled = kernels()
    if compiled is None or not spec.observation.normalize:
        return prepared(observations, spec, mean, var)
    out = np.empty(observations.shape, dtype=np.float32)
    root = np.sqrt(var + VARIANCE_FLOOR)
    compiled.normalize(observations, mean, root, spec.observation.clip, out)
    return out
