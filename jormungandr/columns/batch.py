"""`Columns`: a batch of transitions as arrays. B is the number of transitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.tags import Tags

__all__ = ["ARRAYS", "TRAIN", "VALIDATION", "Columns"]

TRAIN, VALIDATION = 0, 1

#: Names and dtypes of the array fields, in their order on disk; images are stored as uint8.
ARRAYS: dict[str, np.dtype[Any]] = {
    "actor": np.dtype("<i4"),
    "episode": np.dtype("<i4"),
    "timestep": np.dtype("<i8"),
    "split": np.dtype("u1"),
    "policy_version": np.dtype("<i8"),
    "observation": np.dtype("<f4"),
    "action": np.dtype("<i8"),
    "reward": np.dtype("<f4"),
    "next_observation": np.dtype("<f4"),
    "terminated": np.dtype("?"),
    "truncated": np.dtype("?"),
    "behavior_prob": np.dtype("<f4"),
    "label": np.dtype("<i4"),
    "next_action_mask": np.dtype("?"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """B transitions. Ids are dictionary-encoded: transition i's actor is ``actors[actor[i]]``.

    Args:
        actors, episodes: the distinct ids.
        actor, episode: (B,) int32 indices into them.
        timestep, policy_version, action: (B,) int64.
        split: (B,) uint8, 0 train, 1 validation.
        observation, next_observation: (B, *stored_shape) in the stored dtype: (B, D) float32, or
            images of uint8.
        reward: (B,) float32.
        terminated, truncated: (B,) bool.
        behavior_prob: (B,) float32, NaN where unknown.
        label: (B,) int32, -1 where unknown.
        next_action_mask: (B, A) which actions the successor allows; (B, 0) in a model without
            masks.
        tags: the distinct tags of episodes.
        tag: (B,) int32 index into them, -1 where none are given; None is -1 throughout.
    """

    actors: tuple[str, ...]
    episodes: tuple[str, ...]
    actor: NDArray[np.int32]
    episode: NDArray[np.int32]
    timestep: NDArray[np.int64]
    split: NDArray[np.uint8]
    policy_version: NDArray[np.int64]
    observation: NDArray[np.float32]
    action: NDArray[np.int64]
    reward: NDArray[np.floating[Any]]
    next_observation: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    behavior_prob: NDArray[np.floating[Any]]
    label: NDArray[np.int32]
    next_action_mask: NDArray[np.bool_]
    tags: tuple[Tags, ...] = ()
    tag: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.timestep)

    def take(self, index: NDArray[Any] | slice) -> Columns:
        """Return the transitions at `index` (integers, a mask or a slice), in that order."""
        arrays = {name: getattr(self, name)[index] for name in ARRAYS}
        tag = None if self.tag is None else self.tag[index]
        return Columns(
            actors=self.actors, episodes=self.episodes, **arrays, tags=self.tags, tag=tag
        )

    def with_label(self, label: NDArray[np.int32]) -> Columns:
        """Return the same transitions with other labels."""
        return replace(self, label=label)

    @property
    def tagged(self) -> NDArray[np.intp]:
        """Which transitions bring tags, in order."""
        if self.tag is None:
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero(self.tag >= 0)

    def tags_of(self, i: int) -> Tags:
        """Return the tags that transition i brings."""
        code = -1 if self.tag is None else int(self.tag[i])
        return () if code < 0 else self.tags[code]

    def identity(self, i: int) -> tuple[str, str, int]:
        """Return (actor_id, episode_id, timestep) of transition i."""
        return (
            self.actors[self.actor[i]],
            self.episodes[self.episode[i]],
            int(self.timestep[i]),
        )

    def digests(self) -> NDArray[np.uint64]:
        """Return (B,) 64-bit digests of the content in the model's dtypes.

        Identity, split and label are left out: two encodings of one transition agree, and a label
        may come later. Negative zero and zero are the same number, so they get the same digest.
        Tags count where there are some: an episode's first step keeps those it first came with.
        """
        if len(self) == 1:
            return np.frombuffer(self._digest_of_one(), dtype="<u8")
        parts = [
            _positive_zero(self.observation),
            self.action,
            self.reward + np.float32(0),
            _positive_zero(self.next_observation),
            self.terminated,
            self.truncated,
            # NaN has many bit patterns; "unknown" must have one.
            np.where(np.isnan(self.behavior_prob), np.float32(-1), self.behavior_prob),
            self.policy_version,
            np.ascontiguousarray(self.next_action_mask),
        ]
        count = len(self)
        if count == 0:
            return np.zeros(0, dtype=np.uint64)
        table = np.concatenate([p.reshape(count, -1).view(np.uint8) for p in parts], axis=1)
        rows: list[bytes] = table.view(f"V{table.shape[1]}").ravel().tolist()
        digests = [blake2b(row, digest_size=8).digest() for row in rows]
        for i in self.tagged.tolist():
            content = rows[i] + msgspec.msgpack.encode(self.tags_of(i))
            digests[i] = blake2b(content, digest_size=8).digest()
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)

    def _digest_of_one(self) -> bytes:
        """Return the digest of the only transition, without a table."""
        probability = self.behavior_prob
        content = b"".join(
            (
                _unsigned(self.observation),
                self.action.tobytes(),
                _unsigned(self.reward),
                _unsigned(self.next_observation),
                self.terminated.tobytes(),
                self.truncated.tobytes(),
                _UNKNOWN if probability[0] != probability[0] else probability.tobytes(),
                self.policy_version.tobytes(),
                self.next_action_mask.tobytes(),
            )
        )
        if self.tag is not None and self.tag[0] >= 0:
            content += msgspec.msgpack.encode(self.tags_of(0))
        return blake2b(content, digest_size=8).digest()


#: The bytes that stand for a probability that is not known.
_UNKNOWN = np.array([-1], dtype=np.float32).tobytes()
_ZERO = np.float32(0)


def _unsigned(values: NDArray[Any]) -> bytes:
    """Return the bytes of numbers whose negative zeros are zeros."""
    return (values + _ZERO).tobytes() if values.dtype.kind == "f" else values.tobytes()


def _positive_zero(observation: NDArray[Any]) -> NDArray[Any]:
    """Return observations whose negative zeros are zeros, for bytes to be compared."""
    if observation.dtype.kind != "f":
        return np.ascontiguousarray(observation)
    return np.ascontiguousarray(observation + np.float32(0))
