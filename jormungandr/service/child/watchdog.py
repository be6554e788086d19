"""`Watchdog`: judges a learner process by its heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable

from jormungandr.service.child.heartbeat import Heartbeat

__all__ = ["DEADLINES", "Watchdog"]

#: Seconds within which the heartbeat has to move, by phase. An idle learner beats twice a second. A
#: learner that applies beats with every update and every part of an evaluation, one that publishes
#: also while the gateway does not read; torch from a cold disk, a large checkpoint, its reading and
#: its writing are one step each.
DEADLINES = {
    "importing": 300.0,
    "recovering": 900.0,
    "idle": 30.0,
    "applying": 120.0,
    "updating": 120.0,
    "evaluating": 120.0,
    "checkpointing": 900.0,
    "publishing": 60.0,
    "unknown": 30.0,
}
#: Longest time between two looks, in seconds.
PERIOD = 1.0


class Watchdog:
    """Knows how long a heartbeat has been silent.

    Silence is summed over this process's own looks, each for two periods at most: a gateway that
    was itself stopped for an hour, or a machine that slept, accuses nobody when it wakes.

    Args:
        heartbeat: to watch.
        clock: seconds, of any origin.
    """

    def __init__(self, heartbeat: Heartbeat, clock: Callable[[], float] = time.monotonic) -> None:
        self._heartbeat, self._clock = heartbeat, clock
        self._deadlines = dict(DEADLINES)
        self.period = min(PERIOD, *(seconds / 4 for seconds in self._deadlines.values()))
        self._counter, self._looked = heartbeat.counter, clock()
        self._silence = 0.0

    @property
    def phase(self) -> str:
        """What the process is doing."""
        return self._heartbeat.phase

    def silence(self) -> float:
        """Look, and return the seconds since the heartbeat was last seen to move."""
        now, counter = self._clock(), self._heartbeat.counter
        if counter != self._counter:
            self._counter, self._silence = counter, 0.0
        else:
            self._silence += min(now - self._looked, 2 * self.period)
        self._looked = now
        return self._silence

    def verdict(self) -> str | None:
        """Return why the process has to be taken for hung; None while it need not."""
        phase = self.phase
        if self.silence() <= self._deadlines[phase]:
            return None
        return f"hung: no sign of life for {self._deadlines[phase]:g} s while {phase}"
