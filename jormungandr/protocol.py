"""What goes in and what comes out: transitions and labels, receipts, replies, the `Endpoint`.

`Learner` (in process) and `RemoteLearner` (over HTTP) both satisfy `Endpoint`; one contract test
suite runs against both. A receipt or reply may also be read by its wire names,
``reply["policy_version"]``, so that the same code reads a struct and a parsed JSON body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from jormungandr.settings import ActionChoice

if TYPE_CHECKING:
    from jormungandr.columns import Columns

__all__ = [
    "LIMITS",
    "SPLITS",
    "ActionChoice",
    "Endpoint",
    "Evaluation",
    "InferenceReply",
    "Label",
    "LabelReceipt",
    "LabelsLike",
    "Receipt",
    "Split",
    "Transition",
    "TransitionsLike",
]

Split: TypeAlias = Literal["train", "validation"]

#: Split names in the order of their codes in columns: train is 0, validation is 1.
SPLITS: tuple[Split, Split] = ("train", "validation")

#: Published in `/v1/info`; a request over a limit is refused before anything of it is kept.
LIMITS: dict[str, int] = {
    "json_body_bytes": 1 << 20,
    "columns_body_bytes": 1 << 23,
    "transitions_per_request": 4_096,
    "labels_per_request": 4_096,
    "observations_per_request": 4_096,
    "id_bytes": 128,
    "timestep_max": 2**53 - 1,
    "tags_per_episode": 8,
    "tag_key_bytes": 32,
    "tag_value_bytes": 64,
}


class _Message(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A struct whose fields can also be read by name."""

    def __getitem__(self, field: str) -> Any:
        try:
            return getattr(self, field)
        except AttributeError:
            raise KeyError(field) from None


class Transition(_Message, omit_defaults=True):
    """One step of one actor, with its provenance.

    Args:
        actor_id: who acted; 1-128 bytes of UTF-8 without control characters.
        episode_id: in which episode; likewise.
        timestep: which step of it, 0 … 2**53 - 1.
        split: ``train`` or ``validation``.
        policy_version: the version that chose the action; -1 when it was not this model's policy.
        observation: what the action was chosen from, of the model's shape.
        action: index of the action, 0 … actions - 1.
        reward: what the step gave; finite in float32.
        next_observation: the true successor, never the observation after a reset.
        terminated: the episode reached an end of the task; nothing follows.
        truncated: the episode was cut off; what would have followed still has a value.
        behavior_prob: probability with which the action was chosen, if known.
        label: auxiliary class of the observation, as index or name, if known already.
        next_action_mask: which actions the successor allows, one boolean each; of a model with
            action masks, and there only a termination may leave it out.
        tags: what the actor says of the whole episode, such as ``{"regime": "calm"}``; with
            timestep 0 only.
    """

    actor_id: str
    episode_id: str
    timestep: int
    split: Split
    policy_version: int
    observation: Any
    action: int
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool
    behavior_prob: float | None = None
    label: int | str | None = None
    next_action_mask: Any = None
    tags: dict[str, str] | None = None


class Label(_Message):
    """The auxiliary class of one transition's observation; may come before or after it."""

    actor_id: str
    episode_id: str
    timestep: int
    label: int | str


class Receipt(_Message):
    """What became of the transitions of one request, and the `lsn` by which it is durable.

    `policy_version` is the newest version served when they were admitted.
    """

    accepted: int
    duplicate: int
    stale_dropped: int
    lsn: int
    policy_version: int
    generation: int


class LabelReceipt(_Message):
    """What became of the labels of one request."""

    attached: int
    pending: int
    duplicate: int
    target_evicted: int
    lsn: int


class InferenceReply(_Message, omit_defaults=True):
    """Actions for a batch of B observations.

    Args:
        policy_version: the version that chose them.
        generation: of the model.
        actions: B choices.
        expected_values: (B, A) expected discounted return of each action.
        behavior_prob: (B,) probability with which each choice was made.
        distribution: (B, A, N) return distribution of every action, if asked for.
        support: (N,) returns it is over, if asked for.
    """

    policy_version: int
    generation: int
    actions: list[ActionChoice]
    expected_values: list[list[float]]
    behavior_prob: list[float]
    distribution: list[list[list[float]]] | None = None
    support: list[float] | None = None

    @property
    def indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The chosen action indices, (B,)."""
        return np.array([choice.index for choice in self.actions], dtype=np.int64)


class Evaluation(_Message):
    """Held-out measurements over the whole validation store, and under which version.

    `validation_loss` is the mean categorical cross-entropy against projected one-step Bellman
    targets; it is no episode return. The auxiliary figures are over the labelled transitions, None
    when there are none; `train_auxiliary_accuracy` is over the newest replay items, for comparison.
    """

    policy_version: int
    update_count: int
    transitions: int
    validation_loss: float
    auxiliary_loss: float | None = None
    auxiliary_accuracy: float | None = None
    auxiliary_labelled: int = 0
    train_auxiliary_accuracy: float | None = None

    @property
    def loss(self) -> float:
        """Short for `validation_loss`."""
        return self.validation_loss

    @property
    def version(self) -> int:
        """Short for `policy_version`."""
        return self.policy_version


TransitionsLike: TypeAlias = "Sequence[Transition | Mapping[str, Any]] | Columns"
LabelsLike: TypeAlias = "Sequence[Label | Mapping[str, Any]]"


@runtime_checkable
class Endpoint(Protocol):
    """The seam between whoever acts and whoever learns.

    `Learner` and `RemoteLearner` add to it what a loop of your own needs: ``endpoint.episode()``
    tags and submits one step after another. `EpisodeRecorder` does so over any endpoint.
    """

    def add(self, transitions: TransitionsLike) -> Receipt:
        """Submit transitions; all of them are kept, or an error is raised and none is."""
        ...

    def label(self, labels: LabelsLike) -> LabelReceipt:
        """Submit labels, before or after their transitions."""
        ...

    def act(
        self,
        observations: ArrayLike,
        deterministic: bool = False,
        epsilon: float | None = None,
        *,
        action_masks: ArrayLike | None = None,
    ) -> InferenceReply:
        """Choose actions for a batch of observations, (B, *shape), among those allowed, (B, A)."""
        ...

    def wait(self, lsn: int) -> Mapping[str, Any]:
        """Return the model's state once everything up to `lsn` is applied with its updates."""
        ...

    def close(self) -> None:
        """Release what it holds open."""
        ...
