"""The network with a categorical head on one of Stable-Baselines3's feature extractors.

B observations, F features, A actions, N atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.dqn.policies import QNetwork
from torch import Tensor, nn

from jormungandr.learner.network import NoisyLinear
from jormungandr.numerics import categorical
from jormungandr.sb3.encoders import ImageEncoder, VectorEncoder
from jormungandr.sb3.moments import ObservationMoments

__all__ = ["CategoricalNetwork", "DuelingHead"]


class DuelingHead(nn.Module):
    """The logits of a state and of its actions, V + A − mean of A over actions (Wang et al. 2016).

    Args:
        inputs: F of what both are linear in.
        actions, atoms: A and N.
        linear: makes a layer of (inputs, outputs).
    """

    def __init__(
        self, inputs: int, actions: int, atoms: int, linear: Callable[[int, int], nn.Linear]
    ) -> None:
        super().__init__()
        self.value = linear(inputs, atoms)
        self.advantage = linear(inputs, actions * atoms)

    def forward(self, features: Tensor) -> Tensor:
        """Return (B, A·N) of (B, F)."""
        value: Tensor = self.value(features).unsqueeze(1)  # (B, 1, N)
        advantage: Tensor = self.advantage(features).view(len(features), -1, value.shape[-1])
        return (value + (advantage - advantage.mean(dim=1, keepdim=True))).flatten(1)


class CategoricalNetwork(QNetwork):
    """Maps raw observations to return distributions; called, it returns their means.

    So whatever reads `model.q_net(obs)` of a DQN reads this one's, (B, A).

    Args:
        observation_space, action_space, features_extractor, features_dim, net_arch, activation_fn,
            normalize_images: as in Stable-Baselines3's `QNetwork`.
        atoms, v_min, v_max: of the support.
        dueling: whether its head is a `DuelingHead`.
        noisy, noisy_sigma: whether layers after the features are noisy, and how much at first.
        risk_level: part of the returns, from the worst on, whose mean actions are chosen by.
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
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        risk_level: float = 1.0,
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
        self.atoms, self.v_min, self.v_max, self.dueling = atoms, v_min, v_max, dueling
        self.risk_level = risk_level
        actions = int(action_space.n)
        outputs = -1 if dueling else actions * atoms  # no output layer, or this one
        layers = create_mlp(features_dim, outputs, self.net_arch, activation_fn)
        self.noisy, self.noisy_sigma = noisy, noisy_sigma
        if noisy:
            layers = [self._noisy(m) if isinstance(m, nn.Linear) else m for m in layers]
        if dueling:
            last = [features_dim, *self.net_arch][-1]
            linear = partial(NoisyLinear, sigma=noisy_sigma) if noisy else nn.Linear
            layers.append(DuelingHead(last, actions, atoms, linear))
        self.q_net = nn.Sequential(*layers)
        # Made from the arguments, so it is no part of what is saved.
        self.register_buffer("support", categorical.support(v_min, v_max, atoms), persistent=False)
        # In a tuple, which hides them from torch: online and target network would each list the
        # policy's moments as their own.
        self._moments = (moments,)

    def _noisy(self, layer: nn.Linear) -> NoisyLinear:
        return NoisyLinear(layer.in_features, layer.out_features, self.noisy_sigma)

    def heads(self) -> list[nn.Linear]:
        """Return the layers that give logits; what each gives is added up."""
        last = self.q_net[-1]
        if isinstance(last, DuelingHead):
            return [last.value, last.advantage]
        assert isinstance(last, nn.Linear)
        return [last]

    def take_bounds(self, bounds: tuple[float, float]) -> None:
        """Set the lowest and highest atom, and leave the layers as they are."""
        self.v_min, self.v_max = bounds
        self.support.copy_(categorical.support(*bounds, self.atoms))

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

    def scores(self, obs: PyTorchObs) -> Tensor:
        """Return what actions are chosen by, (B, A): the mean, or that of the worst returns."""
        if self.risk_level == 1:
            scores: Tensor = self(obs)
            return scores
        return categorical.cvar(self.support, self.distribution(obs), self.risk_level)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> Tensor:
        return self.scores(observation).argmax(dim=1).reshape(-1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        (moments,) = self._moments
        return {
            **super()._get_constructor_parameters(),
            "atoms": self.atoms,
            "v_min": self.v_min,
            "v_max": self.v_max,
            "dueling": self.dueling,
            "noisy": self.noisy,
            "noisy_sigma": self.noisy_sigma,
            "risk_level": self.risk_level,
            "moments": moments,
        }
