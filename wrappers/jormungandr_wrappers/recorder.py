"""`EpisodeRecorder`: one episode of one actor, for loops written by hand, without Gymnasium."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from jormungandr.errors import InvalidValue
from jormungandr.protocol import ActionChoice, Endpoint, Receipt, Split
from jormungandr_wrappers.checks import check_split
from jormungandr_wrappers.episode import Choice, Episode, LabelValue, new_run, plain
from jormungandr_wrappers.outbox import Outbox

__all__ = ["EpisodeRecorder"]


class EpisodeRecorder:
    """Tag and submit the steps of one episode, in whatever loop plays it.

    Each step is two calls: `act` asks the endpoint what to do (or `acted` says what was done), and
    `step` reports what came of it. Leaving the ``with`` block sends what is left, also when an
    error leaves it, unless that is one of the endpoint itself: then it stays in ``outbox.unsent``.
    An episode that is left before a step ended it stays without an end.

    Args:
        endpoint: a `Learner`, a `RemoteLearner`, or another `Endpoint`.
        actor_id: who acts; 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``; in the latter `act` is deterministic by default.
        episode_id: None draws one that no other episode has.
        batch_size: transitions to gather before they are sent; the end of the episode sends them
            too.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind.

    Example:
        >>> from jormungandr import Learner
        >>> learner = Learner({"observation": {"shape": [1]}, "actions": 2})
        >>> level = 3.0
        >>> with EpisodeRecorder(learner, actor_id="tank") as episode:
        ...     while not episode.over:
        ...         choice = episode.act([level])
        ...         level -= 1.0
        ...         episode.step(-abs(level), [level], terminated=level == 0)
        >>> episode.timestep, episode.total_reward, len(learner.replay)
        (3, -3.0, 3)
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        actor_id: str,
        split: Split = "train",
        episode_id: str | None = None,
        batch_size: int = 64,
    ) -> None:
        (split,) = check_split(split, 1)
        #: What was recorded and not yet sent, and the receipts of what was.
        self.outbox = Outbox(endpoint, batch_size)
        self._episode = Episode(
            actor_id=actor_id,
            episode_id=f"{new_run()}-0-0" if episode_id is None else episode_id,
            split=split,
        )
        self._pending: tuple[ArrayLike, Choice] | None = None  # acted, its outcome not yet known
        #: Undiscounted sum of the rewards so far.
        self.total_reward = 0.0

    @property
    def episode_id(self) -> str:
        """Of this episode."""
        return self._episode.episode_id

    @property
    def timestep(self) -> int:
        """Steps recorded so far."""
        return self._episode.timestep

    @property
    def over(self) -> bool:
        """Whether a step ended the episode."""
        return self._episode.over

    def act(
        self,
        observation: ArrayLike,
        deterministic: bool | None = None,
        epsilon: float | None = None,
    ) -> ActionChoice:
        """Ask the endpoint what to do, and remember it for `step`.

        Args:
            observation: (D,); copied.
            deterministic: take the best action; None does so in the validation split.
            epsilon: probability of a random action; None is the model's exploration schedule.

        Returns:
            The action's `index`, and its `label` and `value` from the model's specification.
        """
        seen = np.array(observation)
        if deterministic is None:
            deterministic = self._episode.split == "validation"
        reply = self.outbox.endpoint.act(seen[None], deterministic=deterministic, epsilon=epsilon)
        action = reply.actions[0]
        choice = Choice(action.index, reply.policy_version, reply.behavior_prob[0])
        self._pending = (seen, choice)
        return action

    def acted(
        self,
        observation: ArrayLike,
        action: int,
        *,
        policy_version: int = -1,
        behavior_prob: float | None = None,
    ) -> None:
        """Say what was done, when something other than the endpoint chose it.

        Args:
            observation: what it was chosen from, (D,); copied.
            action: its index, 0 … actions - 1.
            policy_version: the model's version that chose it; -1: not the model's policy.
            behavior_prob: probability with which it was chosen, in (0, 1], if known.
        """
        self._pending = (np.array(observation), Choice(action, policy_version, behavior_prob))

    def step(
        self,
        reward: float,
        next_observation: ArrayLike,
        terminated: bool = False,
        truncated: bool = False,
        *,
        label: LabelValue = None,
    ) -> None:
        """Record what came of the last action.

        Args:
            reward: a finite number.
            next_observation: what is seen now, also when the episode is over, (D,); copied.
            terminated: the episode reached an end of the task; nothing more would have come.
            truncated: the episode was cut off, by a time limit say; more would have come.
            label: auxiliary class of the observation that the action was chosen from.

        Raises:
            InvalidValue: nothing was done since the last step.
            EpisodeClosed: the episode is over.
            JormungandrError: the endpoint's own; the transition is kept.
        """
        self._episode.check_open()
        if self._pending is None:
            raise InvalidValue("step", "an action first", "none", "call act() or acted()")
        observation, choice = self._pending
        row = self._episode.transition(
            observation,
            choice,
            reward,
            np.array(next_observation),
            terminated,
            truncated,
            plain(label),
        )
        self._pending = None
        self.total_reward += row.reward
        self.outbox.put([row])
        if self.over:
            self.outbox.flush()

    def flush(self) -> Receipt:
        """Send what is left, and return what became of all that was sent.

        Raises:
            JormungandrError: the endpoint's own; what it has not receipted is kept.
        """
        return self.outbox.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.outbox.flush_after(error)
