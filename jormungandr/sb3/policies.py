"""Policies with a categorical head on Stable-Baselines3's feature extractors.

B observations, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import get_device
from stable_baselines3.dqn.policies import DQNPolicy
from torch import Tensor, nn

from jormungandr.bundle import open_bundle
from jormungandr.checks import as_array
from jormungandr.errors import DtypeMismatch, InvalidValue
from jormungandr.learner.network import noise
from jormungandr.policy import PolicySnapshot
from jormungandr.sb3 import conversion
from jormungandr.sb3.encoders import VectorEncoder
from jormungandr.sb3.masks import checked_masks
from jormungandr.sb3.moments import ObservationMoments, has_moments
from jormungandr.sb3.networks import CategoricalNetwork
from jormungandr.settings import C51, Risk

__all__ = ["C51Policy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"]


class C51Policy(DQNPolicy):
    """Acts by the highest expected return; made by `C51`, from a file, or from a learner's policy.

    Args:
        observation_space, action_space, lr_schedule, activation_fn, features_extractor_class,
            features_extractor_kwargs, normalize_images, optimizer_class, optimizer_kwargs: as in
            Stable-Baselines3's `DQNPolicy`.
        net_arch: units of each layer after the features; by default two of 128, and none after a
            `NatureCNN`, which ends with a layer of its own.
        atoms, v_min, v_max: of the support.
        dueling: the logits of an action are V + A − mean of A over the actions (Wang et al. 2016),
            V and A being two linear heads on the last layer.
        noisy: the linear layers after the features have learned noise (Fortunato et al. 2018). Each
            update draws it, and so does each prediction that is not deterministic. To explore by
            noise alone, let `C51` have no epsilon: ``exploration_initial_eps=0``,
            ``exploration_final_eps=0``.
        noisy_sigma: standard deviation of a weight's noise at first, times √inputs.
        risk_level: part of the returns, from the worst on, whose mean the best action is chosen
            by (conditional value at risk); 1 is all of them, and so the expected return.
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
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        risk_level: float = 1.0,
        normalize_observations: bool = True,
        clip_observations: float = 10.0,
    ) -> None:
        # Before the base class, whose constructor ends with building the networks.
        self.head: dict[str, Any] = {
            "atoms": atoms,
            "v_min": v_min,
            "v_max": v_max,
            "dueling": dueling,
            "noisy": noisy,
            "noisy_sigma": noisy_sigma,
            "risk_level": risk_level,
        }
        Risk(kind="cvar", level=risk_level)  # refuses what is no part
        C51(noisy_sigma=noisy_sigma)  # what is no deviation, too
        #: What the noise is drawn from; of a noisy network seeded as Stable-Baselines3 seeds NumPy.
        self.noise = np.random.default_rng(np.random.randint(2**31) if noisy else 0)
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
        encoded = issubclass(self.features_extractor_class, VectorEncoder)
        if self.normalize_observations and (encoded or has_moments(self.observation_space)):
            shape = (int(spaces.flatdim(self.observation_space)),)
            self.moments = ObservationMoments(shape, self.clip_observations)
        super()._build(lr_schedule)

    def make_q_net(self) -> CategoricalNetwork:
        """Return a network with a features extractor of its own."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return CategoricalNetwork(**net_args, **self.head, moments=self.moments).to(self.device)

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """Return the best actions and `state`, as in Stable-Baselines3.

        Args:
            observation: a single one, or a batch of B.
            state: handed through; this policy has none.
            episode_start: without meaning here.
            deterministic: without the noise of a noisy network; of others it makes no difference
                here, since it is `C51.predict` that explores.
            action_masks: (B, A), or (A,) of a single observation: which actions are allowed, as in
                sb3-contrib's `MaskablePPO`. None allows all.

        Raises:
            InvalidInput: (one of its classes) masks of another shape, or a row that allows nothing.
        """
        given: Any = observation
        pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)
        if action_masks is None or pair:  # the base class explains what is wrong with a pair
            return super().predict(observation, state, episode_start, deterministic)
        self.set_training_mode(False)
        tensor, batched = self.obs_to_tensor(observation)
        with torch.no_grad(), self._exploring(deterministic):
            values = self.q_net.scores(tensor).cpu().numpy()  # (B, A)
        masks = checked_masks(action_masks, *values.shape)
        actions = np.where(masks, values, -np.inf).argmax(axis=1)
        return actions if batched else actions.squeeze(axis=0), state

    def _predict(self, obs: PyTorchObs, deterministic: bool = True) -> Tensor:
        with self._exploring(deterministic):
            return super()._predict(obs, deterministic)

    def _exploring(self, deterministic: bool) -> AbstractContextManager[None]:
        return nullcontext() if deterministic else noise(self.noise, self.q_net)

    def obs_to_tensor(
        self, observation: NDArray[Any] | dict[str, NDArray[Any]]
    ) -> tuple[PyTorchObs, bool]:
        """Return observations as tensors, and whether they are a batch, as Stable-Baselines3 does.

        Raises:
            InvalidInput: (one of its classes) for bytes, something else than integers in 0..255.
        """
        _check_bytes(observation, self.observation_space, "observation")
        return super().obs_to_tensor(observation)

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

        Its space is the environment's own, with stacked frames as Gymnasium's
        `FrameStackObservation` shows them; stacking frames and repeating actions are the
        environment's part. A single image is taken with its channels last or first, while the
        space, and `q_net`, have them first: ``policy.obs_to_tensor`` brings them there.

        The auxiliary head stays behind, as does the noise of a noisy network. The target network is
        a copy of the online one.

        Args:
            snapshot: the policy.
            device: where its networks go.

        Raises:
            InvalidValue: its observations are a Dict inside a Dict.
        """
        policy = C51Policy(lr_schedule=cls._dummy_schedule, **conversion.arguments(snapshot))
        conversion.copy_numbers(snapshot, policy)
        policy.set_training_mode(False)
        return policy.to(get_device(device))

    @classmethod
    def from_checkpoint(cls, path: str | Path, device: torch.device | str = "auto") -> C51Policy:
        """Return the policy of a checkpoint folder, or of a policy's safetensors file.

        Raises:
            CheckpointError: there is none, or it is not a policy of ours.
        """
        return cls.from_snapshot(PolicySnapshot.open(path), device)

    @classmethod
    def from_bundle(
        cls,
        path: str | Path,
        features: Sequence[str] | None = None,
        device: torch.device | str = "auto",
    ) -> C51Policy:
        """Return the policy of an exported bundle whose digests verify.

        Args:
            path: the bundle's folder.
            features: the names of the observation's elements as the environment gives them.
            device: where its networks go.

        Raises:
            CheckpointError: it is no bundle, or damaged.
            InvalidValue: the policy's features are others, or in another order.
        """
        return cls.from_snapshot(open_bundle(path, features), device)


def _check_bytes(observation: Any, space: spaces.Space[Any], where: str) -> None:
    """Refuse what is no image of bytes: one that was divided by 255 before would be so again."""
    if isinstance(space, spaces.Dict) and isinstance(observation, Mapping):
        for key, part in space.spaces.items():
            if key in observation:
                _check_bytes(observation[key], part, f"{where}.{key}")
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return
    array = as_array(observation, where)
    if array.dtype.kind not in "iu":
        raise DtypeMismatch(where, "integers in 0..255", array.dtype)
    if array.dtype != np.uint8 and ((array < 0) | (array > 255)).any():
        raise InvalidValue(where, "integers in 0..255", f"{array.min()}..{array.max()}")


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
