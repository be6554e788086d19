"""The tallies of actors in a journal: values of its `meta` table, one per actor."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from jormungandr.errors import DataDirError
from jormungandr.service.journal.database import DAMAGED, check
from jormungandr.tally import RECENT, Roll, Tally

__all__ = ["ALL", "StoredRoll", "name_of"]

_PREFIX = "actor:"
#: The condition that selects them all.
ALL = "name >= 'actor:' AND name < 'actor;'"


def name_of(actor: str) -> str:
    """Return the name of an actor's tally."""
    return _PREFIX + actor


class StoredRoll(Roll):
    """The most recently active actors in memory, all of them in the journal.

    Args:
        connection: that reads.
        path: of the database, for messages.

    Raises:
        DataDirError: a tally is not what was written.
    """

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        super().__init__(RECENT)
        self._connection, self._path = connection, path
        found = nlargest(RECENT + 1, self._all(), key=lambda item: item[1].last)
        self.take(dict(reversed(found)))

    def get(self, actor: str) -> Tally | None:
        """Return the tally of an actor; None when it has sent nothing."""
        found = super().get(actor)
        if found is None and not self.whole:
            try:
                found = dict(self._stored("name = ?", name_of(actor))).get(actor)
            except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
                where = str(self._path)
                raise DataDirError(where, "a whole database", error, DAMAGED) from None
        return found

    def _all(self) -> Iterator[tuple[str, Tally]]:
        for actor, tally in self._stored(ALL):
            self.offered = max(self.offered, tally.place)
            yield actor, tally

    def _stored(self, where: str, *values: str) -> Iterator[tuple[str, Tally]]:
        rows = self._connection.execute(f"SELECT * FROM meta WHERE {where}", values)
        for row in cast("Iterator[tuple[str, bytes, int]]", rows):
            check(f"{self._path}: meta {row[0]!r}", *row)
            fields: dict[str, Any] = msgspec.json.decode(row[1])
            yield row[0].removeprefix(_PREFIX), Tally(**fields)
