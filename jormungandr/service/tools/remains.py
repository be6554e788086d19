"""`Remains`: everything in the journal of a damaged model that proves itself, and what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import msgspec
import numpy as np

from jormungandr.errors import DataDirError, JormungandrError
from jormungandr.ledger import (
    Block,
    Counters,
    Episode,
    Identity,
    Key,
    Pending,
    block_from_bytes,
    new_block,
)
from jormungandr.protocol import LIMITS
from jormungandr.rows import LabelsRow, TransitionsRow, row_digest
from jormungandr.service.journal.database import Created, SkipRow, check, connect, read_created
from jormungandr.service.journal.decisions import DECISIONS
from jormungandr.service.journal.tallies import name_of
from jormungandr.service.journal.wal_check import check_wal, mended_wal
from jormungandr.service.tools.untouched import untouched

__all__ = ["DATA", "Remains", "RowColumns", "overlaid"]

#: A row of the table ``journal``, as SQLite has it.
RowColumns: TypeAlias = tuple[Any, ...]

DATA = (TransitionsRow.kind, LabelsRow.kind)
KINDS = (*DATA, "create", "version", "skip", "lineage", "delete", *DECISIONS)
#: More of anything than one row can hold.
LIMIT = LIMITS["transitions_per_request"]
#: Bytes of the smallest row: its digest and a little more.
SMALLEST = 40


@dataclass
class Remains:
    """What is found of one model.

    Args:
        database: of its journal; only read.
        rows: that match their digest, by position.
        bad: that do not, with columns that can be written.
        created: what it is of.
        counters: its newest totals.
        tallies: its newest tallies of actors, by their names.
        dropped: data rows up to here have been dropped to make room.
        episodes, blocks, pendings: of its ledger, what matches its checksum.
    """

    database: Path
    rows: dict[int, RowColumns] = field(default_factory=dict)
    bad: dict[int, RowColumns] = field(default_factory=dict)
    created: Created | None = None
    counters: Counters | None = None
    tallies: dict[str, dict[str, int]] = field(default_factory=dict)
    dropped: int = 0
    episodes: dict[Key, Episode] = field(default_factory=dict)
    blocks: dict[tuple[Key, int], Block] = field(default_factory=dict)
    pendings: dict[Identity, Pending] = field(default_factory=dict)

    def read(self) -> None:
        """Read what there is, in the database as SQLite sees it and in a damaged WAL."""
        with contextlib.ExitStack() as stack:
            for path, immutable in self._databases(stack):
                try:
                    connection = connect(path, apsw.SQLITE_OPEN_READONLY, immutable=immutable)
                    self._take(connection, path)
                    connection.close()
                except (apsw.Error, JormungandrError):
                    continue

    @property
    def end(self) -> int:
        """The last position that was used, as far as anything says so."""
        return max([*self.rows, self.counters.lsn if self.counters else 0])

    def lost(self) -> list[int]:
        """Return the positions of rows that were there, and are damaged or gone."""
        assert self.created is not None
        controls = [row for row in self.rows.values() if row[1] not in DATA]
        if any(row[1] == "delete" for row in controls):
            return []
        skipped = {
            msgspec.json.decode(row[2])["skipped"] for row in controls if row[1] == SkipRow.kind
        }
        gone = self.dropped
        if self.created.origin:  # it has few of the CONTROL rows of its origin
            gone = max(gone, int(self.created.origin.rpartition("row ")[2]))
        return [
            lsn
            for lsn in range(1, self.end + 1)
            if lsn not in self.rows and (lsn in self.bad or lsn > gone) and lsn not in skipped
        ]

    def _databases(self, stack: contextlib.ExitStack) -> Iterator[tuple[Path, bool]]:
        """Yield the database as SQLite sees it and, if its WAL is damaged, with all of that."""
        yield stack.enter_context(untouched(self.database))
        try:
            check_wal(self.database)
        except DataDirError:
            with contextlib.suppress(DataDirError):
                yield stack.enter_context(untouched(self.database, mended_wal(self.database)))

    def _take(self, connection: apsw.Connection, path: Path) -> None:
        with contextlib.suppress(JormungandrError, msgspec.MsgspecError, apsw.Error):
            self.created = read_created(connection, path)
        for row in _each(connection, "meta"):
            with contextlib.suppress(JormungandrError, msgspec.MsgspecError):
                check("", *row)
                self._take_meta(row[0], msgspec.json.decode(row[1]))
        for row in _each(connection, "journal"):
            lsn, kind, payload, digest = row[:4]
            if _proves_itself(lsn, kind, payload, digest):
                self.rows[lsn] = row
                self.bad.pop(lsn, None)
            elif lsn not in self.rows and lsn > 0:
                self.bad[lsn] = _sane(row)
        for table in ("episode", "ledger", "pending_label"):
            for row in _each(connection, table):
                with contextlib.suppress(JormungandrError):
                    check("", *row)
                    self._take_ledger(table, row)

    def _take_meta(self, name: str, value: Any) -> None:
        if name == "dropped":
            self.dropped = max(self.dropped, value)
        elif name.startswith(name_of("")):
            known = self.tallies.get(name)
            if known is None or value["last"] >= known["last"]:
                self.tallies[name] = value
        elif name == "counters":
            found = Counters(**value)
            if self.counters is None or found.lsn > self.counters.lsn:
                self.counters = found

    def _take_ledger(self, table: str, row: tuple[Any, ...]) -> None:
        """Take in a row of the ledger; of two versions of one, both count."""
        if table == "episode":
            key, new = (row[0], row[1]), Episode(*row[2:6])
            old = self.episodes.get(key)
            if old is None or new.last >= old.last:
                self.episodes[key] = new
        elif table == "ledger":
            place = ((row[0], row[1]), row[2])
            self.blocks[place] = overlaid(self.blocks.get(place), block_from_bytes(row[3]))
        else:
            self.pendings[row[0], row[1], row[2]] = Pending(row[3], row[4])


def overlaid(below: Block | None, above: Block | None) -> Block:
    """Return the slots of two versions of a block; where both know one, the second counts."""
    if below is None or above is None:
        found = above if below is None else below
        assert found is not None
        return found
    block = new_block(max(len(below), len(above)), below)
    known = np.flatnonzero(above["state"])
    block[known] = above[known]
    return block


def _each(connection: apsw.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table up to the first that cannot be read; of the journal, beyond it."""
    try:
        yield from connection.execute(f"SELECT * FROM {table}")
        return
    except (apsw.Error, ValueError):
        if table != "journal":
            return
    pages = connection.execute("PRAGMA page_count").fetchone()
    size = connection.execute("PRAGMA page_size").fetchone()
    assert pages is not None
    assert size is not None
    for lsn in range(1, int(pages[0]) * int(size[0]) // SMALLEST):
        with contextlib.suppress(apsw.Error, ValueError):
            yield from connection.execute("SELECT * FROM journal WHERE lsn = ?", (lsn,))


def _proves_itself(lsn: int, kind: Any, payload: Any, digest: Any) -> bool:
    """Whether a row is what its digest was taken of."""
    if not (isinstance(kind, str) and isinstance(payload, bytes)):
        return False
    return bool(row_digest(lsn, kind, payload) == digest)


def _sane(row: RowColumns) -> RowColumns:
    """Return a damaged row with columns that can be written."""
    lsn, kind, payload, digest, *sums, actors, low, high = row
    counts = [n if isinstance(n, int) and 0 <= n <= LIMIT else 0 for n in sums]
    kind = kind if kind in KINDS else TransitionsRow.kind if any(counts) else "unknown"
    payload, digest = (v if isinstance(v, bytes) else b"" for v in (payload, digest))
    low, high = (v if isinstance(v, int) else None for v in (low, high))
    return lsn, kind, payload, digest, *counts, str(actors), low, high
