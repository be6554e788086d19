"""`salvage`: a new data directory of everything in a damaged one that proves itself.

Nothing is repaired in place. A row that is whole keeps its position, content and digest. One that
is not is set aside by name, as a row that ended its learner would be: what came after it stays in
order, and no learner guesses. Where rows were lost, policies go on under numbers of a new epoch.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apsw
import msgspec

from jormungandr.errors import CheckpointError
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.rows import decode_row
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import (
    FORMAT,
    SCHEMA,
    SkipRow,
    VersionRow,
    checksum,
    connect,
    make_durable,
    transaction,
)
from jormungandr.service.journal.summary import summary
from jormungandr.service.journal.tallies import name_of
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import reading
from jormungandr.service.tools.building import building, check_apart, check_new
from jormungandr.service.tools.file_check import check_checkpoint, file_digest
from jormungandr.service.tools.findings import Finding, damage, gap, proven
from jormungandr.service.tools.remade import RemadeLedger
from jormungandr.service.tools.remains import DATA, Remains
from jormungandr.service.tools.restore import begin_epoch
from jormungandr.service.tools.stored import model_folders
from jormungandr.service.tools.verification import check_model

__all__ = ["salvage"]

COLUMNS = 11
NO_SUMS = (0, 0, 0, 0, "[]", None, None)


def salvage(data_dir: Path, out: Path, model: str | None = None) -> Iterator[Finding]:
    """Copy what proves itself; yield what was kept and what is lost.

    Args:
        data_dir: that no server uses; only read.
        out: made.
        model: only this one: an id, in all its generations, or ``id.generation``.

    Raises:
        DataDirError: `out` exists or lies in `data_dir`, or a server uses that.
    """
    check_new(out)
    check_apart(data_dir, out)
    with reading(data_dir), building(out) as folder:
        (folder / "models").mkdir()
        for source in model_folders(data_dir, model):
            yield from _Model(source, folder / "models" / source.name).run()


class _Model:
    """One model: what is found of it, and what is made of that."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._where = f"models/{source.name}"
        self._remains = Remains(source / "journal.db")

    def run(self) -> Iterator[Finding]:
        """Read, write, and say what became of it."""
        remains = self._remains
        remains.read()
        whole = remains.created is not None and 1 in remains.rows
        if not whole or any(row[1] in ("lineage", "delete") for row in remains.bad.values()):
            text = "lost: the row that says what it is, or one that says how it went on, is damaged"
            yield damage(self._where, text)
            return
        lost = remains.lost()
        ledger = RemadeLedger(remains, lost)
        self._target.mkdir(parents=True)
        self._write(ledger, lost)
        kept = f"{len(remains.rows)} rows kept, up to {remains.end}"
        yield proven(f"{self._where}/journal.db", kept)
        for lsn in lost:
            yield damage(f"{self._where}/journal.db: row {lsn}", self._lost(lsn))
        yield from self._files()
        if lost:
            yield gap(self._where, begin_epoch(self._target))
        yield from (f for f in check_model(self._target) if f.status == "damage")

    def _lost(self, lsn: int) -> str:
        row = self._remains.bad.get(lsn)
        if row is None:
            return "lost; nothing of it is left"
        if row[1] not in DATA:
            return f"lost: {row[1]!r}"
        sums = f"{row[4]} training and {row[5]} held-out transitions, {row[7]} labels"
        return f"lost: {row[1]} of {row[8]}, {sums}; they stay known, and are learned from no more"

    # -- the journal ----------------------------------------------------------------------------

    def _write(self, ledger: RemadeLedger, lost: list[int]) -> None:
        """Write the database, and set aside what is lost."""
        path, dropped = self._target / "journal.db", self._remains.dropped
        connection = connect(path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        meta: dict[str, Any] = {"format": FORMAT, "counters": asdict(ledger.counters)}
        meta |= {name_of(actor): tally._asdict() for actor, tally in ledger.tallies.items()}
        if dropped:
            meta["dropped"] = dropped
        with contextlib.closing(connection):
            make_durable(connection)
            with transaction(connection):
                connection.execute(SCHEMA)
                self._write_rows(connection, lost)
                self._write_ledger(connection, ledger.store, meta)
        journal = Journal(path)
        if lost:
            reasons = [
                SkipRow(lsn, "damaged, and lost in a salvage", journal.accepted_train(lsn) or 0)
                for lsn in lost
            ]
            journal.commit(Draft(journal), [], reasons)
        journal.close()

    def _write_ledger(
        self, connection: apsw.Connection, store: MemoryStore, meta: dict[str, Any]
    ) -> None:
        for key, episode in store.episodes.items():
            _insert(connection, "episode", *key, *episode)
        for (key, number), block in store.blocks.items():
            _insert(connection, "ledger", *key, number, block.tobytes())
        for at, (identity, waiting) in enumerate(store.pendings.items()):
            _insert(connection, "pending_label", *identity, *waiting, at)
        for name, value in meta.items():
            _insert(connection, "meta", name, msgspec.json.encode(value))

    def _write_rows(self, connection: apsw.Connection, lost: list[int]) -> None:
        rows, bad = self._remains.rows, self._remains.bad
        insert = f"INSERT INTO journal VALUES ({', '.join('?' * COLUMNS)})"
        for lsn, row in sorted(rows.items()):
            sums = summary(decode_row(lsn, row[1], row[2])) if row[1] in DATA else NO_SUMS
            connection.execute(insert, (*row[:4], *sums))
        for lsn in lost:  # its numbers count, whatever became of its content
            if lsn in bad and bad[lsn][1] in DATA:
                connection.execute(insert, bad[lsn])

    # -- the files beside it --------------------------------------------------------------------

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
            copy = self._target / "checkpoints" / path.name
            copy.mkdir(parents=True)
            for file in path.iterdir():  # without its mode, as all the rest
                shutil.copyfile(file, copy / file.name)
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


def _insert(connection: apsw.Connection, table: str, *row: str | int | bytes) -> None:
    marks = ", ".join("?" * (len(row) + 1))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (*row, checksum(*row)))
