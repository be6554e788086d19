"""The categorical projection in NumPy: fast, of one fixed support.

`categorical.project` is the same in torch, for any support and with a gradient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Projection"]

_Floats = npt.NDArray[np.float32]


class Projection:
    """Projects r + g·Z, clipped to the support, onto the support's atoms.

    Bellemare, Dabney and Munos (2017), arXiv:1707.06887, equation 7. B batch, N atoms.

    Args:
        v_min: Lowest atom, in units of return.
        v_max: Highest atom, above `v_min`.
        atoms: Number of atoms N, at least 2.

    Attributes:
        support: The atoms, shape (N,), float32.
    """

    def __init__(self, v_min: float, v_max: float, atoms: int) -> None:
        self.support = np.linspace(v_min, v_max, atoms).astype(np.float32)
        self._gap = (self.support[-1] - self.support[0]) / np.float32(atoms - 1)
        largest = max(abs(v_min), abs(v_max))
        self._slack = np.float32(8 * np.finfo(np.float32).eps * largest)

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
        z, rows, atoms = self.support, *probs.shape
        moved = reward[:, None] + discount[:, None] * z  # (B, N)
        low = float(np.where(moved < z[0] - self._slack, probs, 0).sum()) / rows
        high = float(np.where(moved > z[-1] + self._slack, probs, 0).sum()) / rows
        b = (moved - z[0]) / self._gap
        np.clip(b, 0, atoms - 1, out=b)
        # A NaN has no defined integer: its place does not matter, as its share is NaN.
        lower = np.nan_to_num(b).astype(np.int64)
        np.minimum(lower, atoms - 2, out=lower)  # N−1 counts as the upper neighbour of N−2
        upper_share = probs * (b - lower)
        lower += (np.arange(rows) * atoms)[:, None]
        place, size = lower.ravel(), rows * atoms
        mass = np.bincount(place, (probs - upper_share).ravel(), size)
        mass[1:] += np.bincount(place, upper_share.ravel(), size)[:-1]
        return mass.astype(np.float32).reshape(rows, atoms), low, high
