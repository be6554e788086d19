"""`JournalReader`: data rows after a position, checked by digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import apsw

from jormungandr.errors import DataDirError
from jormungandr.rows import JournalRow, SkippedRow, decode_row
from jormungandr.rows import row_digest as digest_of
from jormungandr.service.journal.database import (
    Created,
    LineageRow,
    VersionRow,
    connect,
    control_rows,
    read_created,
    read_meta,
)

__all__ = ["JournalReader", "read_skipped"]


def read_skipped(connection: apsw.Connection, path: Path) -> dict[int, SkippedRow]:
    """Return the rows that were set aside, by their positions.

    Args:
        connection: to the journal's database.
        path: of it, for messages.

    Raises:
        DataDirError: a row that says so does not match its digest.
    """
    found: dict[int, SkippedRow] = {}
    skips = control_rows(connection, path, "skip")
    versions = control_rows(connection, path, "version") if skips else []
    for lsn, body in skips:
        # The first of several is the one that learners have gone by since.
        if body["skipped"] in found:
            continue
        row = connection.execute(
            "SELECT accepted_train, accepted_validation FROM journal"
            " WHERE lsn = ? AND kind IN ('transitions', 'labels')",
            (body["skipped"],),
        ).fetchone()
        train, validation = cast("tuple[int, int]", row or (0, 0))
        published = max((v["version"] for at, v in versions if at < lsn), default=-1)
        found[body["skipped"]] = SkippedRow(body["skipped"], train, validation, published)
    return found


class JournalReader:
    """The learner's side: data rows after a position, checked by digest.

    Args:
        path: of the database file.
        immutable: nobody writes to it, and no file is to be made beside it.
    """

    def __init__(self, path: Path, *, immutable: bool = False) -> None:
        self._path = path
        self._connection = connect(path, apsw.SQLITE_OPEN_READONLY, immutable=immutable)
        # Read once: while a learner reads no row is set aside, for that takes its end.
        self._skipped: dict[int, SkippedRow] | None = None

    def created(self) -> Created:
        """Return what the journal is of."""
        return read_created(self._connection, self._path)

    def rows(self, after: int, limit: int = 64) -> Sequence[JournalRow]:
        """Return up to `limit` data rows after position `after`, in order.

        One that was set aside comes as a `SkippedRow`, whatever its payload.

        Raises:
            DataDirError: a row does not match its digest.
        """
        if self._skipped is None:
            self._skipped = read_skipped(self._connection, self._path)
        found = self._connection.execute(
            "SELECT lsn, kind, CAST(payload AS BLOB), digest FROM journal"
            " WHERE lsn > ? AND kind IN ('transitions', 'labels') ORDER BY lsn LIMIT ?",
            (after, limit),
        ).fetchall()
        rows: list[JournalRow] = []
        for lsn, kind, payload, digest in cast("list[tuple[int, str, bytes, bytes]]", found):
            if lsn in self._skipped:
                rows.append(self._skipped[lsn])
                continue
            if digest_of(lsn, kind, payload) != digest:
                where = f"{self._path}: row {lsn}"
                raise DataDirError(where, "its recorded SHA-256", "another", "the row is damaged")
            rows.append(decode_row(lsn, kind, payload))
        return rows

    def lineages(self) -> list[LineageRow]:
        """Return the lineages so far, in the order in which they began."""
        rows = control_rows(self._connection, self._path, LineageRow.kind)
        return [LineageRow(**content) for _, content in rows]

    def versions(self) -> list[VersionRow]:
        """Return the policies that were recorded, in order."""
        rows = control_rows(self._connection, self._path, VersionRow.kind)
        return [VersionRow(**content) for _, content in rows]

    def train(self, lsn: int) -> int:
        """Return how many training transitions had been accepted up to a position."""
        found = self._connection.execute(
            "SELECT coalesce(sum(accepted_train), 0) FROM journal WHERE lsn > ?", (lsn,)
        ).fetchone()
        assert found is not None
        return int(read_meta(self._connection, "counters")["train"]) - int(cast("int", found[0]))

    def first(self) -> int:
        """Return the position from which on every data row is kept."""
        return int(read_meta(self._connection, "dropped") or 0) + 1

    def last(self) -> int:
        """Return the position of the last data row; 0 when there is none."""
        return int(read_meta(self._connection, "counters")["data_lsn"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
