"""Returns of whole episodes, per split and per tag, summed from the transitions that came in."""

from __future__ import annotations

from typing import Any

from jormungandr.columns import Columns
from jormungandr.learner.recent import RecentReturns, TagReturns
from jormungandr.protocol import SPLITS
from jormungandr.records import WholeEpisodes

__all__ = ["EpisodeReturns"]


class EpisodeReturns:
    """Undiscounted returns of episodes that came whole: from timestep 0, in order, without a gap.

    What a policy with exploration earned in training is not what it would earn without; the
    held-out split, acted deterministically, is where to look.
    """

    def __init__(self) -> None:
        self._whole = WholeEpisodes()
        self._splits = (RecentReturns(), RecentReturns())
        self.tags = TagReturns()

    def add(self, columns: Columns) -> None:
        """Take accepted transitions, in order."""
        for record in self._whole.add(columns):
            self._splits[record.split].add(record.total)
            self.tags.add(record)

    def info(self) -> dict[str, dict[str, Any]]:
        """Return, per split, the mean over the newest episodes with a 95 % interval.

        The interval is Student's (1908), None with fewer than two episodes.
        """
        return {name: self._splits[split].info() for split, name in enumerate(SPLITS)}

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the same with ``by_tag``: likewise, by key and value of the episodes' tags."""
        return {
            name: {**found, "by_tag": self.tags.info(SPLITS.index(name))}
            for name, found in self.info().items()
        }

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "open": self._whole.state(),
            "recent": [one.recent for one in self._splits],
            "finished": [one.episodes for one in self._splits],
            "tags": self.tags.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state; one of before there were tags has none of them."""
        self._whole.restore(state["open"])
        train, validation = map(RecentReturns, state["recent"], state["finished"])
        self._splits = (train, validation)
        self.tags = TagReturns()
        if "tags" in state:
            self.tags.restore(state["tags"])
