"""`RemadeLedger`: the ledger that what remains of a journal makes, with ordinals as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import numpy as np

from jormungandr.errors import JormungandrError
from jormungandr.ledger import BLOCK, Counters, MemoryStore
from jormungandr.rows import ACCEPTED, TransitionsRow, decode_row
from jormungandr.service.journal.tallies import name_of
from jormungandr.service.tools.readmission import Readmission
from jormungandr.service.tools.remains import DATA, Remains, overlaid
from jormungandr.service.tools.tally_check import COUNTS
from jormungandr.tally import Tally

__all__ = ["RemadeLedger"]


class RemadeLedger:
    """What the rows make, and of rows that are not here what was known.

    A row of which nothing is left becomes one of `Remains.bad`, with as many transitions as are
    missing before the next one.

    Args:
        remains: of a model whose first row is whole.
        lost: positions of rows that are damaged or gone.

    Attributes:
        store: the ledger.
        counters: its totals.
        tallies: of each actor, as it was known, and no less than the rows say.
    """

    def __init__(self, remains: Remains, lost: Iterable[int]) -> None:
        assert remains.created is not None
        self._remains, self._lost = remains, set(lost)
        self._readmission = Readmission(remains.created)
        self.store: MemoryStore = self._readmission.store
        self._begin()
        self._readmit()
        self.counters = self._completed()
        self.tallies = self._counted()

    def _begin(self) -> None:
        """Count what was accepted with rows that were dropped to make room."""
        remains = self._remains
        if not remains.dropped or remains.counters is None:
            return
        here = [row for row in (*remains.rows.values(), *remains.bad.values()) if row[1] in DATA]
        self.store.counters = replace(
            self.store.counters,
            train=remains.counters.train - sum(row[4] for row in here),
            validation=remains.counters.validation - sum(row[5] for row in here),
        )

    def _readmit(self) -> None:
        rows, bad, known = self._remains.rows, self._remains.bad, self._remains.counters
        hole = 0  # the last lost row of which nothing is left
        for lsn in sorted({*rows, *self._lost}):
            if lsn in self._lost:
                hole = hole if lsn in bad else lsn
                if lsn in bad and bad[lsn][1] in DATA:
                    self._count(bad[lsn][4:6])
            elif rows[lsn][1] in DATA:
                row = decode_row(lsn, *rows[lsn][1:3])
                if hole and isinstance(row, TransitionsRow):
                    self._fill(hole, self._ordinals(row))
                with contextlib.suppress(JormungandrError):  # it joins on to what is lost
                    self._readmission.add(row)
        if hole and known is not None:
            self._fill(hole, (known.train, known.validation))

    def _ordinals(self, row: TransitionsRow) -> tuple[int, int]:
        """Return how many of each split were accepted before a row, by the ledger; else 0."""
        found = [0, 0]
        for split in (0, 1):
            mine = np.flatnonzero((row.columns.split == split) & (row.outcome == ACCEPTED))
            if len(mine):
                actor, episode, t = row.columns.identity(int(mine[0]))
                block = self._remains.blocks.get(((actor, episode), t // BLOCK))
                if block is not None and t % BLOCK < len(block):
                    found[split] = int(block["ordinal"][t % BLOCK])
        return found[0], found[1]

    def _fill(self, hole: int, due: tuple[int, int]) -> None:
        """Let a row of which nothing is left have held what is missing before the next one."""
        now = self.store.counters
        missing = [max(0, due[0] - now.train), max(0, due[1] - now.validation)]
        if any(missing):
            columns = (hole, TransitionsRow.kind, b"", b"", *missing, 0, 0, "[]", None, None)
            self._remains.bad[hole] = columns
            self._count(missing)

    def _count(self, missing: Sequence[int]) -> None:
        now = self.store.counters
        self.store.counters = replace(
            now, train=now.train + missing[0], validation=now.validation + missing[1]
        )

    def _completed(self) -> Counters:
        """Add what was known of rows that are not here; return the totals."""
        remains, made = self._remains, self.store
        data = max((lsn for lsn, row in remains.rows.items() if row[1] in DATA), default=0)
        counters = made.counters
        if self._lost or remains.dropped:
            for key, episode in remains.episodes.items():
                if key not in made.episodes or episode.last >= made.episodes[key].last:
                    made.episodes[key] = episode
            for place, block in remains.blocks.items():
                made.blocks[place] = overlaid(block, made.blocks.get(place))
            made.pendings = remains.pendings or made.pendings
            if remains.counters is not None:
                more, known = asdict(counters), asdict(remains.counters)
                counters = Counters(**{k: max(v, more[k]) for k, v in known.items()})
                counters = replace(counters, pending=len(made.pendings))
                data = max(data, remains.counters.data_lsn)
        return replace(counters, lsn=remains.end, data_lsn=data)

    def _counted(self) -> dict[str, Tally]:
        found = dict(self.store.roll.items())
        for name, fields in self._remains.tallies.items():
            actor, known = name.removeprefix(name_of("")), Tally(**fields)
            made = found.get(actor, Tally())
            if all(getattr(made, count) <= getattr(known, count) for count in COUNTS):
                found[actor] = known
                continue
            # An older copy, or one of a journal that is older than its tallies.
            most = {n: max(getattr(made, n), getattr(known, n)) for n in (*COUNTS, "last", "place")}
            found[actor] = known._replace(first=min(made.first, known.first), **most)
        return found
