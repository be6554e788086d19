"""The gradient of C51's loss in closed form, for networks of plain layers and dueling ones.

Of a softmax cross-entropy, the gradient by the logits is p − m; through ReLU layers the rest is one
matrix product per layer and direction. Written out, without a graph to build and walk, a step of a
small network takes about a quarter of the time. B batch, A actions, N atoms, H units.

Matrix products run in torch, on the threads the specification names; what is between them runs in
NumPy, on views of the same memory. At these sizes a call costs as much as what it computes: so
there are few, on arrays that are kept, and NumPy's `reduce` stands for the methods that wrap it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jormungandr.learner.adam import Adam
from jormungandr.learner.c51 import C51, Batch, Update
from jormungandr.learner.layers import Gradient, Layers
from jormungandr.learner.room import Room
from jormungandr.numerics.projection import Projection
from jormungandr.numerics.support import Bounds
from jormungandr.spec import ModelSpec

__all__ = ["ClosedFormC51"]

Floats = NDArray[np.float32]

#: Exponentials of logits need no shift where their sum is between this and its inverse: none of
#: those that count has then left the normal range of float32.
UNSHIFTED = 1e30
#: The same where the loss is the difference of a logarithm of the sum and logits: nearer to 1, so
#: that it keeps its digits.
UNSHIFTED_LOSS = 1e8
#: With so many times more units than inputs, MKL takes half the time or less for the transposed
#: product.
NARROW = 8


class ClosedFormC51(C51):
    """`C51` of linear layers, by its own gradient; the numbers are autograd's to rounding.

    Args:
        spec: the model's specification, of no image.
        rng: the initialisation stream.
    """

    def __init__(self, spec: ModelSpec, rng: np.random.Generator) -> None:
        super().__init__(spec, rng)
        self._room = Room(spec, spec.c51.batch_size)

    def take_bounds(self, bounds: Bounds) -> None:
        """Set the lowest and highest atom, and leave the networks as they are."""
        super().take_bounds(bounds)
        self._projection = Projection(*bounds, self.spec.c51.atoms)
        self._atoms = torch.from_numpy(self._projection.support)
        # Times an atom they are to stay in the range of float32, too.
        self._unshifted = UNSHIFTED / max(1.0, -bounds[0], bounds[1])

    def _prepare(self) -> None:
        self.online.requires_grad_(False)
        self._online, self._target = Layers(self.online), Layers(self.target)
        self._average = None if self.average is None else Layers(self.average)
        self._gradient = Gradient(self._online)
        assert self.spec.c51.adam_eps is not None  # the spec resolved it
        self._adam = Adam(self._online, self.spec.c51.adam_eps)

    @np.errstate(
        over="ignore", divide="ignore", invalid="ignore"
    )  # a step that shows it is skipped
    def update(self, batch: Batch, updates: int = 0) -> Update:
        """Take one step on the loss ``mean(w · CE) + weight · mean(auxiliary CE)``.

        Args:
            batch: the transitions.
            updates: completed before it; the learning rate depends on it.
        """
        count = len(batch.action)
        if count != self._room.count:
            self._room = Room(self.spec, count)
        room, x = self._room, torch.from_numpy(batch.observation)
        self._online.merge()
        target, low, high = self._targets(batch)
        h = self._online.through(x, room.hidden)
        logits = room.head.taken(self._online, h, batch.action)  # (B, N)
        losses, loss = self._losses(logits, target, batch.weight)
        sum_of_both = loss
        auxiliary_loss = by_classes = None
        if self.spec.auxiliary is not None:
            auxiliary_loss, by_classes = self._auxiliary_gradient(batch.label)
            sum_of_both += self.spec.auxiliary.weight * (auxiliary_loss or 0.0)
        self._backward(x, by_classes)
        norm = self._gradient.norm()
        finite = math.isfinite(norm) and math.isfinite(sum_of_both)
        if finite:
            self._descend(norm, self.spec.c51.rate(updates))
        return Update(
            finite=finite,
            loss=loss,
            auxiliary_loss=auxiliary_loss,
            grad_norm=norm,
            clipped_low=low,
            clipped_high=high,
            priority=self._priorities(losses, target),
        )

    def _targets(self, batch: Batch) -> tuple[Floats, float, float]:
        """Return projected targets (B, N), and the fraction of their mass clipped at each end."""
        room, following = self._room, torch.from_numpy(batch.next_observation)
        self._target.merge()
        double = self.spec.c51.double
        logits = room.all_logits(self._online if double else self._target, following)  # (B·A, N)
        np.exp(logits, out=room.e)
        torch.mv(room.e_tensor, room.ones, out=room.total_tensor)
        if not _in_range(room.total, UNSHIFTED, self._unshifted):
            logits -= np.maximum.reduce(logits, 1, keepdims=True)
            np.exp(logits, out=room.e)
            torch.mv(room.e_tensor, room.ones, out=room.total_tensor)
        torch.mv(room.e_tensor, self._atoms, out=room.values_tensor)
        e, total, best = room.e, room.total, room.best(batch.next_action_mask)
        if double:
            e = room.all_logits(self._target, following).take(best, 0)  # (B, N)
            e -= np.maximum.reduce(e, 1, keepdims=True)
            np.exp(e, out=e)
            total, best = np.add.reduce(e, 1), room.rows
        return self._projection.bootstrapped(e, total, best, batch.reward, batch.discount)

    def _losses(
        self, logits: Floats, target: Floats, weight: NDArray[np.float64] | None
    ) -> tuple[Floats, float]:
        """Return the losses (B,), and their weighted mean; its gradient goes to the head.

        Args:
            logits: (B, N), of the actions taken; they are overwritten.
            target: (B, N).
            weight: (B,), or None.
        """
        room = self._room
        p = np.exp(logits, out=room.head.slope)
        torch.mv(room.head.slope_tensor, room.ones, out=room.sums_tensor)
        if not _in_range(room.sums, UNSHIFTED_LOSS, UNSHIFTED_LOSS):
            logits -= np.maximum.reduce(logits, 1, keepdims=True)
            np.exp(logits, out=p)
            torch.mv(room.head.slope_tensor, room.ones, out=room.sums_tensor)
        share = room.share if weight is None else room.share * weight  # of each in the mean
        products = room.slopes(target, logits, share.astype(np.float32))
        losses = np.subtract(np.log(room.sums), products, dtype=np.float32, casting="same_kind")
        np.maximum(losses, 0, out=losses)  # a rounding may have made -0.0000001 of a 0
        return losses, float(np.add.reduce(losses * share))

    def _auxiliary_gradient(self, label: NDArray[np.int32]) -> tuple[float | None, Tensor | None]:
        """Return the auxiliary loss, and its weighted gradient by the classes' logits."""
        labelled = np.flatnonzero(label >= 0)
        if not len(labelled):
            return None, None
        assert self.spec.auxiliary is not None
        h, w = self._room.hidden[-1], self._online.views
        logits = torch.addmm(w["auxiliary.bias"], h, w["auxiliary.weight"].t()).numpy()[labelled]
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(axis=1)
        truth = (np.arange(len(labelled)), label[labelled])
        loss = float((np.log(total) - logits[truth]).mean())
        p /= total[:, None]
        p[truth] -= 1
        gradient = np.zeros((len(label), p.shape[1]), dtype=np.float32)
        gradient[labelled] = p * np.float32(self.spec.auxiliary.weight / len(labelled))
        return loss, torch.from_numpy(gradient)

    def _backward(self, x: Tensor, by_classes: Tensor | None) -> None:
        """Fill the gradient, from the logits' down to the first layer's.

        Args:
            x: (B, D).
            by_classes: (B, classes) the gradient by the auxiliary logits, or None.
        """
        room, gradient, w = self._room, self._gradient, self._online.views
        inputs, back = [x, *room.hidden], room.back
        room.head.back(self._online, gradient, inputs[-1], back[-1])
        gradient.split()
        if by_classes is not None:
            self._into("auxiliary", by_classes.t(), inputs[-1])
            back[-1].addmm_(by_classes, w["auxiliary.weight"])
        elif self.online.auxiliary is not None:
            gradient.views["auxiliary.weight"].zero_()
            gradient.views["auxiliary.bias"].zero_()
        for i in reversed(range(len(back))):
            back[i].mul_(inputs[i + 1].sign_())  # what it gave is not needed any more
            self._into(f"hidden.{i}", room.back_t[i], inputs[i])
            if i:
                torch.mm(back[i], w[f"hidden.{i}.weight"], out=back[i - 1])

    def _into(self, name: str, slope_t: Tensor, x: Tensor) -> None:
        """Write the gradient by one layer's parameters.

        Args:
            name: of the layer.
            slope_t: (out, B), the gradient by what it gave, transposed.
            x: (B, in), what it was given.
        """
        views = self._gradient.views
        weight = views[f"{name}.weight"]
        if NARROW * x.shape[1] <= slope_t.shape[0]:
            weight.copy_(torch.mm(x.t(), slope_t.t()).t())
        else:
            torch.mm(slope_t, x, out=weight)
        torch.mv(slope_t, self._room.ones_of_rows, out=views[f"{name}.bias"])

    def _descend(self, norm: float, lr: float) -> None:
        """Scale the gradient to a global norm, and take a step."""
        largest, gradient = self.spec.c51.max_grad_norm, self._gradient.values
        if norm > largest:
            gradient.mul_(largest / (norm + 1e-6))
        self._adam.step(gradient, lr)

    def _take_in(self, share: float) -> None:
        assert self._average is not None
        self._average.values.lerp_(self._online.values, share)

    def finite(self) -> bool:
        """Whether every weight that a step changes is finite."""
        return self._online.finite() and (self._average is None or self._average.finite())

    def copy_target(self) -> None:
        """Copy the online network to the target network."""
        self._target.values.copy_(self._online.values)

    def _optimizer_state(self) -> dict[str, NDArray[Any]]:
        return self._adam.state()

    def _restore_optimizer(self, state: dict[str, NDArray[Any]]) -> None:
        self._adam.restore(state)


def _in_range(total: Floats, smallest: float, largest: float) -> bool:
    # Of a NaN it is false.
    return bool(1 / smallest < np.minimum.reduce(total) and np.maximum.reduce(total) < largest)
