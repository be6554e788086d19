"""`Watched`: what files say, read again when they change."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from jormungandr.errors import JormungandrError

__all__ = ["Watched"]

T = TypeVar("T")

log = logging.getLogger("jormungandr")

#: Per file: device, inode, times of change, size; None for one that is not there.
Signature: TypeAlias = tuple[tuple[int, ...] | None, ...]

#: Nanoseconds during which a file may change again without its times telling: the kernel's clock
#: for them ticks every four milliseconds or so.
YOUNG = 100_000_000


class Watched(Generic[T]):
    """What files say, read again when they change.

    A look at the files costs a microsecond or two, so whoever asks gets what they say now: there
    is no interval in which a token that was revoked still works. A change that cannot be read
    leaves what was read before in force, and is logged once.

    Args:
        paths: of the files.
        read: returns what they say; raises an error of ours for files that cannot be used.

    Raises:
        JormungandrError: they cannot be used now, when there is nothing to go on with.
    """

    def __init__(self, *paths: Path, read: Callable[[], T]) -> None:
        # As text: it is looked up at every request.
        self._paths, self._read = tuple(map(str, paths)), read
        self._seen: Signature | None = None
        self._none: Signature = (None,) * len(self._paths)
        self._complaint = ""
        self._value = self._look()

    def get(self) -> T:
        """Return what the files say, or what they said when they could last be read."""
        if self._still_none():
            return self._value
        if self._signature() != self._seen:
            names = ", ".join(self._paths)
            try:
                self._value = self._look()
            except (JormungandrError, OSError) as error:
                complaint = str(error)
                if complaint != self._complaint:
                    log.error("%s; what was read before stays in force", complaint)
                self._complaint = complaint
            else:
                self._complaint = ""
                log.info("%s: read again", names)
        return self._value

    def _still_none(self) -> bool:
        """Whether no file is there, as before: to find that out by `stat` takes an exception."""
        return self._seen == self._none and not any(map(_is_there, self._paths))

    def _look(self) -> T:
        # First: what changes while it is read has another signature afterwards.
        found = self._signature()
        now = time.time_ns()
        young = any(file is not None and 0 <= now - file[2] < YOUNG for file in found)
        self._seen = None if young else found
        return self._read()

    def _signature(self) -> Signature:
        return tuple([_signature(path) for path in self._paths])


def _is_there(path: str) -> bool:
    return os.access(path, os.F_OK)


def _signature(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size
