"""The support of a `C51` that fits itself to the rewards, moved in Stable-Baselines3's networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jormungandr.numerics.support import Bounds, resampling

if TYPE_CHECKING:
    from jormungandr.sb3.policies import C51Policy

__all__ = ["move_support"]


@torch.no_grad()
def move_support(policy: C51Policy, bounds: Bounds, *, keep: bool = True) -> None:
    """Set the lowest and highest atom of both networks.

    Args:
        policy: whose networks they are.
        bounds: lowest and highest return.
        keep: let the networks go on saying what they said: the head is rewritten, and its averages
            in Adam with it.
    """
    for network in (policy.q_net, policy.q_net_target):
        old = (network.v_min, network.v_max)
        if keep:
            matrix, shift = map(torch.from_numpy, resampling(old, bounds, network.atoms))
            for i, layer in enumerate(network.heads()):
                for parameter in layer.parameters():
                    _resample(parameter, matrix)
                    for value in policy.optimizer.state.get(parameter, {}).values():
                        if isinstance(value, Tensor) and value.shape == parameter.shape:
                            _resample(value, matrix)
                if i == 0:  # of a dueling head V and A are added up: one of them takes the shift
                    layer.bias.add_(shift.to(layer.bias).repeat(len(layer.bias) // len(shift)))
        network.take_bounds(bounds)
    policy.head["v_min"], policy.head["v_max"] = bounds


def _resample(tensor: Tensor, matrix: Tensor) -> None:
    blocks = tensor.view(-1, len(matrix), *tensor.shape[1:])  # one of each action
    moved = torch.einsum("ij,aj...->ai...", matrix.to(blocks), blocks)
    tensor.copy_(moved.reshape(tensor.shape))
