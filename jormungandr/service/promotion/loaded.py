"""`Loaded`: policies that were asked for by their version, read once and kept for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from jormungandr.policy import PolicySnapshot

__all__ = ["Loaded"]


class Loaded:
    """The versions asked for last. Lives on the event loop; files are read off it.

    Args:
        load: reads a version, in a thread.
        keep: how many stay in memory; the one that nobody has asked for longest goes first.
    """

    def __init__(self, load: Callable[[int], PolicySnapshot], keep: int) -> None:
        self._load, self._keep = load, keep
        self._there: OrderedDict[int, PolicySnapshot] = OrderedDict()
        #: On its way: whoever asks meanwhile waits for the same.
        self._coming: dict[int, asyncio.Task[PolicySnapshot]] = {}

    async def get(self, version: int) -> PolicySnapshot:
        """Return a version.

        Raises:
            Exception: what `load` raises; the next one who asks tries again.
        """
        found = self._there.get(version)
        if found is not None:
            self._there.move_to_end(version)
            return found
        task = self._coming.get(version)
        if task is None:
            task = asyncio.ensure_future(asyncio.to_thread(self._load, version))
            self._coming[version] = task
            task.add_done_callback(lambda done: self._came(version, done))
        # Shielded: whoever goes does not take it from those who wait on.
        return await asyncio.shield(task)

    def _came(self, version: int, task: asyncio.Task[PolicySnapshot]) -> None:
        del self._coming[version]
        if task.cancelled() or task.exception() is not None:
            return
        self._there[version] = task.result()
        while len(self._there) > self._keep:
            self._there.popitem(last=False)
