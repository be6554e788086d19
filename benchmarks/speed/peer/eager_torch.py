"""A limit: C51 as short as PyTorch lets one write it, with fused Adam and a numba tree."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from benchmarks.speed.peer.data import experience
from benchmarks.speed.peer.numba_tree import draw, made, write

torch.set_num_threads(1)


def update(
    *, size: int, actions: int, layers: list[int], atoms: int, batch: int, capacity: int
) -> Callable[[int], object]:
    """Return updates: sample, projected targets, cross-entropy, clipping, step, priorities."""
    held = {name: torch.from_numpy(a) for name, a in experience(capacity, size, actions).items()}
    tree, rows = made(capacity), torch.arange(batch)
    widths = [size, *layers]
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    online = nn.Sequential(*parts, nn.Linear(widths[-1], actions * atoms))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=5e-4, fused=True)
    support = torch.linspace(-10, 10, atoms)
    step = 20 / (atoms - 1)
    discount = torch.where(held["terminated"], 0.0, 0.99)

    def one() -> None:
        slot, weight = draw(tree, batch, 0.4, capacity)
        index = torch.from_numpy(slot)
        with torch.no_grad():
            p = target(held["next_observation"][index]).view(batch, actions, atoms).softmax(-1)
            p = p[rows, (p @ support).argmax(-1)]
            z = held["reward"][index, None] + discount[index, None] * support
            at = (z.clamp(-10, 10) + 10) / step
            low = at.floor().clamp_(max=atoms - 2)
            share, place = at - low, low.long()
            m = torch.zeros_like(p).scatter_add_(1, place, p * (1 - share))
            m.scatter_add_(1, place + 1, p * share)
        logits = online(held["observation"][index]).view(batch, actions, atoms)
        chosen = logits[rows, held["action"][index]].log_softmax(-1)
        losses = -(m * chosen).sum(-1)
        optimizer.zero_grad(set_to_none=True)
        (losses * torch.from_numpy(weight).float()).mean().backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        optimizer.step()
        write(tree, slot, losses.detach().numpy() + 1e-6, 0.6)

    def call(count: int) -> None:
        for i in range(count):
            if i % 200 == 0:
                target.load_state_dict(online.state_dict())
            one()

    return call
