"""A limit: C51's gradient in closed form, matrix products in NumPy and numba between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.speed.peer.data import experience
from benchmarks.speed.peer.numba_tree import draw, made, write

LOW, HIGH, GAMMA = -10.0, 10.0, 0.99


@njit(fastmath=True, cache=True)
def slope(logits, following, action, reward, going, weight, out, loss):  # type: ignore[no-untyped-def]
    """Fill the gradient of the loss by the logits (B, A, N), and the losses (B,)."""
    count, actions, atoms = logits.shape
    step = np.float32((HIGH - LOW) / (atoms - 1))
    p, m = np.empty((actions, atoms), np.float32), np.empty(atoms, np.float32)
    for b in range(count):
        best, most = 0, -np.float32(np.inf)
        for a in range(actions):
            top = following[b, a].max()
            p[a] = np.exp(following[b, a] - top)
            total, value = np.float32(0), np.float32(0)
            for n in range(atoms):
                total += p[a, n]
                value += p[a, n] * (np.float32(LOW) + n * step)
            p[a] /= total
            if value / total > most:
                best, most = a, value / total
        m[:] = 0
        for n in range(atoms):
            z = reward[b] + going[b] * (np.float32(LOW) + n * step)
            at = (min(max(z, np.float32(LOW)), np.float32(HIGH)) - np.float32(LOW)) / step
            low = min(int(at), atoms - 2)
            m[low] += p[best, n] * (low + 1 - at)
            m[low + 1] += p[best, n] * (at - low)
        mine = logits[b, action[b]]
        top = mine.max()
        e = np.exp(mine - top)
        total = e.sum()
        out[b] = 0
        loss[b] = np.log(total)
        for n in range(atoms):
            loss[b] -= m[n] * (mine[n] - top)
            out[b, action[b], n] = (e[n] / total - m[n]) * weight[b] / count


@njit(fastmath=True, cache=True)
def descend(value, gradient, mean, square, steps, lr):  # type: ignore[no-untyped-def]
    """Clip to a norm of 10, and take Adam's step."""
    norm = np.float32(0)
    for g in gradient:
        norm += g * g
    norm = np.sqrt(norm)
    scale = np.float32(1) if norm <= 10 else np.float32(10 / norm)
    rate, root = np.float32(lr / (1 - 0.9**steps)), np.float32(1 / np.sqrt(1 - 0.999**steps))
    for i in range(len(value)):
        g = gradient[i] * scale
        mean[i] += np.float32(0.1) * (g - mean[i])
        square[i] += np.float32(0.001) * (g * g - square[i])
        value[i] -= rate * mean[i] / (np.sqrt(square[i]) * root + np.float32(1.5e-4))


def update(
    *, size: int, actions: int, layers: list[int], atoms: int, batch: int, capacity: int
) -> Callable[[int], object]:
    """Return updates: sample, targets, gradient, clipping, step, priorities."""
    held = experience(capacity, size, actions)
    going = np.where(held["terminated"], 0, GAMMA).astype(np.float32)
    tree, widths = made(capacity), [size, *layers, actions * atoms]
    shapes: list[tuple[int, ...]] = [s for n, m in pairwise(widths) for s in ((n, m), (m,))]
    flat = np.zeros(sum(math.prod(s) for s in shapes), np.float32)
    weights, rng = _views(flat, shapes), np.random.default_rng(2)
    for w in weights[::2]:
        w[:] = rng.uniform(-1, 1, w.shape) / np.sqrt(len(w))
    gradient = np.zeros_like(flat)
    slopes, old = _views(gradient, shapes), flat.copy()
    target = _views(old, shapes)
    mean, square = np.zeros_like(flat), np.zeros_like(flat)
    by_logits = np.zeros((batch, actions, atoms), np.float32)
    loss, steps = np.zeros(batch, np.float32), 0

    def forward(x: NDArray[np.float32], w: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        found = [x]
        for i in range(0, len(w), 2):
            x = x @ w[i]
            x += w[i + 1]
            if i < len(w) - 2:
                np.maximum(x, 0, out=x)
            found.append(x)
        return found

    def one() -> None:
        nonlocal steps
        steps += 1
        slot, weight = draw(tree, batch, 0.4, capacity)
        passed = forward(held["observation"].take(slot, axis=0), weights)
        following = forward(held["next_observation"].take(slot, axis=0), target)[-1]
        shape = (batch, actions, atoms)
        slope(
            passed[-1].reshape(shape),
            following.reshape(shape),
            held["action"].take(slot),
            held["reward"].take(slot),
            going.take(slot),
            weight.astype(np.float32),
            by_logits,
            loss,
        )
        back = by_logits.reshape(batch, -1)
        for i in reversed(range(0, len(weights), 2)):
            x = passed[i // 2]
            np.matmul(x.T, back, out=slopes[i])
            np.sum(back, axis=0, out=slopes[i + 1])
            if i:
                back = back @ weights[i].T
                back *= x > 0
        descend(flat, gradient, mean, square, steps, 5e-4)
        write(tree, slot, loss + np.float32(1e-6), 0.6)

    def call(count: int) -> None:
        for i in range(count):
            if i % 200 == 0:
                old[:] = flat
            one()

    return call


def _views(flat: NDArray[np.float32], shapes: list[tuple[int, ...]]) -> list[NDArray[np.float32]]:
    found, start = [], 0
    for shape in shapes:
        found.append(flat[start : start + math.prod(shape)].reshape(shape))
        start += math.prod(shape)
    return found
