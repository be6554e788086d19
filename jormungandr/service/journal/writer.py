"""The journal of one model: a durable, ordered SQLite database, and the ledger as a table of it.

A group of rows, the ledger blocks they touch and the counters are one transaction; whoever is
answered after it can rely on it. One connection writes; others only read, one short SELECT at a
time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError, Overloaded, StorageFull, Unavailable
from jormungandr.failpoints import reached
from jormungandr.ledger import (
    Block,
    Counters,
    Draft,
    Episode,
    Identity,
    Key,
    Pending,
    block_from_bytes,
)
from jormungandr.rows import Row, encode_row
from jormungandr.rows import row_digest as digest_of
from jormungandr.service.journal.database import (
    CONTROL,
    DAMAGED,
    FORMAT,
    INDEX,
    SCHEMA,
    Control,
    Created,
    LineageRow,
    SkipRow,
    VersionRow,
    check,
    checksum,
    connect,
    control_rows,
    count_controls,
    encode_created,
    make_durable,
    no_room,
    read_created,
    read_meta,
    transaction,
)
from jormungandr.service.journal.decisions import DECISIONS, Decision
from jormungandr.service.journal.mover import WalMover, end_process
from jormungandr.service.journal.summary import summary
from jormungandr.service.journal.tallies import ALL, StoredRoll, name_of
from jormungandr.service.journal.wal_check import check_wal

__all__ = ["Journal"]

#: More labels than one commit can hold.
POSITIONS = 1 << 22
#: Ledger blocks and episodes held in memory.
CACHE = 20_000
_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
_json = msgspec.json.Encoder().encode
#: Rows dropped at most in one transaction.
DROPPED = 1_024


class Journal:
    """The writing side; also the ledger's `Store`, over a bounded cache.

    `commit` runs on one thread at a time and touches only the writing connection; every other
    method belongs to the thread that admits.

    Args:
        path: of the database file; created if `created` is given.
        created: what to write into a new journal.
    """

    def __init__(self, path: Path, created: Created | None = None) -> None:
        self.path = path
        flags = apsw.SQLITE_OPEN_READWRITE
        new = created is not None
        if not new:
            check_wal(path)
        self._writer = connect(path, flags | (apsw.SQLITE_OPEN_CREATE if new else 0))
        make_durable(self._writer)
        self._wal = WalMover(path)
        if created is not None:
            self._create(created)
        else:
            # Rewrites and syncs every page: nothing that a failed sync left in memory passes for
            # durable.
            done = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if done is None or done[0] != 0:
                raise DataDirError(str(path), "a journal that nobody else has open", "one in use")
            reached("recovery.wal")
        self._writer.set_wal_hook(self._committed)
        self._reader = connect(path, apsw.SQLITE_OPEN_READONLY)
        self._controls = count_controls(self._reader, path)
        if self._controls is None:
            self._index()
        self.created = read_created(self._reader, path)
        self._counters = Counters(**read_meta(self._reader, "counters"))
        self._episodes: dict[Key, Episode] = {}
        self._blocks: dict[tuple[Key, int], Block] = {}
        self._pendings: dict[Identity, Pending] = {}
        self.roll = StoredRoll(self._reader, path)
        for row in self._reader.execute("SELECT * FROM pending_label ORDER BY position"):
            a, e, t, waiting, since, *_ = cast("tuple[str, str, int, int, int, int, int]", row)
            check(f"{path}: pending_label of {(a, e, t)}", *row)
            self._pendings[a, e, t] = Pending(waiting, since)

    def _create(self, created: Created) -> None:
        with self._guarded(), self._transaction():
            self._writer.execute(SCHEMA)
            self._write_meta("format", FORMAT)
            self._write_meta("counters", asdict(Counters(lsn=1)))
            self._write_control(1, "create", encode_created(created))
            self._write_meta("controls", 1)
        sync_folder(self.path.parent)

    def _index(self) -> None:
        """Give a journal that was made before there was one the index of its CONTROL rows."""
        with contextlib.suppress(Unavailable), self._guarded(), self._transaction():
            self._writer.execute(INDEX)
            found = self._writer.execute(f"SELECT count(*) FROM journal WHERE {CONTROL}").fetchone()
            (count,) = cast("tuple[int]", found)
            self._write_meta("controls", count)
            self._controls = count

    def _write_meta(self, name: str, value: Any) -> None:
        self._writer.execute(_META, _checked(name, _json(value)))

    # -- the ledger's store ---------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """The totals as committed."""
        return self._counters

    def episode(self, key: Key) -> Episode | None:
        """Return what is known of an episode."""
        found = self._episodes.get(key)
        if found is None:
            row = self._read("SELECT * FROM episode WHERE actor = ? AND episode = ?", *key)
            if row is None:
                return None
            check(f"{self.path}: episode of {key}", *row)
            found = self._episodes[key] = Episode(*cast("tuple[int, int, int, int]", row[2:6]))
        return found

    def block(self, key: Key, number: int) -> Block | None:
        """Return one block of an episode."""
        found = self._blocks.get((key, number))
        if found is None:
            row = self._read(
                "SELECT * FROM ledger WHERE actor = ? AND episode = ? AND block = ?", *key, number
            )
            if row is None:
                return None
            check(f"{self.path}: ledger of {(*key, number)}", *row)
            found = self._blocks[key, number] = block_from_bytes(cast("bytes", row[3]))
        return found

    def pending(self, identity: Identity) -> Pending | None:
        """Return the label that waits for a transition."""
        return self._pendings.get(identity)

    def pending_oldest(self) -> Iterator[tuple[Identity, Pending]]:
        """Iterate over waiting labels, oldest first."""
        return iter(self._pendings.items())

    def _read(self, statement: str, *values: str | int) -> Any:
        try:
            return self._reader.execute(statement, values).fetchone()
        except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
            raise DataDirError(str(self.path), "a whole database", error, DAMAGED) from None

    # -- writing --------------------------------------------------------------------------------

    def commit(self, draft: Draft, rows: Sequence[Row], controls: Sequence[Control]) -> None:
        """Write one group and return when it is on the disk.

        Args:
            draft: the ledger's changes, made over this journal.
            rows: data rows, in order.
            controls: what else to record; their positions are taken from the draft.

        Raises:
            StorageFull: the disk is full; nothing of the group was kept.
            Overloaded: another process writes to the database; nothing was kept either.
        """
        reached("commit.before")
        with self._guarded(), self._transaction():
            for row in rows:
                self._write_row(row)
            for control in controls:
                draft.count(lsn=1)
                payload = msgspec.json.encode(asdict(control))
                self._write_control(draft.counters.lsn, control.kind, payload)
            counted = self._count_controls(len(controls))
            self._write_ledger(draft)
            reached("commit.written")
        self._controls = counted
        reached("commit.durable")

    def merged(self, draft: Draft) -> None:
        """Take a committed draft into the cache."""
        if len(self._blocks) > CACHE or len(self._episodes) > CACHE:
            self._blocks.clear()
            self._episodes.clear()
        self._episodes.update(draft.episodes)
        self._blocks.update(draft.blocks)
        for identity, waiting in draft.pendings.items():
            self._pendings.pop(identity, None)
            if waiting is not None:
                self._pendings[identity] = waiting
        self.roll.take(draft.roll.tallies)
        self._counters = draft.counters

    def delete(self, highest_version: int) -> None:
        """Record that the model is gone, and drop its data; only CONTROL rows stay.

        Raises:
            StorageFull: the disk is full; the model is as it was.
        """
        with self._guarded(), self._transaction():
            draft = Draft(self)
            draft.count(lsn=1)
            payload = msgspec.json.encode({"highest_version": highest_version})
            self._write_control(draft.counters.lsn, "delete", payload)
            self._writer.execute("DELETE FROM journal WHERE kind IN ('transitions', 'labels')")
            for table in ("episode", "ledger", "pending_label"):
                self._writer.execute(f"DELETE FROM {table}")
            self._writer.execute(f"DELETE FROM meta WHERE {ALL}")
            self._write_meta("counters", asdict(draft.counters))
            counted = self._count_controls(1)
        self._counters, self._controls = draft.counters, counted
        # Nobody will use the freed pages again: the next generation has a database of its own.
        with contextlib.suppress(Unavailable), self._guarded(), self._wal.writing:
            self._writer.execute("VACUUM")

    def drop_rows(self, upto: int, size: int) -> int:
        """Drop the oldest data rows in one small transaction; their ledger stays.

        On the writer's thread, like `commit`.

        Args:
            upto: position of the last row that may go.
            size: bytes of payload after which it is enough.

        Returns:
            How many rows went.

        Raises:
            StorageFull: the disk is full; nothing went.
        """
        where = "lsn > ? AND lsn <= ? AND kind IN ('transitions', 'labels')"
        first = int(read_meta(self._writer, "dropped") or 0)
        found = self._writer.execute(
            f"SELECT lsn, length(payload) FROM journal WHERE {where} ORDER BY lsn LIMIT ?",
            (first, upto, DROPPED),
        ).fetchall()
        count, total = 0, 0
        for _, length in cast("list[tuple[int, int]]", found):
            if total >= size:
                break
            count, total = count + 1, total + length
        if count:
            reached("retention.before")
            last = cast("int", found[count - 1][0])
            with self._guarded(), self._transaction():
                self._writer.execute(f"DELETE FROM journal WHERE {where}", (first, last))
                self._write_meta("dropped", last)
            reached("retention.after")
        return count

    def _write_row(self, row: Row) -> None:
        payload = encode_row(row)
        self._writer.execute(
            "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row.lsn, row.kind, payload, digest_of(row.lsn, row.kind, payload), *summary(row)),
        )

    def _write_control(self, lsn: int, kind: str, payload: bytes) -> None:
        self._writer.execute(
            "INSERT INTO journal (lsn, kind, payload, digest) VALUES (?, ?, ?, ?)",
            (lsn, kind, payload, digest_of(lsn, kind, payload)),
        )

    def _count_controls(self, more: int) -> int | None:
        """Write how many CONTROL rows there are when so many are added; None without an index."""
        if self._controls is None or not more:
            return self._controls
        self._write_meta("controls", self._controls + more)
        return self._controls + more

    def _write_ledger(self, draft: Draft) -> None:
        self._writer.executemany(
            "INSERT OR REPLACE INTO episode VALUES (?, ?, ?, ?, ?, ?, ?)",
            (_checked(*key, *episode) for key, episode in draft.episodes.items()),
        )
        self._writer.executemany(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?)",
            (
                _checked(*key, number, block.tobytes())
                for (key, number), block in draft.blocks.items()
            ),
        )
        for position, (identity, waiting) in enumerate(draft.pendings.items()):
            if waiting is None:
                self._writer.execute(
                    "DELETE FROM pending_label WHERE actor = ? AND episode = ? AND timestep = ?",
                    identity,
                )
            else:
                # The position keeps the order of arrival across restarts.
                self._writer.execute(
                    "INSERT OR REPLACE INTO pending_label VALUES (?, ?, ?, ?, ?, ?, ?)",
                    _checked(*identity, *waiting, draft.counters.lsn * POSITIONS + position),
                )
        tallies = ((name_of(actor), _json(t._asdict())) for actor, t in draft.roll.tallies.items())
        self._writer.executemany(_META, (_checked(*row) for row in tallies))
        self._write_meta("counters", asdict(draft.counters))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn what may pass into our errors, and end the process when a sync has failed."""
        try:
            yield
        except apsw.CorruptError as error:
            raise DataDirError(str(self.path), "a whole database", error, DAMAGED) from None
        except apsw.BusyError as error:
            expected = "nobody else who writes to it"
            raise Overloaded("journal", expected, error, "nothing was kept") from None
        except (apsw.FullError, apsw.IOError) as error:
            if not no_room(error):
                end_process(self.path, error)
            remedy = "free some; nothing was kept"
            raise StorageFull("journal", "room on the disk", error, remedy) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._wal.writing, transaction(self._writer):
            yield

    def _committed(self, _: apsw.Connection, __: str, pages: int) -> int:
        self._wal.committed(pages)
        return apsw.SQLITE_OK

    def seal(self) -> None:
        """Write a commit that holds nothing: behind it, damage to the last one is seen as such.

        Without it that one could be one that a power cut tore; see `wal_check`.

        Raises:
            StorageFull: the disk is full.
        """
        with self._guarded(), self._transaction():
            self._write_meta("seal", self._counters.lsn)

    # -- reading --------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Return the bytes of the database's pages that hold something; freed ones are used again.

        Of what is committed; that some of it is in the WAL still does not matter.
        """
        pages, free, size = (
            cast("tuple[int]", self._read(f"PRAGMA {name}"))[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def first(self) -> int:
        """Return the position from which on every data row is kept."""
        return int(read_meta(self._reader, "dropped") or 0) + 1

    def payload_bytes(self, after: int, upto: int) -> int:
        """Return the bytes of the data rows after a position, up to another."""
        (total,) = self._read(
            "SELECT coalesce(sum(length(payload)), 0) FROM journal"
            " WHERE lsn > ? AND lsn <= ? AND kind IN ('transitions', 'labels')",
            after,
            upto,
        )
        return int(total)

    def lineages(self) -> list[LineageRow]:
        """Return the lineages so far, in the order in which they began."""
        rows = control_rows(self._reader, self.path, LineageRow.kind)
        return [LineageRow(**content) for _, content in rows]

    def versions(self, newest: int = 10_000) -> list[VersionRow]:
        """Return up to so many of the newest published versions, oldest of them first."""
        rows = control_rows(self._reader, self.path, "version", newest)
        return [VersionRow(**content) for _, content in rows]

    def decisions(self) -> list[Decision]:
        """Return what was decided about promotions, oldest first."""
        found = [
            (lsn, row(**content))
            for kind, row in DECISIONS.items()
            for lsn, content in control_rows(self._reader, self.path, kind)
        ]
        return [decision for _, decision in sorted(found, key=lambda pair: pair[0])]

    def skips(self) -> list[SkipRow]:
        """Return what sets data rows aside, oldest first."""
        rows = control_rows(self._reader, self.path, SkipRow.kind)
        return [SkipRow(**content) for _, content in rows]

    def accepted_train(self, lsn: int) -> int | None:
        """Return the training transitions accepted with a data row; None when it is none."""
        found = self._reader.execute(
            "SELECT accepted_train FROM journal"
            " WHERE lsn = ? AND kind IN ('transitions', 'labels')",
            (lsn,),
        ).fetchone()
        return None if found is None else int(cast("int", found[0]))

    def deleted(self) -> int | None:
        """Return the highest version ever published if the model was deleted, else None."""
        found = control_rows(self._reader, self.path, "delete")
        return int(found[-1][1]["highest_version"]) if found else None

    def close(self) -> None:
        """Close every connection."""
        self._wal.close()
        self._reader.close()
        self._writer.close()


def _checked(*columns: str | int | bytes) -> tuple[str | int | bytes, ...]:
    """Return the columns of a row with their checksum."""
    return (*columns, checksum(*columns))
