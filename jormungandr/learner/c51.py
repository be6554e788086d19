"""C51: one gradient step of categorical value learning (Bellemare et al. 2017, algorithm 1).

B batch, D observation elements, A actions, N atoms; C, H, W of images. Nothing here knows of
journals or replay: arrays of a batch go in, losses and per-transition priorities come out. The loss
and the step are functions of logits, whatever network gave them; the classes for Stable-Baselines3
use the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy as class_cross_entropy

from jormungandr.learner.network import Network, initial_weights
from jormungandr.learner.support import resampled
from jormungandr.numerics import categorical
from jormungandr.numerics.support import UNKNOWN, Bounds
from jormungandr.spec import ModelSpec

__all__ = [
    "C51",
    "Batch",
    "Losses",
    "Update",
    "descend",
    "target_distribution",
    "transition_losses",
]


@torch.no_grad()
def target_distribution(
    support: Tensor,
    target_logits: Tensor,
    chooser_logits: Tensor | None,
    reward: Tensor,
    discount: Tensor,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return projected targets (B, N), and the mass of each clipped at the low and high end, (B,).

    With a chooser, the online network chooses the bootstrap action by expected value and the
    target network gives its distribution (van Hasselt et al. 2016, equation 4).

    Args:
        support: (N,) atoms.
        target_logits: (B, A, N) of the target network at the successors.
        chooser_logits: (B, A, N) of the online network there; None lets the target choose.
        reward: (B,) over k steps.
        discount: (B,) γ^k · (1 − terminated).
        allowed: (B, A) which actions the successors allow; None allows all.
    """
    probs = torch.softmax(target_logits, dim=-1)  # (B, A, N)
    chooser = probs if chooser_logits is None else torch.softmax(chooser_logits, dim=-1)
    values = categorical.expectation(support, chooser)  # (B, A)
    if allowed is not None:
        values = values.masked_fill(~allowed, -math.inf)
    best = values.argmax(dim=-1)  # (B,)
    chosen = _of_action(probs, best)  # (B, N)
    low, high = categorical.clipped_mass(support, chosen, reward, discount)
    return categorical.project(support, chosen, reward, discount), low, high


def transition_losses(logits: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Return the unweighted loss of each transition, (B,); its priority, too, unless that is KL.

    Args:
        logits: (B, A, N) of the online network.
        action: (B,) int64, the actions taken.
        target: (B, N) from `target_distribution`.
    """
    return categorical.cross_entropy(_of_action(logits, action), target)


def descend(
    total: Tensor,
    parameters: Iterable[Tensor],
    optimizer: torch.optim.Optimizer,
    max_grad_norm: float,
) -> tuple[bool, float]:
    """Take one step on a loss, its gradient scaled down to a global norm.

    Returns:
        Whether the step was taken, since a non-finite loss or gradient is skipped; and the norm
        before scaling.
    """
    optimizer.zero_grad(set_to_none=True)
    total.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    finite = math.isfinite(norm) and math.isfinite(float(total.detach()))
    if finite:
        optimizer.step()
    return finite, norm


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """Return (B, N) of (B, A, N): the distribution of one action in each row."""
    return values[torch.arange(len(action), device=action.device), action]


@dataclass(frozen=True, slots=True)
class Batch:
    """B transitions, observations normalised.

    Args:
        observation, next_observation: (B, D) float32, or (B, C, H, W) of images.
        action: (B,) int64.
        reward: (B,) float32, over k steps.
        discount: (B,) float32, γ^k · (1 − terminated).
        label: (B,) int32, -1 without.
        next_action_mask: (B, A) which actions the successors allow, or None.
        weight: (B,) float64 importance weights, or None.
    """

    observation: NDArray[np.float32]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next_observation: NDArray[np.float32]
    discount: NDArray[np.float32]
    label: NDArray[np.int32]
    next_action_mask: NDArray[np.bool_] | None = None
    weight: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What one gradient step measured.

    Args:
        finite: whether the step was taken; a non-finite loss or gradient is skipped.
        loss: weighted categorical loss.
        auxiliary_loss: of the labelled transitions, None without any.
        grad_norm: before clipping.
        clipped_low, clipped_high: fraction of target mass beyond the lowest and the highest atom.
        priority: (B,) of the transitions, as `replay.priority` says.
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
    """Online and target network, optimizer, and the update, its gradient by autograd.

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
        #: What policies act with, if that is not the online network.
        self.average: Network | None = None
        if spec.c51.averaging:
            self.average = Network(spec)
            self.average.set_weights(weights)
            self.average.requires_grad_(False)
        self._averaged = 0  # updates in it
        self.take_bounds(UNKNOWN if spec.c51.support == "auto" else spec.c51.support)
        self._prepare()

    #: Whether the bounds follow from rewards; of a support that does not fit itself, False.
    fitted = False

    def take_bounds(self, bounds: Bounds) -> None:
        """Set the lowest and highest atom, and leave the networks as they are."""
        self.bounds = bounds
        self.support = categorical.support(*bounds, self.spec.c51.atoms)

    def move_support(self, bounds: Bounds) -> None:
        """Set the lowest and highest atom; the networks go on saying what they said."""
        moved = resampled(self.state(), self.bounds, bounds, self.spec.c51.atoms)
        self.restore({**moved, "support": np.array([*bounds, self.fitted])})

    def _prepare(self) -> None:
        """Make what a step needs besides the networks."""
        c = self.spec.c51
        assert c.adam_eps is not None  # the spec resolved it
        self.optimizer = torch.optim.Adam(
            self.online.parameters(), lr=c.lr, eps=c.adam_eps, fused=True
        )

    def update(self, batch: Batch, updates: int = 0) -> Update:
        """Take one step on the loss ``mean(w · CE) + weight · mean(auxiliary CE)``.

        Args:
            batch: the transitions.
            updates: completed before it; the learning rate depends on it.
        """
        self.optimizer.param_groups[0]["lr"] = self.spec.c51.rate(updates)
        logits, auxiliary = self.online(torch.from_numpy(batch.observation))
        target, low, high = self._target_distribution(batch)
        losses = transition_losses(logits, torch.from_numpy(batch.action), target)  # (B,)
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
        finite, norm = descend(
            total, self.online.parameters(), self.optimizer, self.spec.c51.max_grad_norm
        )
        return Update(
            finite=finite,
            loss=float(loss.detach()),
            auxiliary_loss=None if auxiliary_loss is None else float(auxiliary_loss.detach()),
            grad_norm=norm,
            clipped_low=low,
            clipped_high=high,
            priority=self._priorities(losses.detach().numpy(), target.numpy()),
        )

    def _priorities(
        self, losses: NDArray[np.float32], target: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return (B,) priorities: the cross-entropies, or what they are above the least possible.

        A target that is spread out has a large cross-entropy even where it is met exactly; its
        own entropy is that least (Hessel et al. 2018, "The Integrated Agent").
        """
        if self.spec.replay.priority == "cross_entropy":
            return losses
        with np.errstate(divide="ignore", invalid="ignore"):
            least = -np.where(target > 0, target * np.log(target), 0).sum(axis=1)
        return np.asarray(np.maximum(losses - least, 0), dtype=np.float32)

    @property
    def acting(self) -> Network:
        """The network that policies act with."""
        return self.online if self.average is None else self.average

    def move_average(self) -> None:
        """Take the online network into the average, after a step.

        At first the average is over about the last tenth of all updates.
        """
        if self.average is not None:
            self._averaged += 1
            self._take_in(1 - min(self.spec.c51.averaging, self._averaged / (self._averaged + 10)))

    @torch.no_grad()
    def _take_in(self, share: float) -> None:
        """Move the average towards the online network by a share of what lies between them."""
        assert self.average is not None
        pairs = zip(self.average.parameters(), self.online.parameters(), strict=True)
        for average, newest in pairs:
            average.lerp_(newest, share)

    @torch.no_grad()
    def losses(self, batch: Batch) -> Losses:
        """Measure the network that acts on a batch, without learning from it."""
        logits, auxiliary = self.acting(torch.from_numpy(batch.observation))
        target, _, _ = self._target_distribution(batch)
        categorical_losses = transition_losses(logits, torch.from_numpy(batch.action), target)
        labelled = np.flatnonzero(batch.label >= 0)
        wrong = np.zeros(0, dtype=np.float32)
        correct = np.zeros(0, dtype=np.bool_)
        if auxiliary is not None and len(labelled):
            picked = auxiliary[torch.from_numpy(labelled)]
            truth = torch.from_numpy(batch.label[labelled].astype(np.int64))
            wrong = class_cross_entropy(picked, truth, reduction="none").numpy()
            correct = (picked.argmax(dim=1) == truth).numpy()
        return Losses(categorical_losses.numpy(), wrong, correct)

    @torch.no_grad()
    def _target_distribution(self, batch: Batch) -> tuple[Tensor, float, float]:
        """Return projected targets (B, N), and the fraction of their mass clipped at each end."""
        following = torch.from_numpy(batch.next_observation)
        mask = batch.next_action_mask
        target, low, high = target_distribution(
            self.support,
            self.target(following)[0],
            self.online(following)[0] if self.spec.c51.double else None,
            torch.from_numpy(batch.reward),
            torch.from_numpy(batch.discount),
            None if mask is None else torch.from_numpy(mask),
        )
        return target, float(low.mean()), float(high.mean())

    def finite(self) -> bool:
        """Whether every weight that a step changes is finite."""
        networks = [self.online] if self.average is None else [self.online, self.average]
        weights = (p.detach().numpy() for network in networks for p in network.parameters())
        return all(bool(np.isfinite(weight).all()) for weight in weights)

    def copy_target(self) -> None:
        """Copy the online network to the target network."""
        self.target.load_state_dict(self.online.state_dict())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return every number an update depends on, as copies by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for part, network in self._networks():
            arrays |= {f"{part}.{name}": a for name, a in network.get_weights().items()}
        if self.average is not None:
            arrays["averaged"] = np.array(self._averaged)
        if self.spec.c51.support == "auto":
            arrays["support"] = np.array([*self.bounds, self.fitted])
        return arrays | {f"adam.{name}": a for name, a in self._optimizer_state().items()}

    def _networks(self) -> list[tuple[str, Network]]:
        found = [("online", self.online), ("target", self.target)]
        return found if self.average is None else [*found, ("average", self.average)]

    def _optimizer_state(self) -> dict[str, NDArray[Any]]:
        """Return copies of Adam's averages and counts, by parameter and key."""
        return {
            f"{name}.{key}": value.detach().numpy().copy()
            for name, parameter in self.online.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Take over a state."""

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}

        for name, network in self._networks():
            network.set_weights(part(f"{name}."))
        self._averaged = int(state.get("averaged", 0))
        if self.spec.c51.support == "auto":
            low, high, fitted = state["support"]
            self.take_bounds((float(low), float(high)))
            self.fitted = bool(fitted)
        self._restore_optimizer(part("adam."))

    def _restore_optimizer(self, state: dict[str, NDArray[Any]]) -> None:
        self.optimizer.state.clear()
        for name, parameter in self.online.named_parameters():
            saved = {
                key: torch.from_numpy(state[f"{name}.{key}"].copy())
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{name}.{key}" in state
            }
            if saved:
                self.optimizer.state[parameter] = saved
