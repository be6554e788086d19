"""A journal's database that is read and not written to: no file is made or changed beside it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jormungandr.errors import DataDirError
from jormungandr.service.journal.wal_check import wal_path

__all__ = ["untouched"]


@contextlib.contextmanager
def untouched(database: Path, wal: bytes | None = None) -> Iterator[tuple[Path, bool]]:
    """Yield where to open the journal of a directory that no server uses, and whether immutably.

    SQLite writes to a folder even to read a database with a WAL. One without is opened in place, as
    immutable; one with a WAL is copied to a temporary folder (``TMPDIR``) together with it.

    Args:
        database: the file.
        wal: what to take for its WAL instead of the one that is there.

    Raises:
        DataDirError: it cannot be copied.
    """
    log = wal_path(database)
    if not wal and (not log.exists() or log.stat().st_size == 0):
        yield database, True
        return
    with contextlib.ExitStack() as stack:
        try:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="jormungandr-"))
            copy = Path(name) / database.name
            shutil.copyfile(database, copy)
            if wal is None:
                shutil.copyfile(log, wal_path(copy))
            else:
                wal_path(copy).write_bytes(wal)
        except OSError as error:
            expected = f"room for a copy in {tempfile.gettempdir()}"
            remedy = "TMPDIR names another place"
            raise DataDirError(str(database), expected, error, remedy) from None
        yield copy, False
