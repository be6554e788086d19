"""The learner run again over a journal, and compared: states with checkpoints, bit for bit.

Started by `service.tools.verification` with ``python -m jormungandr.service.tools.rebuild
OPTIONS``, as a process of its own for the reason that `service.child.host` is one: its thread
counts are set before its libraries are loaded. It writes findings to its standard output, one JSON
line each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from jormungandr.errors import CheckpointError, JormungandrError
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.child.lineage import check_course, enter
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.tools.findings import Finding, damage, gap, proven
from jormungandr.service.tools.state_check import contradictions, differences

__all__ = ["Rebuild"]

ROWS = 64
#: Differences that are named one by one.
NAMED = 20


class Rebuild:
    """One model, made again from its rows.

    Args:
        folder: of the model, for its checkpoints.
        journal: its database, as it is opened.
        name: of the model in findings.
        immutable: whether nobody writes to the database.
        full: from the first row, if it is kept, and not from the older checkpoint.
    """

    def __init__(
        self, folder: str, journal: str, name: str, *, immutable: bool, full: bool
    ) -> None:
        self._folder, self._name, self._full = Path(folder), name, full
        self._reader = JournalReader(Path(journal), immutable=immutable)
        self._created = self._reader.created()
        self._lineages = self._reader.lineages()
        self._recorded = {row.version: row for row in self._reader.versions()}
        self._fingerprint = fingerprint(self._created.spec.threads)
        self._core: Any = None
        #: Why what is made from here on need not be what was made then; None while it must be.
        self._estranged: str | None = None
        self._skipped = 0
        self._same: set[int] = set()
        self._other: list[Finding] = []
        self._apart: dict[int, str] = {}  # version to why it was not compared

    def run(self) -> Iterator[Finding]:
        """Run, and yield what is found."""
        import torch

        from jormungandr.learner.checkpoint import read_checkpoint
        from jormungandr.learner.core import Core

        torch.use_deterministic_algorithms(True)
        usable = []
        for path in checkpoints(self._folder):
            try:
                state = read_checkpoint(path)
            except CheckpointError:
                continue  # named by who compares digests
            wrong = contradictions(path, state, self._reader)
            for text in wrong:
                yield damage(f"{self._where(path)}/state.json", text)
            if not wrong:
                count = int(state[1]["normalizer.count"])
                sums = f"row, specification, {count // 2} training transitions"
                yield proven(self._where(path), f"{sums}, normalizer count {count}")
                usable.append(path)
        first = self._reader.first()
        if first == 1 and (self._full or len(usable) < 2):
            created = self._created
            self._core = Core(
                created.spec, generation=created.generation, first_version=created.first_version
            )
        elif usable:
            self._core = Core.load(usable[0])
            check_course(self._core, self._lineages, str(usable[0]))
            why = "a full check runs them" if first == 1 else "rows were dropped to make room"
            text = f"states and policies up to row {position(usable[0])} were not made again: {why}"
            yield gap(self._name, text)
            usable = usable[1:]
        else:
            yield gap(self._name, "nothing was made again: no checkpoint, and rows were dropped")
            return
        start = (self._core.progress.lsn, self._core.progress.version)
        enter(self._core, self._lineages)
        self._meet()
        rows = 0
        while batch := self._reader.rows(self._core.progress.lsn, ROWS):
            for row in batch:
                self._look_at_lineage()
                if row.kind == "skipped":
                    self._skipped += 1
                    self._estranged = f"row {row.lsn} was set aside"
                self._core.apply(row, self._meet)
                rows += 1
                for path in usable:
                    if position(path) == row.lsn:
                        yield from self._compare(path)
                enter(self._core, self._lineages)
                self._meet()
        yield from self._summary(start, rows)

    # -- checkpoints ----------------------------------------------------------------------------

    def _where(self, path: Path) -> str:
        return f"{self._name}/checkpoints/{path.name}"

    def _compare(self, path: Path) -> Iterator[Finding]:
        """Compare a checkpoint with the state that was made again, and go on from either."""
        from jormungandr.learner.checkpoint import read_checkpoint
        from jormungandr.learner.core import Core

        where, state = self._where(path), read_checkpoint(path)
        known = state[0]["progress"]["lineages"]
        if known > len(self._lineages) or known < self._core.progress.lineages:
            yield gap(where, "not compared: it is of a lineage that was given up")
            return
        enter(self._core, self._lineages[:known])
        if self._estranged is not None:
            yield gap(where, f"not compared: {self._estranged}")
            try:
                core = Core.load(path)
                check_course(core, self._lineages, where)
            except CheckpointError:
                return
            self._core, self._estranged = core, None
            return
        with tempfile.TemporaryDirectory(prefix="jormungandr-") as folder:
            self._core.save(Path(folder) / "state")
            different = differences(read_checkpoint(Path(folder) / "state"), state)
        for text in different[:NAMED]:
            yield damage(f"{where}/{text}", "made again it has other bits")
        if not different:
            text = f"made again from the rows: {len(state[1])} tensors and all values, bit for bit"
            yield proven(where, text)

    # -- policies -------------------------------------------------------------------------------

    def _look_at_lineage(self) -> None:
        """Note when what follows was computed by another machine."""
        passed = self._core.progress.lineages
        made_by = self._created.fingerprint
        if passed:
            made_by = self._lineages[passed - 1].fingerprint
        other = sorted(k for k in made_by if made_by[k] != self._fingerprint.get(k))
        if other:
            names = ", ".join(f"{k} {made_by[k]!r}" for k in other)
            self._estranged = f"made by other numerics than there are here ({names})"

    def _meet(self) -> None:
        """Compare a policy with its record, if there is one."""
        version = self._core.served_version
        row = self._recorded.get(version)
        if row is None or version in self._same or version in self._apart:
            return
        self._look_at_lineage()
        if self._estranged is not None:
            self._apart[version] = self._estranged
            return
        self._same.add(version)
        if self._core.snapshot().digest() != row.digest:
            self._other.append(
                damage(
                    f"{self._name}/journal.db: version {version}", "made again it has other bits"
                )
            )

    def _summary(self, start: tuple[int, int], rows: int) -> Iterator[Finding]:
        lsn, version = start
        yield from self._other[:NAMED]
        last = self._core.progress.lsn
        met = len(self._same) - len(self._other)
        if rows:
            yield proven(self._name, f"{rows} rows after {lsn} up to {last} run again")
        if met:
            yield proven(self._name, f"{met} policies made again, bit for bit as recorded")
        for why, count in Counter(self._apart.values()).items():
            yield gap(self._name, f"{count} policies were not compared: {why}")
        end = self._core.progress.version
        due = {v for v in self._recorded if version <= v <= end}
        unmet = sorted(due - self._same - self._apart.keys())
        # What was served of a row that ended its learner, or of a lineage before it was given up.
        excused = self._lineages or self._skipped or self._core.progress.quarantined
        for v in unmet[:NAMED]:
            where = f"{self._name}/journal.db: version {v}"
            if excused:
                yield gap(where, "not made again: the learner went on from an earlier state")
            else:
                yield damage(where, "no row leads to it")
        earlier = sum(v < version for v in self._recorded)
        if earlier:
            yield gap(self._name, f"{earlier} earlier policies were not made again")
        beyond = sorted(v for v in self._recorded if v > end)
        for v in beyond[:NAMED]:
            yield damage(f"{self._name}/journal.db: version {v}", "no row leads to it")


def main(arguments: list[str]) -> int:
    """Run one model again; return the exit status."""
    try:
        for finding in Rebuild(**json.loads(arguments[0])).run():
            print(json.dumps(astuple(finding)), flush=True)
    except JormungandrError as error:
        finding = damage(error.where, str(error).partition(": ")[2])
        print(json.dumps(astuple(finding)), flush=True)
    except ModuleNotFoundError as error:
        text = f"the learner was not run again: {error}"
        print(json.dumps(astuple(gap(json.loads(arguments[0])["name"], text))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
