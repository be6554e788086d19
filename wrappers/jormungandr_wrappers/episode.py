"""`Episode`: gives the steps of one episode of one actor their names."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from jormungandr.errors import EpisodeClosed
from jormungandr.protocol import Split, Transition

__all__ = ["Choice", "Episode", "LabelValue", "new_run", "plain"]

#: Auxiliary class of an observation, by index or name; None where it is not known.
LabelValue: TypeAlias = int | str | None


def new_run() -> str:
    """Return 64 random bits as 16 hexadecimal digits: what tells two runs of a script apart."""
    return secrets.token_hex(8)


class Choice(NamedTuple):
    """An action and where it came from.

    Args:
        action: its index, 0 … actions - 1.
        policy_version: the version that chose it; -1 when it was not the model's policy.
        behavior_prob: probability with which it was chosen, in (0, 1], if known.
    """

    action: int
    policy_version: int = -1
    behavior_prob: float | None = None


class Episode:
    """One episode of one actor: gives its steps the timesteps 0, 1, 2 … until one of them ends it.

    Args:
        actor_id: who acts.
        episode_id: unlike that of any other episode of the same actor, in this run or another.
        split: ``train`` or ``validation``.

    Example:
        >>> episode = Episode(actor_id="a1", episode_id="e7", split="train")
        >>> row = episode.transition([0.0], Choice(1), 0.5, [0.1], terminated=True, truncated=False)
        >>> row.timestep, row.policy_version, episode.over
        (0, -1, True)
    """

    def __init__(self, *, actor_id: str, episode_id: str, split: Split) -> None:
        self.actor_id, self.episode_id, self.split = actor_id, episode_id, split
        self.timestep = 0
        self.over = False

    def check_open(self) -> None:
        """Refuse a step after the end.

        Raises:
            EpisodeClosed: an earlier step ended the episode.
        """
        if self.over:
            raise EpisodeClosed(
                f"episode {self.episode_id!r}",
                f"no step after its end at timestep {self.timestep - 1}",
                "another step",
                "begin another episode",
            )

    def transition(
        self,
        observation: ArrayLike,
        choice: Choice,
        reward: float,
        next_observation: ArrayLike,
        terminated: bool,
        truncated: bool,
        label: LabelValue = None,
    ) -> Transition:
        """Return the next step as a transition; the observations are kept, not copied.

        Args:
            observation: what the action was chosen from, (D, …).
            choice: the action.
            reward: what the step gave.
            next_observation: its true successor, also when the step ended the episode, (D, …).
            terminated: the episode reached an end of the task.
            truncated: the episode was cut off.
            label: auxiliary class of `observation`.

        Raises:
            EpisodeClosed: an earlier step ended the episode.
        """
        self.check_open()
        row = Transition(
            actor_id=self.actor_id,
            episode_id=self.episode_id,
            timestep=self.timestep,
            split=self.split,
            policy_version=choice.policy_version,
            observation=observation,
            action=choice.action,
            reward=float(reward),
            next_observation=next_observation,
            terminated=bool(terminated),
            truncated=bool(truncated),
            behavior_prob=choice.behavior_prob,
            label=label,
        )
        self.timestep += 1
        self.over = row.terminated or row.truncated
        return row


def plain(label: Any) -> Any:
    """Return a label as Python's own int or str, which is what a transition holds."""
    return label.item() if isinstance(label, np.generic) else label
