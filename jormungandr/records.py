"""`EpisodeRecord`: what one whole episode came to; `WholeEpisodes`, which makes them of its steps.

The figures of a model and the table ``episodes`` of SQL are made of them. Promotions are not: what
they are decided from, `jormungandr.heldout`, keeps one tag and has bounds of its own, so that no
other tags can push its episodes out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from jormungandr.columns import Columns
from jormungandr.tags import Tags, as_pairs

__all__ = ["OPEN", "TAG_ROOM", "EpisodeRecord", "WholeEpisodes"]

#: Episodes in progress that are remembered; the least recent is forgotten first.
OPEN = 100_000
#: What the tags of those may take together, as of `_size`; of the episodes with tags the least
#: recent is forgotten first.
TAG_ROOM = 1 << 24
#: Transitions that are taken one by one: sorting so few into runs would take longer.
FEW = 8
#: What a tag takes beside its bytes: two strings and their pair.
TAG = 160


class EpisodeRecord(NamedTuple):
    """A whole episode: from timestep 0 to its end, in order, without a gap, in one split.

    Args:
        actor_id, episode_id: its names.
        split: 0 train, 1 validation.
        length: steps.
        total: undiscounted sum of its rewards.
        low_version, high_version: lowest and highest policy version of its steps. One policy played
            all of it where they are the same; -1 is none of this model's, or not known.
        terminated: how it ended; false is truncated.
        tags: of it.
    """

    actor_id: str
    episode_id: str
    split: int
    length: int
    total: float
    low_version: int
    high_version: int
    terminated: bool
    tags: Tags = ()


class _Open(NamedTuple):
    """An episode so far: steps, return, split, lowest and highest version, tags."""

    length: int
    total: float
    split: int
    low: int
    high: int
    tags: Tags


def _size(tags: Tags) -> int:
    """Return about how many bytes tags take; the same everywhere."""
    return sum(TAG + len(key.encode()) + len(value.encode()) for key, value in tags)


def _record(key: tuple[str, str], now: _Open, terminated: bool) -> EpisodeRecord:
    """Return the record of an episode that has ended."""
    return EpisodeRecord(
        *key, now.split, now.length, now.total, now.low, now.high, terminated, now.tags
    )


class WholeEpisodes:
    """Make records of accepted transitions as they come.

    An episode that skips a step or mixes splits is left out rather than guessed at, and so is one
    that was forgotten. How the transitions were batched changes nothing.
    """

    def __init__(self) -> None:
        #: Least recent first.
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        #: Those with tags, in the same order, and what they take.
        self._tagged: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._room = TAG_ROOM

    def add(self, columns: Columns) -> list[EpisodeRecord]:
        """Take accepted transitions; return the episodes that ended, in the order of their ends."""
        if len(columns) <= FEW:
            return [record for i in range(len(columns)) for record in self._add_one(columns, i)]
        code = columns.actor.astype(np.int64) * len(columns.episodes) + columns.episode
        episodes = len(np.unique(code))
        # The steps of one episode together, unless some have to be forgotten on the way: which they
        # are depends on the order of all.
        together = len(self._open) + episodes <= OPEN and self._fits(columns)
        order = np.argsort(code, kind="stable") if together else np.arange(len(code))
        code, t = code[order], columns.timestep[order]
        split = columns.split[order].astype(np.int64)
        ends = (columns.terminated | columns.truncated)[order]
        # A run is steps of one episode and split, one after the other.
        breaks = (np.diff(code) != 0) | (np.diff(t) != 1) | (np.diff(split) != 0) | ends[:-1]
        if not together:
            breaks[:] = True  # each step may push another episode out
        start = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        stop = np.append(start[1:], len(code))
        version = columns.policy_version[order]
        low = np.minimum.reduceat(version, start)
        high = np.maximum.reduceat(version, start)
        # As if they had come one by one: what is touched last is forgotten last.
        turn = np.argsort(order[stop - 1], kind="stable")
        start, stop, low, high = start[turn], stop[turn], low[turn], high[turn]
        reward = columns.reward[order].astype(np.float64).tolist()
        where = zip(
            start.tolist(),
            stop.tolist(),
            (code[start] // len(columns.episodes)).tolist(),
            (code[start] % len(columns.episodes)).tolist(),
            t[start].tolist(),
            split[start].tolist(),
            low.tolist(),
            high.tolist(),
            order[start].tolist(),
            ends[stop - 1].tolist(),
            columns.terminated[order[stop - 1]].tolist(),
            strict=True,
        )
        found = []
        for begin, end, a, e, timestep, of_split, least, most, first, ended, terminated in where:
            key = (columns.actors[a], columns.episodes[e])
            run = _Open(timestep, 0.0, of_split, least, most, columns.tags_of(first))
            now = self._take(key, run, reward[begin:end])
            if now is not None and ended:
                found.append(_record(key, now, terminated))
            elif now is not None:
                self._keep(key, now)
        return found

    def _add_one(self, columns: Columns, i: int) -> list[EpisodeRecord]:
        """Take transition i, without arrays."""
        actor, episode, timestep = columns.identity(i)
        key, version = (actor, episode), int(columns.policy_version[i])
        run = _Open(timestep, 0.0, int(columns.split[i]), version, version, columns.tags_of(i))
        now = self._take(key, run, [float(columns.reward[i])])
        if now is None:
            return []
        terminated = bool(columns.terminated[i])
        if terminated or columns.truncated[i]:
            return [_record(key, now, terminated)]
        self._keep(key, now)
        return []

    def _fits(self, columns: Columns) -> bool:
        """Whether there is room for all tags that come with a batch."""
        if columns.tag is None:
            return True
        codes, counts = np.unique(columns.tag[columns.tagged], return_counts=True)
        each = [_size(columns.tags[code]) for code in codes.tolist()]
        needed: int = sum(size * n for size, n in zip(each, counts.tolist(), strict=True))
        return needed <= self._room

    def _keep(self, key: tuple[str, str], now: _Open) -> None:
        """Remember an episode in progress, the most recent one; forget others for it."""
        self._open[key] = now
        if now.tags:
            self._tagged[key] = size = _size(now.tags)
            self._room -= size
            while self._room < 0:
                self._pop(next(iter(self._tagged)))
        if len(self._open) > OPEN:
            self._pop(next(iter(self._open)))

    def _pop(self, key: tuple[str, str]) -> _Open | None:
        """Return what is remembered of an episode, and forget it."""
        self._room += self._tagged.pop(key, 0)
        return self._open.pop(key, None)

    def _take(self, key: tuple[str, str], run: _Open, rewards: list[float]) -> _Open | None:
        """Return an episode with a run of steps, the first at ``run.length``; None if none."""
        known = self._pop(key) or run._replace(length=0)
        if run.length != known.length or known.split != run.split:
            return None
        # One after the other, so that the bits do not depend on how the run was cut; the built-in
        # sum compensates in some versions of Python.
        total = known.total
        for reward in rewards:
            total += reward
        return _Open(
            known.length + len(rewards),
            total,
            known.split,
            min(known.low, run.low),
            max(known.high, run.high),
            known.tags,
        )

    def state(self) -> list[Any]:
        """Return the episodes in progress as JSON-able values.

        Tags are written with the first episode that has them; others name its place.
        """
        places: dict[Tags, int] = {}
        rows: list[Any] = []
        for n, (key, now) in enumerate(self._open.items()):
            first = places.setdefault(now.tags, n) if now.tags else n
            rows.append([*key, *now[:-1], now.tags if first == n else first])
        return rows

    def restore(self, state: Iterable[Any]) -> None:
        """Take over a state; one of before there were versions and tags in it has none."""
        self._open.clear()
        self._tagged.clear()
        self._room = TAG_ROOM
        read: list[Tags] = []
        for actor, episode, length, total, split, *rest in state:
            low, high, given = rest or (-1, -1, ())
            read.append(read[given] if isinstance(given, int) else as_pairs(given))
            self._keep((actor, episode), _Open(length, total, split, low, high, read[-1]))
