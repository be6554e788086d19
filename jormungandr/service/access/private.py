"""Private files: read only when nobody else can use them, written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError

__all__ = ["read_private", "write_private"]

#: What others may not do with a secret: anything.
OTHERS = 0o077


def read_private(path: Path, limit: int, refused: int = OTHERS) -> bytes:
    """Return the bytes of a file that only its owner can use.

    Args:
        path: of a regular file; a link to one will do.
        limit: the most bytes it may have.
        refused: bits of the mode that it must not have.

    Raises:
        DataDirError: it cannot be read, others can use it, or it is too long. What is in it is
            never said.
    """
    try:
        # Not blocking: a pipe in the place of the file would keep the service waiting.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise DataDirError(str(path), "a file that can be read", error.strerror) from None
    try:
        mode = os.fstat(handle).st_mode  # of what was opened: a name may change hands in between
        if not stat.S_ISREG(mode):
            raise DataDirError(str(path), "a regular file", "another kind")
        if mode & refused:
            best = 0o600 if refused == OTHERS else 0o640
            remedy, got = f"chmod {best:o} {path}", oct(stat.S_IMODE(mode))
            raise DataDirError(str(path), f"mode {best:04o} or less", got, remedy)
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataDirError(str(path), "a file that can be read", error.strerror) from None
    finally:
        os.close(handle)
    if len(data) > limit:
        raise DataDirError(str(path), f"at most {limit} bytes", "more")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Make or replace a file that only its owner can use; it is on the disk when this returns.

    Raises:
        DataDirError: it cannot be written; the old one is as it was.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # of an attempt that was cut short
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            if os.geteuid() == 0:  # root writes for the service, which has to read it
                owner = path.parent.stat()
                os.fchown(handle, owner.st_uid, owner.st_gid)
            file.write(data)
            file.flush()
            os.fsync(handle)
        new.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DataDirError(str(path), "a file that can be written", error.strerror) from None
