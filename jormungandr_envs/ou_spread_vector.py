"""OUSpread-v0, many environments stepped by array arithmetic."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
from gymnasium import logger, spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from jormungandr_envs.ou_arguments import (
    checked_actions,
    checked_mask,
    checked_render_mode,
    checked_seeds,
    checked_x0,
)
from jormungandr_envs.ou_draws import Draws
from jormungandr_envs.ou_labels import FLAT, POSITIONS
from jormungandr_envs.ou_parameters import OUFields, OUParameters
from jormungandr_envs.ou_path import Paths, observe, simulate
from jormungandr_envs.ou_render import render_frame, render_text
from jormungandr_envs.ou_spread import OUSpreadEnv, observation_space

__all__ = ["OUSpreadVectorEnv"]

Observations = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class OUSpreadVectorEnv(VectorEnv[Observations, npt.ArrayLike, npt.NDArray[Any]]):
    """Step B copies of `OUSpreadEnv` at once, to the bit as `gymnasium.vector.SyncVectorEnv` would.

    Every copy has a generator of its own, seeded ``seed + i`` and drawn from in the same order as
    the single environment's, so observations, rewards, ends and infos equal those of
    ``SyncVectorEnv([OUSpreadEnv] * B)`` under the same seeds, actions and mode.

    Copies start together and last equally long, so nearly always they share one clock. The time
    is then a single int and the row of every table a slice; a masked reset makes it an array.

    Args:
        num_envs: number of copies B, at least 1.
        autoreset_mode: what follows an end. ``NEXT_STEP``: the next step ignores that copy's
            action and returns its new first observation with reward 0, which is no transition.
            ``SAME_STEP``: the same step returns it, and the last observation and info of the
            finished episode are ``infos["final_obs"]`` and ``infos["final_info"]``.
            ``DISABLED``: call ``reset(options={"reset_mask": mask})``.
        render_mode: ``None``, ``"ansi"`` or ``"rgb_array"``.
        **parameters: as `OUSpreadEnv`, the same for every copy.

    Raises:
        ValueError: if an argument or a parameter is out of range.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        **parameters: Unpack[OUFields],
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"OUSpread.num_envs: expected an integer >= 1, got {num_envs!r}")
        self.num_envs = num_envs
        self.parameters = OUParameters(**parameters)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**OUSpreadEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = checked_render_mode(render_mode)
        self.single_observation_space = observation_space()
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        self._draws = Draws(num_envs, self.parameters.horizon + 1)
        self._paths: Paths | None = None
        self._clock: int | Ints = 0  # steps taken: by all copies, or by each
        self._held: Ints = np.empty(0, dtype=np.int64)  # action index of the position, (B,)
        self._ended: Bools | None = None  # copies whose episode is over and not yet reset
        self._copies = np.arange(num_envs)
        self._everyone = np.ones(num_envs, dtype=np.bool_)
        self._history = (  # action indices by step and copy, kept for pictures only
            None
            if render_mode is None
            else np.empty((self.parameters.horizon + 1, num_envs), dtype=np.int64)
        )

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator | None, ...]:  # type: ignore[override]
        """The copies' generators; ``None`` each before the first reset."""
        return self._draws.generators

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seeds of the copies' generators; ``None`` each before the first reset."""
        return tuple(self._draws.seeds)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Draw new paths, for every copy or for those of a mask.

        Args:
            seed: an int seeds copy i with ``seed + i``; a sequence gives each its own; ``None``,
                alone or in the sequence, goes on with the generators.
            options: ``{"x0": number}`` fixes the starts, in units of the spread;
                ``{"reset_mask": bool array (B,)}`` leaves the copies at False as they are.

        Raises:
            ValueError: if the number of seeds or the options are wrong.
            gymnasium.error.ResetNeeded: if a mask comes before any full reset.
        """
        rest = dict(options or {})
        mask = self._everyone
        if "reset_mask" in rest:
            mask = checked_mask(rest.pop("reset_mask"), self.num_envs)
        x0 = checked_x0(rest)
        seeds = checked_seeds(seed, self.num_envs)
        if self._paths is None and not mask.all():
            raise ResetNeeded("OUSpread.reset: expected a full reset before a masked one")
        for copy in np.flatnonzero(mask).tolist():
            self._draws.seed(copy, seeds[copy])
        self._restart(mask, x0, clock=0)
        if self._ended is not None:
            self._ended = self._ended & ~mask
            if not self._ended.any():
                self._ended = None
        return self._observe(), self._infos(mask)

    def step(
        self, actions: npt.ArrayLike
    ) -> tuple[Observations, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Hold each copy's position over the next change of its spread.

        Args:
            actions: action indices, (B,).

        Raises:
            ValueError: if the actions are not B integers from 0 to 2.
            gymnasium.error.ResetNeeded: before the first reset or, without autoreset, after an end.
        """
        chosen = self._checked_actions(actions)
        paths, row, end = self._advance(), self._row(), self._now_ended()
        reward = POSITIONS.take(chosen) * paths.move[row]
        reward += self.parameters.charges.take(3 * self._held + chosen)
        self._held = chosen
        if self._history is not None:
            self._history[row] = chosen
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        if end is None:
            return self._observe(), reward, terminated, truncated, self._infos(self._everyone)

        terminated |= end
        final = {
            "reference_return": np.where(end, paths.reference_return, 0.0),
            "_reference_return": end.copy(),
        }
        if self.autoreset_mode != AutoresetMode.SAME_STEP:
            self._ended = end
            infos = self._infos(self._everyone) | final
            return self._observe(), reward, terminated, truncated, infos

        last = self._observe()
        final_obs = np.full(self.num_envs, None, dtype=object)
        for copy in np.flatnonzero(end):
            final_obs[copy] = last[copy].copy()
        infos = {
            "final_obs": final_obs,
            "_final_obs": end.copy(),
            "final_info": self._infos(end) | final,
            "_final_info": end.copy(),
        }
        self._restart(end, None, clock=0)
        return self._observe(), reward, terminated, truncated, infos | self._infos(self._everyone)

    def render(self) -> tuple[str | npt.NDArray[np.uint8], ...] | None:
        """Return a picture of each copy's episode so far.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self._history is None:
            logger.warn('OUSpread.render: render_mode is None; choose "ansi" or "rgb_array"')
            return None
        if self._paths is None:
            raise ResetNeeded("OUSpread.render: expected an episode; call reset() first")
        render = render_text if self.render_mode == "ansi" else render_frame
        return tuple(
            render(
                self._paths.z[: time + 1, copy].tolist(),
                self._history[1 : time + 1, copy].tolist(),
                self.parameters,
            )
            for copy, time in enumerate(np.broadcast_to(self._clock, self.num_envs).tolist())
        )

    def _checked_actions(self, actions: npt.ArrayLike) -> Ints:
        """Return the actions to take, those of copies about to be reset replaced by FLAT.

        A copy that is reset by this step goes from time -1, flat, to time 0, flat: no change, no
        cost, reward 0, by the same arithmetic as any other step.
        """
        if self._paths is None:
            raise ResetNeeded("OUSpread.step: expected running episodes; call reset() first")
        if self._ended is None:
            return checked_actions(actions, self.num_envs)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            raise ResetNeeded(
                "OUSpread.step: expected running episodes, but copies "
                f"{np.flatnonzero(self._ended).tolist()} are over; call "
                'reset(options={"reset_mask": mask})'
            )
        given = np.asarray(actions)
        if given.shape == (self.num_envs,):
            given = np.where(self._ended, FLAT, given)
        return checked_actions(given, self.num_envs)

    def _advance(self) -> Paths:
        """Give new paths to the copies that are over, then move every clock on by one."""
        if self._ended is not None:
            self._restart(self._ended, None, clock=-1)
            self._ended = None
        assert self._paths is not None
        self._clock = self._clock + 1
        return self._paths

    def _now_ended(self) -> Bools | None:
        """Return a fresh mask of the copies at their last step, ``None`` when there are none."""
        over = self._clock == self.parameters.horizon
        if isinstance(over, bool):
            return self._everyone.copy() if over else None
        return over if over.any() else None

    def _restart(self, mask: Bools, x0: float | None, clock: int) -> None:
        """Give the copies of the mask new paths, flat positions and this time."""
        everyone = bool(mask.all())
        noise = self._draws.take(np.flatnonzero(mask))
        paths = simulate(noise, self.parameters, x0, self._paths if everyone else None)
        if everyone:
            self._paths = paths
            self._clock = clock
            self._held = np.full(self.num_envs, FLAT, dtype=np.int64)
            return
        assert self._paths is not None
        self._paths.z[:, mask] = paths.z
        self._paths.move[:, mask] = paths.move
        self._paths.drift[:, mask] = paths.drift
        self._paths.reference_return[mask] = paths.reference_return
        self._held[mask] = FLAT
        self._clock = np.where(mask, clock, self._clock)

    def _row(self) -> Any:
        """Return the index of every copy's current entry in tables (T + 1, B)."""
        return self._clock if isinstance(self._clock, int) else (self._clock, self._copies)

    def _observe(self) -> Observations:
        """Return a fresh array of every copy's observation."""
        assert self._paths is not None
        row, horizon = self._row(), self.parameters.horizon
        time_left = (horizon - self._clock) / horizon
        position = POSITIONS.take(self._held)
        return observe(self._paths.z[row], self._paths.move[row], position, time_left)

    def _infos(self, mask: Bools) -> dict[str, Any]:
        """Return the drift labels of the mask's copies as gymnasium batches infos."""
        assert self._paths is not None
        labels = self._paths.drift[self._row()].copy()
        if mask is not self._everyone:
            labels[~mask] = 0
        return {"drift_label": labels, "_drift_label": mask.copy()}
