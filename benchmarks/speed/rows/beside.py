"""`Beside`: measure something while a model's learner is busy."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.speed.rows.models import columns_of
from jormungandr import RemoteLearner

__all__ = ["Beside"]

#: Transitions of a row of the journal: what a learner has done, it tells row by row.
CHUNK = 128
#: Longest wait for a learner, in seconds.
PATIENCE = 60.0
#: Times that it is given twice as much to do, because it was done too soon.
TRIES = 6


class AtRest(RuntimeError):
    """The learner was done before the measuring was."""


class Beside:
    """Gives a learner work for as long as something takes; one update a transition.

    Args:
        learner: the model's client.
    """

    def __init__(self, learner: RemoteLearner) -> None:
        self._learner, self._sent, self._lsn = learner, 0, 0
        self._rate = 0.0  # updates a second; more than it makes, so that it is busy for long enough

    def learning(self, sample: Callable[[], float], seconds: float) -> Callable[[], float]:
        """Return what measures while the learner is busy, and then lets it come to rest.

        Args:
            sample: measures.
            seconds: that it takes, about.
        """

        def busy() -> float:
            for _ in range(TRIES):
                if not self._rate:
                    self._find_rate()
                self._send(int(1.2 * self._rate * (seconds + 0.5)))
                try:
                    self._edge()
                    found = sample()
                    if self._learner.info()["applied_lsn"] >= self._lsn:
                        raise AtRest
                except AtRest:
                    self._rate *= 2
                    continue
                self._learner.wait(self._lsn, timeout=PATIENCE)
                return found
            raise RuntimeError("the learner was always at rest before the measuring was done")

        return busy

    def rate(self, during: Callable[[], object]) -> float:
        """Return updates a second of the learner, which is busy, while something is done."""
        before, began = self._edge()
        during()
        after, ended = self._edge()
        return (after - before) / (ended - began)

    def _find_rate(self) -> None:
        """Look how many updates it makes in a second."""
        self._send(1_000 + CHUNK)  # before the thousandth none is due
        self._learner.wait(self._lsn, timeout=PATIENCE)
        before, began = int(self._learner.info()["update_count"]), time.perf_counter()
        self._send(500)
        self._learner.wait(self._lsn, timeout=PATIENCE)
        done = int(self._learner.info()["update_count"]) - before
        self._rate = done / (time.perf_counter() - began)

    def _send(self, count: int) -> None:
        for start in range(0, count, CHUNK):
            part = columns_of(4, 3, min(CHUNK, count - start), first=self._sent)
            self._lsn = self._learner.add(part).lsn
            self._sent += len(part)

    def _edge(self) -> tuple[int, float]:
        """Return the count of updates, and when it was told, right after it has moved."""
        before = self._learner.info()["update_count"]
        end = time.perf_counter() + PATIENCE
        while time.perf_counter() < end:
            info = self._learner.info()
            if info["update_count"] != before:
                return int(info["update_count"]), time.perf_counter()
            if info["applied_lsn"] >= self._lsn:
                raise AtRest
            time.sleep(0.005)
        raise RuntimeError(f"no update within {PATIENCE:g} s")
