"""`HeldOutSteps`: steps that no training saw, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns

__all__ = ["HeldOutSteps", "episode_keys"]


def episode_keys(columns: Columns) -> NDArray[np.uint64]:
    """Return (B,) a number per episode, the same for its steps in whatever batch they come."""
    if not len(columns):
        return np.zeros(0, dtype=np.uint64)
    pairs = np.stack([columns.actor, columns.episode], axis=1)
    found, inverse = np.unique(pairs, axis=0, return_inverse=True)
    keys = [
        blake2b(
            f"{columns.actors[actor]}\0{columns.episodes[episode]}".encode(), digest_size=8
        ).digest()
        for actor, episode in found.tolist()
    ]
    return np.frombuffer(b"".join(keys), dtype="<u8").astype(np.uint64)[inverse.reshape(-1)]


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutSteps:
    """N steps that no training saw, oldest first.

    Args:
        observation, next_observation: (N, D) as they are stored.
        action: (N,).
        reward, behavior_prob: (N,); the latter NaN where unknown.
        terminated: (N,).
        timestep: (N,) in the episode.
        episode: (N,) as of `episode_keys`.
    """

    observation: NDArray[Any]
    action: NDArray[np.int64]
    reward: NDArray[np.floating[Any]]
    next_observation: NDArray[Any]
    terminated: NDArray[np.bool_]
    behavior_prob: NDArray[np.floating[Any]]
    timestep: NDArray[np.int64]
    episode: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.action)

    @classmethod
    def of_columns(cls, columns: Columns) -> HeldOutSteps:
        """Return the steps of a batch."""
        names = [name for name in cls.__slots__ if name != "episode"]
        return cls(**{n: getattr(columns, n) for n in names}, episode=episode_keys(columns))

    @classmethod
    def joined(cls, parts: Sequence[HeldOutSteps]) -> HeldOutSteps:
        """Return the steps of several, in their order; at least one."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__slots__))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> HeldOutSteps:
        """Return the steps of a `ValidationStore`, from what its `in_order` returns."""
        return cls(**{name: arrays[name] for name in cls.__slots__})

    def newest(self, episodes: int) -> HeldOutSteps:
        """Return the steps of the newest episodes that began here, at most so many."""
        began = self.episode[self.timestep == 0]
        # Each once, by where it begins; one that began twice is admission's to prevent.
        keep = np.isin(self.episode, began[max(0, len(began) - episodes) :])
        return HeldOutSteps(*(getattr(self, name)[keep] for name in self.__slots__))
