"""OUSpread-v0, one environment."""

import math
from typing import Any, SupportsIndex, Unpack

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import logger, spaces
from gymnasium.error import ResetNeeded

from jormungandr_envs.ou_arguments import checked_action, checked_render_mode, checked_x0
from jormungandr_envs.ou_labels import ACTION_VALUES, FLAT
from jormungandr_envs.ou_parameters import OUFields, OUParameters
from jormungandr_envs.ou_path import simulate
from jormungandr_envs.ou_render import render_frame, render_text

__all__ = ["OUSpreadEnv"]

Observation = npt.NDArray[np.float32]


class OUSpreadEnv(gym.Env[npt.NDArray[Any], SupportsIndex]):
    """Hold a mean-reverting spread long, short or not at all, and pay for changing your mind.

    ## Description

    The spread is a discrete Ornstein-Uhlenbeck process, ``x' = (1 - kappa) x + sigma eps`` with
    standard normal ``eps``. Its stationary standard deviation is
    ``sigma_x = sigma / sqrt(1 - (1 - kappa)^2)``, 0.6115 by default; spreads are observed and
    rewarded in that unit. The action chosen is the position held over the next change.

    Actions do not move the spread. The whole path is drawn at reset, so that two policies with
    one seed meet one path and their returns differ by their choices alone.

    ## Action Space

    `Discrete(3)`:

    | Index | Name  | Position |
    |-------|-------|----------|
    | 0     | SHORT | -1       |
    | 1     | FLAT  | 0        |
    | 2     | LONG  | +1       |

    ## Observation Space

    float32 array of shape `(4,)`:

    | Index | Name      | Meaning                                    | Min  | Max |
    |-------|-----------|--------------------------------------------|------|-----|
    | 0     | z         | spread, ``x / sigma_x``                    | -inf | inf |
    | 1     | dz        | its latest change, ``(x - x_prev)/sigma_x``| -inf | inf |
    | 2     | position  | position held, -1, 0 or +1                 | -1   | 1   |
    | 3     | time_left | fraction of the episode remaining          | 0    | 1   |

    The position is observed because the reward charges the change from it; the time because the
    same spread and position are worth less the fewer steps are left. Without either the
    observation would not be the state of a Markov decision process. ``dz`` is redundant: the
    process has no memory beyond ``z``.

    ## Rewards

    With ``a`` the new position and ``a_prev`` the one held before:

        a (x' - x) / sigma_x  -  turnover_cost |a - a_prev|  -  holding_cost |a|

    Closing the position at the end is not charged.

    ## Starting State

    ``x`` from its stationary law, ``dz = 0``, position flat, ``time_left = 1``. ``reset`` takes
    ``options={"x0": number}`` to fix ``x``, in units of the spread (not of ``sigma_x``). A seed's
    shocks are the same with and without it.

    ## Episode End

    1. Termination: after ``horizon`` steps. The horizon belongs to the task and the time left is
       observed, so the end is a state of the process whose value is zero, not a cut in it
       (Pardo et al. 2018, Time Limits in Reinforcement Learning, arXiv:1712.00378, section 3).
       A learner must not bootstrap there.
    2. Truncation: never. The registration sets no `max_episode_steps`.

    ## Info

    `drift_label`: class of the expected direction of the next change, as `Drift` (0 DOWN, 1 FLAT,
    2 UP), for the observation returned with it. `reference_return`, with the last step only:
    return of `reference_action` on the same path.

    ## Arguments

    | Parameter             | Default | Meaning                                                   |
    |-----------------------|---------|-----------------------------------------------------------|
    | `kappa`               | 0.18    | reversion per step, in (0, 2)                             |
    | `sigma`               | 0.35    | shock per step, in units of the spread, > 0               |
    | `horizon`             | 48      | steps in an episode, >= 1                                 |
    | `turnover_cost`       | 0.035   | reward per unit of position change, >= 0                  |
    | `holding_cost`        | 0.004   | reward per step and unit of position, >= 0                |
    | `reference_threshold` | 0.65    | band of the reference policy, in ``sigma_x``, >= 0        |
    | `drift_threshold`     | 0.35    | band of the label FLAT, in ``sigma_x``, >= 0              |
    | `render_mode`         | None    | `"ansi"` (text) or `"rgb_array"` (256 x 512 pixels)       |

    ## What It Leaves Out

    Market impact, bid-ask spread, margin, financing, partial fills, sizes other than one, and
    any doubt about the law of the spread. Doing well here says nothing about any market.

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  (declared so by gymnasium.Env)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 12,
    }

    def __init__(self, *, render_mode: str | None = None, **parameters: Unpack[OUFields]) -> None:
        self.parameters = OUParameters(**parameters)
        self.render_mode = checked_render_mode(render_mode)
        self.observation_space = observation_space()
        self.action_space = spaces.Discrete(3)
        self._charges: list[float] = self.parameters.charges.tolist()
        # Lists of Python numbers: a step reads single entries, which arrays are slow at.
        self._z: list[float] = []
        self._move: list[float] = []
        self._drift: list[int] = []
        self._reference_return = math.nan
        self._actions: list[int] = []  # taken so far; its length is the time

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a whole path and return its first observation.

        Args:
            seed: seeds the generator; ``None`` goes on with it.
            options: ``{"x0": number}`` fixes the start, in units of the spread.

        Raises:
            ValueError: if ``options`` holds anything else.
        """
        super().reset(seed=seed)
        x0 = checked_x0(options)
        noise = self.np_random.standard_normal((1, self.parameters.horizon + 1))
        paths = simulate(noise, self.parameters, x0)
        self._z = paths.z[:, 0].tolist()
        self._move = paths.move[:, 0].tolist()
        self._drift = paths.drift[:, 0].tolist()
        self._reference_return = float(paths.reference_return[0])
        self._actions = []
        return self._observe(), {"drift_label": self._drift[0]}

    def step(self, action: SupportsIndex) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Hold the action's position over the next change of the spread.

        Raises:
            ValueError: if the action is not an integer from 0 to 2.
            gymnasium.error.ResetNeeded: if the episode has not begun or is over.
        """
        chosen = checked_action(action)
        if len(self._actions) >= len(self._z) - 1:
            raise ResetNeeded("OUSpread.step: expected a running episode; call reset() first")
        held = self._actions[-1] if self._actions else FLAT
        self._actions.append(chosen)
        now = len(self._actions)
        reward = ACTION_VALUES[chosen] * self._move[now] + self._charges[3 * held + chosen]
        info: dict[str, Any] = {"drift_label": self._drift[now]}
        terminated = now == self.parameters.horizon
        if terminated:
            info["reference_return"] = self._reference_return
        return self._observe(), reward, terminated, False, info

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """Return the episode so far as text or pixels, by ``render_mode``.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            logger.warn('OUSpread.render: render_mode is None; choose "ansi" or "rgb_array"')
            return None
        if not self._z:
            raise ResetNeeded("OUSpread.render: expected an episode; call reset() first")
        render = render_text if self.render_mode == "ansi" else render_frame
        return render(self._z[: len(self._actions) + 1], self._actions, self.parameters)

    def _observe(self) -> Observation:
        """Return a fresh observation of the current state."""
        now = len(self._actions)
        held = self._actions[-1] if self._actions else FLAT
        horizon = self.parameters.horizon
        return np.array(
            (self._z[now], self._move[now], ACTION_VALUES[held], (horizon - now) / horizon),
            dtype=np.float32,
        )


def observation_space() -> spaces.Box:
    """Return the space of one observation; the spreads are Gaussian, hence unbounded."""
    low = np.array([-np.inf, -np.inf, -1.0, 0.0], dtype=np.float32)
    high = np.array([np.inf, np.inf, 1.0, 1.0], dtype=np.float32)
    return spaces.Box(low, high, dtype=np.float32)
