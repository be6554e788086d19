"""Batches that continue their episodes, as most do: known at once, not episode by episode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.ledger import Draft, Episode, Key

__all__ = ["Continuation", "Stretch", "continued"]


class Stretch(NamedTuple):
    """Steps of one episode: where they lie in a batch in order of episodes, and their timesteps.

    `known` is its last step before, -1 for none.
    """

    key: Key
    begin: int
    end: int
    first: int
    last: int
    known: int


class Continuation(NamedTuple):
    """A batch that continues its episodes.

    Args:
        order: (B,) its transitions, episode by episode.
        stretches: of each episode, in the order in which they came.
        episodes: with the batch in them.
    """

    order: NDArray[np.intp]
    stretches: list[Stretch]
    episodes: dict[Key, Episode]


def continued(columns: Columns, draft: Draft) -> Continuation | None:
    """Return what a batch makes of its episodes, if all of it continues them; `draft` stays.

    That is the common case: in every episode new steps of its one split, in order, none after its
    end. None is any other, which is looked at group by group.
    """
    code = columns.actor.astype(np.int64) * len(columns.episodes) + columns.episode
    order = np.argsort(code, kind="stable")
    code, t, split = code[order], columns.timestep[order], columns.split[order]
    ended = (columns.terminated | columns.truncated)[order]
    inside = code[1:] == code[:-1]  # (B - 1,) of the same episode as the one before
    goes_on = (t[1:] > t[:-1]) & (split[1:] == split[:-1]) & ~ended[:-1]
    if not (goes_on | ~inside).all():
        return None
    start = np.concatenate(([0], np.flatnonzero(~inside) + 1))
    stop = np.append(start[1:], len(code))
    by_place = np.argsort(order[start])  # in the order they came, as `groups` yields them
    start, stop = start[by_place], stop[by_place]
    first = order[start]
    stretches, episodes = [], {}
    for actor, episode, of_split, over, begin, end, t0, t1 in zip(
        columns.actor[first].tolist(),
        columns.episode[first].tolist(),
        split[start].tolist(),
        ended[stop - 1].tolist(),
        start.tolist(),
        stop.tolist(),
        t[start].tolist(),
        t[stop - 1].tolist(),
        strict=True,
    ):
        key = (columns.actors[actor], columns.episodes[episode])
        known, mask = draft.episode(key), 1 << of_split
        now = Stretch(key, begin, end, t0, t1, -1 if known is None else known.last)
        if known is not None and (
            known.end >= 0 or now.first <= known.last or known.splits != mask
        ):
            return None
        episodes[key] = Episode(of_split, mask, now.last if over else -1, now.last)
        stretches.append(now)
    return Continuation(order, stretches, episodes)
