"""`RemoteActor`: act → step → add, for one Gymnasium environment over any endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from jormungandr.episode import (
    Choice,
    Episode,
    LabelValue,
    as_batch,
    check_split,
    copied,
    new_run,
    plain,
)
from jormungandr.errors import InvalidType, InvalidValue
from jormungandr.outbox import Outbox
from jormungandr.protocol import Endpoint, Receipt, Split
from jormungandr_wrappers.checks import check_actions, check_kind, check_label_key, check_spaces
from jormungandr_wrappers.masks import TOLD, Mask, read_mask
from jormungandr_wrappers.rules import SplitRule, TagRule, check_rules, split_of, tags_of

__all__ = ["EpisodeResult", "RemoteActor", "RunResult"]

#: Episodes in a row that no split is for, before there seems to be no other.
MOST_SKIPPED = 10_000


@dataclass(frozen=True)
class EpisodeResult:
    """What one episode came to.

    Args:
        episode_id: under which its transitions were submitted.
        total_reward: undiscounted sum of its rewards.
        length: steps.
        terminated, truncated: how it ended.
        info: what the environment's last step told, such as OUSpread's ``reference_return``.
        first_version, last_version: policy versions that chose its first and its last action.
        split: under which it was submitted.
    """

    episode_id: str
    total_reward: float
    length: int
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    first_version: int
    last_version: int
    split: Split = "train"


@dataclass(frozen=True)
class RunResult:
    """What one call of `RemoteActor.run` came to.

    Args:
        episodes: those that ended in it, in order.
        transitions: steps taken, those of unfinished episodes included.
        receipt: what became of all that the actor has sent, in this and earlier runs; when
            ``endpoint.wait(result.receipt.lsn)`` returns, the learner has applied it. With a spool,
            of what was answered until now; `RemoteActor.flush` waits for the rest.
        skipped: episodes that no split was for, and that were not played.
    """

    episodes: tuple[EpisodeResult, ...]
    transitions: int
    receipt: Receipt
    skipped: int = 0

    @property
    def lsn(self) -> int:
        """Position in the journal by which everything sent is durable."""
        return self.receipt.lsn

    @property
    def returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each episode, (episodes,)."""
        return np.array([e.total_reward for e in self.episodes], dtype=np.float64)


@dataclass
class _Running:
    """An episode that is being played."""

    episode: Episode
    observation: Any
    label: LabelValue
    mask: Mask | None
    total_reward: float = 0.0
    first_version: int = -1


class RemoteActor:
    """Play an environment with an endpoint's policy and submit what happens.

    Episode n is called ``{run}-0-{n}``: an actor that is stopped and started again, under the same
    `actor_id`, begins new episodes and contradicts nothing it sent before.

    Args:
        env: with a Discrete from 0 to choose from, and to see what a model can: a Box, Discrete,
            MultiBinary, MultiDiscrete, or a Dict of those.
        endpoint: a `RemoteLearner`, a `Learner`, or another `Endpoint`.
        actor_id: who acts; 1-128 bytes of UTF-8.
        split: ``train`` or ``validation``, or what says so of each episode: it is called with the
            info of the reset, and may return None; the environment is then reset again, and
            `skipped` counts it. `jormungandr.splits.TimeSplit` makes one.
        label_key: the info's key of the auxiliary class of the observation it comes with; with
            OUSpread ``"drift_label"``. None records no labels.
        mask_key: the info's key of the mask of actions that are allowed from the observation it
            comes with; in Taxi ``"action_mask"``. The endpoint is sent the masks, and each
            transition carries its successor's. Only the last observation of a termination may be
            without. None: a model without masks.
        batch_size: transitions to gather before they are sent.
        flush_at_end: send what there is when an episode ends; a run sends the rest when it is done.
        run: first part of the episode ids; None draws 64 random bits.
        tags: of every episode, such as ``{"map": "dust"}``; or what returns those of each: it is
            called with the info of the reset and the episode's number n.

    Raises:
        InvalidInput: (one of its classes) an argument of the wrong kind, or an environment whose
            spaces cannot be recorded.

    Example:
        >>> import gymnasium as gym
        >>> from jormungandr import Learner, ModelSpec
        >>> learner = Learner(ModelSpec.preset("ou-note"))
        >>> actor = RemoteActor(gym.make("OUSpread-v0"), learner, actor_id="a1")
        >>> result = actor.run(episodes=2, seed=0)
        >>> [episode.length for episode in result.episodes], len(learner.replay)
        ([48, 48], 96)
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        endpoint: Endpoint,
        *,
        actor_id: str,
        split: Split | SplitRule = "train",
        label_key: str | None = None,
        mask_key: str | None = None,
        batch_size: int = 64,
        flush_at_end: bool = True,
        run: str | None = None,
        tags: TagRule | None = None,
    ) -> None:
        check_kind(env, gymnasium.Env, "env", "VectorRecorder takes a vector environment")
        self._action_space = env.action_space
        _, self._actions = check_spaces(env.observation_space, self._action_space)
        check_rules(tags)
        self.split: Split | SplitRule = split if callable(split) else check_split(split)[0]
        #: Episodes that no split was for, so far.
        self.skipped = 0
        self.env, self.actor_id = env, actor_id
        self._label_key, self._mask_key = label_key, mask_key
        self._flush_at_end, self._tags = flush_at_end, tags
        #: What was recorded and not yet sent, and the receipts of what was.
        self.outbox = Outbox(endpoint, batch_size)
        self._run = new_run() if run is None else run
        self._begun = 0
        self._running: _Running | None = None

    def flush(self) -> Receipt:
        """Send what an error or an interrupt left, and return what became of all that was sent.

        Of an endpoint with a spool, this waits until the service has answered; nothing else does.

        Raises:
            JormungandrError: the endpoint's own; what it has not taken is kept.
        """
        return self.outbox.flush()

    def run(
        self,
        episodes: int | None = None,
        steps: int | None = None,
        *,
        seed: int | None = None,
        deterministic: bool | None = None,
        epsilon: float | None = None,
    ) -> RunResult:
        """Play until so many episodes have ended, or so many steps were taken; then send the rest.

        An episode that `steps` leaves unfinished goes on in the next run. So does one that an error
        of the endpoint interrupted: no transition is lost, and the next run sends what is left. An
        error of the environment, or a missing mask, breaks the episode off, and the next run begins
        another.

        Args:
            episodes: this or `steps`, at least 1.
            steps: this or `episodes`, at least 1.
            seed: begins a new episode, with this seed; the environment's generator makes the later
                ones. None goes on with both.
            deterministic: take the best action always; None does so in the validation split.
            epsilon: probability of a random action; None is the model's exploration schedule.

        Raises:
            InvalidValue: not exactly one of `episodes` and `steps`, or less than 1 of it.
            InvalidType: another number than an integer of it.
            MissingField: an info has no `label_key` or no `mask_key`.
            JormungandrError: the endpoint's own.
        """
        if (episodes is None) == (steps is None):
            raise InvalidValue("run", "episodes or steps, one of them", f"{episodes} and {steps}")
        for name, value in (("episodes", episodes), ("steps", steps)):
            if value is None:
                continue
            if not isinstance(value, int | np.integer) or isinstance(value, bool):
                raise InvalidType(name, "an integer", value)  # 1.5 would never be reached
            if value < 1:
                raise InvalidValue(name, ">= 1", value)
        before = self.skipped
        if seed is not None:
            self._running = None
        done: list[EpisodeResult] = []
        taken = 0
        try:
            while taken != steps and len(done) != episodes:
                if self._running is None:
                    self._running = self._begin(seed)
                    seed = None
                result = self._step(self._running, deterministic, epsilon)
                taken += 1
                if result is not None:
                    done.append(result)
                    if self._flush_at_end:
                        self.outbox.send()
        except BaseException as error:
            self.outbox.flush_after(error)
            raise
        return RunResult(tuple(done), taken, self.outbox.send(), self.skipped - before)

    def _begin(self, seed: int | None) -> _Running:
        """Reset the environment and begin an episode."""
        observation, info, split = self._reset(seed)
        check_label_key(self._label_key, info)
        mask = self._mask(info)
        number = self._begun
        episode = Episode(
            actor_id=self.actor_id,
            episode_id=f"{self._run}-0-{number}",
            split=split,
            tags=tags_of(self._tags, info, number),
        )
        self._begun += 1
        return _Running(episode, copied(observation), self._label(info), mask)

    def _reset(self, seed: int | None) -> tuple[Any, dict[str, Any], Split]:
        """Reset the environment until there is an episode of a split; return that too."""
        for _ in range(MOST_SKIPPED):
            observation, info = self.env.reset(seed=seed)
            seed = None
            split = split_of(self.split, info) if callable(self.split) else self.split
            if split is not None:
                return observation, info, split
            self.skipped += 1
        expected = f"an episode of a split among {MOST_SKIPPED:,} resets"
        raise InvalidValue("split", expected, "none", "is there data of the time it asks for?")

    def _step(
        self, now: _Running, deterministic: bool | None, epsilon: float | None
    ) -> EpisodeResult | None:
        """Take one step; return the episode's result if that was its last."""
        if deterministic is None:
            deterministic = now.episode.split == "validation"
        allowed = {} if now.mask is None else {"action_masks": now.mask[None]}
        reply = self.outbox.endpoint.act(
            as_batch(now.observation), deterministic=deterministic, epsilon=epsilon, **allowed
        )
        check_actions(reply, self._action_space)
        choice = Choice(reply.actions[0].index, reply.policy_version, reply.behavior_prob[0])
        self._running = None  # unless the environment gets through the step
        observation, reward, terminated, truncated, info = self.env.step(choice.action)
        after, mask = copied(observation), self._mask(info, bool(terminated))
        row = now.episode.transition(
            now.observation,
            choice,
            reward,
            after,
            terminated,
            truncated,
            now.label,
            next_action_mask=mask,
        )
        if row.timestep == 0:
            now.first_version = choice.policy_version
        now.total_reward += row.reward
        now.observation, now.label, now.mask = after, self._label(info), mask
        over = now.episode.over
        self._running = None if over else now
        self.outbox.put([row])
        if not over:
            return None
        return EpisodeResult(
            episode_id=now.episode.episode_id,
            total_reward=now.total_reward,
            length=now.episode.timestep,
            terminated=row.terminated,
            truncated=row.truncated,
            info=dict(info),
            first_version=now.first_version,
            last_version=choice.policy_version,
            split=now.episode.split,
        )

    def _label(self, info: dict[str, Any]) -> LabelValue:
        """Return the label of the observation that came with `info`."""
        return None if self._label_key is None else plain(info.get(self._label_key))

    def _mask(self, info: dict[str, Any], terminated: bool = False) -> Mask | None:
        """Return the mask of the observation that came with `info`."""
        if self._mask_key is None:
            return None
        remedy = f"{TOLD}; a running episode is broken off"
        return read_mask(
            info, self._mask_key, self._actions, "info", terminated=terminated, remedy=remedy
        )
