"""A journal's database against itself: digests, checksums, sums, and the ledger its rows make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from jormungandr.errors import JormungandrError
from jormungandr.ledger import Counters, MemoryStore
from jormungandr.rows import LabelsRow, Row, TransitionsRow, decode_row, row_digest
from jormungandr.service.journal.database import (
    SCHEMA,
    Created,
    LineageRow,
    SkipRow,
    VersionRow,
    check,
    connect,
    read_created,
)
from jormungandr.service.journal.decisions import DECISIONS, Decision
from jormungandr.service.journal.summary import summary
from jormungandr.service.journal.tallies import name_of
from jormungandr.service.tools.findings import NOT_CHECKSUM, Finding, damage, gap, proven
from jormungandr.service.tools.ledger_check import LedgerCheck
from jormungandr.service.tools.promotion_check import PromotionCheck
from jormungandr.service.tools.readmission import Readmission, same_rows
from jormungandr.service.tools.tally_check import TallyCheck
from jormungandr.tally import Roll

__all__ = ["JournalCheck"]

DATA = (TransitionsRow.kind, LabelsRow.kind)
CONTROLS: dict[str, Any] = {row.kind: row for row in (VersionRow, SkipRow, LineageRow)}
CONTROLS |= DECISIONS
#: The columns of rows, with the types of those that have one.
ROW = (
    "SELECT lsn, concat_ws(' ', typeof(kind), typeof(payload), typeof(digest), typeof(actors)),"
    " CAST(kind AS BLOB), payload, digest, accepted_train, accepted_validation, stale_dropped,"
    " labels, CAST(actors AS BLOB), min_version, max_version FROM journal ORDER BY lsn"
)
#: Findings of one kind that are named one by one.
NAMED = 20


@dataclass
class JournalCheck:
    """What is known of a journal after `run`.

    Args:
        path: of the database as it is opened.
        immutable: whether nobody writes to it.
        where: its name in findings.
    """

    path: Path
    immutable: bool
    where: str
    created: Created | None = None
    versions: list[VersionRow] = field(default_factory=list)
    lineages: list[LineageRow] = field(default_factory=list)
    skips: dict[int, SkipRow] = field(default_factory=dict)
    deleted: bool = False
    damaged: bool = False
    #: Positions of data rows that prove themselves.
    good: list[int] = field(default_factory=list)
    #: Positions of rows that do not.
    bad: list[int] = field(default_factory=list)
    #: Positions of rows that do not, and were set aside for it.
    lost: list[int] = field(default_factory=list)
    #: Accepted training transitions up to each good data row.
    train: dict[int, int] = field(default_factory=dict)
    #: Of each good data row, the first one that may have come in the same request.
    begins: dict[int, int] = field(default_factory=dict)
    #: Tallies by actor; None where one is not what its checksum was taken of.
    tallies: dict[str, Any] = field(default_factory=dict)
    last: int = 0
    #: Data rows up to here have been dropped to make room.
    gone: int = 0
    counters: Counters | None = None
    #: Whether the last commit is one that holds nothing; see `service.journal.wal_check`.
    sealed: bool = False
    promotions: PromotionCheck | None = None
    _again: Readmission | None = None
    #: Of the last good data row.
    _kind: str = ""

    def run(self) -> Iterator[Finding]:
        """Check everything, and yield what is found."""
        for finding in self._run():
            self.damaged |= finding.status == "damage"
            yield finding

    def _run(self) -> Iterator[Finding]:
        try:
            connection = connect(self.path, apsw.SQLITE_OPEN_READONLY, immutable=self.immutable)
        except apsw.Error as error:
            yield damage(self.where, f"not a database: {error}")
            return
        try:
            yield from self._structure(connection)
            self.created = read_created(connection, self.path)
            yield from self._meta(connection)
            if self.counters is not None:
                yield from self._rows(connection)
                yield from self._ledger_check().run(connection)
                yield from self._tally_check().run()
        except (apsw.Error, JormungandrError, msgspec.MsgspecError, TypeError, ValueError) as error:
            yield damage(self.where, str(error).replace(f"{self.path}: ", ""))
        finally:
            connection.close()

    def _ledger_check(self) -> LedgerCheck:
        assert self.created is not None
        assert self.counters is not None
        assert self._again is not None
        return LedgerCheck(
            self.where,
            self.counters,
            MemoryStore() if self.deleted else self._again.store,
            self.whole,
            self.deleted,
            self.last,
            self.good[-1] if self.good else 0,
            self.created.spec.split_scope == "episode",
        )

    def _tally_check(self) -> TallyCheck:
        assert self._again is not None
        expected = Roll() if self.deleted else self._again.store.roll
        end = self.last + 1
        return TallyCheck(self.where, self.tallies, expected, self.begins, self.whole, end)

    # -- the database ---------------------------------------------------------------------------

    def _structure(self, connection: apsw.Connection) -> Iterator[Finding]:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({NAMED})")]
        if found == ["ok"]:
            yield proven(self.where, "SQLite's integrity check")
        else:
            for text in found:
                yield damage(self.where, f"SQLite: {text}")
        wanted = connect(Path(":memory:"), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_MEMORY)
        wanted.execute(SCHEMA)
        # As bytes here and below: damaged text need not be any.
        listing = "SELECT type, name, tbl_name, CAST(sql AS BLOB) FROM sqlite_schema ORDER BY name"
        schema, there = wanted.execute(listing).fetchall(), connection.execute(listing).fetchall()
        # A journal has no index of its CONTROL rows before a server that makes one has opened it.
        if there not in (schema, [row for row in schema if row[:2] != ("index", "control")]):
            yield damage(self.where, "its tables are not those of a journal")
        wanted.close()

    def _meta(self, connection: apsw.Connection) -> Iterator[Finding]:
        values = {}
        for row in connection.execute("SELECT * FROM meta"):
            try:
                check("", *row)
                values[row[0]] = msgspec.json.decode(cast("bytes", row[1]))
            except (JormungandrError, msgspec.MsgspecError):
                yield damage(f"{self.where}: meta {row[0]!r}", NOT_CHECKSUM)
            if str(row[0]).startswith(name_of("")):
                self.tallies[str(row[0]).removeprefix(name_of(""))] = values.get(row[0])
        self.gone = values.get("dropped", 0)
        self.sealed = "seal" in values and values["seal"] == values.get("counters", {}).get("lsn")
        if "counters" in values:
            self.counters = Counters(**values["counters"])
        elif not self.damaged:
            yield damage(f"{self.where}: meta 'counters'", "missing")

    # -- its rows -------------------------------------------------------------------------------

    def _rows(self, connection: apsw.Connection) -> Iterator[Finding]:
        assert self.created is not None
        assert self.counters is not None
        self._again = Readmission(self.created)
        self.promotions = PromotionCheck(self.created.spec.promotion, self.gone)
        lsns: list[int] = []
        for row in connection.execute("SELECT * FROM journal WHERE kind = 'skip' ORDER BY lsn"):
            if row_digest(*cast("tuple[int, str, bytes]", row[:3])) == row[3]:
                skip = SkipRow(**msgspec.json.decode(cast("bytes", row[2])))
                self.skips.setdefault(skip.skipped, skip)
        for row in connection.execute(ROW):
            lsn = cast("int", row[0])
            lsns.append(lsn)
            fault = self._row(row)
            if fault is not None:
                self.bad.append(lsn)
                yield damage(f"{self.where}: row {lsn}", fault)
        self.last = lsns[-1] if lsns else 0
        yield from self._positions(lsns)
        fallen = [(a, b) for a, b in pairwise(self.versions) if a.version >= b.version]
        for a, b in fallen:
            yield damage(f"{self.where}: version {b.version}", f"comes after version {a.version}")
        if not self.bad:
            data = f"{len(self.good)} of data" + (", deleted" if self.deleted else "")
            yield proven(self.where, f"{len(lsns)} rows up to {self.last}, {data}: digests, sums")
        if self.versions and not fallen:
            newest = self.versions[-1].version
            yield proven(self.where, f"{len(self.versions)} policies up to {newest}, in order")
        yield from self.promotions.findings(self.where)

    def _row(self, row: tuple[Any, ...]) -> str | None:
        """Take in one row; return what is wrong with it."""
        lsn, types, raw, payload, digest, *columns, actors, low, high = row
        kind = str(raw or b"", errors="replace")
        columns += [str(actors or b"", errors="replace"), low, high]
        if types != "text blob blob text" or row_digest(lsn, kind, payload) != digest:
            if lsn in self.skips:
                self.lost.append(lsn)
                return None
            return "it is not what its SHA-256 was taken of"
        if kind in DATA:
            try:
                decoded = decode_row(lsn, kind, payload)
            except (JormungandrError, ValueError, LookupError, TypeError) as error:
                return f"not to be read: {error!r}"
            return self._data(decoded, tuple(columns))
        if tuple(columns) != (0, 0, 0, 0, "[]", None, None):
            return "a CONTROL row with sums"
        return self._control(lsn, kind, msgspec.json.decode(payload))

    def _control(self, lsn: int, kind: str, content: dict[str, Any]) -> str | None:
        try:
            control = CONTROLS[kind](**content) if kind in CONTROLS else None
        except TypeError as error:  # of a program that knows more
            return f"not to be read: {error}"
        if isinstance(control, VersionRow):
            self.versions.append(control)
        elif isinstance(control, LineageRow):
            self.lineages.append(control)
        elif kind in DECISIONS:
            assert self.promotions is not None
            whole = not (self.bad or self.lost)
            return self.promotions.decision(lsn, cast("Decision", control), whole)
        elif kind == "delete":
            self.deleted = True
        elif kind not in ("create", SkipRow.kind):
            return f"of a kind that is not known, {kind!r}"
        return None

    @property
    def whole(self) -> bool:
        """Whether every data row there ever was is here and proves itself, as far as seen."""
        return not (self.bad or self.lost or self.gone)

    def _data(self, row: Row, columns: tuple[Any, ...]) -> str | None:
        if columns != summary(row):
            return f"its columns say {columns}, and what it holds {summary(row)}"
        # A request's rows follow on each other, and labels are not divided.
        joins = row.lsn - 1 in self.begins and (self._kind, row.kind) != (LabelsRow.kind,) * 2
        self.begins[row.lsn] = self.begins[row.lsn - 1] if joins else row.lsn
        self._kind = row.kind
        self.good.append(row.lsn)
        before = self.train[self.good[-2]] if len(self.good) > 1 else 0
        self.train[row.lsn] = before + columns[0]
        # One that was set aside, nobody applies.
        if self.promotions is not None and row.lsn not in self.skips and columns[1]:
            self.promotions.data(cast("TransitionsRow", row))
        if self._again is None:
            return None
        try:
            again = self._again.add(row)
        except JormungandrError as error:
            return f"it contradicts the rows before it: {error}"
        if self.whole and not same_rows(row, again):
            return "its decisions are not those that the rows before it lead to"
        return None

    def _positions(self, lsns: list[int]) -> Iterator[Finding]:
        """Check that no row is missing but for a reason."""
        assert self.counters is not None
        end = max(self.counters.lsn, self.last)
        missing = sorted(set(range(1, end + 1)) - set(lsns)) if len(lsns) < end else []
        if self.deleted:
            missing = [lsn for lsn in missing if lsn > self.last]
        copied = self.created is not None and self.created.origin
        if copied:  # without most of the CONTROL rows of its origin
            end = self.versions[0].applied_lsn if self.versions else 0
            missing = [lsn for lsn in missing if lsn > end]
            yield gap(f"{self.where}: rows up to {end}", f"copied from {copied}: missing or not")
        for lsn in self.lost + [lsn for lsn in missing if lsn in self.skips]:
            yield gap(f"{self.where}: row {lsn}", f"set aside: {self.skips[lsn].reason}")
        lost = [lsn for lsn in missing if lsn not in self.skips and lsn > self.gone]
        for lsn in lost[:NAMED]:
            yield damage(f"{self.where}: row {lsn}", "missing")
        if len(lost) > NAMED:
            yield damage(f"{self.where}: row {lost[-1]}", f"missing, as {len(lost)} are in all")
        if self.gone and not self.deleted:
            yield gap(f"{self.where}: rows up to {self.gone}", "dropped to make room")
