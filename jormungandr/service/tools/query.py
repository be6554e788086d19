"""`Query`: SQL over a model's journal that can read and do nothing else, with views to ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import apsw.ext
import msgspec

from jormungandr.errors import InvalidValue
from jormungandr.protocol import SPLITS
from jormungandr.records import WholeEpisodes
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.service.tools.flat import Layout
from jormungandr.service.tools.stored import StoredModel

__all__ = ["Query"]

#: What SQLite may be asked to do. Everything else is refused: writing, ATTACH, PRAGMA.
ALLOWED = {
    apsw.SQLITE_SELECT,
    apsw.SQLITE_READ,
    apsw.SQLITE_FUNCTION,
    apsw.SQLITE_RECURSIVE,
}

#: Steps of SQLite's machine between two looks for an interruption: some milliseconds.
STEPS = 100_000
#: What a statement may end with; text of a result need not be any.
FAULTS = (apsw.Error, UnicodeDecodeError)

VIEWS = """
CREATE TEMP VIEW versions AS SELECT lsn,
    json_extract(CAST(payload AS TEXT), '$.version') AS version,
    json_extract(CAST(payload AS TEXT), '$.update_count') AS update_count,
    json_extract(CAST(payload AS TEXT), '$.applied_lsn') AS applied_lsn,
    json_extract(CAST(payload AS TEXT), '$.digest') AS digest
    FROM journal WHERE kind = 'version';
CREATE TEMP VIEW controls AS SELECT lsn, kind, CAST(payload AS TEXT) AS content
    FROM journal WHERE kind NOT IN ('transitions', 'labels');
"""


class Query:
    """One SELECT, running.

    Beside the tables of the journal there are ``transitions``, one row per transition with the
    columns of `Layout`, ``episodes``, one row per whole episode with its return and its tags, and
    the views ``versions`` and ``controls``.

    Args:
        stored: the model; its connection is of no other use afterwards.
        statement: the SELECT.

    Raises:
        InvalidValue: not SQL, more than one statement, or one that would do more than read.
    """

    def __init__(self, stored: StoredModel, statement: str) -> None:
        connection = stored.connection
        connection.execute(VIEWS)
        _add_transitions(connection, stored)
        _add_episodes(connection, stored)
        connection.execute("PRAGMA query_only = ON").fetchall()
        connection.authorizer = _authorize
        self._cursor = connection.cursor()
        self._begun = False
        #: Names of the result's columns.
        self.names: tuple[str, ...] = ()
        self._cursor.exec_trace = self._begin
        # Whoever interrupts a long statement is heard: here Python looks whether somebody has.
        connection.set_progress_handler(lambda: False, STEPS)
        try:
            self._cursor.execute(statement)
        except FAULTS as error:
            raise _refused(error) from None
        if not self.names:
            raise InvalidValue("SQL", "a SELECT", repr(statement))

    def _begin(self, cursor: apsw.Cursor, statement: str, _: Any) -> bool:
        if self._begun:
            raise InvalidValue("SQL", "one statement", f"another: {statement.strip()!r}")
        self._begun = True
        self.names = tuple(column[0] for column in cursor.get_description())
        return True

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the result.

        Raises:
            InvalidValue: it ends with an error.
        """
        try:
            yield from self._cursor
        except FAULTS as error:
            raise _refused(error) from None


def _authorize(operation: int, *_: str | None) -> int:
    return apsw.SQLITE_OK if operation in ALLOWED else apsw.SQLITE_DENY


def _refused(error: Exception) -> InvalidValue:
    return InvalidValue("SQL", "a SELECT that SQLite can run", error, "the journal is read only")


def _add_transitions(connection: apsw.Connection, stored: StoredModel) -> None:
    """Make the table ``transitions`` of what the payloads of the journal hold."""
    layout = Layout(stored.spec)
    # The arrays of images are no values of SQL.
    images = ("observation", "next_observation")
    names = [name for name in layout.names if name not in images]

    def transitions() -> Iterator[tuple[Any, ...]]:
        for row in stored.transitions():
            arrays = layout.arrays(row)
            yield from zip(*(arrays[name].tolist() for name in names), strict=True)

    _make(connection, "transitions", transitions, names)


#: Columns of the table ``episodes``.
EPISODE = (
    *("actor_id", "episode_id", "split", "length", "return", "low_version", "high_version"),
    *("terminated", "tags"),
)


def _add_episodes(connection: apsw.Connection, stored: StoredModel) -> None:
    """Make the table ``episodes`` of the accepted transitions of those that came whole."""

    def episodes() -> Iterator[tuple[Any, ...]]:
        whole = WholeEpisodes()
        for row in stored.rows():
            if isinstance(row, TransitionsRow):
                for e in whole.add(row.columns.take(row.outcome == ACCEPTED)):
                    tags = msgspec.json.encode(dict(e.tags)).decode() if e.tags else None
                    yield (*e[:2], SPLITS[e.split], *e[3:-1], tags)

    _make(connection, "episodes", episodes, EPISODE)


def _make(connection: apsw.Connection, name: str, rows: Any, columns: Sequence[str]) -> None:
    """Make a virtual table of what a function yields."""
    rows.columns = tuple(columns)
    rows.column_access = apsw.ext.VTColumnAccess.By_Index
    apsw.ext.make_virtual_module(connection, name, rows)
