"""A plain network's parameters, and a gradient by them, as views of one vector each.

What is done to all parameters alike - norm, scaling, Adam, a copy, an average - is then one call.
A dueling head, whose logits are V + A − the mean of A, is linear too: it computes what one layer
does whose weights are W_V + W_A − the mean of W_A, so the rest knows only that layer. B batch, A
actions, N atoms, H units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jormungandr.learner.network import Network

__all__ = ["Gradient", "Layers"]


class Layers:
    """The parameters; the network they are of computes with the same memory.

    Args:
        network: of linear layers; its parameters are moved.

    Attributes:
        values: all of them, one vector.
        views: its parts, by name.
        weight, bias: (A·N, H) and (A·N,) of the one layer that gives logits; of a dueling head as
            of the last `merge`.
        weight_t: (H, A·N), transposed.
        of_action: bias, weight_t and weight of each action: (N,), (H, N), (N, H).
    """

    def __init__(self, network: Network) -> None:
        self._shapes = {name: p.shape for name, p in network.named_parameters()}
        self.values = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        self.views = self.parts(self.values)
        for name, parameter in network.named_parameters():
            parameter.data = self.views[name]
        w = self.views
        self._hidden = [
            (w[f"hidden.{i}.bias"], w[f"hidden.{i}.weight"].t()) for i in range(len(network.hidden))
        ]
        self.dueling = network.advantage is not None
        self.shape = network.actions, network.atoms, -1
        self.weight, self.bias = w["value.weight"], w["value.bias"]
        if self.dueling:
            self.weight = torch.empty_like(w["advantage.weight"])
            self.bias = torch.empty_like(w["advantage.bias"])
        self.weight_t = self.weight.t()
        weights = self.weight.view(*self.shape[:2], -1)
        of_action = zip(self.bias.view(self.shape[:2]), weights, strict=True)
        self.of_action = [(bias, weight.t(), weight) for bias, weight in of_action]

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector like `values`, by name."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        named = zip(self._shapes.items(), flat.split_with_sizes(sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def merge(self) -> None:
        """Make the one layer of a dueling head from its two; of a plain one there is no need."""
        if not self.dueling:
            return
        for kind, merged in (("weight", self.weight), ("bias", self.bias)):
            advantage = self.views[f"advantage.{kind}"].view(self.shape)  # (A, N, H or 1)
            state = self.views[f"value.{kind}"].view(self.shape[1:])
            torch.add(advantage, state - advantage.mean(0), out=merged.view(self.shape))

    def through(self, x: Tensor, hidden: list[Tensor]) -> Tensor:
        """Fill what each hidden layer gives of (B, D), and return the last, (B, H)."""
        for (bias, weight), out in zip(self._hidden, hidden, strict=True):
            torch.addmm(bias, x, weight, out=out)
            x = torch.relu_(out)
        return x

    def finite(self) -> bool:
        """Whether every parameter is finite."""
        # A sum is finite only of finite numbers; of such it may still overflow.
        return math.isfinite(self.values.sum()) or bool(self.values.isfinite().all())


class Gradient:
    """A gradient by the parameters of a network.

    Args:
        layers: the parameters.

    Attributes:
        values: all of it, one vector.
        views: its parts, by name.
        weight, bias: (A·N, H) and (A·N,), of the one layer that gives logits.
        of_action: its weights of each action, (N, H).
    """

    def __init__(self, layers: Layers) -> None:
        self.values = torch.zeros_like(layers.values)
        self.views = layers.parts(self.values)
        self._dueling, self._shape = layers.dueling, layers.shape
        self.weight, self.bias = self.views["value.weight"], self.views["value.bias"]
        if self._dueling:
            self.weight = torch.zeros_like(self.views["advantage.weight"])
            self.bias = torch.zeros_like(self.views["advantage.bias"])
        self.of_action = list(self.weight.view(self._shape))

    def split(self) -> None:
        """Make the gradient by the two layers of a dueling head from that by the one."""
        if not self._dueling:
            return
        for kind, merged in (("weight", self.weight), ("bias", self.bias)):
            by_action = merged.view(self._shape)  # (A, N, H or 1)
            state = by_action.sum(0)
            self.views[f"value.{kind}"].view(self._shape[1:]).copy_(state)
            advantage = self.views[f"advantage.{kind}"].view(self._shape)
            torch.sub(by_action, state, alpha=1 / self._shape[0], out=advantage)

    def norm(self) -> float:
        """Return its length; from 2e19 on infinite, like torch's: it squares in float32 as well."""
        return math.sqrt(self.values.dot(self.values))
