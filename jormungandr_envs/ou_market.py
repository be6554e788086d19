"""ou_market_v0: several traders on one shared path, in PettingZoo's parallel form."""

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt
from gymnasium import logger, spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding

from jormungandr_envs.ou_arguments import checked_action, checked_render_mode, checked_x0
from jormungandr_envs.ou_labels import ACTION_VALUES, FLAT, POSITIONS
from jormungandr_envs.ou_parameters import OUFields, OUParameters
from jormungandr_envs.ou_path import Paths, observe, simulate
from jormungandr_envs.ou_render import render_frame, render_text
from jormungandr_envs.ou_spread import observation_space

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    if error.name != "pettingzoo":
        raise
    message = 'ou_market_v0 needs PettingZoo: pip install "jormungandr-rl[pettingzoo]"'
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = ["OUMarketEnv", "OUMarketFields"]

Observation = npt.NDArray[np.float32]
Info = dict[str, Any]


class OUMarketFields(OUFields, total=False):
    """Keyword arguments of `OUMarketEnv`."""

    n_traders: int
    leave_after: Mapping[str, int] | None
    render_mode: str | None


class OUMarketEnv(ParallelEnv):  # type: ignore[misc]  # PettingZoo is not marked as typed
    """Let several traders hold one and the same mean-reverting spread, each its own way.

    ## Description

    All traders see one path of the spread of `OUSpreadEnv`, drawn whole at reset. None of them
    moves it, and none sees or charges another: under one seed, each trader's observations, rewards
    and infos are those of an `OUSpreadEnv` that is given its actions, bit for bit. What they share
    is the luck of the path, so their returns differ by their choices alone.

    ## Agents

    ``trader_0`` … ``trader_{n_traders - 1}``. All begin with the reset.

    ## Action Space

    `Discrete(3)` for each: 0 SHORT, 1 FLAT, 2 LONG, as `OUSpreadEnv`. A step takes exactly one
    action for each live trader.

    ## Observation Space

    float32 array of shape `(4,)` for each: ``z``, ``dz``, the trader's own position, ``time_left``,
    as `OUSpreadEnv`.

    ## Rewards

    As `OUSpreadEnv`, from the trader's own positions.

    ## Starting State

    As `OUSpreadEnv`. ``reset`` takes ``options={"x0": number}`` to fix ``x``; other options are
    ignored, since PettingZoo's tests of an environment hand in one of their own.

    ## Episode End

    1. Termination: of all live traders after ``horizon`` steps, an end that belongs to the task.
    2. Truncation: of a trader after ``leave_after`` steps. It does not see this coming, and its
       position would have had a value, so a learner bootstraps there.

    ## Info

    Each trader's: `drift_label`, and with the terminating step `reference_return`, as
    `OUSpreadEnv`. A trader that left has no `reference_return`: that is over the whole path.

    ## Arguments

    | Parameter     | Default | Meaning                                                            |
    |---------------|---------|--------------------------------------------------------------------|
    | `n_traders`   | 3       | number of traders, >= 1                                            |
    | `leave_after` | None    | steps after which a trader leaves, by name, from 1 to horizon - 1  |
    | `render_mode` | None    | `"ansi"` (text) or `"rgb_array"` (256 x 512 pixels per trader)     |

    and the parameters of the task, as `OUSpreadEnv`.

    ## What It Leaves Out

    What `OUSpreadEnv` leaves out, and a market: nobody meets anybody here.

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  (declared so by pettingzoo.ParallelEnv)
        "name": "ou_market_v0",
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 12,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_traders: int = 3,
        leave_after: Mapping[str, int] | None = None,
        render_mode: str | None = None,
        **parameters: Unpack[OUFields],
    ) -> None:
        self.parameters = OUParameters(**parameters)
        self.render_mode = checked_render_mode(render_mode)
        self.possible_agents = [f"trader_{i}" for i in range(_checked_count(n_traders))]
        self.agents: list[str] = []
        # One space per trader and not one for all: each samples from a generator of its own.
        self.observation_spaces = {agent: observation_space() for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(3) for agent in self.possible_agents}
        self._last_step = self._checked_leaving(leave_after)
        self._charges: list[float] = self.parameters.charges.tolist()
        self._generator: np.random.Generator | None = None
        self._path: Paths | None = None
        self._now = 0
        self._actions: dict[str, list[int]] = {}  # taken so far, of traders that left too

    def observation_space(self, agent: str) -> spaces.Box:
        """Return a trader's observation space, the same object every time."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        """Return a trader's action space, the same object every time."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Draw a whole path and return every trader's first observation.

        Args:
            seed: seeds the generator; ``None`` goes on with it.
            options: ``{"x0": number}`` fixes the start, in units of the spread; others are ignored.

        Raises:
            ValueError: if ``x0`` is not a finite number.
        """
        x0 = checked_x0({"x0": options["x0"]} if options and "x0" in options else None)
        if seed is not None or self._generator is None:
            self._generator, _ = seeding.np_random(seed)
        noise = self._generator.standard_normal((1, self.parameters.horizon + 1))
        self._path = simulate(noise, self.parameters, x0)
        self._now = 0
        self._actions = {agent: [] for agent in self.possible_agents}
        self.agents = self.possible_agents[:]
        return self._observe(self._path), self._infos(self._path)

    def step(
        self, actions: Mapping[str, SupportsIndex]
    ) -> tuple[
        dict[str, Observation],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, Info],
    ]:
        """Hold each live trader's position over the next change of the spread.

        Returns:
            Observations, rewards, terminations, truncations and infos of the traders that were
            live; `agents` then names those that still are. Once there are none, and hence no
            actions, five empty dicts: wrappers such as SuperSuit's black_death step on until then.

        Raises:
            ValueError: if there is not exactly one action from 0 to 2 for each live trader.
            gymnasium.error.ResetNeeded: before the first reset.
        """
        path = self._path
        if path is None:
            raise ResetNeeded("OUMarket.step: expected an episode; call reset() first")
        chosen = self._checked_actions(actions)
        if not chosen:
            return {}, {}, {}, {}, {}
        self._now += 1
        move = float(path.move[self._now, 0])
        rewards = {}
        for agent, action in chosen.items():
            held = self._held(agent)
            rewards[agent] = ACTION_VALUES[action] * move + self._charges[3 * held + action]
            self._actions[agent].append(action)
        over = self._now == self.parameters.horizon
        truncations = {
            agent: not over and self._now == self._last_step[agent] for agent in self.agents
        }
        observations, infos = self._observe(path), self._infos(path)
        terminations = dict.fromkeys(self.agents, over)
        self.agents = [agent for agent in self.agents if not (over or truncations[agent])]
        return observations, rewards, terminations, truncations, infos

    def render(self) -> str | npt.NDArray[np.uint8] | None:
        """Return each trader's episode so far, one below the other, as text or pixels.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            logger.warn('OUMarket.render: render_mode is None; choose "ansi" or "rgb_array"')
            return None
        if self._path is None:
            raise ResetNeeded("OUMarket.render: expected an episode; call reset() first")
        z: list[float] = self._path.z[:, 0].tolist()
        seen = {agent: (z[: len(taken) + 1], taken) for agent, taken in self._actions.items()}
        if self.render_mode == "ansi":
            return "".join(
                f"{agent}  {render_text(*episode, self.parameters)}"
                for agent, episode in seen.items()
            )
        return np.concatenate([render_frame(*e, self.parameters) for e in seen.values()])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _held(self, agent: str) -> int:
        """Return the action index of the position that a trader holds."""
        taken = self._actions[agent]
        return taken[-1] if taken else FLAT

    def _observe(self, path: Paths) -> dict[str, Observation]:
        """Return a fresh observation for each live trader."""
        horizon = self.parameters.horizon
        position = POSITIONS.take([self._held(agent) for agent in self.agents])
        z, move = (np.full(len(position), table[self._now, 0]) for table in (path.z, path.move))
        rows = observe(z, move, position, (horizon - self._now) / horizon)
        return dict(zip(self.agents, rows, strict=True))

    def _infos(self, path: Paths) -> dict[str, Info]:
        """Return a fresh info for each live trader."""
        info: Info = {"drift_label": int(path.drift[self._now, 0])}
        if self._now == self.parameters.horizon:
            info["reference_return"] = float(path.reference_return[0])
        return {agent: dict(info) for agent in self.agents}

    def _checked_actions(self, actions: Mapping[str, SupportsIndex]) -> dict[str, int]:
        """Return the live traders' actions, in their order."""
        if actions.keys() != set(self.agents):
            raise ValueError(
                f"OUMarket.step actions: expected one for each of {self.agents}, "
                f"got {list(actions)}"
            )
        return {agent: checked_action(actions[agent]) for agent in self.agents}

    def _checked_leaving(self, leave_after: Mapping[str, int] | None) -> dict[str, int]:
        """Return the last step of every trader."""
        horizon = self.parameters.horizon
        last = dict.fromkeys(self.possible_agents, horizon)
        for agent, steps in (leave_after or {}).items():
            if agent not in last:
                raise ValueError(
                    f"OUMarket.leave_after: expected names from {self.possible_agents}, "
                    f"got {agent!r}"
                )
            count = _as_index(steps)
            if not 1 <= count < horizon:
                raise ValueError(
                    f"OUMarket.leave_after[{agent!r}]: expected an integer from 1 to "
                    f"{horizon - 1}, got {steps!r}"
                )
            last[agent] = count
        return last


def _checked_count(n_traders: SupportsIndex) -> int:
    """Return the number of traders."""
    count = _as_index(n_traders)
    if count < 1:
        raise ValueError(f"OUMarket.n_traders: expected an integer >= 1, got {n_traders!r}")
    return count


def _as_index(value: object) -> int:
    """Return an integer as an int, and 0, which no argument here may be, for anything else."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return 0
    return operator.index(value)
