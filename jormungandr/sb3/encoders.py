"""Features extractors of a learner's policy: they make of an observation what its learner does.

Stable-Baselines3 hands an extractor what its own preprocessing has made; one of these takes
observations as the policy's space has them. B observations, D elements of a vector, F features.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import Tensor, nn
from torch.nn import functional

from jormungandr.errors import InvalidValue
from jormungandr.inputs import RAW_BOUND
from jormungandr.sb3.moments import ObservationMoments
from jormungandr.spaces import channels_first
from jormungandr.weights import CONVOLUTIONS

__all__ = ["ImageEncoder", "VectorEncoder"]


class VectorEncoder(BaseFeaturesExtractor):
    """Flattens by the rule of `gymnasium.spaces.flatten`, and normalises.

    Stable-Baselines3's own preprocessing counts one-hots from 0 whatever their `start`, and
    divides small uint8 arrays of three axes by 255.

    Args:
        observation_space: a Box, Discrete, MultiBinary, MultiDiscrete, or a Dict of those.
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, int(spaces.flatdim(observation_space)))

    def forward(
        self, observations: PyTorchObs, moments: ObservationMoments | None = None
    ) -> Tensor:
        """Return float32 vectors (B, D), as `jormungandr.inputs.prepared` makes them.

        Args:
            observations: a batch as the environment shows it, or flattened already, (B, D).
            moments: normalise; without them, elements are clipped at 1e6 on either side.

        Raises:
            InvalidValue: an integer that its space does not hold.
        """
        space, flat = self._observation_space, (self.features_dim,)
        if isinstance(observations, Tensor) and observations.shape[1:] == flat != space.shape:
            vectors = observations.float()
        else:
            vectors = _flattened(space, observations, "observation")
        if moments is None:
            return vectors.clamp(-float(RAW_BOUND), float(RAW_BOUND))
        normalised: Tensor = moments(vectors)
        return normalised


def _flattened(space: spaces.Space[Any], values: PyTorchObs, where: str) -> Tensor:
    """Return a batch of a space as vectors, (B, D)."""
    if isinstance(space, spaces.Dict):
        assert isinstance(values, dict)
        parts = [_flattened(space[k], values[k], f"{where}.{k}") for k in sorted(space)]
        return torch.cat(parts, dim=1)
    assert isinstance(values, Tensor)
    if isinstance(space, spaces.Discrete):
        return _one_hot(values.reshape(-1, 1), [int(space.n)], [int(space.start)], where)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(values, space.nvec.tolist(), space.start.tolist(), where)
    return values.float().flatten(1)


def _one_hot(values: Tensor, nvec: list[int], start: list[int], where: str) -> Tensor:
    """Return integers (B, parts) as one-hot vectors (B, Σ nvec)."""
    columns = []
    for column, n, first in zip(values.long().unbind(1), nvec, start, strict=True):
        out = (column < first) | (column >= first + n)
        if out.any():
            raise InvalidValue(where, f"{first}..{first + n - 1}", int(column[out][0]))
        columns.append(functional.one_hot(column - first, n))
    return torch.cat(columns, dim=1).float()


class ImageEncoder(BaseFeaturesExtractor):
    """The convolutions of Mnih et al. (2015), as in `NatureCNN`, without the layer after them.

    Args:
        observation_space: a uint8 Box: (height, width), (channels, height, width), where the
            channels may be stacked frames, or stacks (frames, …) of images of three axes.
    """

    def __init__(self, observation_space: spaces.Box) -> None:
        with torch.no_grad():
            blank = torch.zeros((1, *observation_space.shape))
            channels = _pixels_first(blank).shape[1]
            layers: list[nn.Module] = []
            for filters, kernel, stride in CONVOLUTIONS:
                layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
                channels = filters
            cnn = nn.Sequential(*layers, nn.Flatten())
            features = cnn(_pixels_first(blank)).shape[1]
        super().__init__(observation_space, features)
        self.cnn = cnn

    def forward(self, observations: Tensor) -> Tensor:
        """Return features (B, F) of pixels, 0..255."""
        features: Tensor = self.cnn(_pixels_first(observations).float() / 255)
        return features


def _pixels_first(observations: Tensor) -> Tensor:
    """Return images as (B, channels, height, width), stacked frames as further channels."""
    if observations.dim() == 3:
        return observations[:, None]
    if observations.dim() == 5:
        if not channels_first(tuple(observations.shape[2:])):
            observations = observations.movedim(-1, 2)
        return observations.flatten(1, 2)
    return observations
