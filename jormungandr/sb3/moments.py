"""Observation moments as buffers of a policy: saved, loaded, copied and moved along with it.

D observation elements, B observations.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from jormungandr.inputs import VARIANCE_FLOOR
from jormungandr.numerics.moments import RunningMoments

__all__ = ["ObservationMoments", "has_moments"]


def has_moments(space: spaces.Space[object]) -> bool:
    """Whether observations of a space can be normalised: a Box of one axis.

    Images are scaled by Stable-Baselines3, discrete observations are encoded by it, and the parts
    of a Dict are left as they are.
    """
    return isinstance(space, spaces.Box) and len(space.shape) == 1


class ObservationMoments(nn.Module):
    """Running mean and variance of the training observations, and those latched for use.

    `RunningMoments` says how they are computed. What runs (`count`, `shift`, `sums`) is kept apart
    from what normalises (`mean`, `var`), which changes at an update only: between two updates a
    policy is one function, as a `PolicySnapshot` is.

    Args:
        shape: of one observation, (D,).
        clip: bound of a normalised element, in standard deviations.
    """

    count: Tensor
    shift: Tensor
    sums: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        super().__init__()
        self.clip = clip
        running = RunningMoments(shape)
        for name, value in running.state().items():
            self.register_buffer(name, torch.as_tensor(value))
        self.register_buffer("mean", torch.as_tensor(running.mean))
        self.register_buffer("var", torch.as_tensor(running.var))

    def running(self) -> RunningMoments:
        """Return the running moments, as an object of their own."""
        return RunningMoments.from_state(
            {name: getattr(self, name).cpu().numpy() for name in ("count", "shift", "sums")}
        )

    def update(self, batch: NDArray[np.floating]) -> None:
        """Take in training observations (B, D); what is latched stays.

        Raises:
            ValueError: the shape is wrong, or a number is not finite; nothing has changed.
        """
        running = self.running()
        running.update(batch)
        for name, value in running.state().items():
            getattr(self, name).copy_(torch.as_tensor(value))

    def latch(self) -> None:
        """Normalise with the running moments as they are now."""
        running = self.running()
        self.mean.copy_(torch.as_tensor(running.mean))
        self.var.copy_(torch.as_tensor(running.var))

    def forward(self, obs: Tensor) -> Tensor:
        """Return float32 observations (B, D), as `jormungandr.inputs.normalize` makes them."""
        scaled = (obs.double() - self.mean) / torch.sqrt(self.var + VARIANCE_FLOOR)
        return scaled.clamp(-self.clip, self.clip).float()
