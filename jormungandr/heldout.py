"""`HeldOut`: whole held-out episodes, each played by one policy version from its first step on.

What a promotion is decided from. A function of the rows alone: which episodes there are, and how
they are numbered, does not depend on how transitions were batched, on a clock or on a restart.

It is apart from `jormungandr.records.WholeEpisodes`, of the figures: it knows rows, and of the tags
the pair alone, so neither other tags nor training episodes push out what it remembers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from jormungandr.columns import VALIDATION, Columns

__all__ = ["KEEP", "PAIR", "HeldOut", "HeldOutEpisode", "kept_episodes"]

#: The tag that names the condition which an episode of the candidate and one of the champion share.
PAIR = "pair"
#: Finished episodes that are remembered, at least: twice what one row can hold.
KEEP = 8_192
#: Episodes in progress that are remembered; the least recent is forgotten first.
OPEN = 10_000

Count = Annotated[int, msgspec.Meta(ge=0)]


class HeldOutEpisode(msgspec.Struct, frozen=True, array_like=True):
    """One whole held-out episode of one policy version.

    Args:
        number: of the episode, counted from 1 in the order in which they ended.
        version: of the policy that chose each of its actions.
        first, last: positions of the rows with its first and its last step.
        total: undiscounted sum of its rewards.
        pair: its tag ``pair``; None without one.
    """

    number: Annotated[int, msgspec.Meta(ge=1)]
    version: Count
    first: Count
    last: Count
    total: float
    pair: str | None = None


def kept_episodes(min_episodes: int) -> int:
    """Return how many finished episodes are remembered for trials of so many."""
    return max(KEEP, 8 * min_episodes)


class HeldOut:
    """The newest whole held-out episodes of a model.

    An episode counts if it came in order from timestep 0 to its end, held out throughout, with one
    policy version of this model throughout. Others are left out rather than guessed at.

    Args:
        keep: finished episodes that are remembered.
    """

    def __init__(self, keep: int) -> None:
        #: Episode to (next timestep, return so far, version, first row, pair).
        self._open: OrderedDict[tuple[str, str], tuple[int, float, int, int, str | None]] = (
            OrderedDict()
        )
        self._recent: deque[HeldOutEpisode] = deque(maxlen=keep)
        self.finished = 0  # ever

    def add(self, columns: Columns, lsn: int) -> None:
        """Take the accepted transitions of a row, in order."""
        held = np.flatnonzero(columns.split == VALIDATION)
        if not len(held):
            return
        tags = set(columns.tagged.tolist()) if columns.tag is not None else set()
        actor, episode = columns.actor.tolist(), columns.episode.tolist()
        timestep, version = columns.timestep.tolist(), columns.policy_version.tolist()
        reward = columns.reward.astype(np.float64).tolist()
        ended = (columns.terminated | columns.truncated).tolist()
        for i in held.tolist():
            key = (columns.actors[actor[i]], columns.episodes[episode[i]])
            found = self._open.pop(key, None)
            if timestep[i] == 0:
                pair = dict(columns.tags_of(i)).get(PAIR) if i in tags else None
                found = (0, 0.0, version[i], lsn, pair)
            if found is None or (found[0], found[2]) != (timestep[i], version[i]):
                continue
            total = found[1] + reward[i]
            if ended[i]:
                self._finish(found, total, lsn)
                continue
            self._open[key] = (timestep[i] + 1, total, *found[2:])
            if len(self._open) > OPEN:
                self._open.popitem(last=False)

    def _finish(
        self, found: tuple[int, float, int, int, str | None], total: float, lsn: int
    ) -> None:
        _, _, version, first, pair = found
        if version < 0:  # somebody else's actions
            return
        self.finished += 1
        self._recent.append(HeldOutEpisode(self.finished, version, first, lsn, total, pair))

    def since(self, number: int) -> Sequence[HeldOutEpisode]:
        """Return the remembered episodes after a number, in order."""
        new = min(self.finished - number, len(self._recent))
        return list(self._recent)[len(self._recent) - new :] if new > 0 else []

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "open": [[*key, *value] for key, value in self._open.items()],
            "recent": list(map(_row, self._recent)),
            "finished": self.finished,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        self._open = OrderedDict(((a, e), tuple(rest)) for a, e, *rest in state["open"])
        self._recent.clear()
        self._recent.extend(_episodes(state["recent"]))
        self.finished = state["finished"]


def _row(episode: HeldOutEpisode) -> list[Any]:
    return list(msgspec.to_builtins(episode))


def _episodes(rows: list[list[Any]]) -> Iterator[HeldOutEpisode]:
    yield from msgspec.convert(rows, list[HeldOutEpisode])
