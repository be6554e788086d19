"""The lock of a data directory: one server, or any number of readers that write nothing.

The file ``LOCK`` says who holds it, and which folders it is about: a copy of the directory has
others, so whoever opens it knows that it is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from jormungandr.errors import DataDirError

__all__ = ["Lock", "reading"]


class Lock:
    """The lock as a server holds it: however its process ends, the kernel frees it.

    Args:
        data_dir: it has a folder ``models``.

    Raises:
        DataDirError: another process holds it.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        # Not emptied before it is held: it says who holds it.
        self._file = (data_dir / "LOCK").open("a+")
        if not _take(self._file, fcntl.LOCK_EX):
            holder = _holder(self._file)
            self._file.close()
            raise DataDirError(
                str(data_dir), "no other server", holder, "stop it, or use another directory"
            )
        #: Whether the folders are those that the last server saw.
        self.in_place = _content(self._file).get("place") == self._place()
        self._write(self._place() if self.in_place else None)

    def _place(self) -> list[int]:
        """Return what a copy has not: it can be moved, and stays what it is."""
        paths = (self._data_dir / "models", self._data_dir / "LOCK")
        return [path.stat().st_ino for path in paths]

    def settle(self) -> None:
        """Take the folders for its own from here on: they have been checked."""
        self._write(self._place())
        self.in_place = True

    def _write(self, place: list[int] | None) -> None:
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), "place": place}, self._file)
        self._file.flush()

    def close(self) -> None:
        """Free it."""
        self._file.close()


@contextlib.contextmanager
def reading(data_dir: Path) -> Iterator[None]:
    """Hold the lock as one of any number of readers; nothing is written.

    Raises:
        DataDirError: there is no such directory, or a server holds it.
    """
    if not (data_dir / "models").is_dir():
        raise DataDirError(str(data_dir), "a data directory of a service", "none")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):  # one that was never served
            file = stack.enter_context((data_dir / "LOCK").open("r"))
            if not _take(file, fcntl.LOCK_SH):
                raise DataDirError(str(data_dir), "no server", _holder(file), "stop it first")
        yield


def _take(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(file: IO[str]) -> str:
    """Say who holds a lock that cannot be had."""
    if _take(file, fcntl.LOCK_SH):  # only whoever wants it alone is in the way of nobody
        return "a verify, salvage or backup that reads it"
    return f"process {_content(file).get('pid', 'unknown')}, which holds its LOCK"


def _content(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        return dict(json.loads(file.read()))
    except (ValueError, TypeError):
        return {}
