"""The arrays of a closed-form step, which are kept from one to the next.

B batch, A actions, N atoms, H units. What has `_tensor` in its name is a view of the array beside
it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jormungandr.learner.heads import head
from jormungandr.learner.layers import Layers
from jormungandr.numerics.compiled import kernels
from jormungandr.spec import ModelSpec

__all__ = ["Room"]

Floats = NDArray[np.float32]


class Room:
    """What B rows leave behind on their way through the networks.

    Args:
        spec: the model's specification.
        count: B.

    Attributes:
        head: the way through the last layer.
        share: (B,) float64, that of each row in a mean.
        rows: 0 … B − 1.
        ones: (N,), and `ones_of_rows` (B,).
        hidden, back: (B, H) of each hidden layer, what it gives and the gradient by it; `back_t`
            is transposed.
        e: (B·A, N) exponentials of logits.
        total: (B·A,) their sums.
        values: (B, A) their sums with the atoms.
        sums: (B,) those of the exponentials of the actions taken.
    """

    def __init__(self, spec: ModelSpec, count: int) -> None:
        c, actions = spec.c51, len(spec.action_set)
        self.count = count
        self.share, self.rows = np.full(count, 1 / count), np.arange(count)
        self.head = head(count, c.layers[-1], actions, c.atoms)
        self.hidden = [torch.empty(count, units) for units in c.layers]
        self.back = [torch.empty(count, units) for units in c.layers]
        self.back_t = [slope.t() for slope in self.back]
        self.ones_of_rows, self.ones = torch.ones(count), torch.ones(c.atoms)
        self._following = [torch.empty(count, units) for units in c.layers]
        self._logits = torch.empty(count, actions * c.atoms)
        self._array = self._logits.numpy().reshape(-1, c.atoms)
        self.e_tensor = torch.empty(count * actions, c.atoms)
        self.total_tensor = torch.empty(count * actions)
        self.values_tensor = torch.empty(count * actions)
        self.sums_tensor = torch.empty(count)
        self.e, self.total = self.e_tensor.numpy(), self.total_tensor.numpy()
        self.values = self.values_tensor.numpy().reshape(count, actions)
        self.sums = self.sums_tensor.numpy()
        self._first = np.arange(0, count * actions, actions)
        self._best = np.empty(count, dtype=np.int64)
        self._all = np.ones((count, actions), dtype=np.bool_)
        self._products = np.empty(count)
        self._row_of = np.repeat(self.rows, c.atoms)
        self._kernels = kernels()

    def all_logits(self, layers: Layers, x: Tensor) -> Floats:
        """Return the logits (B·A, N) of all actions; the next call overwrites them."""
        h = layers.through(x, self._following)
        torch.addmm(layers.bias, h, layers.weight_t, out=self._logits)
        return self._array

    def best(self, allowed: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return which of the B·A rows has the highest mean of each B, by `values` and `total`.

        Args:
            allowed: (B, A), or None.
        """
        if self._kernels is not None:
            mask = self._all if allowed is None else allowed
            self._kernels.choose(self.values, self.total, mask, self._best)
            return self._best
        self.values /= self.total.reshape(self.values.shape)
        if allowed is not None:
            self.values[~allowed] = -np.inf
        np.add(self.values.argmax(1), self._first, out=self._best)
        return self._best

    def slopes(self, target: Floats, logits: Floats, share: Floats) -> NDArray[np.float64]:
        """Make the exponentials in the head's `slope` the gradient (p − target) · share.

        Args:
            target: (B, N).
            logits: (B, N); overwritten.
            share: (B,).

        Returns:
            (B,), the sums of target · logits.
        """
        p = self.head.slope
        if self._kernels is not None:
            self._kernels.slopes(p, self.sums, target, logits, share, self._products)
            return self._products
        logits *= target
        self._products[:] = np.bincount(self._row_of, logits.reshape(-1), self.count)
        p /= self.sums[:, None]
        p -= target
        p *= share[:, None]
        return self._products
