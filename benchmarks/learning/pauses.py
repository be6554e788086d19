"""Training of Stable-Baselines3 that stops for a look every so many steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

__all__ = ["paused"]


class _Stopped(Exception):
    pass


class _Pause(BaseCallback):
    """Hands over at each multiple of `every` steps, and goes on when told to."""

    def __init__(self, every: int, baton: _Baton) -> None:
        super().__init__()
        self._every, self._baton = every, baton

    def _on_step(self) -> bool:
        if self.num_timesteps % self._every == 0:
            self._baton.hand_over(self.num_timesteps)
        return True


class _Baton:
    """Two threads that take turns: never do both run."""

    def __init__(self) -> None:
        self._theirs, self._mine = threading.Semaphore(0), threading.Semaphore(0)
        self._at: int | None = None
        self.error: BaseException | None = None
        self._stopped = False

    def hand_over(self, at: int | None) -> None:
        self._at = at
        self._mine.release()
        if at is not None:
            self._theirs.acquire()
            if self._stopped:
                raise _Stopped

    def next(self) -> int | None:
        self._mine.acquire()
        return self._at

    def resume(self) -> None:
        self._theirs.release()

    def stop(self) -> None:
        self._stopped = True
        self._theirs.release()


def paused(model: Any, steps: int, every: int) -> Iterator[int]:
    """Train a model in one call of `learn`, yielding the steps taken at every pause.

    `learn` reads its schedules off its total, so several calls would train otherwise.
    """
    baton = _Baton()

    def work() -> None:
        try:
            model.learn(steps, callback=_Pause(every, baton))
        except _Stopped:
            pass
        except BaseException as error:
            baton.error = error
        baton.hand_over(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (at := baton.next()) is not None:
            if at > steps:
                break
            yield at
            baton.resume()
        if baton.error is not None:
            raise baton.error
    finally:
        if thread.is_alive():
            baton.stop()
            thread.join()
