"""The categorical projection in NumPy: fast, of one fixed support.

`categorical.project` is the same in torch, for any support and with a gradient.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from jormungandr.numerics.compiled import kernels

__all__ = ["Projection"]

_Floats = npt.NDArray[np.float32]


class Projection:
    """Projects r + g·Z, clipped to the support, onto the support's atoms.

    Bellemare, Dabney and Munos (2017), arXiv:1707.06887, equation 7. B batch, N atoms. As the atoms
    lie evenly, atom j comes to lie at b_j = b_0 + g·j, counted in atoms.

    Where numba is installed (the extra ``fast``) a compiled loop does the same; no bit differs.

    Args:
        v_min: Lowest atom, in units of return.
        v_max: Highest atom, above `v_min`.
        atoms: Number of atoms N, at least 2.
        compiled: False computes in NumPy, whatever is installed.

    Attributes:
        support: The atoms, shape (N,), float32.
    """

    def __init__(self, v_min: float, v_max: float, atoms: int, *, compiled: bool = True) -> None:
        self.support = np.linspace(v_min, v_max, atoms).astype(np.float32)
        gap = (self.support[-1] - self.support[0]) / np.float32(atoms - 1)
        # What is beyond an end by no more than this, in atoms, is there by rounding.
        size = max(abs(v_min), abs(v_max)) / float(gap) + atoms
        slack = np.float32(8 * np.finfo(np.float32).eps * size)
        self._shape = self.support[0], gap, slack
        self._steps = np.arange(atoms, dtype=np.float32)
        self._kernels = kernels() if compiled else None
        self._shares = np.zeros((2, atoms + 1))

    def __call__(
        self, probs: _Floats, reward: _Floats, discount: _Floats
    ) -> tuple[_Floats, float, float]:
        """Project.

        Args:
            probs: Probabilities of the next state's greedy action, shape (B, N).
            reward: Discounted sum of the k rewards, shape (B,).
            discount: g = γ^k · (1 − terminated), shape (B,), in [0, 1].

        Returns:
            Probabilities of shape (B, N), and the fraction of all mass that lay below, and above,
            the support. A NaN in a row stays in that row.
        """
        rows = len(probs)
        return self.bootstrapped(
            probs, np.ones(rows, dtype=np.float32), np.arange(rows), reward, discount
        )

    def bootstrapped(
        self,
        e: _Floats,
        total: _Floats,
        best: npt.NDArray[np.int64],
        reward: _Floats,
        discount: _Floats,
    ) -> tuple[_Floats, float, float]:
        """Project some rows of a softmax that was not divided yet.

        Args:
            e: Exponentials, shape (R, N); row r divided by its sum are probabilities.
            total: The sums, shape (R,).
            best: Which row belongs to each transition, shape (B,).
            reward: As in `__call__`.
            discount: As in `__call__`.
        """
        rows = len(best)
        if self._kernels is not None:
            out = np.empty((rows, e.shape[1]), dtype=np.float32)
            low, high = self._kernels.project(
                e, total, best, reward, discount, self._shape, self._shares, out
            )
            return out, low / rows, high / rows
        probs = e.take(best, 0)
        probs /= total.take(best)[:, None]
        lowest, gap, _ = self._shape
        start = discount * lowest  # (B,), where the lowest atom comes to lie, in atoms
        start += reward
        start -= lowest
        start /= gap
        return self._projected(probs, start, discount)

    def _projected(
        self, probs: _Floats, start: _Floats, discount: _Floats
    ) -> tuple[_Floats, float, float]:
        """Do the rest of `__call__` in NumPy: one pass over (B, N) after the other."""
        rows, atoms = probs.shape
        top, slack = self._steps[-1], self._shape[2]
        b = np.multiply.outer(discount, self._steps)  # (B, N)
        b += start[:, None]
        low = high = 0.0
        lowest, highest = start.min(), b[:, -1].max()
        spoiled = math.isnan(lowest)
        if spoiled:  # a NaN has no place; its row will show it
            b[np.isnan(start)] = 0
            lowest, highest = -math.inf, math.inf
        if lowest < -slack:
            low = _total(probs[b < -slack])
        if highest > top + slack:
            high = _total(probs[b > top + slack])
        b.clip(0, top, out=b)
        lower = np.floor(b)
        b -= lower
        b *= probs  # of each, what goes to the atom above
        place = lower.astype(np.intp)
        # One column more than atoms, for the nothing that the highest one hands on.
        place += np.arange(0, rows * (atoms + 1), atoms + 1)[:, None]
        flat, size = place.reshape(-1), rows * (atoms + 1)
        mass = np.bincount(flat, (probs - b).reshape(-1), size)
        mass[1:] += np.bincount(flat, b.reshape(-1), size)[:-1]
        out = mass.reshape(rows, -1)[:, :-1].astype(np.float32)
        if spoiled:
            out[np.isnan(start)] = np.nan
        return out, low / rows, high / rows


def _total(probs: _Floats) -> float:
    """Return the sum, added up in float64 one after the other."""
    return float(np.add.accumulate(probs, dtype=np.float64)[-1]) if len(probs) else 0.0
