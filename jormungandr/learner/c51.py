"""C51: one gradient step of categorical value learning (Bellemare et al. 2017, algorithm 1).

B batch, D observation elements, A actions, N atoms. Nothing here knows of journals or replay:
arrays of a batch go in, losses and per-transition priorities come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy as class_cross_entropy

from jormungandr.learner.network import Network, initial_weights
from jormungandr.numerics import categorical
from jormungandr.spec import ModelSpec

__all__ = ["C51", "Batch", "Losses", "Update"]


@dataclass(frozen=True, slots=True)
class Batch:
    """B transitions, observations normalised.

    Args:
        observation, next_observation: (B, D) float32.
        action: (B,) int64.
        reward: (B,) float32, over k steps.
        discount: (B,) float32, γ^k · (1 − terminated).
        label: (B,) int32, -1 without.
        weight: (B,) float64 importance weights, or None.
    """

    observation: NDArray[np.float32]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next_observation: NDArray[np.float32]
    discount: NDArray[np.float32]
    label: NDArray[np.int32]
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What one gradient step measured.

    Args:
        finite: whether the step was taken; a non-finite loss or gradient is skipped.
        loss: weighted categorical loss.
        auxiliary_loss: of the labelled transitions, None without any.
        grad_norm: before clipping.
        clipped_low, clipped_high: fraction of target mass put on the lowest and highest atom.
        priority: (B,) unweighted categorical losses.
    """

    finite: bool
    loss: float
    auxiliary_loss: float | None
    grad_norm: float
    clipped_low: float
    clipped_high: float
    priority: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Losses:
    """Measurements without a gradient: (B,) each, auxiliary ones of labelled transitions only."""

    categorical: NDArray[np.float32]
    auxiliary: NDArray[np.float32]
    correct: NDArray[np.bool_]


class C51:
    """Online and target network, optimizer, and the update.

    Args:
        spec: the model's specification.
        rng: the initialisation stream.
    """

    def __init__(self, spec: ModelSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self.online, self.target = Network(spec), Network(spec)
        weights = initial_weights(spec, rng)
        self.online.set_weights(weights)
        self.target.set_weights(weights)
        self.target.requires_grad_(False)
        low, high = spec.c51.support
        self.support = categorical.support(low, high, spec.c51.atoms)
        assert spec.c51.adam_eps is not None  # the spec resolved it
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=spec.c51.lr, eps=spec.c51.adam_eps, fused=True
        )

    def update(self, batch: Batch) -> Update:
        """Take one step on the loss ``mean(w · CE) + weight · mean(auxiliary CE)``."""
        logits, auxiliary = self.online(torch.from_numpy(batch.observation))
        taken = logits[torch.arange(len(batch.action)), torch.from_numpy(batch.action)]  # (B, N)
        target, low, high = self._target_distribution(batch)
        losses = categorical.cross_entropy(taken, target)  # (B,)
        weight = 1.0 if batch.weight is None else torch.from_numpy(batch.weight).to(losses.dtype)
        loss = total = (losses * weight).mean()
        auxiliary_loss = None
        labelled = np.flatnonzero(batch.label >= 0)
        if auxiliary is not None and len(labelled):
            auxiliary_loss = class_cross_entropy(
                auxiliary[torch.from_numpy(labelled)],
                torch.from_numpy(batch.label[labelled].astype(np.int64)),
            )
            assert self.spec.auxiliary is not None
            total = loss + self.spec.auxiliary.weight * auxiliary_loss
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        norm = float(
            torch.nn.utils.clip_grad_norm_(self.online.parameters(), self.spec.c51.max_grad_norm)
        )
        finite = math.isfinite(norm) and math.isfinite(float(total.detach()))
        if finite:
            self.optimizer.step()
        return Update(
            finite=finite,
            loss=float(loss.detach()),
            auxiliary_loss=None if auxiliary_loss is None else float(auxiliary_loss.detach()),
            grad_norm=norm,
            clipped_low=low,
            clipped_high=high,
            priority=losses.detach().numpy(),
        )

    @torch.no_grad()
    def losses(self, batch: Batch) -> Losses:
        """Measure a batch without learning from it."""
        logits, auxiliary = self.online(torch.from_numpy(batch.observation))
        taken = logits[torch.arange(len(batch.action)), torch.from_numpy(batch.action)]
        target, _, _ = self._target_distribution(batch)
        labelled = np.flatnonzero(batch.label >= 0)
        wrong = np.zeros(0, dtype=np.float32)
        correct = np.zeros(0, dtype=np.bool_)
        if auxiliary is not None and len(labelled):
            picked = auxiliary[torch.from_numpy(labelled)]
            truth = torch.from_numpy(batch.label[labelled].astype(np.int64))
            wrong = class_cross_entropy(picked, truth, reduction="none").numpy()
            correct = (picked.argmax(dim=1) == truth).numpy()
        return Losses(categorical.cross_entropy(taken, target).numpy(), wrong, correct)

    @torch.no_grad()
    def _target_distribution(self, batch: Batch) -> tuple[Tensor, float, float]:
        """Return projected targets (B, N), and the fraction of their mass clipped at each end.

        With `double`, the online network chooses the bootstrap action by expected value and the
        target network gives its distribution (van Hasselt et al. 2016, equation 4).
        """
        following = torch.from_numpy(batch.next_observation)
        probs = torch.softmax(self.target(following)[0], dim=-1)  # (B, A, N)
        chooser = (
            torch.softmax(self.online(following)[0], dim=-1) if self.spec.c51.double else probs
        )
        best = categorical.expectation(self.support, chooser).argmax(dim=-1)  # (B,)
        chosen = probs[torch.arange(len(best)), best]  # (B, N)
        reward, discount = torch.from_numpy(batch.reward), torch.from_numpy(batch.discount)
        low, high = categorical.clipped_mass(self.support, chosen, reward, discount)
        target = categorical.project(self.support, chosen, reward, discount)
        return target, float(low.mean()), float(high.mean())

    def finite(self) -> bool:
        """Whether every weight of the online network is finite."""
        weights = (parameter.detach().numpy() for parameter in self.online.parameters())
        return all(bool(np.isfinite(weight).all()) for weight in weights)

    def copy_target(self) -> None:
        """Copy the online network to the target network."""
        self.target.load_state_dict(self.online.state_dict())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return every number an update depends on, as copies by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for part, network in (("online", self.online), ("target", self.target)):
            arrays |= {f"{part}.{name}": a for name, a in network.get_weights().items()}
        for name, parameter in self.online.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                arrays[f"adam.{name}.{key}"] = value.detach().numpy().copy()
        return arrays

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        self.online.set_weights(part("online."))
        self.target.set_weights(part("target."))
        self.optimizer.state.clear()
        for name, parameter in self.online.named_parameters():
            saved = part(f"adam.{name}.")
            if saved:
                self.optimizer.state[parameter] = {
                    key: torch.from_numpy(value.copy()) for key, value in saved.items()
                }
