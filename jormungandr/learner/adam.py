"""Adam over all parameters of a network at once (Kingma and Ba 2015, arXiv:1412.6980)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jormungandr.learner.layers import Layers

__all__ = ["Adam"]

#: Averaging of gradients and of their squares (algorithm 1).
BETA_1, BETA_2 = 0.9, 0.999


class Adam:
    """The optimizer of one vector of parameters; its state is named by them.

    Args:
        layers: the parameters.
        eps: ε of the algorithm.
    """

    def __init__(self, layers: Layers, eps: float) -> None:
        self._layers, self._eps = layers, eps
        self.mean = torch.zeros_like(layers.values)
        self.square = torch.zeros_like(layers.values)
        self._steps = 0
        self._count = np.zeros((), dtype=np.float32)  # the same, for torch
        self._count_tensor = torch.from_numpy(self._count)  # a view

    def step(self, gradient: Tensor, lr: float) -> None:
        """Take one step.

        Args:
            gradient: by all parameters, one vector.
            lr: α of the algorithm.
        """
        self._steps += 1
        self._count.fill(self._steps)
        # What `torch.optim.Adam(fused=True)` calls, of one parameter.
        torch._fused_adam_(
            [self._layers.values],
            [gradient],
            [self.mean],
            [self.square],
            [],
            [self._count_tensor],
            lr=lr,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return copies of its averages and counts, by parameter and key; empty before a step."""
        arrays: dict[str, NDArray[Any]] = {}
        if self._steps:
            for key, flat in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
                for name, view in self._layers.parts(flat).items():
                    arrays[f"{name}.{key}"] = view.numpy().copy()
            for name in self._layers.views:
                arrays[f"{name}.step"] = np.array(self._steps, dtype=np.float32)
        return arrays

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self._steps = 0
        for key, flat in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
            flat.zero_()
            for name, view in self._layers.parts(flat).items():
                if f"{name}.{key}" in state:
                    view.copy_(torch.from_numpy(state[f"{name}.{key}"]))
                    self._steps = int(state[f"{name}.step"])
