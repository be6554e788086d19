"""`Forward`: what the network of one policy makes of observations, in NumPy alone.

B observations, A actions, N atoms, D elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.inputs import RAW_BOUND, VARIANCE_FLOOR, prepared, scaled
from jormungandr.row_forward import Floats, Layer, RowForward
from jormungandr.spec import ModelSpec
from jormungandr.weights import CONVOLUTIONS, convolved, linear

__all__ = ["Forward"]

_ZERO = np.float32(0)


class Forward:
    """The forward pass of one policy, which changes nothing; any thread may call it.

    Args:
        spec: the model's specification.
        weights: name to float32 array, as `layer_shapes` lists them.
        mean, var: (D,) float64 observation moments; (0,) of images.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Floats],
        mean: NDArray[np.float64],
        var: NDArray[np.float64],
    ) -> None:
        self._spec, self._weights = spec, weights
        self._mean, self._var = mean, var
        #: What normalised elements are divided by, (D,).
        self._root = np.asarray(np.sqrt(var + VARIANCE_FLOOR))
        heads = ["value", *["advantage"][: spec.c51.dueling]]
        if spec.auxiliary is not None:
            heads.append("auxiliary")
        self._hidden = [self._layer(f"hidden.{i}") for i in range(len(spec.c51.layers))]
        self._heads = {name: self._layer(name) for name in heads}

    def _layer(self, name: str) -> Layer:
        """Return a linear layer's weight, transposed, and its bias."""
        weight = np.ascontiguousarray(self._weights[f"{name}.weight"].T)
        return weight, self._weights[f"{name}.bias"]

    @cached_property
    def row(self) -> RowForward | None:
        """The pass of one vector; None of a network that has more to it, and with masks."""
        spec, o = self._spec, self._spec.observation
        if o.is_image or spec.c51.dueling or spec.action_masks:
            return None
        # What is not normalised is bounded; less nothing and divided by one, it stays what it is.
        mean, root = np.zeros_like(self._mean), np.ones_like(self._mean)
        clip = float(RAW_BOUND)
        if o.normalize:
            mean, root, clip = self._mean, self._root, o.clip
        actions = len(spec.action_set)
        return RowForward(mean, root, clip, self._hidden, self._heads["value"], actions)

    def logits(self, observation: NDArray[Any]) -> tuple[Floats, Floats | None]:
        """Return categorical logits (B, A, N), and auxiliary logits (B, classes) or None.

        Args:
            observation: (B, *stored_shape), raw.
        """
        x = self._prepared(observation)
        if self._spec.observation.is_image:
            for i, (_, _, stride) in enumerate(CONVOLUTIONS):
                weight, bias = (self._weights[f"conv.{i}.{part}"] for part in ("weight", "bias"))
                x = convolved(x, weight, bias, stride)
            x = x.reshape(len(x), math.prod(x.shape[1:]))
        for layer in self._hidden:
            x = linear(x, layer)
            np.maximum(x, _ZERO, out=x)
        shape = (len(x), len(self._spec.action_set), self._spec.c51.atoms)
        values = linear(x, self._heads["value"])
        if self._spec.c51.dueling:
            advantage = linear(x, self._heads["advantage"]).reshape(shape)
            values = values[:, None, :] + (advantage - advantage.mean(axis=1, keepdims=True))
        values = values.reshape(shape)
        if self._spec.auxiliary is None:
            return values, None
        return values, linear(x, self._heads["auxiliary"])

    def distribution(self, observation: NDArray[Any]) -> Floats:
        """Return the return distribution of every action, (B, A, N)."""
        e, _ = self.logits(observation)
        e -= np.maximum.reduce(e, axis=-1, keepdims=True)
        np.exp(e, e)
        e /= np.add.reduce(e, axis=-1, keepdims=True)
        return e

    def _prepared(self, observation: NDArray[Any]) -> Floats:
        """Return what the network sees, as `prepared` does."""
        o = self._spec.observation
        x = np.asarray(observation, dtype=o.stored_dtype)
        if o.normalize and not o.is_image:
            return scaled(x, self._mean, self._root, o.clip)
        return prepared(x, self._spec, self._mean, self._var)
