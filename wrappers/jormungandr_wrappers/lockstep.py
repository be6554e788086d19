"""The next steps of several episodes at once. B is the number of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.episode import Choice, Episode, LabelValue
from jormungandr.steps import Steps, Values
from jormungandr_wrappers.masks import Mask

__all__ = ["next_steps", "picked"]


def next_steps(
    episodes: Sequence[Episode],
    *,
    observations: Values,
    choices: Sequence[Choice],
    rewards: Sequence[float],
    next_observations: Values,
    terminated: Sequence[bool],
    truncated: Sequence[bool],
    labels: Sequence[LabelValue],
    next_action_masks: Sequence[Mask | None],
) -> Steps:
    """Return the next step of each episode, as `Episode.transition` does of one.

    Args:
        episodes: different ones.
        observations: what the actions were chosen from, (B, …).
        choices: the actions.
        rewards: that are finite in float32.
        next_observations: the true successors, (B, …).
        terminated: whether they reached an end of the task.
        truncated: whether they were cut off.
        labels: of `observations`.
        next_action_masks: of `next_observations`.

    Raises:
        EpisodeClosed: one of the episodes is over; none has moved on.
    """
    for episode in episodes:
        episode.check_open()
    fields: dict[str, Any] = {
        "actor_id": [episode.actor_id for episode in episodes],
        "episode_id": [episode.episode_id for episode in episodes],
        "timestep": [episode.timestep for episode in episodes],
        "split": [episode.split for episode in episodes],
        "policy_version": [choice.policy_version for choice in choices],
        "observation": observations,
        "action": [choice.action for choice in choices],
        "reward": rewards,
        "next_observation": next_observations,
        "terminated": terminated,
        "truncated": truncated,
        "behavior_prob": [choice.behavior_prob for choice in choices],
        "label": labels,
        "next_action_mask": next_action_masks,
        "tags": [episode.new_tags for episode in episodes],
    }
    for episode, ends, cut in zip(episodes, terminated, truncated, strict=True):
        episode.timestep += 1
        episode.over = ends or cut
    return Steps(fields)


def picked(values: Any, index: Sequence[int]) -> Any:
    """Return some of B values, or all of them as they are: a list, or an array over them."""
    if len(index) == len(values):
        return values
    if isinstance(values, np.ndarray):
        found: NDArray[Any] = values[np.array(index, dtype=np.intp)]
        return found
    return [values[i] for i in index]
