"""`JournalReader`: data rows after a position, checked by digest."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import apsw

from jormungandr.errors import DataDirError
from jormungandr.rows import Row, decode_row
from jormungandr.rows import row_digest as digest_of
from jormungandr.service.database import Created, connect, read_created

__all__ = ["JournalReader"]


class JournalReader:
    """The learner's side: data rows after a position, checked by digest.

    Args:
        path: of the database file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path, apsw.SQLITE_OPEN_READONLY)

    def created(self) -> Created:
        """Return what the journal is of."""
        return read_created(self._connection, self._path)

    def rows(self, after: int, limit: int = 64) -> list[Row]:
        """Return up to `limit` data rows after position `after`, in order.

        Raises:
            DataDirError: a row does not match its digest.
        """
        found = self._connection.execute(
            "SELECT lsn, kind, payload, digest FROM journal"
            " WHERE lsn > ? AND kind IN ('transitions', 'labels') ORDER BY lsn LIMIT ?",
            (after, limit),
        ).fetchall()
        rows: list[Row] = []
        for lsn, kind, payload, digest in cast("list[tuple[int, str, bytes, bytes]]", found):
            if digest_of(lsn, kind, payload) != digest:
                where = f"{self._path}: row {lsn}"
                raise DataDirError(where, "its recorded SHA-256", "another", "the row is damaged")
            rows.append(decode_row(lsn, kind, payload))
        return rows

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
