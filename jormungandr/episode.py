"""`Episode`: gives the steps of one episode of one actor their names."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, SupportsFloat, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import as_array, check_no_pair
from jormungandr.errors import (
    EpisodeClosed,
    InvalidType,
    InvalidValue,
    NonFinite,
    UnknownSplit,
    shown,
)
from jormungandr.ids import check_id
from jormungandr.protocol import SPLITS, Split, Transition
from jormungandr.settings import FLOAT32_MAX
from jormungandr.tags import check_tags

__all__ = [
    "Choice",
    "ChosenAction",
    "Episode",
    "LabelValue",
    "are_rewards",
    "as_batch",
    "as_flag",
    "as_reward",
    "check_split",
    "copied",
    "new_run",
    "plain",
]

#: Auxiliary class of an observation, by index or name; None where it is not known.
LabelValue: TypeAlias = int | str | None


def new_run() -> str:
    """Return 64 random bits as 16 hexadecimal digits: what tells two runs of a script apart."""
    return secrets.token_hex(8)


class Choice(msgspec.Struct, frozen=True):
    """An action and where it came from.

    Args:
        action: its index, 0 … actions - 1.
        policy_version: the version that chose it; -1 when it was not the model's policy.
        behavior_prob: probability with which it was chosen, in (0, 1], if known.
    """

    action: int
    policy_version: int = -1
    behavior_prob: float | None = None


class ChosenAction(int):
    """The index of an action, which goes into ``env.step`` as it is, and where it came from.

    Args:
        index: of the action, 0 … actions - 1.
        label: its name in the model's specification.
        value: what it stands for in the environment's own terms, likewise.
        policy_version: the version that chose it.
        behavior_prob: probability with which it was chosen, in (0, 1].
    """

    label: str
    value: int | float | str
    policy_version: int
    behavior_prob: float

    def __new__(
        cls,
        index: int,
        label: str,
        value: int | float | str,
        policy_version: int,
        behavior_prob: float,
    ) -> Self:
        """Make the int, and put the rest on it."""
        self = super().__new__(cls, index)
        self.label, self.value = label, value
        self.policy_version, self.behavior_prob = policy_version, behavior_prob
        return self

    @property
    def index(self) -> int:
        """The action as a plain int."""
        return int(self)

    def __getnewargs__(self) -> tuple[Any, ...]:
        # Environments in processes of their own get it through a pickle.
        return self.index, self.label, self.value, self.policy_version, self.behavior_prob


class Episode:
    """One episode of one actor: gives its steps the timesteps 0, 1, 2 … until one of them ends it.

    Args:
        actor_id: who acts.
        episode_id: unlike that of any other episode of the same actor, in this run or another.
        split: ``train`` or ``validation``.
        tags: of the episode, such as ``{"regime": "calm"}``; its first step carries them.

    Raises:
        InvalidInput: (one of its classes) an id, or tags, that no service would take.

    Example:
        >>> episode = Episode(actor_id="a1", episode_id="e7", split="train")
        >>> row = episode.transition([0.0], Choice(1), 0.5, [0.1], terminated=True, truncated=False)
        >>> row.timestep, row.policy_version, episode.over
        (0, -1, True)
    """

    def __init__(
        self,
        *,
        actor_id: str,
        episode_id: str,
        split: Split,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        check_id(actor_id, "actor_id")
        check_id(episode_id, "episode_id")
        self.tags = dict(check_tags(tags, "tags"))
        self.actor_id, self.episode_id, self.split = actor_id, episode_id, split
        self.timestep = 0
        self.over = False

    @property
    def new_tags(self) -> dict[str, str] | None:
        """What the next step carries of them: the first one all, no other any."""
        return self.tags if self.tags and self.timestep == 0 else None

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
        observation: Any,
        choice: Choice,
        reward: SupportsFloat,
        next_observation: Any,
        terminated: bool,
        truncated: bool,
        label: LabelValue = None,
        next_action_mask: Any = None,
    ) -> Transition:
        """Return the next step as a transition; the observations are kept, not copied.

        Args:
            observation: what the action was chosen from, of the environment's space.
            choice: the action.
            reward: what the step gave.
            next_observation: its true successor, also when the step ended the episode.
            terminated: the episode reached an end of the task.
            truncated: the episode was cut off.
            label: auxiliary class of `observation`.
            next_action_mask: which actions `next_observation` allows, in a model with masks.

        Raises:
            EpisodeClosed: an earlier step ended the episode.
            InvalidType: a reward that is no number, or a flag that is neither true nor false.
            NonFinite: a reward that is not finite in float32.
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
            reward=as_reward(reward),
            next_observation=next_observation,
            terminated=as_flag("terminated", terminated),
            truncated=as_flag("truncated", truncated),
            behavior_prob=choice.behavior_prob,
            label=label,
            next_action_mask=next_action_mask,
            tags=self.new_tags,
        )
        self.timestep += 1
        self.over = row.terminated or row.truncated
        return row


#: What `float` would read.
_TEXT = (str, bytes, bytearray)


def as_reward(reward: Any) -> float:
    """Return a reward as Python's own float: of any kind of number, an array without axes too."""
    try:
        if isinstance(reward, _TEXT):  # which `float` would read
            raise TypeError
        number = float(reward)
    except (TypeError, ValueError):
        raise InvalidType("reward", "a number", shown(reward)) from None
    except OverflowError:  # an integer beyond float64
        number = np.inf
    if not abs(number) <= FLOAT32_MAX:
        raise NonFinite("reward", "a number that is finite in float32", shown(reward))
    return number


def are_rewards(values: NDArray[Any], count: int) -> bool:
    """Whether an array is so many floats, each finite in float32."""
    if values.shape != (count,) or values.dtype not in (np.float64, np.float32):
        return False
    return bool((np.abs(values) <= FLOAT32_MAX).all())


def as_flag(name: str, value: Any) -> bool:
    """Return a flag as Python's own bool: of a boolean, 0 or 1, or an array of one of those."""
    if isinstance(value, bool):
        return value
    array = as_array(value, name)
    if array.size != 1 or array.dtype.kind not in "biu" or array.item() not in (0, 1):
        raise InvalidType(name, "true or false", shown(value))
    return bool(array.item())


def plain(label: Any) -> Any:
    """Return a label as Python's own int or str, which is what a transition holds."""
    return label.item() if isinstance(label, np.generic) else label


def copied(observation: Any) -> Any:
    """Return a copy of one observation: environments write into what they returned before.

    Args:
        observation: an array or a list of numbers, a number, or a dict of those.

    Returns:
        An array, Python's own number, or a dict of those.

    Raises:
        InvalidType: the pair that ``env.reset()`` returns was given instead of its first part.
        ShapeMismatch: a ragged list.
    """
    if type(observation) is np.ndarray and observation.ndim:
        return observation.copy()
    if isinstance(observation, Mapping):
        return {key: copied(part) for key, part in observation.items()}
    check_no_pair(observation)
    array = as_array(observation, "observation").copy()
    return array if array.ndim else array.item()


def as_batch(observation: Any) -> Any:
    """Return one observation, as `copied` makes it, as the batch of one that endpoints act on."""
    if type(observation) is np.ndarray:
        return observation[None]
    return [observation] if isinstance(observation, Mapping) else np.asarray(observation)[None]


def check_split(split: Split | Sequence[Split], count: int = 1) -> tuple[Split, ...]:
    """Return one split per sub-environment, (count,).

    Raises:
        UnknownSplit: one that is neither ``train`` nor ``validation``.
        InvalidValue: another number of splits than of sub-environments.
        InvalidType: no name, and no list of them.
    """
    if not isinstance(split, Iterable):
        raise InvalidType("split", f"one of {list(SPLITS)}", shown(split))
    splits: tuple[Any, ...] = (split,) * count if isinstance(split, str) else tuple(split)
    if len(splits) != count:
        raise InvalidValue("split", f"one, or one per sub-environment ({count})", len(splits))
    for i, name in enumerate(splits):
        if name not in SPLITS:
            where = "split" if isinstance(split, str) else f"split[{i}]"
            raise UnknownSplit(where, f"one of {list(SPLITS)}", repr(name))
    return splits
