"""A limit: a binary sum tree in numba, without a check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["draw", "made", "write"]


@njit(cache=True)
def draw(tree, batch, beta, items):  # type: ignore[no-untyped-def]
    """Return stratified draws, (batch,), and their weights, at most 1."""
    half, total = len(tree) // 2, tree[1]
    slot, weight = np.empty(batch, np.int64), np.empty(batch, np.float64)
    least = np.inf
    for i in range(batch):
        mass, node = (i + np.random.random()) * total / batch, 1
        while node < half:
            node *= 2
            if mass >= tree[node]:
                mass -= tree[node]
                node += 1
        slot[i] = min(node - half, items - 1)
        weight[i] = tree[node]
        least = min(least, tree[node])
    for i in range(batch):
        weight[i] = (least / weight[i]) ** beta
    return slot, weight


@njit(cache=True)
def write(tree, slot, priority, alpha):  # type: ignore[no-untyped-def]
    """Give items their priorities, and mend the sums above them."""
    half = len(tree) // 2
    for i in range(len(slot)):
        node = slot[i] + half
        tree[node] = priority[i] ** alpha
        node //= 2
        while node >= 1:
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node //= 2


def made(capacity: int) -> NDArray[np.float64]:
    """Return a tree of random priorities: its leaves are the second half."""
    half = 1 << (capacity - 1).bit_length()
    tree = np.zeros(2 * half)
    tree[half : half + capacity] = np.random.default_rng(1).random(capacity) + 0.1
    while half > 1:
        half //= 2
        tree[half : 2 * half] = tree[2 * half : 4 * half : 2] + tree[2 * half + 1 : 4 * half : 2]
    return tree


def replay(*, capacity: int, batch: int) -> Callable[[int], object]:
    """Return: a draw with its weights, and new priorities; what they hold is not gathered."""
    tree = made(capacity)
    fresh = np.random.default_rng(0).random((64, batch)) + 0.1

    def call(count: int) -> None:
        for i in range(count):
            slot, _ = draw(tree, batch, 0.4, capacity)
            write(tree, slot, fresh[i % 64], 0.6)

    return call
