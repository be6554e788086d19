"""`verify`: a data directory against itself, row by row and policy by policy.

Nothing in it is written. What is found is yielded as it is found: what is proven, what could not be
and why, and what is damaged. Learners are run again in a process of their own,
`service.tools.rebuild`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jormungandr.errors import DataDirError
from jormungandr.service.child.process import THREADS
from jormungandr.service.journal.wal_check import check_wal
from jormungandr.service.lock import reading
from jormungandr.service.tools.file_check import check_files, check_top
from jormungandr.service.tools.findings import Finding, damage, gap, proven, undone
from jormungandr.service.tools.journal_check import JournalCheck
from jormungandr.service.tools.stored import model_folders
from jormungandr.service.tools.untouched import untouched

__all__ = ["check_model", "verify"]


def verify(
    data_dir: Path, model: str | None = None, *, full: bool = False, rebuild: bool = True
) -> Iterator[Finding]:
    """Check a data directory that no server uses.

    Args:
        data_dir: of a service.
        model: only this one: an id, in all its generations, or ``id.generation``.
        full: run the learner again from the first row, where it is kept.
        rebuild: run the learner again at all.

    Raises:
        DataDirError: there is none, or a server uses it.
        ModelUnknown: it holds no such model.
    """
    with reading(data_dir):
        if model is None:
            yield from check_top(data_dir)
        for folder in model_folders(data_dir, model):
            yield from check_model(folder, rebuild, full)


def check_model(folder: Path, rebuild: bool = False, full: bool = False) -> Iterator[Finding]:
    """Check one model of a directory that the caller has locked; see `verify`."""
    name = f"models/{folder.name}"
    where = f"{name}/journal.db"
    try:
        wal = check_wal(folder / "journal.db")
    except DataDirError as error:
        yield damage(f"{name}/{Path(error.where).name}", str(error).partition(": ")[2])
    else:
        if wal.torn:
            text = f"a commit that did not end ({wal.torn} frames); nobody was told of it"
            yield gap(f"{where}-wal", text)
        if wal.commits:
            yield proven(f"{where}-wal", f"{wal.commits} commits, checksums of every page")
    with untouched(folder / "journal.db") as (path, immutable):
        journal = JournalCheck(path, immutable, where)
        yield from journal.run()
        if not immutable and journal.counters is not None and not journal.sealed:
            text = (
                "nothing follows its last commit: damaged, it would pass for one that did not end"
            )
            yield gap(f"{where}-wal", text)
        yield from check_files(folder, name, journal)
        if journal.created is None or journal.deleted or not rebuild:
            return
        if folder.name != f"{journal.created.model_id}.{journal.created.generation}":
            of = f"{journal.created.model_id}.{journal.created.generation}"
            yield damage(name, f"its journal is of {of}")
        if journal.damaged:
            yield gap(name, "the learner was not run again: the journal is damaged")
            return
        yield from _rebuilt(folder, name, path, immutable, journal, full)


def _rebuilt(
    folder: Path, name: str, path: Path, immutable: bool, journal: JournalCheck, full: bool
) -> Iterator[Finding]:
    """Run the learner again, as a server runs it: in a process with the same threads."""
    assert journal.created is not None
    options = {"folder": str(folder), "journal": str(path), "name": name}
    flags: dict[str, Any] = {"immutable": immutable, "full": full}
    threads = str(journal.created.spec.threads)
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "jormungandr.service.tools.rebuild",
            json.dumps(options | flags),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(THREADS, threads)},
        text=True,
    )
    assert process.stdout is not None
    with process, process.stdout:
        for line in process.stdout:
            yield Finding(*json.loads(line))
    if process.returncode:
        status = process.returncode
        text = f"the learner was not run again to the end: its process ended with {status}"
        yield undone(name, text)
