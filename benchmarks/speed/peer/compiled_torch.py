"""A limit: the whole step of C51 as one function of tensors, compiled by torch.

Projection, loss, gradient, clipping and Adam; a numba tree before and after it. The first time it
is compiled, which takes a minute or more; torch keeps what it made.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.speed.peer.data import experience
from benchmarks.speed.peer.numba_tree import draw, made, write

torch.set_num_threads(1)

RATE, ETA1, ETA2 = 5e-4, 0.9, 0.999


def update(
    *, size: int, actions: int, layers: list[int], atoms: int, batch: int, capacity: int
) -> Callable[[int], object]:
    """Return updates."""
    held = {name: torch.from_numpy(a) for name, a in experience(capacity, size, actions).items()}
    discounts = torch.where(held["terminated"], 0.0, 0.99)
    tree, rows = made(capacity), torch.arange(batch)
    support, apart = torch.linspace(-10, 10, atoms), 20 / (atoms - 1)
    shapes = list(pairwise([size, *layers, actions * atoms]))
    online = [t for a, b in shapes for t in ((torch.rand(a, b) * 2 - 1) / a**0.5, torch.zeros(b))]

    def logits(weights: list[Tensor], x: Tensor) -> Tensor:
        for i in range(0, len(weights) - 2, 2):
            x = torch.relu(x @ weights[i] + weights[i + 1])
        return (x @ weights[-2] + weights[-1]).view(-1, actions, atoms)

    def step(
        state: list[list[Tensor]], target: list[Tensor], time: Tensor, drawn: list[Tensor]
    ) -> tuple[list[list[Tensor]], Tensor]:
        seen, chosen, reward, discount, after, weight = drawn
        with torch.no_grad():
            p = logits(target, after).softmax(-1)
            p = p[rows, (p @ support).argmax(-1)]
            at = ((reward[:, None] + discount[:, None] * support).clamp(-10, 10) + 10) / apart
            # The share of each atom as a hat around it: what a compiler makes one loop of.
            shares = (1 - (at[:, :, None] - torch.arange(atoms)).abs()).clamp(min=0)
            m = (p[:, :, None] * shares).sum(1)

        def loss(weights: list[Tensor]) -> tuple[Tensor, Tensor]:
            each = -(m * logits(weights, seen)[rows, chosen].log_softmax(-1)).sum(-1)
            return (each * weight).mean(), each.detach()

        gradient, (_, each) = torch.func.grad_and_value(loss, has_aux=True)(state[0])
        norm = torch.sqrt(sum((g * g).sum() for g in gradient))
        scale = (10 / (norm + 1e-6)).clamp(max=1)
        new: list[list[Tensor]] = [[], [], []]
        for w, g, mean, square in zip(state[0], gradient, state[1], state[2], strict=True):
            first = ETA1 * mean + (1 - ETA1) * scale * g
            second = ETA2 * square + (1 - ETA2) * (scale * g) ** 2
            moved = first / (1 - ETA1**time) / ((second / (1 - ETA2**time)).sqrt() + 1e-8)
            for part, value in zip(new, (w - RATE * moved, first, second), strict=True):
                part.append(value)
        return new, each

    compiled = torch.compile(step, dynamic=False)
    state = [online, *([torch.zeros_like(t) for t in online] for _ in range(2))]
    columns = [held["observation"], held["action"], held["reward"]]
    columns += [discounts, held["next_observation"]]
    done = 0

    def call(count: int) -> None:
        nonlocal state, done
        target = state[0]
        for i in range(count):
            if i % 200 == 0:
                target = [t.clone() for t in state[0]]
            done += 1
            slot, weight = draw(tree, batch, 0.4, capacity)
            index = torch.from_numpy(slot)
            drawn = [*(c[index] for c in columns), torch.from_numpy(weight).float()]
            state, each = compiled(state, target, torch.tensor(float(done)), drawn)
            write(tree, slot, each.numpy() + 1e-6, 0.6)

    return call
