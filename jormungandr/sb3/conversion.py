"""A learner's policy as one of Stable-Baselines3: its spaces, its layers, its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import nn

from jormungandr.errors import InvalidValue
from jormungandr.policy import PolicySnapshot
from jormungandr.sb3.encoders import ImageEncoder, VectorEncoder
from jormungandr.settings import Observation
from jormungandr.spaces import Box, DictSpace, as_gymnasium, channels_first
from jormungandr.weights import layer_shapes

if TYPE_CHECKING:
    from jormungandr.sb3.policies import C51Policy

__all__ = ["arguments", "copy_numbers", "observation_space"]


def observation_space(observation: Observation) -> spaces.Space[Any]:
    """Return the space of a policy that Stable-Baselines3 gives an environment's observations.

    It is the environment's own, with stacked frames (k, …) as Gymnasium's `FrameStackObservation`
    shows them. Of an image of three axes, not stacked, the space has the channels first: `predict`
    transposes what comes with its channels last, so that it takes both what the environment shows
    and what `VecTransposeImage` makes of that.

    Raises:
        InvalidValue: a Dict inside a Dict, which Stable-Baselines3 does not take.
    """
    described = observation.described
    if isinstance(described, DictSpace):
        for key, part in described.spaces.items():
            if isinstance(part, DictSpace):
                raise InvalidValue(
                    f"observation.space.spaces[{key!r}]",
                    "no Dict inside a Dict, which Stable-Baselines3 does not take",
                    f"a Dict of {list(part.spaces)}",
                    "act with the PolicySnapshot, whose predict takes one",
                )
    if not isinstance(described, Box):
        return as_gymnasium(described)
    shape = observation.shown_shape
    if observation.is_image and len(shape) == len(observation.shape) == 3:
        shape = shape if channels_first(shape) else (shape[2], *shape[:2])
    return as_gymnasium(Box(shape=shape, dtype=described.dtype))


def arguments(snapshot: PolicySnapshot) -> dict[str, Any]:
    """Return what `C51Policy` is to be made with, but for the schedule.

    Raises:
        InvalidValue: as in `observation_space`.
    """
    spec = snapshot.spec
    o = spec.observation
    return {
        "observation_space": observation_space(o),
        "action_space": spaces.Discrete(len(spec.action_set)),
        "net_arch": list(spec.c51.layers),
        "features_extractor_class": ImageEncoder if o.is_image else VectorEncoder,
        "atoms": spec.c51.atoms,
        "v_min": float(snapshot.support[0]),
        "v_max": float(snapshot.support[-1]),
        "dueling": spec.c51.dueling,
        "risk_level": spec.risk.tail,
        "normalize_observations": o.normalize and not o.is_image,
        "clip_observations": o.clip,
    }


def copy_numbers(snapshot: PolicySnapshot, policy: C51Policy) -> None:
    """Copy weights and moments into a policy made with `arguments`.

    The auxiliary head and the deviations of noisy layers are left.
    """
    names = [
        name.removesuffix(".weight")
        for name in layer_shapes(snapshot.spec)
        if name.endswith(".weight") and not name.startswith("auxiliary.")
    ]
    network = policy.q_net
    inside = [*network.features_extractor.modules(), *network.q_net.modules()]
    layers = [layer for layer in inside if isinstance(layer, nn.Conv2d | nn.Linear)]
    for name, layer in zip(names, layers, strict=True):
        parts = ("weight", "bias")
        layer.load_state_dict({p: torch.tensor(snapshot.weights[f"{name}.{p}"]) for p in parts})
    policy.q_net_target.load_state_dict(network.state_dict())
    if policy.moments is not None:
        policy.moments.mean.copy_(torch.tensor(snapshot.mean))
        policy.moments.var.copy_(torch.tensor(snapshot.var))
