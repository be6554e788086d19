"""The network with a categorical head on one of Stable-Baselines3's feature extractors.

B observations, F features, A actions, N atoms.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.dqn.policies import QNetwork
from torch import Tensor, nn

from jormungandr.numerics import categorical
from jormungandr.sb3.encoders import ImageEncoder, VectorEncoder
from jormungandr.sb3.moments import ObservationMoments

__all__ = ["CategoricalNetwork"]


class CategoricalNetwork(QNetwork):
    """Maps raw observations to return distributions; called, it returns their means.

    So whatever reads `model.q_net(obs)` of a DQN reads this one's, (B, A).

    Args:
        observation_space, action_space, features_extractor, features_dim, net_arch, activation_fn,
            normalize_images: as in Stable-Baselines3's `QNetwork`.
        atoms, v_min, v_max: of the support.
        moments: normalise the observations; shared with the policy, which saves them. None: none.
    """

    support: Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        normalize_images: bool = True,
        *,
        atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        moments: ObservationMoments | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            features_extractor,
            features_dim,
            net_arch,
            activation_fn,
            normalize_images,
        )
        self.atoms, self.v_min, self.v_max = atoms, v_min, v_max
        outputs = int(action_space.n) * atoms
        self.q_net = nn.Sequential(*create_mlp(features_dim, outputs, self.net_arch, activation_fn))
        # Made from the arguments, so it is no part of what is saved.
        self.register_buffer("support", categorical.support(v_min, v_max, atoms), persistent=False)
        # In a tuple, which hides them from torch: online and target network would each list the
        # policy's moments as their own.
        self._moments = (moments,)

    def logits(self, obs: PyTorchObs) -> Tensor:
        """Return logits (B, A, N) for raw observations."""
        values: Tensor = self.q_net(self.extract_features(obs, self.features_extractor))
        return values.view(len(values), -1, self.atoms)

    def extract_features(
        self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor
    ) -> Tensor:
        """Return features (B, F); the encoders of a learner's policy take raw observations."""
        (moments,) = self._moments
        features: Tensor
        if isinstance(features_extractor, ImageEncoder):
            features = features_extractor(obs)
        elif isinstance(features_extractor, VectorEncoder):
            features = features_extractor(obs, moments)
        else:
            if moments is not None:
                assert isinstance(obs, Tensor)  # a Box
                obs = moments(obs)
            features = super().extract_features(obs, features_extractor)
        return features

    def distribution(self, obs: PyTorchObs) -> Tensor:
        """Return the return distribution of every action, (B, A, N)."""
        return torch.softmax(self.logits(obs), dim=-1)

    def forward(self, obs: PyTorchObs) -> Tensor:
        """Return the expected return of every action, (B, A)."""
        return categorical.expectation(self.support, self.distribution(obs))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        (moments,) = self._moments
        return {
            **super()._get_constructor_parameters(),
            "atoms": self.atoms,
            "v_min": self.v_min,
            "v_max": self.v_max,
            "moments": moments,
        }
