"""The optimal policy of the OU task, by dynamic programming over (z, position, steps left)."""

from functools import lru_cache
from typing import Unpack

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_labels import FLAT, POSITIONS
from jormungandr_envs.ou_parameters import OUFields, OUParameters

__all__ = ["OptimalPolicy", "optimal_policy"]

REACH = 7.0  # half width of the grid in stationary standard deviations; P(|z| > 7) = 3e-12
SPACING = 0.01  # of the grid; halving it moves the default task's value by less than 2e-5


def optimal_policy(**parameters: Unpack[OUFields]) -> "OptimalPolicy":
    """Return the policy with the highest expected undiscounted episode return.

    Solved once per set of parameters, then kept.

    Args:
        **parameters: as `OUParameters`.

    Raises:
        ValueError: if a parameter is out of range, or if one step's shock is narrower than the
            grid (``kappa`` within 5e-5 of 0 or 2).
    """
    return _solve(OUParameters(**parameters))


@lru_cache(maxsize=16)
def _solve(parameters: OUParameters) -> "OptimalPolicy":
    """Solve each task once; `OUParameters` has turned equal inputs into equal keys."""
    return OptimalPolicy(parameters)


class OptimalPolicy:
    """Greedy policy of the exact action values, tabulated on a grid and interpolated.

    In stationary standard deviations ``z' = (1 - kappa) z + s eps``, so a step's expected gain is
    ``-kappa z a`` and only the costs tie one step to the next. With ``n`` steps left,

        W_n(z, a) = -kappa z a + E[V_{n-1}(z', a)],    V_0 = 0,
        V_n(z, held) = max_a  W_n(z, a) + charge(held, a).

    The expectation is a trapezoid rule on a uniform grid: against a Gaussian kernel it converges
    faster than any power of the spacing where V is smooth, and quadratically at its kinks.

    Args:
        parameters: the task.

    Raises:
        ValueError: if one step's shock is narrower than the grid.
    """

    def __init__(self, parameters: OUParameters) -> None:
        p = parameters
        if p.sigma_z < SPACING:
            raise ValueError(
                f"OUSpread.kappa: expected at least 5e-5 away from 0 and 2 for the optimal policy, "
                f"got {p.kappa!r}"
            )
        self.parameters = p
        cells = round(2 * REACH / SPACING)
        z = np.linspace(-REACH, REACH, cells + 1)  # (G,)
        transition = z[None, :] - p.decay * z[:, None]  # (G, G), from row to column
        transition /= p.sigma_z
        np.exp(-0.5 * transition**2, out=transition)
        transition /= transition.sum(axis=1, keepdims=True)

        gain = -p.kappa * z[:, None] * POSITIONS  # (G, 3): by action
        self._charges = p.charges.reshape(3, 3)  # by held, action
        self._values = np.zeros((p.horizon + 1, cells + 1, 3))  # W_n(z, a)
        value = np.zeros((cells + 1, 3))  # V_n(z, held)
        for steps_left in range(1, p.horizon + 1):
            self._values[steps_left] = gain + transition @ value
            value = (self._values[steps_left][:, None, :] + self._charges).max(axis=2)
        start = np.exp(-0.5 * z**2)
        self._stationary_value = float(start @ value[:, FLAT] / start.sum())

    def act(self, observations: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        """Return the optimal action indices (B,) for observations (B, 4) of the environment.

        Ties go to the lower index. After the last step every action is worth nothing.

        Args:
            observations: as the environment returns them: z, its change, the position held, the
                fraction of the episode remaining.

        Raises:
            ValueError: if the shape is not (B, 4).
        """
        observations = np.asarray(observations)
        if observations.ndim != 2 or observations.shape[1] != 4:
            raise ValueError(f"observations: expected shape (B, 4), got {observations.shape}")
        horizon = self.parameters.horizon
        z, _, position, time_left = observations.astype(np.float64).T
        held = np.clip(np.rint(position).astype(np.int64) + FLAT, 0, 2)
        steps_left = np.clip(np.rint(time_left * horizon).astype(np.int64), 0, horizon)
        worth = self._interpolate(z, steps_left) + self._charges[held]  # (B, 3)
        best: npt.NDArray[np.int64] = worth.argmax(axis=1)
        return best

    def value(self, x0: float | None = None) -> float:
        """Return the expected episode return from a flat position.

        Args:
            x0: start of the path in units of the spread; ``None`` takes the stationary law.
        """
        if x0 is None:
            return self._stationary_value
        z = np.array([x0 / self.parameters.sigma_x])
        worth = self._interpolate(z, np.array([self.parameters.horizon]))
        return float((worth + self._charges[FLAT]).max())

    def _interpolate(
        self, z: npt.NDArray[np.float64], steps_left: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return ``W`` (B, 3) between grid points; beyond the grid, its value at the edge."""
        last = self._values.shape[1] - 1
        place = np.clip((z + REACH) / SPACING, 0.0, last)
        cell = np.minimum(place.astype(np.int64), last - 1)
        share = (place - cell)[:, None]
        low, high = self._values[steps_left, cell], self._values[steps_left, cell + 1]
        interpolated: npt.NDArray[np.float64] = low + share * (high - low)
        return interpolated
