"""The last layer of a closed-form step: only the logits of the action taken have a gradient.

Two ways to the same numbers. `WholeHead` computes all A·N logits of each row, in few calls;
`GroupedHead` puts together the rows of each action and computes the N of it, in more calls on
smaller matrices. B batch, A actions, N atoms, H units.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jormungandr.learner.layers import Gradient, Layers

__all__ = ["GroupedHead", "Head", "WholeHead", "head"]

Floats = NDArray[np.float32]

#: Multiplications that take as long as one call, on the machine this was measured on.
OF_ONE_CALL = 150_000


class Head(Protocol):
    """Forward and back through the last layer.

    Attributes:
        slope: (B, N), where `back` expects the gradient by the logits of the actions taken.
        slope_tensor: a view of it.
    """

    slope: Floats
    slope_tensor: Tensor

    def taken(self, layers: Layers, h: Tensor, action: NDArray[np.int64]) -> Floats:
        """Return the logits (B, N) of the actions taken, where the hidden layers gave (B, H)."""
        ...

    def back(self, layers: Layers, gradient: Gradient, h: Tensor, out: Tensor) -> None:
        """Write the gradient by the layer's parameters, and by what it was given, (B, H).

        The actions are those of the last call of `taken`.
        """
        ...


def head(rows: int, units: int, actions: int, atoms: int) -> Head:
    """Return the way that takes less time for these sizes."""
    saved = 3 * rows * units * (actions - 1) * atoms
    calls = 8 + 3 * min(actions, rows)
    grouped = saved > calls * OF_ONE_CALL
    return (GroupedHead if grouped else WholeHead)(rows, units, actions, atoms)


class WholeHead:
    """All actions of each row."""

    def __init__(self, rows: int, units: int, actions: int, atoms: int) -> None:
        self.slope_tensor = torch.empty(rows, atoms)
        self.slope = self.slope_tensor.numpy()
        self._first = np.arange(0, rows * actions, actions)
        self._place = self._first
        self._logits = torch.empty(rows, actions * atoms)
        self._taken = np.empty((rows, atoms), dtype=np.float32)
        self._slopes = torch.zeros(rows, actions * atoms)
        self._slopes_t, self._ones = self._slopes.t(), torch.ones(rows)
        self._of_action = self._logits.numpy().reshape(rows * actions, atoms)  # views
        self._slope_of_action = self._slopes.numpy().reshape(rows * actions, atoms)

    def taken(self, layers: Layers, h: Tensor, action: NDArray[np.int64]) -> Floats:
        """Return the logits (B, N) of the actions taken, where the hidden layers gave (B, H)."""
        torch.addmm(layers.bias, h, layers.weight_t, out=self._logits)
        self._place = self._first + action
        return self._of_action.take(self._place, 0, self._taken, "clip")

    def back(self, layers: Layers, gradient: Gradient, h: Tensor, out: Tensor) -> None:
        """Write the gradient by the layer's parameters, and by what it was given, (B, H)."""
        self._slope_of_action.fill(0)
        self._slope_of_action[self._place] = self.slope
        torch.mm(self._slopes_t, h, out=gradient.weight)
        torch.mv(self._slopes_t, self._ones, out=gradient.bias)
        torch.mm(self._slopes, layers.weight, out=out)


class GroupedHead:
    """Of each row the action taken, the rows of one action at a time."""

    def __init__(self, rows: int, units: int, actions: int, atoms: int) -> None:
        self.slope_tensor = torch.empty(rows, atoms)
        self.slope = self.slope_tensor.numpy()
        self._taken = torch.empty(rows, atoms)
        self._slope, self._back = torch.empty(rows, atoms), torch.empty(rows, units)
        self._h = torch.empty(rows, units)
        self._taken_array, self._slope_array = self._taken.numpy(), self._slope.numpy()
        self._back_array = self._back.numpy()
        self._all = actions

    def taken(self, layers: Layers, h: Tensor, action: NDArray[np.int64]) -> Floats:
        """Return the logits (B, N) of the actions taken, where the hidden layers gave (B, H)."""
        rows = np.bincount(action, minlength=self._all)
        self._present = np.flatnonzero(rows)
        rows = rows[self._present]
        self._starts, self._sizes = rows.cumsum() - rows, rows.tolist()
        self._order = action.argsort(kind="stable")
        h.numpy().take(self._order, 0, self._h.numpy(), "clip")
        self._parts = self._h.split_with_sizes(self._sizes)
        outs = self._taken.split_with_sizes(self._sizes)
        for i, part, out in zip(self._present, self._parts, outs, strict=True):
            bias, weight_t, _ = layers.of_action[i]
            torch.addmm(bias, part, weight_t, out=out)
        logits = np.empty_like(self.slope)
        logits[self._order] = self._taken_array
        return logits

    def back(self, layers: Layers, gradient: Gradient, h: Tensor, out: Tensor) -> None:
        """Write the gradient by the layer's parameters, and by what it was given, (B, H)."""
        self.slope.take(self._order, 0, self._slope_array, "clip")
        if len(self._present) < self._all:
            gradient.weight.zero_()
            gradient.bias.zero_()
        slopes = self._slope.split_with_sizes(self._sizes)
        backs = self._back.split_with_sizes(self._sizes)
        for i, slope, part, back in zip(self._present, slopes, self._parts, backs, strict=True):
            torch.mm(slope.t(), part, out=gradient.of_action[i])
            torch.mm(slope, layers.of_action[i][2], out=back)
        bias = gradient.bias.numpy().reshape(self._all, -1)
        bias[self._present] = np.add.reduceat(self._slope_array, self._starts, axis=0)
        out.numpy()[self._order] = self._back_array
