"""`LedgerCheck`: the ledger of a journal against the one that its rows make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import apsw
import numpy as np

from jormungandr.errors import JormungandrError
from jormungandr.ledger import Counters, MemoryStore, block_from_bytes
from jormungandr.service.journal.database import check
from jormungandr.service.tools.findings import NOT_CHECKSUM, Finding, damage, gap, proven

__all__ = ["LedgerCheck"]


@dataclass(frozen=True)
class LedgerCheck:
    """What a ledger is compared with.

    Args:
        where: name of the journal in findings.
        counters: its totals, as it has them.
        expected: the ledger that its rows make.
        whole: every data row there ever was is here and proves itself; otherwise the ledger knows
            more than they do.
        deleted: the model was deleted, and its ledger with it.
        last, last_data: positions of the last row, and of the last data row.
        one_split: an episode has one split.
    """

    where: str
    counters: Counters
    expected: MemoryStore
    whole: bool
    deleted: bool
    last: int
    last_data: int
    one_split: bool

    def run(self, connection: apsw.Connection) -> Iterator[Finding]:
        """Compare, and yield what is found."""
        damaged = False
        for finding in self._compared(connection):
            damaged = True
            yield finding
        if damaged:
            return
        if not self.whole:
            text = "its checksums are right; of rows that are not here nothing else says more"
            yield gap(f"{self.where}: ledger", text)
        else:
            known = self.counters.accepted + self.counters.stale_dropped
            yield proven(f"{self.where}: ledger", f"{known} identities, as the rows say")

    def _compared(self, connection: apsw.Connection) -> Iterator[Finding]:
        """Yield damage."""
        tables: dict[str, tuple[int, dict[Any, Any]]] = {
            "episode": (2, {key: tuple(e) for key, e in self.expected.episodes.items()}),
            "ledger": (3, {(*k, n): b.tobytes() for (k, n), b in self.expected.blocks.items()}),
            "pending_label": (3, {i: tuple(p) for i, p in self.expected.pendings.items()}),
        }
        for table, (keys, wanted) in tables.items():
            yield from self._table(connection, table, keys, wanted)
        if self.one_split:
            rows = connection.execute("SELECT actor, episode FROM episode WHERE splits = 3")
            for key in rows.fetchall():
                where = f"{self.where}: episode of {key}"
                yield damage(where, "it has transitions of both splits")
        yield from self._totals()

    def _table(
        self, connection: apsw.Connection, table: str, keys: int, wanted: dict[Any, Any]
    ) -> Iterator[Finding]:
        """Compare a table with what the rows make, as far as they are all there."""
        order = " ORDER BY position" if table == "pending_label" else ""
        seen = []
        for row in connection.execute(f"SELECT * FROM {table}{order}"):
            key = row[:keys]
            seen.append(key)
            where = f"{self.where}: {table} of {key}"
            try:
                check(where, *row)
            except JormungandrError:
                yield damage(where, NOT_CHECKSUM)
                continue
            value: Any = row[keys:-1] if table != "ledger" else row[keys]
            value = value[:2] if table == "pending_label" else value
            if self.whole and wanted.get(key) != value:
                yield damage(where, "it is not what the rows say")
            elif table == "ledger" and not self.whole and key in wanted:
                yield from _slots(where, wanted[key], value)
        if self.whole and seen != list(wanted) and (set(seen) != set(wanted) or order):
            missing = sorted(set(wanted) - set(seen))
            text = f"{len(missing)} missing, such as {missing[:1]}" if missing else "their order"
            yield damage(f"{self.where}: {table}", text)

    def _totals(self) -> Iterator[Finding]:
        wanted = replace(self.expected.counters, lsn=self.last, data_lsn=self.last_data)
        if self.deleted:
            wanted = replace(self.counters, lsn=self.last)
        if self.whole and self.counters != wanted:
            got, due = asdict(self.counters), asdict(wanted)
            wrong = {k: f"{got[k]}, and by the rows {due[k]}" for k in got if got[k] != due[k]}
            yield damage(f"{self.where}: meta 'counters'", wrong)


def _slots(where: str, wanted: bytes, got: bytes) -> Iterator[Finding]:
    """Check what rows that are still here say of a block."""
    due, have = block_from_bytes(wanted), block_from_bytes(got)
    known = np.flatnonzero(due["state"])
    for name in ("digest", "state", "split"):
        if known[-1] >= len(have) or (due[name][known] != have[name][known]).any():
            yield damage(where, f"its {name}s are not what the rows say")
            return
