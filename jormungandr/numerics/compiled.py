"""Loops that numba compiles where it is installed: the bits of the NumPy code, in less time.

Each does the additions and products of its NumPy twin in the same order and the same precision,
without leave to reorder or to fuse any (`fastmath` stays off). So it does not matter to any result
whether numba is there, and whoever has it may use it everywhere; tests hold the two against each
other, bit for bit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["FANOUT", "Kernels", "kernels"]

#: Children of an inner node of a sum tree.
FANOUT = 16


class Kernels(NamedTuple):
    """The compiled loops; their arguments are those of the functions below."""

    settle: Callable[..., None]
    find: Callable[..., Any]
    project: Callable[..., tuple[float, float]]
    choose: Callable[..., None]
    slopes: Callable[..., None]
    normalize: Callable[..., None]


def _settle(nodes: Any, starts: Any, prefix: Any, leaves: Any) -> None:
    """Sum again what lies above some leaves of a `SumTree`.

    Args:
        nodes: (M,) float64, the levels one after the other, the leaves first.
        starts: where in it each level begins, and its end.
        prefix: (root's children + 1,) the running sum over the root's children.
        leaves: int64 indices.
    """
    for k in range(leaves.size):
        node = leaves[k]
        for level in range(starts.size - 2):
            node = node // FANOUT
            first = starts[level] + node * FANOUT
            total = nodes[first]
            for child in range(1, FANOUT):
                total += nodes[first + child]
            nodes[starts[level + 1] + node] = total
    running = 0.0
    first = starts[starts.size - 2]
    for child in range(prefix.size - 1):
        running += nodes[first + child]
        prefix[child + 1] = running


def _find(nodes: Any, starts: Any, prefix: Any, mass: Any) -> Any:
    """Return the leaves (B,) int64 whose intervals hold masses (B,), as `SumTree.find` does."""
    count, children = mass.size, prefix.size - 1
    found, remainder = np.empty(count, np.int64), np.empty(count)
    largest = np.nextafter(prefix[children], 0.0)
    # Which way a search goes is chance, and a processor that guesses at it guesses wrong: there are
    # no branches in it, and one level after the other, so that one wait is for many rows.
    for k in range(count):
        r = min(mass[k], largest)
        low, size = 0, children  # the last place whose prefix is no larger
        while size > 1:
            half = size // 2
            low += half if prefix[low + half] <= r else 0
            size -= half
        found[k], remainder[k] = low, r - prefix[low]
    for level in range(starts.size - 3, -1, -1):
        for k in range(count):
            first, r = starts[level] + found[k] * FANOUT, remainder[k]
            total, before, chosen = 0.0, 0.0, 0
            for child in range(FANOUT):
                total += nodes[first + child]
                chosen += 1 if total <= r else 0
                before = total if total <= r else before
            if chosen == FANOUT:  # by rounding it is all there is, or more
                r, before, total, chosen = np.nextafter(total, 0.0), 0.0, 0.0, 0
                for child in range(FANOUT):
                    total += nodes[first + child]
                    chosen += 1 if total <= r else 0
                    before = total if total <= r else before
                if chosen == FANOUT:  # of a node without mass
                    before, chosen = 0.0, 0
            found[k], remainder[k] = found[k] * FANOUT + chosen, r - before
    return found


def _project(
    e: Any, total: Any, best: Any, reward: Any, discount: Any, shape: Any, shares: Any, out: Any
) -> tuple[float, float]:
    """Fill `out` as `Projection` does; return the mass below and above the support.

    Args:
        e: (R, N) float32, exponentials; of row r divided by total[r] they are probabilities.
        total: (R,) float32.
        best: (B,) int64, the rows to project.
        reward: (B,) float32.
        discount: (B,) float32.
        shape: float32: the lowest atom, the gap between two, and what counts as rounding.
        shares: (2, N + 1) float64, room.
        out: (B, N) float32.
    """
    rows, atoms = out.shape
    lowest, gap, slack = shape
    zero, top = np.float32(0), np.float32(atoms - 1)
    below, above = 0.0, 0.0
    for row in range(rows):
        source, g = best[row], discount[row]
        start = (g * lowest + reward[row] - lowest) / gap
        if np.isnan(start):
            out[row, :] = start
            continue
        for j in range(atoms + 1):
            shares[0, j] = shares[1, j] = 0.0
        for j in range(atoms):
            p, b = e[source, j] / total[source], start + g * np.float32(j)
            if b < -slack:
                below += p
            elif b > top + slack:
                above += p
            b = min(max(b, zero), top)
            lower = np.int32(b)
            upper_share = p * (b - np.float32(lower))
            place = np.uint64(lower)  # unsigned: no thought is given to one before the first
            shares[0, place] += p - upper_share
            shares[1, place + np.uint64(1)] += upper_share
        for j in range(atoms):
            out[row, j] = shares[0, j] + shares[1, j]
    return below, above


def _choose(values: Any, total: Any, allowed: Any, best: Any) -> None:
    """Fill `best` (B,) int64 as `ClosedFormC51` does: rows of B·A, where the mean is largest.

    Args:
        values: (B, A) float32, the sums of atoms times exponentials.
        total: (B·A,) float32, those of exponentials.
        allowed: (B, A).
        best: room.
    """
    rows, actions = values.shape
    for row in range(rows):
        chosen, highest = 0, np.float32(-np.inf)
        for action in range(actions):
            mean = np.float32(-np.inf)
            if allowed[row, action]:
                mean = values[row, action] / total[row * actions + action]
            if np.isnan(mean):  # as argmax, which takes the first NaN for the largest
                chosen = action
                break
            if mean > highest:
                chosen, highest = action, mean
        best[row] = row * actions + chosen


def _slopes(p: Any, total: Any, target: Any, logits: Any, share: Any, products: Any) -> None:
    """Make exponentials the gradient by logits, as `ClosedFormC51` does.

    Args:
        p: (B, N) float32, exponentials of `logits`; becomes (softmax − target) · share.
        total: (B,) float32, their sums.
        target: (B, N) float32.
        logits: (B, N) float32.
        share: (B,) float32.
        products: (B,) float64, becomes the sums of target · logits.
    """
    rows, atoms = p.shape
    for row in range(rows):
        running = 0.0
        for j in range(atoms):
            running += target[row, j] * logits[row, j]
            p[row, j] = (p[row, j] / total[row] - target[row, j]) * share[row]
        products[row] = running


def _normalize(raw: Any, mean: Any, root: Any, clip: float, out: Any) -> None:
    """Fill `out` (B, 2, D) as `policy.normalize` does, of (B, 2, D), (D,) and (D,)."""
    for row in range(raw.shape[0]):
        for which in range(2):
            for i in range(raw.shape[2]):
                scaled = (raw[row, which, i] - mean[i]) / root[i]
                out[row, which, i] = min(max(scaled, -clip), clip)


@cache
def kernels() -> Kernels | None:
    """Return the compiled loops; None without numba, or where it can keep nothing.

    Compiling takes seconds, once: numba keeps the machine code beside this file, or in the user's
    cache, or in NUMBA_CACHE_DIR. Where none of these can be written to, each process would take
    those seconds anew, and NumPy is used instead.
    """
    try:
        njit = importlib.import_module("numba").njit
        return Kernels(
            njit("(f8[::1], i8[::1], f8[::1], i8[::1])", cache=True)(_settle),
            njit("i8[::1](f8[::1], i8[::1], f8[::1], f8[::1])", cache=True)(_find),
            njit(
                "UniTuple(f8, 2)(f4[:, ::1], f4[::1], i8[::1], f4[:], f4[:],"
                " UniTuple(f4, 3), f8[:, ::1], f4[:, ::1])",
                cache=True,
            )(_project),
            njit("(f4[:, ::1], f4[::1], b1[:, :], i8[::1])", cache=True)(_choose),
            njit("(f4[:, ::1], f4[::1], f4[:, ::1], f4[:, ::1], f4[::1], f8[::1])", cache=True)(
                _slopes
            ),
            njit("(f4[:, :, :], f8[::1], f8[::1], f8, f4[:, :, ::1])", cache=True)(_normalize),
        )
    except Exception:  # numba has many, by version, and no bit depends on it
        return None
