"""`EpisodeRecorder`, one episode of one actor in a plain loop; `Episodic`, which begins one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast

from numpy.typing import ArrayLike

from jormungandr.checks import as_array
from jormungandr.episode import (
    Choice,
    ChosenAction,
    Episode,
    LabelValue,
    as_batch,
    check_split,
    copied,
    new_run,
    plain,
)
from jormungandr.errors import ActionRange, InvalidValue
from jormungandr.outbox import Outbox
from jormungandr.protocol import ActionChoice, Endpoint, Receipt, Split

__all__ = ["EpisodeRecorder", "Episodic"]


class EpisodeRecorder:
    """Tag and submit the steps of one episode, in whatever loop plays it.

    Each step is two calls: `act` asks the endpoint what to do (or `acted` says what was done), and
    `record` reports what came of it. Leaving the ``with`` block sends what is left, also when an
    error leaves it, unless that is one of the endpoint itself: then it stays in ``outbox.unsent``.
    An episode that is left before a step ended it stays without an end.

    ``endpoint.episode()`` makes one for a `Learner` or a `RemoteLearner`.

    Args:
        endpoint: a `Learner`, a `RemoteLearner`, or another `Endpoint`.
        actor_id: who acts; 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``; in the latter `act` is deterministic by default.
        episode_id: None draws one that no other episode has.
        batch_size: transitions to gather before they are sent; the end of the episode sends them
            too.
        tags: of the episode, such as ``{"regime": "calm"}``.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind.

    Example:
        >>> from jormungandr import Learner
        >>> learner = Learner({"observation": {"shape": [1]}, "actions": 2})
        >>> level = 3.0
        >>> with EpisodeRecorder(learner, actor_id="tank") as episode:
        ...     while not episode.over:
        ...         action = episode.act([level])
        ...         level -= 1.0
        ...         episode.record(-abs(level), [level], terminated=level == 0)
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
        tags: Mapping[str, str] | None = None,
    ) -> None:
        (split,) = check_split(split)
        #: What was recorded and not yet sent, and the receipts of what was.
        self.outbox = Outbox(endpoint, batch_size)
        self._episode = Episode(
            actor_id=actor_id,
            episode_id=f"{new_run()}-0-0" if episode_id is None else episode_id,
            split=split,
            tags=tags,
        )
        self._pending: tuple[Any, Choice] | None = None  # acted, its outcome not yet known
        #: Undiscounted sum of the rewards so far.
        self.total_reward = 0.0

    @property
    def actor_id(self) -> str:
        """Of who acts."""
        return self._episode.actor_id

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
        observation: Any,
        deterministic: bool | None = None,
        epsilon: float | None = None,
        *,
        action_mask: ArrayLike | None = None,
    ) -> ChosenAction:
        """Ask the endpoint what to do, and remember it for `record`.

        Args:
            observation: of the model's space: an array, a number, or a dict of those; copied.
            deterministic: take the best action, whatever epsilon says; None does so in the
                validation split.
            epsilon: probability of a random action; None is the model's exploration schedule.
            action_mask: which actions are allowed now, (A,), for a model that has such masks.

        Returns:
            The action's index, with its `label` and `value` from the model's specification and
            the `policy_version` and `behavior_prob` that are recorded with it.
        """
        seen = copied(observation)
        if deterministic is None:
            deterministic = self._episode.split == "validation"
        mask: dict[str, Any] = {}
        if action_mask is not None:
            mask["action_masks"] = as_array(action_mask, "action_mask").copy()[None]
        reply = self.outbox.endpoint.act(
            as_batch(seen), deterministic=deterministic, epsilon=epsilon, **mask
        )
        found: ActionChoice = reply.actions[0]
        action = ChosenAction(
            found.index, found.label, found.value, reply.policy_version, reply.behavior_prob[0]
        )
        self._pending = seen, Choice(action.index, action.policy_version, action.behavior_prob)
        return action

    def acted(
        self,
        observation: Any,
        action: int,
        *,
        policy_version: int = -1,
        behavior_prob: float | None = None,
    ) -> None:
        """Say what was done, when something other than the endpoint chose it.

        Args:
            observation: what it was chosen from; copied.
            action: its index, 0 … actions - 1.
            policy_version: the model's version that chose it; -1: not the model's policy.
            behavior_prob: probability with which it was chosen, in (0, 1], if known.

        Raises:
            ActionRange: no integer.
        """
        try:
            index = operator.index(action)
        except TypeError:
            raise ActionRange("action", "an action index", action) from None
        self._pending = copied(observation), Choice(index, policy_version, behavior_prob)

    def record(
        self,
        reward: float,
        next_observation: Any,
        *,
        terminated: bool = False,
        truncated: bool = False,
        label: LabelValue = None,
        next_action_mask: ArrayLike | None = None,
    ) -> None:
        """Record what came of the last action.

        Args:
            reward: a finite number.
            next_observation: what is seen now, also when the episode is over; copied.
            terminated: the episode reached an end of the task; nothing more would have come.
            truncated: the episode was cut off, by a time limit say; more would have come.
            label: auxiliary class of the observation that the action was chosen from.
            next_action_mask: which actions are allowed from `next_observation`, (A,), for a model
                that has such masks; a termination may leave it out.

        Raises:
            InvalidValue: nothing was done since the last step.
            EpisodeClosed: the episode is over.
            InvalidInput: (one of its classes) no reward, no flag or no array; the action waits for
                another `record`.
            JormungandrError: the endpoint's own; the transition is kept.
        """
        self._episode.check_open()
        if self._pending is None:
            raise InvalidValue("record", "an action first", "none", "call act() or acted()")
        observation, choice = self._pending
        mask: dict[str, Any] = {}
        if next_action_mask is not None:
            mask["next_action_mask"] = as_array(next_action_mask, "next_action_mask").copy()
        row = self._episode.transition(
            observation,
            choice,
            reward,
            copied(next_observation),
            terminated,
            truncated,
            plain(label),
            **mask,
        )
        self._pending = None
        self.total_reward += row.reward
        self.outbox.put([row])
        if self.over:
            self.outbox.send()

    def flush(self) -> Receipt:
        """Send what is left, and return what became of all that was sent.

        Of an endpoint with a spool, this waits until the service has answered; nothing else does.

        Raises:
            JormungandrError: the endpoint's own; what it has not taken is kept.
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


class Episodic:
    """What an endpoint inherits so that a plain loop can play with it: `episode`."""

    _loop_id: str | None = None  # drawn when it is first needed

    def episode(
        self,
        *,
        split: Split = "train",
        actor_id: str | None = None,
        episode_id: str | None = None,
        batch_size: int = 64,
        tags: Mapping[str, str] | None = None,
    ) -> EpisodeRecorder:
        """Begin an episode in a loop of your own; its steps are tagged and submitted here.

        Args:
            split: ``train`` or ``validation``; in the latter `act` is deterministic by default.
            actor_id: who acts, 1-128 bytes of UTF-8; None is a name that this object draws once.
            episode_id: None draws one that no other episode has.
            batch_size: transitions to gather before they are sent; the end of the episode sends
                them too.
            tags: of the episode, such as ``{"regime": "calm"}``.

        Raises:
            UnknownSplit: another split.
            InvalidValue: another batch size.

        Example:
            >>> import gymnasium as gym
            >>> from jormungandr import Learner, ModelSpec
            >>> env, learner = gym.make("OUSpread-v0"), Learner(ModelSpec.preset("ou-note"))
            >>> obs, info = env.reset(seed=0)
            >>> with learner.episode() as ep:
            ...     while not ep.over:
            ...         obs, reward, terminated, truncated, info = env.step(ep.act(obs))
            ...         ep.record(reward, obs, terminated=terminated, truncated=truncated)
            >>> len(learner.replay)
            48
        """
        if actor_id is None:
            if self._loop_id is None:
                self._loop_id = f"loop-{new_run()}"
            actor_id = self._loop_id
        return EpisodeRecorder(
            cast("Endpoint", self),
            actor_id=actor_id,
            split=split,
            episode_id=episode_id,
            batch_size=batch_size,
            tags=tags,
        )
