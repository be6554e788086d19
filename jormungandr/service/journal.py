"""The journal of one model: a durable, ordered SQLite database, and the ledger as a table of it.

A group of rows, the ledger blocks they touch and the counters are one transaction; whoever is
answered after it can rely on it. One connection writes; others only read, one short SELECT at a
time.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec
import numpy as np

from jormungandr.columns import TRAIN
from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError, StorageFull
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
from jormungandr.rows import ACCEPTED, Row, TransitionsRow, encode_row
from jormungandr.rows import row_digest as digest_of
from jormungandr.service.database import (
    FORMAT,
    SCHEMA,
    Control,
    Created,
    VersionRow,
    connect,
    make_durable,
    read_created,
    read_meta,
)

__all__ = ["Journal"]

log = logging.getLogger("jormungandr")

#: More labels than one commit can hold.
POSITIONS = 1 << 22
#: Ledger blocks and episodes held in memory.
CACHE = 20_000
#: WAL pages after which its content is moved to the database file.
WAL_PAGES = 4_000


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
        self._writer = connect(path, flags | (apsw.SQLITE_OPEN_CREATE if new else 0))
        make_durable(self._writer)
        if created is not None:
            self._create(created)
        else:
            # Rewrites and syncs every page: nothing that a failed sync left in memory passes for
            # durable.
            done = self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if done is None or done[0] != 0:
                raise DataDirError(str(path), "a journal that nobody else has open", "one in use")
        self._reader = connect(path, apsw.SQLITE_OPEN_READONLY)
        self.created = read_created(self._reader, path)
        self._counters = Counters(**read_meta(self._reader, "counters"))
        self._episodes: dict[Key, Episode] = {}
        self._blocks: dict[tuple[Key, int], Block] = {}
        self._pendings: dict[Identity, Pending] = {
            (a, e, t): Pending(label, since)
            for a, e, t, label, since in self._reader.execute(
                "SELECT actor, episode, timestep, label, since FROM pending_label ORDER BY position"
            )
        }

    def _create(self, created: Created) -> None:
        payload = msgspec.json.encode(
            {
                "model_id": created.model_id,
                "generation": created.generation,
                "first_version": created.first_version,
                "spec": created.spec.to_dict(),
            }
        )
        with self._guarded(), self._transaction():
            self._writer.execute(SCHEMA)
            self._write_meta("format", FORMAT)
            self._write_meta("counters", asdict(Counters(lsn=1)))
            self._write_control(1, "create", payload)
        sync_folder(self.path.parent)

    def _write_meta(self, name: str, value: Any) -> None:
        self._writer.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, msgspec.json.encode(value))
        )

    # -- the ledger's store ---------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """The totals as committed."""
        return self._counters

    def episode(self, key: Key) -> Episode | None:
        """Return what is known of an episode."""
        found = self._episodes.get(key)
        if found is None:
            row = self._reader.execute(
                "SELECT split, splits, ended, last FROM episode WHERE actor = ? AND episode = ?",
                key,
            ).fetchone()
            if row is None:
                return None
            found = self._episodes[key] = Episode(*cast("tuple[int, int, int, int]", row))
        return found

    def block(self, key: Key, number: int) -> Block | None:
        """Return one block of an episode."""
        found = self._blocks.get((key, number))
        if found is None:
            row = self._reader.execute(
                "SELECT slots FROM ledger WHERE actor = ? AND episode = ? AND block = ?",
                (*key, number),
            ).fetchone()
            if row is None:
                return None
            found = self._blocks[key, number] = block_from_bytes(cast("bytes", row[0]))
        return found

    def pending(self, identity: Identity) -> Pending | None:
        """Return the label that waits for a transition."""
        return self._pendings.get(identity)

    def pending_oldest(self) -> Iterator[tuple[Identity, Pending]]:
        """Iterate over waiting labels, oldest first."""
        return iter(self._pendings.items())

    # -- writing --------------------------------------------------------------------------------

    def commit(self, draft: Draft, rows: Sequence[Row], controls: Sequence[Control]) -> None:
        """Write one group and return when it is on the disk.

        Args:
            draft: the ledger's changes, made over this journal.
            rows: data rows, in order.
            controls: what else to record; their positions are taken from the draft.

        Raises:
            StorageFull: the disk is full; nothing of the group was kept.
        """
        with self._guarded(), self._transaction():
            for row in rows:
                self._write_row(row)
            for control in controls:
                draft.count(lsn=1)
                payload = msgspec.json.encode(asdict(control))
                self._write_control(draft.counters.lsn, control.kind, payload)
            self._write_ledger(draft)

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
            self._write_meta("counters", asdict(draft.counters))
        self._counters = draft.counters

    def _write_row(self, row: Row) -> None:
        payload = encode_row(row)
        values: dict[str, Any] = {"train": 0, "validation": 0, "stale": 0, "labels": 0}
        if isinstance(row, TransitionsRow):
            c, accepted = row.columns, row.outcome == ACCEPTED
            train = int(np.count_nonzero(accepted & (c.split == TRAIN)))
            values |= {
                "train": train,
                "validation": int(np.count_nonzero(accepted)) - train,
                "stale": int(np.count_nonzero(~accepted)),
                "labels": int(np.count_nonzero(c.label >= 0)),
                "actors": sorted({c.actors[k] for k in np.unique(c.actor)}),
                "low": int(c.policy_version.min()),
                "high": int(c.policy_version.max()),
            }
        else:
            actors = sorted({identity[0] for identity in row.identities})
            values |= {"labels": len(row.label), "actors": actors}
        self._writer.execute(
            "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row.lsn,
                row.kind,
                payload,
                digest_of(row.lsn, row.kind, payload),
                values["train"],
                values["validation"],
                values["stale"],
                values["labels"],
                msgspec.json.encode(values["actors"]).decode(),
                values.get("low"),
                values.get("high"),
            ),
        )

    def _write_control(self, lsn: int, kind: str, payload: bytes) -> None:
        self._writer.execute(
            "INSERT INTO journal (lsn, kind, payload, digest) VALUES (?, ?, ?, ?)",
            (lsn, kind, payload, digest_of(lsn, kind, payload)),
        )

    def _write_ledger(self, draft: Draft) -> None:
        self._writer.executemany(
            "INSERT OR REPLACE INTO episode VALUES (?, ?, ?, ?, ?, ?)",
            ((*key, *episode) for key, episode in draft.episodes.items()),
        )
        self._writer.executemany(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?)",
            ((*key, number, block.tobytes()) for (key, number), block in draft.blocks.items()),
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
                    "INSERT OR REPLACE INTO pending_label VALUES (?, ?, ?, ?, ?, ?)",
                    (*identity, *waiting, draft.counters.lsn * POSITIONS + position),
                )
        self._write_meta("counters", asdict(draft.counters))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn a full disk into our error, and end the process when a sync has failed.

        After a failed sync nobody knows what is on the disk, and asking again would lie: the kernel
        has marked the pages clean. Recovery after a restart reads what is there.
        """
        try:
            yield
        except apsw.FullError as error:
            remedy = "free some; nothing was kept"
            raise StorageFull("journal", "room on the disk", error, remedy) from None
        except apsw.IOError as error:
            log.critical("journal %s: %s; exiting", self.path, error)
            os._exit(74)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    def move_wal(self) -> None:
        """Move the WAL's content to the database file when it has grown; on the writer's thread."""
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size > WAL_PAGES * 4096:
            with self._guarded():
                self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    # -- reading --------------------------------------------------------------------------------

    def versions(self, newest: int = 10_000) -> list[VersionRow]:
        """Return up to so many of the newest published versions, oldest of them first."""
        rows = self._reader.execute(
            "SELECT payload FROM journal WHERE kind = 'version' ORDER BY lsn DESC LIMIT ?",
            (newest,),
        ).fetchall()
        decoded = [VersionRow(**msgspec.json.decode(cast("bytes", row[0]))) for row in rows]
        return decoded[::-1]

    def deleted(self) -> int | None:
        """Return the highest version ever published if the model was deleted, else None."""
        found = self._reader.execute("SELECT payload FROM journal WHERE kind = 'delete'").fetchone()
        if found is None:
            return None
        return int(msgspec.json.decode(cast("bytes", found[0]))["highest_version"])

    def close(self) -> None:
        """Close both connections."""
        self._reader.close()
        self._writer.close()
