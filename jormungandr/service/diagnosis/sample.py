"""`Sample`: the newest transitions of a stored model, gathered once for every check."""

from __future__ import annotations

from collections import defaultdict
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import TRAIN
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.service.journal.database import control_rows
from jormungandr.service.tools.stored import StoredModel
from jormungandr.spec import ModelSpec

__all__ = ["SIZE", "Episode", "Sample"]

#: Transitions looked at.
SIZE = 100_000


class Episode:
    """What is known of one episode: its timesteps, their rewards, and whether it has ended."""

    def __init__(self) -> None:
        self.timesteps: list[NDArray[np.int64]] = []
        self.rewards: list[NDArray[np.float64]] = []
        self.ended = self.terminated = False

    def whole(self) -> NDArray[np.float64] | None:
        """Return (T,) its rewards in order, where it is complete and ended by termination."""
        timesteps = np.concatenate(self.timesteps)
        order = np.argsort(timesteps)
        if not self.terminated or not np.array_equal(timesteps[order], np.arange(len(order))):
            return None
        return np.concatenate(self.rewards)[order]

    @property
    def length(self) -> int:
        """Its steps up to the last one that is known, also where the first ones are not."""
        return int(max(timesteps.max() for timesteps in self.timesteps)) + 1

    def __len__(self) -> int:
        return sum(map(len, self.timesteps))


class Sample:
    """The newest accepted transitions of a model.

    Args:
        spec: of the model.

    Attributes:
        size: transitions looked at.
        rewards: (N,) of them.
        actions: (A,) how often each was chosen.
        held_out: how many are of the validation split.
        labels: (classes,) how often each was given.
        low, high, mean, std: (D,) of each feature; empty for images.
        lags: (M,) of the training transitions that name a policy.
        unversioned: training transitions that name none.
        episodes: by (actor, episode).
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.size, self.held_out, self.unversioned = spec, 0, 0, 0
        self.actions = np.zeros(len(spec.action_set), np.int64)
        self.labels = np.zeros(len(spec.auxiliary.classes) if spec.auxiliary else 0, np.int64)
        self.episodes: dict[tuple[str, str], Episode] = defaultdict(Episode)
        width = 0 if spec.observation.is_image else spec.observation.stored_shape[0]
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)
        self._first = np.zeros(width)
        self._sum, self._squares = np.zeros(width), np.zeros(width)
        self._rewards: list[NDArray[np.float64]] = []
        self._lags: list[NDArray[np.int64]] = []

    @classmethod
    def of(cls, model: StoredModel) -> Self:
        """Gather it.

        Raises:
            DataDirError: a row is damaged, or the model was deleted.
        """
        sample = cls(model.spec)
        versions = control_rows(model.connection, model.path, "version")
        positions = np.array([lsn for lsn, _ in versions], np.int64)
        numbers = np.array([body["version"] for _, body in versions], np.int64)
        for row in model.transitions(_start(model)):
            known = int(np.searchsorted(positions, row.lsn))
            served = int(numbers[:known].max()) if known else model.created.first_version
            sample._add(row, served)
        return sample

    def _add(self, row: TransitionsRow, served: int) -> None:
        c = row.columns.take(row.outcome == ACCEPTED)
        if not len(c):
            return
        train = c.split == TRAIN
        self.held_out += int(np.count_nonzero(~train))
        self._rewards.append(c.reward.astype(np.float64))
        self.actions += np.bincount(c.action, minlength=len(self.actions))
        given = c.label[c.label >= 0]
        if len(self.labels):
            self.labels += np.bincount(given, minlength=len(self.labels))
        versions = c.policy_version[train]
        self.unversioned += int(np.count_nonzero(versions < 0))
        self._lags.append(np.maximum(served - versions[versions >= 0], 0))
        if len(self.low):
            seen = c.observation.astype(np.float64)
            if not self.size:
                self._first = seen[0].copy()
            self.low = np.minimum(self.low, seen.min(axis=0))
            self.high = np.maximum(self.high, seen.max(axis=0))
            shifted = seen - self._first  # sums of what is large and nearly constant cancel
            self._sum += shifted.sum(axis=0)
            self._squares += (shifted**2).sum(axis=0)
        self.size += len(c)
        places = np.stack([c.actor, c.episode], axis=1)
        for actor, episode in np.unique(places, axis=0).tolist():
            mine = (c.actor == actor) & (c.episode == episode)
            found = self.episodes[c.actors[actor], c.episodes[episode]]
            found.timesteps.append(c.timestep[mine])
            found.rewards.append(c.reward[mine].astype(np.float64))
            found.terminated |= bool(c.terminated[mine].any())
            found.ended |= bool((c.terminated | c.truncated)[mine].any())

    @property
    def rewards(self) -> NDArray[np.float64]:
        """(N,) rewards."""
        return np.concatenate(self._rewards) if self._rewards else np.zeros(0)

    @property
    def lags(self) -> NDArray[np.int64]:
        """(M,) versions between the newest recorded policy and the one that acted."""
        return np.concatenate(self._lags) if self._lags else np.zeros(0, np.int64)

    @property
    def mean(self) -> NDArray[np.float64]:
        """(D,) mean of each feature."""
        return self._first + self._sum / max(self.size, 1)

    @property
    def std(self) -> NDArray[np.float64]:
        """(D,) standard deviation of each feature."""
        n = max(self.size, 1)
        return np.asarray(np.sqrt(np.maximum(self._squares / n - (self._sum / n) ** 2, 0.0)))


def _start(model: StoredModel) -> int:
    """Return the position after which the newest `SIZE` transitions lie."""
    found = model.connection.execute(
        "SELECT lsn, accepted_train + accepted_validation FROM journal"
        " WHERE kind = 'transitions' ORDER BY lsn DESC"
    )
    total = 0
    for lsn, many in found:
        total += int(many)
        if total > SIZE:
            return int(lsn)
    return 0
