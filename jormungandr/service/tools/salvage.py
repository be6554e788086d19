"""`salvage`: a new data directory of everything in a damaged one that proves itself.

Nothing is repaired in place. A row that is whole keeps its position, content and digest. One that
is not is set aside by name, as a row that ended its learner would be: what came after it stays in
order, and no learner guesses. Where rows were lost, policies go on under numbers of a new epoch.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from jormungandr.errors import CheckpointError, DataDirError, JormungandrError
from jormungandr.ledger import (
    BLOCK,
    Block,
    Counters,
    Draft,
    Episode,
    MemoryStore,
    Pending,
    block_from_bytes,
    new_block,
)
from jormungandr.protocol import LIMITS
from jormungandr.rows import ACCEPTED, LabelsRow, TransitionsRow, decode_row, row_digest
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import (
    FORMAT,
    SCHEMA,
    Created,
    SkipRow,
    VersionRow,
    check,
    checksum,
    connect,
    make_durable,
    read_created,
)
from jormungandr.service.journal.summary import summary
from jormungandr.service.journal.wal_check import check_wal, mended_wal
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import reading
from jormungandr.service.tools.backup import begin_epoch, building, check_new
from jormungandr.service.tools.file_check import check_checkpoint, file_digest
from jormungandr.service.tools.findings import Finding, damage, gap, proven
from jormungandr.service.tools.readmission import Readmission
from jormungandr.service.tools.untouched import untouched
from jormungandr.service.tools.verification import check_model, model_folders

__all__ = ["salvage"]

DATA = (TransitionsRow.kind, LabelsRow.kind)
KINDS = (*DATA, "create", "version", "skip", "lineage", "delete")
#: More of anything than one row can hold.
LIMIT = LIMITS["transitions_per_request"]
COLUMNS = 11
#: Bytes of the smallest row: its digest and a little more.
SMALLEST = 40
NO_SUMS = (0, 0, 0, 0, "[]", None, None)


def salvage(data_dir: Path, out: Path, model_id: str | None = None) -> Iterator[Finding]:
    """Copy what proves itself; yield what was kept and what is lost.

    Args:
        data_dir: that no server uses; only read.
        out: made.
        model_id: only this one, in all its generations.

    Raises:
        DataDirError: `out` exists, or a server uses `data_dir`.
    """
    check_new(out)
    with reading(data_dir), building(out) as folder:
        (folder / "models").mkdir()
        for source in model_folders(data_dir, model_id):
            yield from _Model(source, folder / "models" / source.name).run()


class _Model:
    """One model: what is found of it, and what is made of that."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._where = f"models/{source.name}"
        self._rows: dict[int, tuple[Any, ...]] = {}  # that match their digest
        self._bad: dict[int, tuple[Any, ...]] = {}
        self._created: Created | None = None
        self._counters: Counters | None = None
        self._dropped = 0
        self._episodes: dict[tuple[str, str], Episode] = {}
        self._blocks: dict[tuple[tuple[str, str], int], Block] = {}
        self._pendings: dict[tuple[str, str, int], Pending] = {}

    def run(self) -> Iterator[Finding]:
        """Read, write, and say what became of it."""
        with contextlib.ExitStack() as stack:
            for path, immutable in self._databases(stack):
                try:
                    connection = connect(path, apsw.SQLITE_OPEN_READONLY, immutable=immutable)
                    self._read(connection, path)
                    connection.close()
                except (apsw.Error, JormungandrError):
                    continue
        whole = self._created is not None and 1 in self._rows
        if not whole or any(self._bad[lsn][1] in ("lineage", "delete") for lsn in self._bad):
            text = "lost: the row that says what it is, or one that says how it went on, is damaged"
            yield damage(self._where, text)
            return
        yield from self._write()

    # -- reading --------------------------------------------------------------------------------

    def _databases(self, stack: contextlib.ExitStack) -> Iterator[tuple[Path, bool]]:
        """Yield the database as SQLite sees it and, if its WAL is damaged, with all of that."""
        database = self._source / "journal.db"
        yield stack.enter_context(untouched(database))
        try:
            check_wal(database)
        except DataDirError:
            with contextlib.suppress(DataDirError):
                yield stack.enter_context(untouched(database, mended_wal(database)))

    def _read(self, connection: apsw.Connection, path: Path) -> None:
        with contextlib.suppress(JormungandrError, msgspec.MsgspecError, apsw.Error):
            self._created = read_created(connection, path)
        for row in _each(connection, "meta"):
            with contextlib.suppress(JormungandrError, msgspec.MsgspecError):
                check("", *row)
                value = msgspec.json.decode(row[1])
                if row[0] == "dropped":
                    self._dropped = max(self._dropped, value)
                elif row[0] == "counters":
                    found = Counters(**value)
                    if self._counters is None or found.lsn > self._counters.lsn:
                        self._counters = found
        for row in _each(connection, "journal"):
            lsn, kind, payload, digest = row[:4]
            if _proves_itself(lsn, kind, payload, digest):
                self._rows[lsn] = row
                self._bad.pop(lsn, None)
            elif lsn not in self._rows and lsn > 0:
                self._bad[lsn] = _sane(row)
        for table in ("episode", "ledger", "pending_label"):
            for row in _each(connection, table):
                with contextlib.suppress(JormungandrError):
                    check("", *row)
                    self._known(table, row)

    def _known(self, table: str, row: tuple[Any, ...]) -> None:
        """Take in a row of the ledger; of two versions of one, both count."""
        if table == "episode":
            key, new = (row[0], row[1]), Episode(*row[2:6])
            old = self._episodes.get(key)
            if old is None or new.last >= old.last:
                self._episodes[key] = new
        elif table == "ledger":
            place = ((row[0], row[1]), row[2])
            self._blocks[place] = _overlaid(self._blocks.get(place), block_from_bytes(row[3]))
        else:
            self._pendings[row[0], row[1], row[2]] = Pending(row[3], row[4])

    # -- writing --------------------------------------------------------------------------------

    def _write(self) -> Iterator[Finding]:
        assert self._created is not None
        end = max([*self._rows, self._counters.lsn if self._counters else 0])
        controls = {lsn: row for lsn, row in self._rows.items() if row[1] not in DATA}
        deleted = any(row[1] == "delete" for row in controls.values())
        skipped = {
            msgspec.json.decode(row[2])["skipped"]
            for row in controls.values()
            if row[1] == SkipRow.kind
        }
        copied = 0
        if self._created.origin:  # it has few of the CONTROL rows of its origin
            copied = max(self._dropped, int(self._created.origin.rpartition("row ")[2]))
        lost = [
            lsn
            for lsn in range(1, end + 1)
            if lsn not in self._rows
            and (lsn in self._bad or lsn > max(self._dropped, copied))
            and lsn not in skipped
            and not deleted
        ]
        self._target.mkdir(parents=True)
        readmission = self._readmitted(set(lost))
        self._journal(readmission, lost, end)
        journal = Journal(self._target / "journal.db")
        if lost:
            reasons = [SkipRow(lsn, "damaged, and lost in a salvage") for lsn in lost]
            journal.commit(Draft(journal), [], reasons)
        journal.close()
        yield proven(f"{self._where}/journal.db", f"{len(self._rows)} rows kept, up to {end}")
        for lsn in lost:
            yield damage(f"{self._where}/journal.db: row {lsn}", self._lost(lsn))
        yield from self._files()
        if lost:
            yield gap(self._where, begin_epoch(self._target))
        yield from (f for f in check_model(self._target) if f.status == "damage")

    def _lost(self, lsn: int) -> str:
        row = self._bad.get(lsn)
        if row is None:
            return "lost; nothing of it is left"
        if row[1] not in DATA:
            return f"lost: {row[1]!r}"
        sums = f"{row[4]} training and {row[5]} held-out transitions, {row[7]} labels"
        return f"lost: {row[1]} of {row[8]}, {sums}; they stay known, and are learned from no more"

    def _readmitted(self, lost: set[int]) -> Readmission:
        """Return the ledger that the rows make, ordinals as they were."""
        assert self._created is not None
        readmission = Readmission(self._created)
        store = readmission.store
        if self._dropped and self._counters is not None:
            here = [row for row in (*self._rows.values(), *self._bad.values()) if row[1] in DATA]
            store.counters = replace(
                store.counters,
                train=self._counters.train - sum(row[4] for row in here),
                validation=self._counters.validation - sum(row[5] for row in here),
            )
        hole = 0  # the last lost row of which nothing is left
        for lsn in sorted({*self._rows, *lost}):
            if lsn in lost:
                hole = hole if lsn in self._bad else lsn
                if lsn in self._bad and self._bad[lsn][1] in DATA:
                    self._count(store, self._bad[lsn][4:6])
            elif self._rows[lsn][1] in DATA:
                row = decode_row(lsn, *self._rows[lsn][1:3])
                if hole and isinstance(row, TransitionsRow):
                    self._fill(store, hole, self._ordinals(row))
                with contextlib.suppress(JormungandrError):  # it joins on to what is lost
                    readmission.add(row)
        if hole and self._counters is not None:
            self._fill(store, hole, (self._counters.train, self._counters.validation))
        return readmission

    def _ordinals(self, row: TransitionsRow) -> tuple[int, int]:
        """Return how many of each split were accepted before a row, by the ledger; else 0."""
        found = [0, 0]
        for split in (0, 1):
            mine = np.flatnonzero((row.columns.split == split) & (row.outcome == ACCEPTED))
            if len(mine):
                actor, episode, t = row.columns.identity(int(mine[0]))
                block = self._blocks.get(((actor, episode), t // BLOCK))
                if block is not None and t % BLOCK < len(block):
                    found[split] = int(block["ordinal"][t % BLOCK])
        return found[0], found[1]

    def _fill(self, store: MemoryStore, hole: int, due: tuple[int, int]) -> None:
        """Let a row of which nothing is left have held what is missing before the next one."""
        counters = store.counters
        missing = [max(0, due[0] - counters.train), max(0, due[1] - counters.validation)]
        if any(missing):
            columns = (hole, TransitionsRow.kind, b"", b"", *missing, 0, 0, "[]", None, None)
            self._bad[hole] = columns
            self._count(store, missing)

    def _count(self, store: MemoryStore, missing: Sequence[int]) -> None:
        now = store.counters
        store.counters = replace(
            now, train=now.train + missing[0], validation=now.validation + missing[1]
        )

    def _journal(self, readmission: Readmission, lost: list[int], end: int) -> None:
        """Write the database."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = connect(self._target / "journal.db", flags)
        make_durable(connection)
        with connection:
            connection.execute(SCHEMA)
            insert = f"INSERT INTO journal VALUES ({', '.join('?' * COLUMNS)})"
            for lsn, row in sorted(self._rows.items()):
                sums = summary(decode_row(lsn, row[1], row[2])) if row[1] in DATA else NO_SUMS
                connection.execute(insert, (*row[:4], *sums))
            for lsn in lost:  # its numbers count, whatever became of its content
                if lsn in self._bad and self._bad[lsn][1] in DATA:
                    connection.execute(insert, self._bad[lsn])
            whole = not lost and not self._dropped
            counters = self._ledger(connection, readmission, whole, end)
            meta = {"format": FORMAT, "counters": asdict(counters)}
            for name, value in (
                meta | ({"dropped": self._dropped} if self._dropped else {})
            ).items():
                _insert(connection, "meta", name, msgspec.json.encode(value))
        connection.close()

    def _ledger(
        self, connection: apsw.Connection, readmission: Readmission, whole: bool, end: int
    ) -> Counters:
        """Write the ledger: what the rows make, and of rows that are not here what was known."""
        made = readmission.store
        episodes, blocks, pendings = dict(made.episodes), dict(made.blocks), dict(made.pendings)
        if not whole:
            for key, episode in self._episodes.items():
                if key not in episodes or episode.last >= episodes[key].last:
                    episodes[key] = episode
            for place, block in self._blocks.items():
                blocks[place] = _overlaid(block, blocks.get(place))
            pendings = self._pendings or pendings
        for key, episode in episodes.items():
            _insert(connection, "episode", *key, *episode)
        for (key, number), block in blocks.items():
            _insert(connection, "ledger", *key, number, block.tobytes())
        for at, (identity, waiting) in enumerate(pendings.items()):
            _insert(connection, "pending_label", *identity, *waiting, at)
        data = max((lsn for lsn, row in self._rows.items() if row[1] in DATA), default=0)
        counters = made.counters
        if not whole and self._counters is not None:
            more = asdict(counters)
            counters = Counters(**{k: max(v, more[k]) for k, v in asdict(self._counters).items()})
            counters = replace(counters, pending=len(pendings))
            data = max(data, self._counters.data_lsn)
        return replace(counters, lsn=end, data_lsn=data)

    def _files(self) -> Iterator[Finding]:
        """Copy the checkpoints and policies that prove themselves."""
        journal = Journal(self._target / "journal.db")
        recorded = {row.version: row for row in journal.versions(1 << 30)}
        last = journal.counters.data_lsn
        journal.close()
        for path in checkpoints(self._source):
            where = f"{self._where}/checkpoints/{path.name}"
            try:
                check_checkpoint(path)
            except CheckpointError as error:
                yield damage(where, f"lost: {error}")
                continue
            if position(path) > last:
                yield damage(where, "lost: made from a newer journal")
                continue
            shutil.copytree(path, self._target / "checkpoints" / path.name)
            yield proven(where, "kept")
        policies = self._target / "policies"
        policies.mkdir()
        kept = 0
        for path in sorted((self._source / "policies").glob("*.safetensors")):
            row: VersionRow | None = recorded.get(int(path.stem)) if path.stem.isdigit() else None
            if row is None or file_digest(path) != row.file:
                yield damage(f"{self._where}/policies/{path.name}", "lost: not as recorded")
            else:
                shutil.copyfile(path, policies / path.name)
                kept += 1
        yield proven(f"{self._where}/policies", f"{kept} kept")


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


def _sane(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a damaged row with columns that can be written."""
    lsn, kind, payload, digest, *sums, actors, low, high = row
    counts = [n if isinstance(n, int) and 0 <= n <= LIMIT else 0 for n in sums]
    kind = kind if kind in KINDS else TransitionsRow.kind if any(counts) else "unknown"
    payload, digest = (v if isinstance(v, bytes) else b"" for v in (payload, digest))
    low, high = (v if isinstance(v, int) else None for v in (low, high))
    return lsn, kind, payload, digest, *counts, str(actors), low, high


def _overlaid(below: Block | None, above: Block | None) -> Block:
    """Return the slots of two versions of a block; where both know one, the second counts."""
    if below is None or above is None:
        found = above if below is None else below
        assert found is not None
        return found
    block = new_block(max(len(below), len(above)), below)
    known = np.flatnonzero(above["state"])
    block[known] = above[known]
    return block


def _insert(connection: apsw.Connection, table: str, *row: str | int | bytes) -> None:
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, checksum(*row)))
