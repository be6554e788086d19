"""`RecentReturns`: figures over the newest episodes; `TagReturns`: those of each value of a tag."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jormungandr.heldout import PAIR
from jormungandr.numerics.bounds import student_quantile
from jormungandr.protocol import SPLITS
from jormungandr.records import EpisodeRecord

__all__ = ["OTHER", "RecentReturns", "TagReturns"]

#: Finished episodes that the figures are over.
RECENT = 100
#: Keys that have figures, and values of each that are told apart: the first ones that came.
KEYS, VALUES = 16, 32
#: What all further values of a key count as.
OTHER = "other"


@lru_cache(maxsize=RECENT)
def _quantile(degrees: int) -> float:
    return student_quantile(0.975, degrees)


class RecentReturns:
    """Undiscounted returns of the newest episodes, and how many there were."""

    def __init__(self, recent: Sequence[float] = (), episodes: int = 0) -> None:
        self._recent: deque[float] = deque(recent, maxlen=RECENT)
        self.episodes = episodes
        self._info: dict[str, Any] | None = None

    def add(self, total: float) -> None:
        """Take the return of one more."""
        self._recent.append(total)
        self.episodes += 1
        self._info = None

    def info(self) -> dict[str, Any]:
        """Return the mean over the newest episodes with a 95 % interval.

        The interval is Student's (1908), None with fewer than two episodes.
        """
        if self._info is None:
            self._info = self._figures()
        return dict(self._info)

    def _figures(self) -> dict[str, Any]:
        recent = list(self._recent)
        n = len(recent)
        mean = math.fsum(recent) / n if n else None
        interval = None
        if mean is not None and n > 1:
            error = math.sqrt(sum((r - mean) ** 2 for r in recent) / (n - 1) / n)
            reach = _quantile(n - 1) * error
            interval = [mean - reach, mean + reach]
        return {
            "episodes": self.episodes,
            "over_newest": n,
            "mean_return": mean,
            "interval_95": interval,
        }

    @property
    def recent(self) -> list[float]:
        """The newest returns, oldest first."""
        return list(self._recent)


class TagReturns:
    """Returns by split, key and value of a tag, of bounded size whatever actors send.

    The tag ``pair`` has none: two episodes share each of its values, and no figure is of two.
    """

    def __init__(self) -> None:
        #: By key and value: those of each split.
        self._found: dict[str, dict[str, tuple[RecentReturns, RecentReturns]]] = {}
        #: Tags of episodes that have no figures, since there are `KEYS` other keys.
        self.untracked = 0

    def add(self, record: EpisodeRecord) -> None:
        """Count an episode under each of its tags."""
        for key, value in record.tags:
            if key == PAIR:
                continue
            if key not in self._found and len(self._found) >= KEYS:
                self.untracked += 1
                continue
            values = self._found.setdefault(key, {})
            if value not in values and len(values) - (OTHER in values) >= VALUES:
                value = OTHER  # noqa: PLW2901 - it counts as that
            mine = values.setdefault(value, (RecentReturns(), RecentReturns()))
            mine[record.split].add(record.total)

    def info(self, split: int) -> dict[str, dict[str, Any]]:
        """Return figures by key and value, of one split."""
        found = {
            key: {v: both[split].info() for v, both in values.items() if both[split].episodes}
            for key, values in self._found.items()
        }
        return {key: values for key, values in found.items() if values}

    def warnings(self) -> list[str]:
        """Return what the operator should know, with its remedy."""
        if not self.untracked:
            return []
        return [
            f"tags_untracked: {self.untracked} tags of episodes have no figures; more than {KEYS}"
            " keys are in use"
        ]

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "untracked": self.untracked,
            "found": [
                [key, value, *([one.episodes, one.recent] for one in both)]
                for key, values in self._found.items()
                for value, both in values.items()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        self.untracked, self._found = state["untracked"], {}
        for key, value, *both in state["found"]:
            if key == PAIR:  # counted by versions before
                continue
            made = [RecentReturns(recent, episodes) for episodes, recent in both]
            assert len(made) == len(SPLITS)
            self._found.setdefault(key, {})[value] = (made[0], made[1])
