"""Whole paths of the spread, drawn before the first action so that no action can move them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_labels import FLAT, POSITIONS, against_band
from jormungandr_envs.ou_parameters import OUParameters

__all__ = ["Paths", "simulate"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Paths made at a time: the arrays in between then stay in the processor's second cache.
_BLOCK = 512
#: Episodes under which a sum of each is faster than a sum of rows.
_FEW = 64


@dataclass(frozen=True)
class Paths:
    """What an episode holds that no action changes. B episodes, T = horizon, time first.

    Args:
        z: spread in stationary standard deviations, (T + 1, B).
        move: latest change of the spread in the same unit, (T + 1, B); row 0 is zero.
        drift: class index of `Drift` for ``z``, (T + 1, B).
        reference_return: undiscounted return of the reference policy on each path, (B,).
    """

    z: Floats
    move: Floats
    drift: Ints
    reference_return: Floats


def simulate(
    noise: Floats, parameters: OUParameters, x0: float | None = None, out: Paths | None = None
) -> Paths:
    """Turn standard normal draws into paths of ``x' = (1 - kappa) x + sigma eps``.

    Elementwise float64 arithmetic only, in one order: a batch gives each path the very bits that
    it would have alone.

    Args:
        noise: standard normal draws, (B, T + 1); column 0 places the start.
        parameters: the task.
        x0: start of every path in units of the spread; ``None`` takes the stationary law. Column 0
            is unused then but still drawn, so that the shocks of a seed do not depend on ``x0``.
        out: of the same shape, to be overwritten and returned.
    """
    count, rows = noise.shape
    if out is None:
        out = Paths(
            z=np.empty((rows, count)),
            move=np.empty((rows, count)),
            drift=np.empty((rows, count), dtype=np.int64),
            reference_return=np.empty(count),
        )
    for start in range(0, count, _BLOCK):
        some = slice(start, start + _BLOCK)
        part = Paths(
            out.z[:, some], out.move[:, some], out.drift[:, some], out.reference_return[some]
        )
        _fill(part, noise[some], parameters, x0)
    return out


def _fill(paths: Paths, noise: Floats, p: OUParameters, x0: float | None) -> None:
    """Write the paths of these draws."""
    sigma_x = p.sigma_x
    x = np.array(noise.T, order="C")  # (T + 1, B), a copy: the shocks become the path in place
    x *= p.sigma
    x[0] = noise[:, 0] * sigma_x if x0 is None else x0
    # The recursion by doubling (Hillis and Steele 1986): each pass doubles the number of shocks
    # that an entry has summed, so six passes of large arrays replace 48 of small ones.
    lag, kept = 1, p.decay
    while lag <= p.horizon:
        x[lag:] += kept * x[:-lag]
        lag, kept = 2 * lag, kept * kept

    move = paths.move
    move[0] = 0.0
    np.subtract(x[1:], x[:-1], out=move[1:])
    move /= sigma_x
    x /= sigma_x
    paths.z[:] = x
    paths.drift[:] = against_band(x, p.drift_threshold)
    action = against_band(x[:-1], p.reference_threshold)  # (T, B)
    paths.reference_return[:] = total(step_rewards(action, move, p))


def step_rewards(action: Ints, move: Floats, parameters: OUParameters) -> Floats:
    """Return the reward of every step of a fixed sequence of actions, (T, B).

    Args:
        action: action indices, (T, B); each episode starts flat.
        move: the paths' changes, (T + 1, B).
        parameters: the task.
    """
    change = np.empty_like(action)  # index into the charges: 3 * held + action
    change[0] = FLAT
    change[1:] = action[:-1]
    change *= 3
    change += action
    rewards: Floats = POSITIONS.take(action)
    rewards *= move[1:]
    rewards += parameters.charges.take(change)
    return rewards


def total(rewards: Floats) -> Floats:
    """Sum rewards (T, B) over time, one step after the other as an actor would: (B,).

    `numpy.sum` may pair its terms, and how depends on the shape, so it would round a batch and a
    single episode differently.
    """
    if rewards.shape[1] < _FEW:  # then this is faster, to the same bits
        one: Floats = np.cumsum(np.ascontiguousarray(rewards.T), axis=1)[:, -1]
        return one
    summed: Floats = rewards[0].copy()
    for row in rewards[1:]:
        summed += row
    return summed


def observe(
    z: Floats, move: Floats, position: Floats, time_left: float | Floats
) -> npt.NDArray[np.float32]:
    """Assemble observations (B, 4) from the columns named in `FEATURES`.

    Args:
        z: spread in stationary standard deviations, (B,).
        move: its latest change, (B,).
        position: held, -1, 0 or 1, (B,).
        time_left: fraction of the episode remaining, one number or (B,).
    """
    observation = np.empty((z.shape[0], 4), dtype=np.float32)
    observation[:, 0] = z
    observation[:, 1] = move
    observation[:, 2] = position
    observation[:, 3] = time_left
    return observation
