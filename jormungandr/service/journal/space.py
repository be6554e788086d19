"""`FreeSpace`: the room that commits of data leave on the volume of a data directory."""

from __future__ import annotations

import os
from pathlib import Path

from jormungandr.errors import StorageFull

__all__ = ["FREE_SPACE_FLOOR", "FreeSpace"]

#: Bytes left for what must go on when data may not: deletion, checkpoints, the policies under way.
FREE_SPACE_FLOOR = 64 << 20


class FreeSpace:
    """A floor under the free bytes of a volume; asked anew each time, so it heals by itself.

    Args:
        folder: on the volume.
        floor: bytes that must be free; 0 asks nothing.
    """

    def __init__(self, folder: Path, floor: int) -> None:
        self._folder, self._floor = folder, floor

    def shortage(self) -> StorageFull | None:
        """Return the error of who wants to write data now; None while there is room."""
        if self._floor == 0:
            return None
        volume = os.statvfs(self._folder)
        free = volume.f_bavail * volume.f_frsize
        if free >= self._floor:
            return None
        return StorageFull(
            "data directory",
            f"at least {self._floor} bytes free on its volume",
            free,
            "free some, or lower --free-space-floor; nothing was kept",
        )

    def check(self) -> None:
        """Refuse when there is too little room.

        Raises:
            StorageFull: there is.
        """
        shortage = self.shortage()
        if shortage is not None:
            raise shortage
