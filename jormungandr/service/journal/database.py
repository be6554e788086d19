"""The database of a journal: how it is opened, its tables, and the CONTROL rows in it."""

from __future__ import annotations

import contextlib
import errno
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

import apsw
import msgspec

from jormungandr.errors import DataDirError
from jormungandr.rows import row_digest
from jormungandr.service.journal.decisions import Decision
from jormungandr.spec import ModelSpec

__all__ = [
    "Control",
    "Created",
    "LineageRow",
    "SkipRow",
    "VersionRow",
    "check",
    "checksum",
    "connect",
    "control_rows",
    "count_controls",
    "encode_created",
    "make_durable",
    "no_room",
    "read_created",
    "read_meta",
    "transaction",
]

FORMAT = 1
MINIMUM_SQLITE = (3, 51, 3)  # older ones can corrupt a WAL that several connections use
DAMAGED = "it is damaged; see what `jormungandr verify` says of the rest"
#: Milliseconds to wait for another connection.
BUSY_TIMEOUT = 10_000

#: The condition of CONTROL rows, word for word as in the index: SQLite uses it for no other one.
CONTROL = "kind NOT IN ('transitions', 'labels')"
INDEX = f"CREATE INDEX IF NOT EXISTS control ON journal (kind) WHERE {CONTROL}"
SCHEMA = f"""
CREATE TABLE meta (
    name TEXT PRIMARY KEY, value BLOB NOT NULL,  -- JSON
    checksum INTEGER NOT NULL        -- here and below: CRC-32 over the columns before it
) WITHOUT ROWID;
CREATE TABLE journal (
    lsn INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,              -- transitions, labels; create, version, skip, lineage, delete
    payload BLOB NOT NULL,
    digest BLOB NOT NULL,            -- SHA-256 over lsn, kind and payload
    accepted_train INTEGER NOT NULL DEFAULT 0,
    accepted_validation INTEGER NOT NULL DEFAULT 0,
    stale_dropped INTEGER NOT NULL DEFAULT 0,
    labels INTEGER NOT NULL DEFAULT 0,
    actors TEXT NOT NULL DEFAULT '[]',   -- JSON
    min_version INTEGER,
    max_version INTEGER
);
CREATE TABLE episode (
    actor TEXT NOT NULL, episode TEXT NOT NULL,
    split INTEGER NOT NULL, splits INTEGER NOT NULL, ended INTEGER NOT NULL, last INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (actor, episode)
) WITHOUT ROWID;
CREATE TABLE ledger (
    actor TEXT NOT NULL, episode TEXT NOT NULL, block INTEGER NOT NULL, slots BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (actor, episode, block)
);
CREATE TABLE pending_label (
    actor TEXT NOT NULL, episode TEXT NOT NULL, timestep INTEGER NOT NULL,
    label INTEGER NOT NULL, since INTEGER NOT NULL, position INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (actor, episode, timestep)
) WITHOUT ROWID;
{INDEX};
"""


@dataclass(frozen=True, slots=True)
class Created:
    """The CONTROL row a journal begins with: which model it is of, and its resolved spec.

    `fingerprint` is of the machine and libraries at that time; an empty one is not known, and
    nothing is compared with it. `origin` names the journal that its first rows were copied from.
    """

    model_id: str
    generation: int
    first_version: int
    spec: ModelSpec
    fingerprint: dict[str, str] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class VersionRow:
    """The CONTROL row that precedes the first serving of a policy."""

    kind: ClassVar[str] = "version"

    version: int
    update_count: int
    applied_lsn: int
    digest: str
    file: str  # SHA-256 of its file


@dataclass(frozen=True, slots=True)
class SkipRow:
    """The CONTROL row that sets a data row aside.

    Args:
        skipped: its position.
        reason: why.
        train: training transitions accepted with it: that row itself may be dropped one day.
    """

    kind: ClassVar[str] = "skip"

    skipped: int
    reason: str
    train: int = 0


@dataclass(frozen=True, slots=True)
class LineageRow:
    """The CONTROL row after which policies come from other numerics than those before.

    Args:
        fingerprint: of the machine and libraries that compute from here on.
        applied_lsn: position of the state that they went on from.
        version: number that its policy is given, past every one published before.
    """

    kind: ClassVar[str] = "lineage"

    fingerprint: dict[str, str]
    applied_lsn: int
    version: int


Control: TypeAlias = VersionRow | SkipRow | LineageRow | Decision


def checksum(*columns: str | int | bytes) -> int:
    """Return the CRC-32 of the columns of one row, as MessagePack: it finds damage, not intent."""
    return zlib.crc32(msgspec.msgpack.encode(columns))


def check(where: str, *row: Any) -> None:
    """Check a row of a table that ends with its checksum.

    Args:
        where: of the row, for the message.
        row: its columns, the checksum last.

    Raises:
        DataDirError: it is not what was written.
    """
    if checksum(*row[:-1]) != row[-1]:
        raise DataDirError(where, "its recorded checksum", "another", DAMAGED)


def connect(path: Path, flags: int, *, immutable: bool = False) -> apsw.Connection:
    """Open a database with a SQLite that is new enough.

    Args:
        path: of the file.
        flags: of SQLite.
        immutable: nobody writes to it, and no file is made beside it. A WAL is not looked at.

    Raises:
        DataDirError: it is not.
    """
    if tuple(map(int, apsw.sqlite_lib_version().split("."))) < MINIMUM_SQLITE:
        wanted = ".".join(map(str, MINIMUM_SQLITE))
        raise DataDirError("SQLite", f">= {wanted}", apsw.sqlite_lib_version(), "upgrade apsw")
    name = f"{path.absolute().as_uri()}?immutable=1" if immutable else str(path)
    flags |= apsw.SQLITE_OPEN_URI if immutable else 0
    connection = apsw.Connection(name, flags=flags)
    connection.set_busy_timeout(BUSY_TIMEOUT)
    return connection


def make_durable(connection: apsw.Connection) -> None:
    """Make every commit wait for the disk, and check that it does."""
    for pragma, wanted in (("journal_mode=WAL", "wal"), ("synchronous=FULL", 2)):
        connection.execute(f"PRAGMA {pragma}").fetchall()
        name = pragma.partition("=")[0]
        got = connection.execute(f"PRAGMA {name}").fetchone()
        if got is None or got[0] != wanted:
            raise DataDirError(f"PRAGMA {name}", str(wanted), got)
    if sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync=ON").fetchall()
    connection.execute("PRAGMA wal_autocheckpoint=0").fetchall()
    # A WAL that was moved shrinks when it is next written.
    connection.execute("PRAGMA journal_size_limit=0").fetchall()


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Write all of it or nothing.

    On a full disk SQLite has taken back by itself what was written, and a second time would be an
    error of its own, in the place of the one that tells.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def no_room(error: Exception) -> bool:
    """Whether an error of the system, or of SQLite, says that the volume is full.

    No room for the index of a WAL comes as an error of input and output.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "extendedresult", None)
    return isinstance(error, apsw.FullError) or code == apsw.SQLITE_IOERR_SHMSIZE


def encode_created(created: Created) -> bytes:
    """Return the payload of a create row."""
    return msgspec.json.encode(
        {
            "model_id": created.model_id,
            "generation": created.generation,
            "first_version": created.first_version,
            "spec": created.spec.to_dict(),
            "fingerprint": created.fingerprint,
            "origin": created.origin,
        }
    )


def read_created(connection: apsw.Connection, path: Path) -> Created:
    """Return what a journal is of.

    Raises:
        DataDirError: it is of another format, has no create row, or that one is damaged.
    """
    # Without its checksum: another format may have none.
    found = connection.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    if found is None or found[0] != msgspec.json.encode(FORMAT):
        raise DataDirError(f"{path}: format", str(FORMAT), found and found[0])
    rows = control_rows(connection, path, "create")
    if not rows:
        raise DataDirError(str(path), "a create row", "none")
    _, body = rows[0]
    return Created(
        body["model_id"],
        body["generation"],
        body["first_version"],
        ModelSpec.from_dict(body["spec"]),
        body["fingerprint"],
        body["origin"],
    )


def control_rows(
    connection: apsw.Connection, path: Path, kind: str, newest: int = -1
) -> list[tuple[int, Any]]:
    """Return (lsn, content) of the CONTROL rows of a kind, in order.

    Args:
        connection: to the database.
        path: of it, for messages.
        kind: of the rows.
        newest: only so many of the newest; -1 is all.

    Raises:
        DataDirError: a row does not match its digest.
    """
    found = connection.execute(
        # As bytes, as everywhere: damaged text need not be any.
        "SELECT lsn, CAST(payload AS BLOB), digest FROM journal"
        f" WHERE kind = ? AND {CONTROL} ORDER BY lsn DESC LIMIT ?",
        (kind, newest),
    ).fetchall()
    rows = []
    for lsn, payload, digest in cast("list[tuple[int, bytes, bytes]]", found):
        if row_digest(lsn, kind, payload) != digest:
            raise DataDirError(f"{path}: row {lsn}", "its recorded SHA-256", "another", DAMAGED)
        rows.append((lsn, msgspec.json.decode(payload)))
    return rows[::-1]


def count_controls(connection: apsw.Connection, path: Path) -> int | None:
    """Return how many CONTROL rows there are, by their index; None where there is no index yet.

    A damaged one could leave some out, and they would not be missed: a version number, say, that
    is given a second time.

    Raises:
        DataDirError: it holds others.
    """
    wanted = read_meta(connection, "controls")
    if wanted is None:  # of before there was an index
        return None
    found = connection.execute(f"SELECT count(*) FROM journal WHERE {CONTROL}").fetchone()
    if found != (wanted,):
        got = found and found[0]
        raise DataDirError(f"{path}: index control", f"{wanted} CONTROL rows", got, DAMAGED)
    return int(wanted)


def read_meta(connection: apsw.Connection, name: str) -> Any:
    """Return a stored value by name; None when there is none.

    Raises:
        DataDirError: it is not what was written.
    """
    found = connection.execute("SELECT * FROM meta WHERE name = ?", (name,)).fetchone()
    if found is None:
        return None
    check(f"journal.db: meta {name!r}", *found)
    return msgspec.json.decode(cast("bytes", found[1]))
