"""A sum tree over priorities: sampling in proportion to them without scanning them all."""

from typing import Any

import numpy as np
import numpy.typing as npt

from jormungandr.numerics.compiled import FANOUT, kernels

__all__ = ["SumTree"]

# Children per inner node. NumPy pays per call, not per number: 16 makes few levels, of rows short
# enough to sum cheaply. Setting and finding 64 of 100,000 leaves took, on one core and without the
# argument checks, 112 µs with 2 children, 61 with 8, 54 with 16, 67 with 32 and 97 with 64.
_FANOUT = FANOUT
# Widest root: a running sum over 1,024 numbers takes a few microseconds, less than another level.
_ROOT = 1024
# How far above the total a mass may lie, relative to it, and still count as rounding of the
# caller's arithmetic.
_SLACK = 1e-9

_Indices = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]


class SumTree:
    """Priorities of `capacity` slots, with their sum and a search by cumulative mass, in float64.

    Schaul et al. (2016), arXiv:1511.05952, appendix B.2.1, with 16 children to a node instead of 2.

    A node is the running sum of its children from left to right, recomputed from them whenever one
    has changed and never adjusted by differences. So the bits of the whole tree are a function of
    the present leaves alone: they do not depend on the order of past updates or on how these were
    cut into calls, and writing the leaves into a fresh tree restores it exactly. The search repeats
    the very same sums. They are made again when next one of them is needed, for all changes since.

    Where numba is installed (the extra ``fast``) compiled loops do the same additions in the same
    order. No bit differs, so nothing depends on it but the time that it takes.

    Args:
        capacity: Number of slots.
        compiled: False computes in NumPy, whatever is installed.

    Attributes:
        capacity: Number of slots; indices are 0 … capacity − 1. All priorities start at 0.
    """

    def __init__(self, capacity: int, *, compiled: bool = True) -> None:
        if capacity < 1:
            raise ValueError(f"SumTree.capacity: expected at least 1, got {capacity!r}")
        self.capacity = capacity
        # No sum of leaves up to this one overflows.
        self._largest = float(np.finfo(np.float64).max) / (2 * capacity)
        widths = [capacity]
        while widths[-1] > _ROOT:
            widths.append(-(-widths[-1] // _FANOUT))
        # From the leaves up to the root's children, one level after the other in `_nodes`; what
        # pads a level to whole rows of children stays 0.
        sizes = [*(parents * _FANOUT for parents in widths[1:]), widths[-1]]
        self._starts = np.array([0, *np.cumsum(sizes)], dtype=np.int64)
        self._nodes = np.zeros(int(self._starts[-1]))
        ends = zip(self._starts[:-1], self._starts[1:], strict=True)
        self._flat = [self._nodes[start:end] for start, end in ends]  # views
        self._levels = [level.reshape(-1, _FANOUT) for level in self._flat[:-1]]
        # Mass to the left of each child of the root, then the total.
        self._prefix = np.zeros(widths[-1] + 1)
        self._changed: list[_Indices] = []  # leaves that the sums do not know of yet
        self._changes = 0
        self._row_of = np.zeros(0, dtype=np.int64)
        self._kernels = kernels() if compiled else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the leaves alone: from them the rest is made anew, to the bit."""
        return _with_leaves, (self.capacity, self._kernels is not None, self._flat[0].copy())

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        self._settle()
        return float(self._prefix[-1])

    def set(self, indices: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Overwrite priorities; of several values for one index the last stays.

        Args:
            indices: Integers in [0, capacity), any shape; may be empty.
            values: Priorities, the shape of `indices` or one number for all; ≥ 0, finite, and at
                most the largest float64 / (2·capacity). 0 makes a slot unfindable.

        Raises:
            IndexError: An index is no integer or out of range; the tree is unchanged.
            ValueError: A value is negative, not finite or too large, or the shapes differ; the tree
                is unchanged.
        """
        i = self._checked("set", indices)
        given = np.asarray(values, dtype=np.float64)
        if given.shape not in ((), np.shape(indices)):
            raise ValueError(
                f"SumTree.set.values: expected shape {np.shape(indices)}, got {given.shape}"
            )
        if i.size == 0:
            return
        if not (given.min() >= 0 and given.max() <= self._largest):  # a NaN fails both
            bad = given[~((given >= 0) & (given <= self._largest))][0]
            expected = f"expected finite priorities from 0 to {self._largest:.3g}"
            raise ValueError(f"SumTree.set.values: {expected}, got {bad}")
        # Adding 0 turns −0.0 into 0.0, so that equal leaves have equal bits.
        self.write(i.copy(), given.reshape(-1) + 0.0)

    def write(self, indices: _Indices, values: _Numbers) -> None:
        """Do what `set` does, without a look at what is given.

        Args:
            indices: (B,), B ≥ 1. The tree keeps the array for a while: nobody may change it.
            values: (B,), or (1,) for all; none is −0.0.
        """
        # NumPy documents that of several values assigned to one index the last remains.
        self._flat[0][indices] = values
        self._changed.append(indices)
        self._changes += len(indices)
        if self._changes * _FANOUT > self.capacity:  # cheaper to sum each row once
            for level, parents in zip(self._levels, self._flat[1:], strict=True):
                parents[: len(level)] = level.cumsum(axis=1)[:, -1]
            self._flat[-1].cumsum(out=self._prefix[1:])
            self._changed, self._changes = [], 0

    def _settle(self) -> None:
        """Make the sums again above the leaves that have changed."""
        if not self._changed:
            return
        i = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed, self._changes = [], 0
        if self._kernels is not None:
            self._kernels.settle(self._nodes, self._starts, self._prefix, i)
            return
        # `bincount` adds one after the other too, in half the time.
        if len(self._row_of) != len(i) * _FANOUT:
            self._row_of = np.repeat(np.arange(len(i)), _FANOUT)
        for level, parents in zip(self._levels, self._flat[1:], strict=True):
            i = i // _FANOUT
            parents[i] = np.bincount(self._row_of, level.take(i, axis=0).reshape(-1), len(i))
        self._flat[-1].cumsum(out=self._prefix[1:])

    def get(self, indices: npt.ArrayLike) -> _Numbers:
        """Return a copy of the priorities at some indices.

        Args:
            indices: Integers in [0, capacity), any shape; may be empty.

        Returns:
            Float64 priorities of the shape of `indices`.

        Raises:
            IndexError: An index is no integer or out of range.
        """
        return self.read(self._checked("get", indices)).reshape(np.shape(indices))

    def read(self, indices: _Indices) -> _Numbers:
        """Return what `get` does at (B,) indices that are known to be right."""
        return self._flat[0].take(indices)

    def find(self, mass: npt.ArrayLike) -> _Indices:
        """Return, for each mass, the slot whose interval of the cumulative sum contains it.

        Slot i owns [p_0 + … + p_{i−1}, p_0 + … + p_i), so a mass drawn uniformly from [0, total)
        finds slot i with probability p_i / total. A slot of priority 0 owns nothing and is never
        returned; a mass that rounding has brought up to the total, or up to the sum of an inner
        node, finds the last slot there that adds to the sum.

        Args:
            mass: Numbers in [0, total), any shape; may be empty. An excess of 1e-9 of the total
                counts as rounding.

        Returns:
            Int64 indices of the shape of `mass`.

        Raises:
            ValueError: The total is 0, or a mass is negative, NaN or beyond the total.
        """
        given = np.asarray(mass, dtype=np.float64)
        if given.size == 0:
            return np.zeros(given.shape, dtype=np.int64)
        total = self.total
        limit = total * (1 + _SLACK)
        if total > 0 and not (given.min() >= 0 and given.max() <= limit):
            bad = given[~((given >= 0) & (given <= limit))][0]
            raise ValueError(f"SumTree.find.mass: expected 0 to the total {total}, got {bad}")
        return self.search(np.ascontiguousarray(given.reshape(-1))).reshape(given.shape)

    def search(self, mass: _Numbers) -> _Indices:
        """Return what `find` does for (B,) masses that are known to be right, B ≥ 1.

        Raises:
            ValueError: The total is 0.
        """
        self._settle()
        if not self._prefix[-1] > 0:
            raise ValueError("SumTree.find: expected a positive priority, got none; set one first")
        if self._kernels is not None:
            found: _Indices = self._kernels.find(self._nodes, self._starts, self._prefix, mass)
            return found
        # With the remainder below a node's sum, which is the last of the running sums over its
        # children, some running sum exceeds it; the first to do so rose, at a positive child.
        remainder = np.minimum(mass, np.nextafter(self._prefix[-1], 0))
        node = self._prefix.searchsorted(remainder, side="right") - 1
        remainder -= self._prefix.take(node)
        prefix = np.zeros((node.size, _FANOUT + 1))
        flat, row = prefix.reshape(-1), np.arange(0, prefix.size, _FANOUT + 1)
        for level in reversed(self._levels):
            sums = level.take(node, axis=0).cumsum(axis=1, out=prefix[:, 1:])
            np.minimum(remainder, np.nextafter(sums[:, -1], 0), out=remainder)
            child = (sums > remainder[:, None]).argmax(axis=1)
            remainder -= flat.take(row + child)
            node = node * _FANOUT + child
        slots: _Indices = node.astype(np.int64, copy=False)
        return slots

    def minimum(self) -> float:
        """Return the smallest positive priority, by a scan of all slots (about 1 ms per million).

        Raises:
            ValueError: No priority is positive.
        """
        leaves = self._flat[0]
        smallest = float(leaves.min(where=leaves > 0, initial=np.inf))
        if smallest == np.inf:
            raise ValueError("SumTree.minimum: expected a positive priority, got none; set one")
        return smallest

    def _checked(self, method: str, indices: npt.ArrayLike) -> _Indices:
        """Return indices as a flat int64 array, or raise IndexError."""
        i = np.asarray(indices)
        if i.size == 0:
            return np.zeros(0, dtype=np.int64)
        if i.dtype.kind not in "iu":
            raise IndexError(f"SumTree.{method}.indices: expected integers, got {i.dtype}")
        if i.min() < 0 or i.max() >= self.capacity:
            bad = i[(i < 0) | (i >= self.capacity)][0]
            expected = f"expected 0..{self.capacity - 1}"
            raise IndexError(f"SumTree.{method}.indices: {expected}, got {bad}")
        return i.reshape(-1).astype(np.int64, copy=False)


def _with_leaves(capacity: int, compiled: bool, leaves: _Numbers) -> SumTree:
    tree = SumTree(capacity, compiled=compiled)
    tree.write(np.arange(capacity), leaves[:capacity])
    return tree
