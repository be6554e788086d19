"""`Episodes`: which steps of a vector environment are transitions, and what each of them is called.

Pure bookkeeping: no endpoint, no clock, and of the environment only what it returned. B is the
number of sub-environments. Observations are arrays over them, (B, …), or dicts of such arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray

from jormungandr.episode import (
    Choice,
    Episode,
    LabelValue,
    are_rewards,
    as_reward,
    copied,
    new_run,
    plain,
)
from jormungandr.errors import InvalidValue
from jormungandr.protocol import Split
from jormungandr.steps import Steps, Values
from jormungandr_wrappers.batches import separated
from jormungandr_wrappers.lockstep import next_steps, picked
from jormungandr_wrappers.masks import Mask, read_masks
from jormungandr_wrappers.rules import (
    SplitRule,
    TagRule,
    check_rules,
    info_of,
    split_of,
    tags_of,
)

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
        mask_key: of infos, for the mask of the observation they come with, if there are masks.
        actions: A, how many there are; needed with a `mask_key`.
        run: first part of every episode id; None draws one.
        first: number of the first sub-environment; another recorder of the run has those before.
        rule: says the split of each episode that begins, in place of `splits`; one that it has none
            for is not recorded, and has no number.
        tags: of the episodes, or what returns those of each.
    """

    def __init__(
        self,
        *,
        actor_id: str,
        splits: Sequence[Split],
        mode: AutoresetMode,
        label_key: str | None = None,
        mask_key: str | None = None,
        actions: int = 0,
        run: str | None = None,
        first: int = 0,
        rule: SplitRule | None = None,
        tags: TagRule | None = None,
    ) -> None:
        check_rules(tags)
        self._rule, self._tags = rule, tags
        #: Episodes that the rule had no split for.
        self.skipped = 0
        self._first = first
        self.run = new_run() if run is None else run
        self.mode = mode
        self._actor_id, self._splits, self._label_key = actor_id, tuple(splits), label_key
        self._mask_key, self._actions = mask_key, actions
        count = len(self._splits)
        self._begun = [0] * count  # episodes begun, by sub-environment
        #: (B,) whose running episodes are of the validation split.
        self.held_out: Bools = np.array([name == "validation" for name in self._splits])
        #: Empty before the first reset; None is an episode that is not recorded.
        self._running: list[Episode | None] = []
        self._observations: Values = []  # that the next actions are chosen from
        self._labels: list[LabelValue] = [None] * count
        self._masks: list[Mask | None] = [None] * count  # None too where nobody will act
        self._ended: Bools = np.zeros(count, dtype=np.bool_)  # over, and not yet reset

    def begin(
        self, observations: Any, infos: Mapping[str, Any], mask: ArrayLike | None = None
    ) -> None:
        """Begin new episodes with what a reset returned; those that were running stay as they are.

        Args:
            observations: of all sub-environments; copied.
            infos: as Gymnasium batches them.
            mask: (B,) which sub-environments were reset; None is all of them.

        Raises:
            ResetNeeded: a mask before any full reset.
            InvalidInput: (one of its classes) a mask of actions that is missing, or is none.
        """
        count = len(self._splits)
        chosen = np.ones(count, np.bool_) if mask is None else np.array(mask, dtype=np.bool_)
        if not self._running and not chosen.all():
            raise ResetNeeded("expected a full reset before a masked one")
        fresh, labels = separated(observations), self._read_labels(infos)
        masks = self._read_masks(infos, ~chosen)
        if self._running:
            fresh = [fresh[i] if chosen[i] else self._observations[i] for i in range(count)]
            labels = [labels[i] if chosen[i] else self._labels[i] for i in range(count)]
            masks = [masks[i] if chosen[i] else self._masks[i] for i in range(count)]
        self._observations, self._labels, self._masks = fresh, labels, masks
        self._ended = self._ended & ~chosen
        self._running = [
            self._next(i, infos) if chosen[i] else self._running[i] for i in range(count)
        ]

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

    def masks(self) -> NDArray[np.bool_] | None:
        """Return which actions are allowed now, (B, A); None without a mask key.

        All of them where an episode is over: what is chosen there is not carried out.

        Raises:
            ResetNeeded: before the first reset.
        """
        if self._mask_key is None:
            return None
        if not self._running:
            raise ResetNeeded("expected running episodes; call reset() first")
        found = np.ones((len(self._splits), self._actions), dtype=np.bool_)
        for i, mask in enumerate(self._masks):
            if mask is not None and not self._ended[i]:
                found[i] = mask
        return found

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Break every episode off if the block fails; a full reset begins new ones.

        For while the environment is stepped or reset: where an error leaves it was not seen.
        """
        try:
            yield
        except BaseException:
            self._running = []
            raise

    def advance(
        self,
        choices: Sequence[Choice],
        observations: Any,
        rewards: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        infos: Mapping[str, Any],
    ) -> Steps:
        """Return the transitions of one vector step: B, less the rows that only report a reset.

        Args:
            choices: the actions taken, (B,).
            observations: returned by the step; copied.
            rewards: returned by the step, (B,).
            terminated: returned by the step, (B,).
            truncated: returned by the step, (B,).
            infos: as Gymnasium batches them.

        Raises:
            InvalidValue: an episode ended in ``SAME_STEP`` mode without its last observation.
            InvalidInput: (one of its classes) a mask is missing, or is none; only that of a
                termination's last observation may be.
        """
        after, reward = separated(observations), np.asarray(rewards)
        terminal, cut = np.asarray(terminated, np.bool_), np.asarray(truncated, np.bool_)
        over = (terminal | cut) & ~self._ended
        # Looked at before anything changes here, so that an error leaves the episodes as they were.
        same_step = self.mode is AutoresetMode.SAME_STEP
        final = {int(i): _final(infos, int(i)) for i in np.flatnonzero(over & same_step)}
        masks = self._read_masks(infos, over & terminal & (not same_step))
        next_masks = self._read_final_masks(infos, masks, over, terminal) if final else masks
        ended, rewards = self._ended.tolist(), reward.tolist()
        played = {i: e for i, e in enumerate(self._running) if e is not None and not ended[i]}
        index = list(played)
        # All at once, where they are what they mostly are; else each is looked at by itself.
        if not are_rewards(reward, len(ended)):
            rewards = [as_reward(reward[i]) if i in played else 0.0 for i in range(len(ended))]
        successors = [final.get(i, after[i]) for i in range(len(ended))] if final else after
        steps = next_steps(
            list(played.values()),
            observations=picked(self._observations, index),
            choices=picked(choices, index),
            rewards=picked(rewards, index),
            next_observations=picked(successors, index),
            terminated=picked(terminal.tolist(), index),
            truncated=picked(cut.tolist(), index),
            labels=picked(self._labels, index),
            next_action_masks=picked(next_masks, index),
        )
        if final or True in ended:
            for i, begins in enumerate(ended):
                if begins or i in final:
                    self._running[i] = self._next(i, infos)
        self._observations, self._labels, self._masks = after, self._read_labels(infos), masks
        self._ended = over & (not same_step)
        return steps

    def _next(self, i: int, infos: Mapping[str, Any]) -> Episode | None:
        """Return a new episode of sub-environment i; None if it is not to be recorded."""
        asked = self._rule is not None or callable(self._tags)
        info = info_of(infos, i) if asked else {}
        split = self._splits[i] if self._rule is None else split_of(self._rule, info)
        self.held_out[i] = split == "validation"
        if split is None:
            self.skipped += 1
            return None
        number = self._begun[i]
        self._begun[i] += 1
        return Episode(
            actor_id=self._actor_id,
            episode_id=f"{self.run}-{self._first + i}-{number}",
            split=split,
            tags=tags_of(self._tags, info, number),
        )

    def _read_labels(self, infos: Mapping[str, Any]) -> list[LabelValue]:
        """Return the labels of the observations that came with `infos`, (B,)."""
        count, key = len(self._splits), self._label_key
        if key is None or key not in infos:
            return [None] * count
        present = infos.get(f"_{key}", np.ones(count, np.bool_))
        return [plain(v) if p else None for v, p in zip(infos[key], present, strict=True)]

    def _read_masks(self, infos: Mapping[str, Any], optional: Bools) -> list[Mask | None]:
        """Return the masks of the observations that came with `infos`, (B,)."""
        if self._mask_key is None:
            return [None] * len(self._splits)
        return read_masks(infos, self._mask_key, self._actions, optional)

    def _read_final_masks(
        self, infos: Mapping[str, Any], masks: list[Mask | None], over: Bools, terminal: Bools
    ) -> list[Mask | None]:
        """Return the masks of the true successors in ``SAME_STEP`` mode, (B,)."""
        if self._mask_key is None:
            return masks
        last, where = infos.get("final_info"), 'infos["final_info"]'
        last = last if isinstance(last, Mapping) else {}
        found = read_masks(last, self._mask_key, self._actions, terminal | ~over, where)
        return [found[i] if over[i] else masks[i] for i in range(len(over))]


def _final(infos: Mapping[str, Any], i: int) -> Any:
    """Return a copy of sub-environment i's last observation before its reset."""
    found, present = infos.get("final_obs"), infos.get("_final_obs")
    if found is None or found[i] is None or (present is not None and not present[i]):
        raise InvalidValue(
            f'infos["final_obs"][{i}]',
            "the last observation of the episode that ended (autoreset mode SAME_STEP)",
            "nothing",
            "the environment has to keep it there, or be in another mode; its running episodes are"
            " broken off, and reset() begins new ones",
        )
    return copied(found[i])
