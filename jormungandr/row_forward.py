"""`RowForward`: the forward pass of one observation, in as few calls as NumPy allows.

NumPy pays per call, and one observation is nothing but calls. What is computed is what the pass of
a batch computes, operation by operation: the bits of a batch of one. A larger batch is multiplied
as a matrix, whose sums may come in another order. A actions, N atoms, D
elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowForward"]

Floats: TypeAlias = NDArray[np.float32]
#: A linear layer: the weight (inputs, outputs), and the bias (outputs,).
Layer: TypeAlias = tuple[Floats, Floats]

_FLOAT32 = np.dtype(np.float32)


class RowForward:
    """The network of one policy for vectors, of which it changes nothing; any thread may call it.

    Args:
        mean, root: (D,) what is subtracted from an observation, and what divides it then.
        clip: the largest magnitude after that.
        hidden: layers that are rectified.
        head: the layer that leads to the logits.
        actions: how many there are.
    """

    __slots__ = ("_clip", "_head", "_hidden", "_mean", "_root", "_shape", "_within")

    def __init__(
        self,
        mean: NDArray[np.float64],
        root: NDArray[np.float64],
        clip: float,
        hidden: Sequence[Layer],
        head: Layer,
        actions: int,
    ) -> None:
        self._mean, self._root, self._clip = mean, root, clip
        # The length of a vector that has no element to be clipped, with room for rounding.
        self._within = 0.99 * clip * clip
        self._hidden = [(weight, bias, np.zeros_like(bias)) for weight, bias in hidden]
        self._head, self._shape = head, (actions, len(head[1]) // actions)

    def __call__(self, x: NDArray[Any]) -> Floats | None:
        """Return the distribution of every action, (A, N); None of a vector that is not finite.

        Args:
            x: (D,) float32, raw.
        """
        scaled = x - self._mean
        scaled /= self._root
        length = scaled.dot(scaled)  # NaN and infinity show here, too
        if not length < self._within:
            if not length < math.inf:
                return None
            scaled = scaled.clip(-self._clip, self._clip)
        h: Floats = scaled.astype(_FLOAT32)
        maximum = np.maximum
        for weight, bias, zeros in self._hidden:
            h = h.dot(weight)
            h += bias
            maximum(h, zeros, out=h)
        weight, bias = self._head
        e: Floats = h.dot(weight)
        e += bias
        e = e.reshape(self._shape)
        e -= maximum.reduce(e, axis=1, keepdims=True)
        np.exp(e, e)
        e /= np.add.reduce(e, axis=1, keepdims=True)
        return e
