"""Returns of whole episodes, per split, summed from the transitions that came in."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from jormungandr.columns import Columns
from jormungandr.protocol import SPLITS

__all__ = ["EpisodeReturns"]

#: Finished episodes that the figures are over, per split.
RECENT = 100
#: Episodes in progress that are remembered; the least recent is forgotten first.
OPEN = 100_000


class EpisodeReturns:
    """Undiscounted returns of episodes that came whole: from timestep 0, in order, without a gap.

    An episode that skips a step or mixes splits is left out rather than guessed at. What a policy
    with exploration earned in training is not what it would earn without; the held-out split, acted
    deterministically, is where to look.
    """

    def __init__(self) -> None:
        #: Episode to (next timestep, return so far, split).
        self._open: OrderedDict[tuple[str, str], tuple[int, float, int]] = OrderedDict()
        self._recent: tuple[deque[float], deque[float]] = (
            deque(maxlen=RECENT),
            deque(maxlen=RECENT),
        )
        self._finished = [0, 0]

    def add(self, columns: Columns) -> None:
        """Take accepted transitions, in order."""
        if not len(columns):
            return
        code = columns.actor.astype(np.int64) * len(columns.episodes) + columns.episode
        episodes = len(np.unique(code))
        # The steps of one episode together, unless some have to be forgotten on the way: which they
        # are depends on the order of all.
        together = len(self._open) + episodes <= OPEN
        order = np.argsort(code, kind="stable") if together else np.arange(len(code))
        code, t = code[order], columns.timestep[order]
        split = columns.split[order].astype(np.int64)
        ends = (columns.terminated | columns.truncated)[order]
        # A run is steps of one episode and split, one after the other.
        breaks = (np.diff(code) != 0) | (np.diff(t) != 1) | (np.diff(split) != 0) | ends[:-1]
        start = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        stop = np.append(start[1:], len(code))
        # As if they had come one by one: what is touched last is forgotten last.
        turn = np.argsort(order[stop - 1], kind="stable")
        start, stop = start[turn], stop[turn]
        reward = columns.reward[order].astype(np.float64).tolist()
        where = zip(
            start.tolist(),
            stop.tolist(),
            (code[start] // len(columns.episodes)).tolist(),
            (code[start] % len(columns.episodes)).tolist(),
            t[start].tolist(),
            split[start].tolist(),
            ends[stop - 1].tolist(),
            strict=True,
        )
        for begin, end, actor, episode, timestep, of_split, ended in where:
            key = (columns.actors[actor], columns.episodes[episode])
            self._take(key, timestep, of_split, reward[begin:end], ended)

    def _take(
        self, key: tuple[str, str], timestep: int, split: int, rewards: list[float], ended: bool
    ) -> None:
        """Take consecutive steps of one episode, the first at `timestep`."""
        expected, total, known_split = self._open.pop(key, (0, 0.0, split))
        if timestep != expected or known_split != split:
            return
        # One after the other, so that the bits do not depend on how the run was cut; the built-in
        # sum compensates in some versions of Python.
        for reward in rewards:
            total += reward
        if ended:
            self._recent[split].append(total)
            self._finished[split] += 1
            return
        self._open[key] = (timestep + len(rewards), total, split)
        if len(self._open) > OPEN:
            self._open.popitem(last=False)

    def info(self) -> dict[str, dict[str, Any]]:
        """Return, per split, the mean over the newest episodes with a 95 % interval.

        The interval is the mean ± 1.96 standard errors, None with fewer than two episodes.
        """
        found: dict[str, dict[str, Any]] = {}
        for split, name in enumerate(SPLITS):
            recent = list(self._recent[split])
            n = len(recent)
            mean = math.fsum(recent) / n if n else None
            interval = None
            if mean is not None and n > 1:
                error = math.sqrt(sum((r - mean) ** 2 for r in recent) / (n - 1) / n)
                interval = [mean - 1.96 * error, mean + 1.96 * error]
            found[name] = {
                "episodes": self._finished[split],
                "over_newest": n,
                "mean_return": mean,
                "interval_95": interval,
            }
        return found

    def state(self) -> dict[str, Any]:
        """Return everything as JSON-able values."""
        return {
            "open": [[*key, *value] for key, value in self._open.items()],
            "recent": [list(r) for r in self._recent],
            "finished": self._finished,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state."""
        self._open = OrderedDict(((a, e), (t, total, s)) for a, e, t, total, s in state["open"])
        for mine, saved in zip(self._recent, state["recent"], strict=True):
            mine.clear()
            mine.extend(saved)
        self._finished = list(state["finished"])
