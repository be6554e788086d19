"""Policies with a categorical head on Stable-Baselines3's feature extractors.

B observations, A actions, N atoms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn

from jormungandr.numerics import categorical
from jormungandr.policy import PolicySnapshot
from jormungandr.sb3.moments import ObservationMoments, has_moments

__all__ = ["C51Policy", "CategoricalNetwork", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]


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
        (moments,) = self._moments
        if moments is not None:
            assert isinstance(obs, Tensor)  # a Box
            obs = moments(obs)
        values: Tensor = self.q_net(self.extract_features(obs, self.features_extractor))
        return values.view(len(values), -1, self.atoms)

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


class C51Policy(DQNPolicy):
    """Acts by the highest expected return; made by `C51`, from a file, or from a learner's policy.

    Args:
        observation_space, action_space, lr_schedule, activation_fn, features_extractor_class,
            features_extractor_kwargs, normalize_images, optimizer_class, optimizer_kwargs: as in
            Stable-Baselines3's `DQNPolicy`.
        net_arch: units of each layer after the features; by default two of 128, and none after a
            `NatureCNN`, which ends with a layer of its own.
        atoms, v_min, v_max: of the support.
        normalize_observations: scale a Box of one axis by the moments of its training
            observations; other spaces have none.
        clip_observations: bound of a normalised element, in standard deviations.
    """

    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor

    q_net: CategoricalNetwork
    q_net_target: CategoricalNetwork
    moments: ObservationMoments | None

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        *,
        atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        normalize_observations: bool = True,
        clip_observations: float = 10.0,
    ) -> None:
        # Before the base class, whose constructor ends with building the networks.
        self.head: dict[str, Any] = {"atoms": atoms, "v_min": v_min, "v_max": v_max}
        self.normalize_observations = normalize_observations
        self.clip_observations = clip_observations
        if features_extractor_class is None:
            features_extractor_class = self.default_extractor
        if net_arch is None:
            net_arch = [] if issubclass(features_extractor_class, NatureCNN) else [128, 128]
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            activation_fn,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images,
            optimizer_class,
            optimizer_kwargs,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        self.moments = None
        if self.normalize_observations and has_moments(self.observation_space):
            assert self.observation_space.shape is not None
            self.moments = ObservationMoments(self.observation_space.shape, self.clip_observations)
        super()._build(lr_schedule)

    def make_q_net(self) -> CategoricalNetwork:
        """Return a network with a features extractor of its own."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return CategoricalNetwork(**net_args, **self.head, moments=self.moments).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            **self.head,
            "normalize_observations": self.normalize_observations,
            "clip_observations": self.clip_observations,
        }

    @classmethod
    def from_snapshot(
        cls, snapshot: PolicySnapshot, device: torch.device | str = "auto"
    ) -> C51Policy:
        """Return a learner's policy; it acts as the snapshot does, to rounding.

        The auxiliary head stays behind, and the target network is a copy of the online one.

        Args:
            snapshot: the policy.
            device: where its networks go.
        """
        spec = snapshot.spec
        policy = C51Policy(
            spaces.Box(-np.inf, np.inf, spec.observation.shape, np.float32),
            spaces.Discrete(len(spec.action_set)),
            cls._dummy_schedule,
            net_arch=list(spec.c51.layers),
            atoms=spec.c51.atoms,
            v_min=spec.c51.support[0],
            v_max=spec.c51.support[1],
            normalize_observations=spec.observation.normalize,
            clip_observations=spec.observation.clip,
        )
        names = [*(f"hidden.{i}" for i in range(len(spec.c51.layers))), "value"]
        layers = [layer for layer in policy.q_net.q_net if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for name, layer in zip(names, layers, strict=True):
                layer.weight.copy_(torch.as_tensor(snapshot.weights[f"{name}.weight"]))
                layer.bias.copy_(torch.as_tensor(snapshot.weights[f"{name}.bias"]))
        policy.q_net_target.load_state_dict(policy.q_net.state_dict())
        if policy.moments is not None:
            policy.moments.mean.copy_(torch.as_tensor(snapshot.mean))
            policy.moments.var.copy_(torch.as_tensor(snapshot.var))
        policy.set_training_mode(False)
        return policy.to(get_device(device))

    @classmethod
    def from_checkpoint(cls, path: str | Path, device: torch.device | str = "auto") -> C51Policy:
        """Return the policy of a checkpoint folder, or of a policy's safetensors file.

        Raises:
            CheckpointError: there is none, or it is not a policy of ours.
        """
        return cls.from_snapshot(PolicySnapshot.open(path), device)


MlpPolicy = C51Policy


class CnnPolicy(C51Policy):
    """`C51Policy` for images, with `NatureCNN` unless another features extractor is given."""

    default_extractor = NatureCNN


class MultiInputPolicy(C51Policy):
    """`C51Policy` for Dict observations, with `CombinedExtractor` unless another is given."""

    default_extractor = CombinedExtractor


#: What `C51("MlpPolicy", …)` and the other names stand for.
ALIASES: dict[str, type[BasePolicy]] = {
    "MlpPolicy": MlpPolicy,
    "CnnPolicy": CnnPolicy,
    "MultiInputPolicy": MultiInputPolicy,
}
