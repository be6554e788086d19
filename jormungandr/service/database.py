"""The database of a journal: how it is opened, its tables, and the CONTROL rows in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

import apsw
import msgspec

from jormungandr.errors import DataDirError
from jormungandr.spec import ModelSpec

__all__ = [
    "Control",
    "Created",
    "LineageRow",
    "SkipRow",
    "VersionRow",
    "connect",
    "make_durable",
    "read_created",
    "read_meta",
]

FORMAT = 1
MINIMUM_SQLITE = (3, 51, 3)  # older ones can corrupt a WAL that several connections use
#: Milliseconds to wait for another connection.
BUSY_TIMEOUT = 10_000

SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE journal (
    lsn INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,              -- transitions, labels, create, version, delete
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
    PRIMARY KEY (actor, episode)
) WITHOUT ROWID;
CREATE TABLE ledger (
    actor TEXT NOT NULL, episode TEXT NOT NULL, block INTEGER NOT NULL, slots BLOB NOT NULL,
    PRIMARY KEY (actor, episode, block)
);
CREATE TABLE pending_label (
    actor TEXT NOT NULL, episode TEXT NOT NULL, timestep INTEGER NOT NULL,
    label INTEGER NOT NULL, since INTEGER NOT NULL, position INTEGER NOT NULL,
    PRIMARY KEY (actor, episode, timestep)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Created:
    """The CONTROL row a journal begins with: which model it is of, and its resolved spec."""

    model_id: str
    generation: int
    first_version: int
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class VersionRow:
    """The CONTROL row that precedes the first serving of a policy."""

    kind: ClassVar[str] = "version"

    version: int
    update_count: int
    applied_lsn: int
    digest: str


@dataclass(frozen=True, slots=True)
class SkipRow:
    """The CONTROL row that sets a data row aside: `skipped` is its position."""

    kind: ClassVar[str] = "skip"

    skipped: int
    reason: str


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


Control: TypeAlias = VersionRow | SkipRow | LineageRow


def connect(path: Path, flags: int) -> apsw.Connection:
    """Open a database with a SQLite that is new enough.

    Raises:
        DataDirError: it is not.
    """
    if tuple(map(int, apsw.sqlite_lib_version().split("."))) < MINIMUM_SQLITE:
        wanted = ".".join(map(str, MINIMUM_SQLITE))
        raise DataDirError("SQLite", f">= {wanted}", apsw.sqlite_lib_version(), "upgrade apsw")
    connection = apsw.Connection(str(path), flags=flags)
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
    # A WAL that was moved shrinks when it is next written: `move_wal` goes by its size.
    connection.execute("PRAGMA journal_size_limit=0").fetchall()


def read_created(connection: apsw.Connection, path: Path) -> Created:
    """Return what a journal is of.

    Raises:
        DataDirError: it is of another format, or has no create row.
    """
    if read_meta(connection, "format") != FORMAT:
        raise DataDirError(f"{path}: format", str(FORMAT), read_meta(connection, "format"))
    found = connection.execute("SELECT payload FROM journal WHERE kind = 'create'").fetchone()
    if found is None:
        raise DataDirError(str(path), "a create row", "none")
    body = msgspec.json.decode(cast("bytes", found[0]))
    return Created(
        body["model_id"],
        body["generation"],
        body["first_version"],
        ModelSpec.from_dict(body["spec"]),
    )


def read_meta(connection: apsw.Connection, name: str) -> Any:
    """Return a stored value by name; None when there is none."""
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if found is None else msgspec.json.decode(cast("bytes", found[0]))
