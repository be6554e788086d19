"""`ExportedPolicy`: a policy as one torch module, from raw observations to actions.

B observations, A actions, N atoms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from jormungandr.inputs import RAW_BOUND, VARIANCE_FLOOR
from jormungandr.learner.network import Network
from jormungandr.policy import PolicySnapshot
from jormungandr.spaces import channels_first
from jormungandr.spec import ModelSpec

__all__ = ["ExportedPolicy", "example", "signature"]

Signature = tuple[list[dict[str, Any]], list[dict[str, Any]]]


class ExportedPolicy(nn.Module):
    """A policy with everything in it: normalisation, network, distribution, greedy choice.

    Args:
        snapshot: the policy.
    """

    mean: Tensor
    deviation: Tensor
    support: Tensor

    def __init__(self, snapshot: PolicySnapshot) -> None:
        super().__init__()
        self.settings, self.tail = snapshot.spec.observation, snapshot.spec.risk.tail
        greedy = snapshot.without_noise()
        self.network = Network(greedy.spec)
        self.network.set_weights(greedy.weights)
        self.network.requires_grad_(False)
        self.register_buffer("mean", torch.tensor(snapshot.mean))
        self.register_buffer("deviation", torch.tensor(snapshot.var).add(VARIANCE_FLOOR).sqrt())
        self.register_buffer("support", torch.tensor(snapshot.support, dtype=torch.float32))
        self.eval()

    def forward(self, observation: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Choose actions.

        Args:
            observation: (B, *stored_shape) float32, or uint8 of images.
            action_mask: (B, A) bool, which actions are allowed; of a model with action masks.

        Returns:
            The best allowed action (B,) int64, the expected returns (B, A), their distributions
            (B, A, N), and the auxiliary logits (B, classes) if the policy has them.
        """
        logits, auxiliary = self.network(self.prepared(observation))
        distribution = torch.softmax(logits, dim=-1)
        values = allowed = distribution @ self.support
        if self.tail < 1:  # as `categorical.cvar`, in what every format can be traced through
            below = distribution.cumsum(-1) - distribution
            allowed = torch.minimum(distribution, (self.tail - below).clamp(min=0)) @ self.support
        if action_mask is not None:
            allowed = allowed.masked_fill(~action_mask, float("-inf"))
        outputs = (allowed.argmax(dim=-1), values, distribution)
        return outputs if auxiliary is None else (*outputs, auxiliary)

    def prepared(self, observation: Tensor) -> Tensor:
        """Return what the network sees; `jormungandr.inputs.prepared` in torch."""
        o = self.settings
        if o.is_image:
            frames = observation.reshape(-1, o.frame_stack, *o.shape)
            if len(o.shape) == 3 and not channels_first(o.shape):
                frames = frames.movedim(-1, 2)
            return frames.flatten(1, -3).float() / 255
        if o.normalize:
            # The difference in float64: a large common offset must not eat the digits.
            scaled = (observation.double() - self.mean) / self.deviation
            return scaled.clamp(-o.clip, o.clip).float()
        return observation.clamp(-float(RAW_BOUND), float(RAW_BOUND))


def signature(spec: ModelSpec) -> Signature:
    """Return the inputs and the outputs of an exported policy, each with name, shape and dtype."""
    o, actions = spec.observation, len(spec.action_set)
    inputs = [_described("observation", o.stored_shape, str(o.stored_dtype))]
    if spec.action_masks:
        inputs.append(_described("action_mask", (actions,), "bool"))
    outputs = [
        _described("action", (), "int64"),
        _described("expected_values", (actions,), "float32"),
        _described("distribution", (actions, spec.c51.atoms), "float32"),
    ]
    if spec.auxiliary is not None:
        outputs.append(_described("auxiliary_logits", (len(spec.auxiliary.classes),), "float32"))
    return inputs, outputs


def example(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Return inputs to trace with; two observations, since torch takes a 1 for a constant."""
    inputs, _ = signature(spec)
    return tuple(
        torch.ones((2, *entry["shape"][1:]), dtype=getattr(torch, entry["dtype"]))
        for entry in inputs
    )


def _described(name: str, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    return {"name": name, "shape": ["batch", *shape], "dtype": dtype}
