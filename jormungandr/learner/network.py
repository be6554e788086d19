"""The C51 network: ReLU layers, a categorical value head, an optional auxiliary head.

Before them, of an image, the three convolutions of Mnih et al. (2015), "Human-level control through
deep reinforcement learning". B batch, D observation elements, A actions, N atoms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jormungandr.policy import CONVOLUTIONS, layer_shapes
from jormungandr.spec import ModelSpec

__all__ = ["Network", "initial_weights", "numeric_threads"]


@contextmanager
def numeric_threads(count: int) -> Iterator[None]:
    """Let torch compute on `count` threads inside the block, and as before after it.

    The bits of a sum can depend on how many threads share it, and the process around a learner may
    have set any number; these networks are so small that more threads only wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def initial_weights(spec: ModelSpec, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Draw weights and biases from U(±1/√inputs), PyTorch's default for its layers.

    Drawn with NumPy, so that initialisation has a stream of its own that a checkpoint can name.
    """
    weights = {}
    bound = 1.0
    for name, shape in layer_shapes(spec).items():
        if name.endswith(".weight"):
            bound = 1.0 / np.sqrt(np.prod(shape[1:]))
        weights[name] = rng.uniform(-bound, bound, size=shape).astype(np.float32)
    return weights


class Network(nn.Module):
    """Maps what `policy.prepared` returns to logits (B, A, N) and auxiliary logits (B, classes)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        shapes = layer_shapes(spec)
        self.actions, self.atoms = len(spec.action_set), spec.c51.atoms
        convolutions = CONVOLUTIONS if spec.observation.is_image else ()
        self.conv = nn.ModuleList()
        for i, (filters, kernel, stride) in enumerate(convolutions):
            channels = shapes[f"conv.{i}.weight"][1]
            self.conv.append(nn.Conv2d(channels, filters, kernel, stride))
        self.hidden = nn.ModuleList()
        for i, units in enumerate(spec.c51.layers):
            self.hidden.append(nn.Linear(shapes[f"hidden.{i}.weight"][1], units))
        last = spec.c51.layers[-1]
        self.value = nn.Linear(last, self.actions * self.atoms)
        self.auxiliary = (
            None if spec.auxiliary is None else nn.Linear(last, len(spec.auxiliary.classes))
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return value logits (B, A, N), and auxiliary logits (B, classes) or None."""
        for convolution in self.conv:
            x = torch.relu(convolution(x))
        if len(self.conv):
            x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        logits = self.value(x).view(-1, self.actions, self.atoms)
        return logits, None if self.auxiliary is None else self.auxiliary(x)

    def set_weights(self, weights: dict[str, NDArray[np.float32]]) -> None:
        """Load weights by name.

        Raises:
            RuntimeError: a name or shape that does not fit.
        """
        self.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in weights.items()})

    def get_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the weights by name."""
        return {name: t.detach().numpy().copy() for name, t in self.state_dict().items()}
