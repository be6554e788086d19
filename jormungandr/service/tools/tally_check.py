"""`TallyCheck`: what a journal keeps of each actor against what its rows say of him."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jormungandr.service.tools.findings import Finding, damage, gap, proven
from jormungandr.tally import Roll, Tally

__all__ = ["COUNTS", "TallyCheck"]

#: Totals of an actor; of a journal whose rows are all here they are exact.
COUNTS = ("train", "validation", "stale_dropped", "version")


@dataclass(frozen=True)
class TallyCheck:
    """What tallies are compared with.

    A tally names the last row of a request for all that came in it, and the rows do not say where
    a request of several ended: so positions are within what may have been one. What is left of an
    actor's allowance depends on what was served when, and no row says that.

    Args:
        where: name of the journal in findings.
        got: tallies by actor, as the journal has them; None is one that was named before.
        expected: those that its rows make.
        begins: of each data row, the first one that may have come in the same request.
        whole: every data row there ever was is here and proves itself; otherwise tallies count
            more than the rows.
        end: a position behind the last one.
    """

    where: str
    got: Mapping[str, Any]
    expected: Roll
    begins: Mapping[int, int]
    whole: bool
    end: int

    def run(self) -> Iterator[Finding]:
        """Compare, and yield what is found."""
        tallies: dict[str, Tally] = {}
        damaged = False
        for actor, fields in self.got.items():
            try:
                if fields is not None:
                    tallies[actor] = Tally(**fields)
            except TypeError:
                damaged = True
                yield damage(self._name(actor), "not to be read")
        due = dict(self.expected.items())
        # Of a journal that is older than its tallies they begin with a later row, or are not there.
        since = min((tally.first for tally in tallies.values()), default=self.end)
        older = {actor for actor, tally in due.items() if tally.first < since}
        for actor in sorted(tallies.keys() | due.keys()):
            if actor not in tallies:
                wrong = [] if actor in older or actor in self.got else ["missing"]
            else:
                wrong = self._wrong(tallies[actor], due.get(actor, Tally()), actor in older)
            if wrong:
                damaged = True
                yield damage(self._name(actor), "; ".join(wrong))
        if damaged or not (due or tallies):
            return
        where = f"{self.where}: tallies"
        if older:
            text = f"they begin with row {since}" if tallies else "there are none"
            yield gap(where, f"{text}, and need not count what is older than they are")
        elif not self.whole:
            yield gap(where, "no less than the rows say; of rows that are not here they alone say")
        else:
            yield proven(where, f"{len(tallies)} actors, as the rows say")

    def _name(self, actor: str) -> str:
        return f"{self.where}: meta {'actor:' + actor!r}"

    def _wrong(self, got: Tally, due: Tally, older: bool) -> list[str]:
        """Return in which ways a tally is not what the rows say."""
        wrong = []
        for name in COUNTS:
            have, want = getattr(got, name), getattr(due, name)
            # More than the rows say where some are gone, less where some are older than it.
            if (have < want and not older) or (have > want and self.whole):
                wrong.append(f"{name} {have}, and by the rows {want}")
        if self.whole and not older and not self._meets(got.first, due.first):
            wrong.append(f"first row {got.first}, and by the rows {due.first}")
        if got.last < due.last or (self.whole and not self._meets(got.last, due.last)):
            wrong.append(f"last row {got.last}, and by the rows {due.last}")
        if (got.place < due.place and not older) or (self.whole and got.place > self._stream):
            wrong.append(f"place {got.place} of {self._stream}, and by the rows {due.place}")
        return wrong

    @property
    def _stream(self) -> int:
        return self.expected.offered

    def _meets(self, got: int, due: int) -> bool:
        """Whether a request that ended with one row may have held another."""
        return self.begins.get(got, got + 1) <= due <= got
