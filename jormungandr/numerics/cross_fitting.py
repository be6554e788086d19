"""Fitted Q and visits of nine tenths of the episodes, held against the last tenth, in turn.

N steps of E episodes, P features of a state and an action.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jormungandr.numerics.fitted_q import FittedQ, Moments, fitted_q

__all__ = ["Draw", "Problem", "crossed"]

Floats = npt.NDArray[np.float64]

#: Share of episodes that go on at the horizon from which on that is no mere blur of the fit: where
#: all end, up to 0.46 has been seen; where all go on, 0.95 to 1.
GOING = 0.5
#: How far beyond what is possible a fitted value may lie before it is refused.
ROOM = 10.0


class Draw(NamedTuple):
    """What one draw of features comes to: per episode, (E,) each; `OffPolicyValue` has the rest."""

    contribution: Floats
    fitted: Floats
    effective: float
    unfinished: float


@dataclass(frozen=True, slots=True)
class Problem:
    """One draw's arrays: design and successor (N, P), start (E, P), part (E,) of each episode."""

    design: Floats
    successor: Floats
    reward: Floats
    start: Floats
    episode: npt.NDArray[np.intp]
    part: npt.NDArray[np.int64]


def crossed(p: Problem, discount: float, count: int | None, ridge: float) -> Draw:
    """Fit to all parts but one, and evaluate on that one, in turn.

    Args:
        p: the draw.
        discount: as for `fitted_q`.
        count: iterations of it; None is the limit.
        ridge: as for `fitted_q`.

    Raises:
        ValueError: the fit does not settle.
    """
    episodes, parts = len(p.part), np.unique(p.part)
    contribution, fitted = np.empty(episodes), np.empty(episodes)
    weights = np.empty(len(p.reward))
    rows = [np.flatnonzero(p.part[p.episode] == part) for part in parts]
    sums = [Moments.of(p.design[r], p.successor[r], p.reward[r]) for r in rows]
    fits = []
    for k, part in enumerate(parts):
        others = [one for i, one in enumerate(sums) if i != k]
        mine = p.part == part
        fit = fitted_q(
            Moments(*(sum(field[1:], field[0]) for field in zip(*others, strict=True))),
            p.start[~mine].mean(axis=0),
            discount=discount,
            iterations=count,
            ridge=ridge,
        )
        fitted[mine] = p.start[mine] @ fit.weights
        fits.append(fit)
    _check_settled(p, fitted, discount, count)
    unfinished = _unfinished(p, rows, fits, discount, count)
    for part, here, fit in zip(parts, rows, fits, strict=True):
        mine = p.part == part
        # Visits are of a log of that size; what an episode contributes is not.
        size = int((~mine).sum())
        weights[here] = p.design[here] @ fit.visits * size
        errors = fit.errors_to_go if unfinished > GOING else fit.errors
        found = errors(p.design[here], p.successor[here], p.reward[here], discount)
        correction = np.bincount(p.episode[here], found * size, minlength=episodes)
        contribution[mine] = fitted[mine] + correction[mine]
    square = float(weights @ weights)
    effective = float(weights.sum()) ** 2 / square if square else 0.0
    return Draw(contribution, fitted, effective, unfinished)


def _unfinished(
    p: Problem,
    rows: list[npt.NDArray[np.intp]],
    fits: list[FittedQ],
    discount: float,
    count: int | None,
) -> float:
    """Return the share of the policy's episodes that go on after the horizon; 0 without one."""
    if count is None or discount == 0:
        return 0.0
    total = p.design.sum(axis=0)
    pairs = zip(rows, fits, strict=True)
    found = [(total - p.design[here].sum(axis=0)) @ fit.beyond for here, fit in pairs]
    return float(np.median(found)) / discount**count


def _check_settled(p: Problem, fitted: Floats, discount: float, count: int | None) -> None:
    """Refuse values beyond what the largest reward in every step comes to, with room for a bad fit.

    Raises:
        ValueError: the regression amplifies itself from one iteration to the next.
    """
    steps = count if discount == 1 else (1 - discount ** (count or math.inf)) / (1 - discount)
    assert steps is not None  # without a horizon the discount is below 1
    if not np.abs(fitted).max() <= ROOM * steps * np.abs(p.reward).max():
        raise ValueError(
            "off_policy_value: expected an iteration that settles, but it runs away; take more"
            " episodes, a lower discount, or a shorter horizon"
        )
