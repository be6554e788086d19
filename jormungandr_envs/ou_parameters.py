"""The numbers that define one OU task, validated once."""

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_labels import POSITIONS

__all__ = ["OUFields", "OUParameters"]


class OUFields(TypedDict, total=False):
    """Keyword arguments shared by the environments, the policies and the yardsticks."""

    kappa: float
    sigma: float
    horizon: int
    turnover_cost: float
    holding_cost: float
    reference_threshold: float
    drift_threshold: float


@dataclass(frozen=True, kw_only=True)
class OUParameters:
    """Parameters of the OU task, with what follows from them.

    Args:
        kappa: share of the spread that reverts to the mean in one step, in (0, 2): the range in
            which a stationary law exists.
        sigma: standard deviation of one step's shock, in units of the spread, above 0.
        horizon: steps in an episode, at least 1.
        turnover_cost: reward lost per unit of position change, at least 0.
        holding_cost: reward lost per step and unit of position held, at least 0.
        reference_threshold: half width of the band in which the reference policy is flat, in
            stationary standard deviations, at least 0.
        drift_threshold: half width of the band labelled FLAT, same unit, at least 0.

    Raises:
        ValueError: naming the parameter, what was expected and what was given.
    """

    kappa: float = 0.18
    sigma: float = 0.35
    horizon: int = 48
    turnover_cost: float = 0.035
    holding_cost: float = 0.004
    reference_threshold: float = 0.65
    drift_threshold: float = 0.35

    def __post_init__(self) -> None:
        """Convert each number to its builtin type and refuse what defines no task."""
        self._set_number("kappa", above=0.0, below=2.0)
        self._set_number("sigma", above=0.0)
        for name in ("turnover_cost", "holding_cost", "reference_threshold", "drift_threshold"):
            self._set_number(name)
        try:
            horizon = operator.index(self.horizon)
        except TypeError:
            horizon = 0
        if horizon < 1 or isinstance(self.horizon, bool):
            raise ValueError(f"OUSpread.horizon: expected an integer >= 1, got {self.horizon!r}")
        object.__setattr__(self, "horizon", horizon)

    def _set_number(self, name: str, above: float = -1.0, below: float = math.inf) -> None:
        """Store field ``name`` as a float in ``(above, below)``, or >= 0 when ``above`` is -1."""
        given = getattr(self, name)
        number = math.nan
        if not isinstance(given, str | bool):
            try:
                number = float(given)
            except (TypeError, ValueError):
                number = math.nan
        low = number > above if above >= 0 else number >= 0
        if not (low and number < below and math.isfinite(number)):
            lower = f"> {above:g}" if above >= 0 else ">= 0"
            upper = f" and < {below:g}" if math.isfinite(below) else ""
            raise ValueError(
                f"OUSpread.{name}: expected a finite number {lower}{upper}, got {given!r}"
            )
        object.__setattr__(self, name, number)

    @property
    def decay(self) -> float:
        """Share of the spread that one step keeps: ``1 - kappa``."""
        return 1.0 - self.kappa

    @property
    def sigma_x(self) -> float:
        """Stationary standard deviation of the spread, ``sigma / sqrt(1 - (1 - kappa)^2)``."""
        return self.sigma / math.sqrt(1.0 - self.decay**2)

    @property
    def sigma_z(self) -> float:
        """Standard deviation of one step's shock in stationary standard deviations."""
        return math.sqrt(1.0 - self.decay**2)

    @cached_property
    def charges(self) -> npt.NDArray[np.float64]:
        """What the costs add to a step's reward, at most 0; index ``3 * held + action``, (9,).

        Every form of the environment reads this table, so that their rewards agree to the bit.
        """
        turnover = self.turnover_cost * np.abs(POSITIONS[None, :] - POSITIONS[:, None])  # (3, 3)
        # Subtracted from +0.0: then staying flat on a falling path is worth 0.0 and not -0.0.
        table = 0.0 - (turnover + self.holding_cost * np.abs(POSITIONS)).ravel()
        table.flags.writeable = False  # shared by whoever holds these parameters
        return table
