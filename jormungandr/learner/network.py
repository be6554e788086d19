"""The C51 network: ReLU layers, a categorical value head, an optional auxiliary head.

Before them, of an image, the three convolutions of Mnih et al. (2015), "Human-level control through
deep reinforcement learning". The value head may be dueling (Wang et al. 2016), and the linear
layers noisy (Fortunato et al. 2018). B batch, D observation elements, A actions, N atoms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear

from jormungandr.spec import ModelSpec
from jormungandr.weights import CONVOLUTIONS, factors, is_noisy, layer_shapes

__all__ = ["Network", "NoisyLinear", "initial_weights", "noise", "numeric_threads"]


class numeric_threads:  # noqa: N801 - read as the function it is used as
    """Let torch compute on `count` threads inside the block, and as before after it.

    The bits of a sum can depend on how many threads share it, and the process around a learner may
    have set any number; these networks are so small that more threads only wait for each other.
    """

    __slots__ = ("_before", "_count")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != self._count:
            torch.set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        if self._before != self._count:
            torch.set_num_threads(self._before)


def initial_weights(spec: ModelSpec, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Draw weights and biases from U(±1/√inputs), PyTorch's default for its layers.

    Drawn with NumPy, so that initialisation has a stream of its own that a checkpoint can name. The
    deviations of noisy layers are noisy_sigma/√inputs, which is not drawn.
    """
    shapes = layer_shapes(spec)
    weights = {}
    bound = 1.0
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            bound = 1.0 / np.sqrt(np.prod(shape[1:]))
        if name.endswith("_sigma"):
            inputs = shapes[f"{name.rpartition('.')[0]}.weight"][1]
            weights[name] = np.full(shape, spec.c51.noisy_sigma / np.sqrt(inputs), np.float32)
            continue
        weights[name] = rng.uniform(-bound, bound, size=shape).astype(np.float32)
    return weights


class NoisyLinear(nn.Linear):
    """A linear layer whose weights are a mean and a learned deviation times factorised noise.

    y = (μ + σ ⊙ f(ε_out) f(ε_in)ᵀ) x + μ_b + σ_b ⊙ f(ε_out), f(x) = sign(x)·√|x|. Without noise,
    as it is made, it computes with the means alone.

    Args:
        inputs, outputs: as of a linear layer.
        sigma: deviation at first, times √inputs.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__(inputs, outputs)
        deviation = sigma / math.sqrt(inputs)
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), deviation))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), deviation))
        #: f(ε_in) (inputs,) and f(ε_out) (outputs,); no part of what is saved.
        self.noise: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs) of (B, inputs)."""
        mean = linear(x, self.weight, self.bias)
        if self.noise is None:
            return mean
        of_inputs, of_outputs = self.noise
        return mean + of_outputs * linear(x * of_inputs, self.weight_sigma, self.bias_sigma)


@contextmanager
def noise(rng: np.random.Generator, *networks: nn.Module) -> Iterator[None]:
    """Let the noisy layers of networks compute with new noise inside the block, without after it.

    Drawn layer by layer in the order of a network: that of the inputs, then that of the outputs.

    Args:
        rng: the stream.
        networks: in the order in which they draw.
    """
    inside = [layer for network in networks for layer in network.modules()]
    layers = [layer for layer in inside if isinstance(layer, NoisyLinear)]
    for layer in layers:
        drawn = [factors(n, rng) for n in (layer.in_features, layer.out_features)]
        of_inputs, of_outputs = (torch.from_numpy(d).to(layer.weight.device) for d in drawn)
        layer.noise = of_inputs, of_outputs
    try:
        yield
    finally:
        for layer in layers:
            layer.noise = None


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
            inputs = shapes[f"hidden.{i}.weight"][1]
            self.hidden.append(_linear(f"hidden.{i}", inputs, units, spec))
        last = spec.c51.layers[-1]
        self.value = _linear("value", last, shapes["value.weight"][0], spec)
        self.advantage = None
        if spec.c51.dueling:
            self.advantage = _linear("advantage", last, shapes["advantage.weight"][0], spec)
        self.auxiliary = (
            None if spec.auxiliary is None else nn.Linear(last, len(spec.auxiliary.classes))
        )
        # To ask the modules for them takes longer than to copy them.
        self._named = list(self.named_parameters())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return value logits (B, A, N), and auxiliary logits (B, classes) or None."""
        for convolution in self.conv:
            x = torch.relu(convolution(x))
        if len(self.conv):
            x = x.flatten(1)
        for layer in self.hidden:
            x = torch.relu(layer(x))
        if self.advantage is None:
            logits = self.value(x).view(-1, self.actions, self.atoms)
        else:
            advantage = self.advantage(x).view(-1, self.actions, self.atoms)
            logits = self.value(x).unsqueeze(1) + (advantage - advantage.mean(dim=1, keepdim=True))
        return logits, None if self.auxiliary is None else self.auxiliary(x)

    def set_weights(self, weights: dict[str, NDArray[np.float32]]) -> None:
        """Load weights by name.

        Raises:
            RuntimeError: a name or shape that does not fit.
        """
        self.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in weights.items()})

    def get_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the weights by name."""
        return {name: p.detach().numpy().copy() for name, p in self._named}


def _linear(name: str, inputs: int, outputs: int, spec: ModelSpec) -> nn.Linear:
    if is_noisy(name, spec):
        return NoisyLinear(inputs, outputs, spec.c51.noisy_sigma)
    return nn.Linear(inputs, outputs)
