"""`Episodes`: which steps of a vector environment are transitions, and what each of them is called.

Pure bookkeeping: no endpoint, no clock, and of the environment only what it returned. B is the
number of sub-environments; one observation has shape (D, …).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from jormungandr.errors import InvalidValue
from jormungandr.protocol import Split, Transition
from jormungandr_wrappers.episode import Choice, Episode, LabelValue, new_run, plain

__all__ = ["Episodes"]

Bools = NDArray[np.bool_]


class Episodes:
    """The running episodes of B sub-environments that are stepped together.

    Episode n of sub-environment i is called ``{run}-{i}-{n}``. What follows an end depends on the
    mode:

    * ``NEXT_STEP``: the next step returns the reset observation. That row is no transition.
    * ``SAME_STEP``: the same step returns it; the true last one is in ``infos["final_obs"]``.
    * ``DISABLED``: nothing, until the caller resets that sub-environment.

    Args:
        actor_id: of all sub-environments.
        splits: one per sub-environment, (B,).
        mode: the vector environment's autoreset mode.
        label_key: of infos, for the auxiliary class of the observation they come with, if any.
        run: first part of every episode id; None draws one.
    """

    def __init__(
        self,
        *,
        actor_id: str,
        splits: Sequence[Split],
        mode: AutoresetMode,
        label_key: str | None = None,
        run: str | None = None,
    ) -> None:
        self.run = new_run() if run is None else run
        self.mode = mode
        self._actor_id, self._splits, self._label_key = actor_id, tuple(splits), label_key
        count = len(self._splits)
        self._begun = [0] * count  # episodes begun, by sub-environment
        self._running: list[Episode] = []  # empty before the first reset
        self._observations: NDArray[Any] = np.empty(0)  # that the next actions are chosen from
        self._labels: list[LabelValue] = [None] * count
        self._ended: Bools = np.zeros(count, dtype=np.bool_)  # over, and not yet reset

    def begin(
        self, observations: ArrayLike, infos: Mapping[str, Any], mask: ArrayLike | None = None
    ) -> None:
        """Begin new episodes with what a reset returned; those that were running stay as they are.

        Args:
            observations: (B, D, …); copied.
            infos: as Gymnasium batches them.
            mask: (B,) which sub-environments were reset; None is all of them.

        Raises:
            ResetNeeded: a mask before any full reset.
        """
        count = len(self._splits)
        chosen = np.ones(count, np.bool_) if mask is None else np.array(mask, dtype=np.bool_)
        if not self._running and not chosen.all():
            raise ResetNeeded("expected a full reset before a masked one")
        fresh, labels = np.array(observations), self._read_labels(infos)
        if self._running:
            # Rows already recorded hold on to the old array, so it must not be written to.
            wide = chosen.reshape(-1, *[1] * (fresh.ndim - 1))
            fresh = np.where(wide, fresh, self._observations)
            labels = [labels[i] if chosen[i] else self._labels[i] for i in range(count)]
        self._observations, self._labels = fresh, labels
        self._ended = self._ended & ~chosen
        self._running = [self._next(i) if chosen[i] else self._running[i] for i in range(count)]

    def check_running(self) -> None:
        """Refuse a step that no sub-environment, or not every one, is ready for.

        Raises:
            ResetNeeded: before the first reset or, without autoreset, after an end.
        """
        if not self._running:
            raise ResetNeeded("expected running episodes; call reset() first")
        if self.mode is AutoresetMode.DISABLED and self._ended.any():
            raise ResetNeeded(
                f"expected running episodes, but sub-environments "
                f"{np.flatnonzero(self._ended).tolist()} are over; "
                'call reset(options={"reset_mask": mask})'
            )

    def advance(
        self,
        choices: Sequence[Choice],
        observations: ArrayLike,
        rewards: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        infos: Mapping[str, Any],
    ) -> list[Transition]:
        """Return the transitions of one vector step: B, less the rows that only report a reset.

        Args:
            choices: the actions taken, (B,).
            observations: returned by the step, (B, D, …); copied.
            rewards: returned by the step, (B,).
            terminated: returned by the step, (B,).
            truncated: returned by the step, (B,).
            infos: as Gymnasium batches them.

        Raises:
            InvalidValue: an episode ended in ``SAME_STEP`` mode without its last observation.
        """
        after, reward = np.array(observations), np.asarray(rewards)
        terminal, cut = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        over = (terminal | cut) & ~self._ended
        # Looked at before anything changes here, so that an error leaves the episodes as they were.
        same_step = self.mode is AutoresetMode.SAME_STEP
        final = {int(i): _final(infos, int(i)) for i in np.flatnonzero(over & same_step)}
        rows = []
        for i, choice in enumerate(choices):
            if self._ended[i]:
                self._running[i] = self._next(i)
                continue
            rows.append(
                self._running[i].transition(
                    self._observations[i],
                    choice,
                    reward[i],
                    final.get(i, after[i]),
                    terminal[i],
                    cut[i],
                    self._labels[i],
                )
            )
            if i in final:
                self._running[i] = self._next(i)
        self._observations, self._labels = after, self._read_labels(infos)
        self._ended = over & (not same_step)
        return rows

    def _next(self, i: int) -> Episode:
        """Return a new episode of sub-environment i."""
        number = self._begun[i]
        self._begun[i] += 1
        return Episode(
            actor_id=self._actor_id,
            episode_id=f"{self.run}-{i}-{number}",
            split=self._splits[i],
        )

    def _read_labels(self, infos: Mapping[str, Any]) -> list[LabelValue]:
        """Return the labels of the observations that came with `infos`, (B,)."""
        count, key = len(self._splits), self._label_key
        if key is None or key not in infos:
            return [None] * count
        present = infos.get(f"_{key}", np.ones(count, np.bool_))
        return [plain(v) if p else None for v, p in zip(infos[key], present, strict=True)]


def _final(infos: Mapping[str, Any], i: int) -> NDArray[Any]:
    """Return a copy of sub-environment i's last observation before its reset, (D, …)."""
    found, present = infos.get("final_obs"), infos.get("_final_obs")
    if found is None or found[i] is None or (present is not None and not present[i]):
        raise InvalidValue(
            f'infos["final_obs"][{i}]',
            "the last observation of the episode that ended (autoreset mode SAME_STEP)",
            "nothing",
        )
    return np.array(found[i])
