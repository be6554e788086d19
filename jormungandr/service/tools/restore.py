"""`restore`: a data directory made from a backup, whose policies go on in a new epoch."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError
from jormungandr.ledger import Draft
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import LineageRow
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import Lock
from jormungandr.service.tools.building import (
    building,
    check_apart,
    check_new,
    sync_all,
    unfinished,
    writing,
)
from jormungandr.service.tools.listing import check_listed
from jormungandr.service.tools.stored import model_folders
from jormungandr.service.tools.verification import check_model

__all__ = ["EPOCH", "INSIDE", "begin_epoch", "restore"]

#: A restored model numbers its policies from the next multiple of this on. No learner gets there by
#: updates (it would take 30 years at a thousand a second), and JSON's integers hold 9,000 of them.
EPOCH = 10**12
#: Where a directory that is there, and may be a volume of its own, is made.
INSIDE = ".restoring"
#: What an empty volume may hold.
NOTHING = {INSIDE, "lost+found"}


def restore(source: Path, data_dir: Path) -> Iterator[str]:
    """Make a data directory from a backup; yield a line per model.

    What was published after the backup was made is gone, but actors may have seen it: version
    numbers go on at the next multiple of `EPOCH`, so that none ever names two policies.

    Args:
        source: a backup.
        data_dir: made; may be there and empty.

    Raises:
        DataDirError: the backup is not whole, or `data_dir` holds something.
    """
    check_apart(source, data_dir)
    names = check_listed(source)
    empty = data_dir.is_dir() and {path.name for path in data_dir.iterdir()} <= NOTHING
    if not empty:
        check_new(data_dir)
    with _filling(data_dir) if empty else building(data_dir) as made:
        (made / "models").mkdir()
        for name in names:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            # Without its mode: a backup may be one that nobody is to write to.
            shutil.copyfile(source / name, made / name)
        for folder in model_folders(made, None):
            for finding in check_model(folder):
                if finding.status == "damage":
                    raise DataDirError(finding.where, "no damage", finding.text)
            yield begin_epoch(folder)
    lock = Lock(data_dir)
    lock.settle()
    lock.close()


@contextlib.contextmanager
def _filling(data_dir: Path) -> Iterator[Path]:
    """Yield a folder whose ``models`` moves to an empty directory when all has gone well."""
    with writing(data_dir), unfinished(data_dir / INSIDE) as made:
        yield made
        sync_all(made)
        (made / "models").rename(data_dir / "models")
        sync_folder(data_dir)


def begin_epoch(folder: Path) -> str:
    """Let the policies of a model go on at a number that was never used; return a line about it.

    Args:
        folder: of a model that no server has open.
    """
    journal = Journal(folder / "journal.db")
    try:
        created, deleted = journal.created, journal.deleted()
        lineages = journal.lineages()
        highest = max(
            created.first_version,
            deleted or 0,
            *(row.version for row in journal.versions()),
            *(row.version for row in lineages),
        )
        version = (highest // EPOCH + 1) * EPOCH
        if deleted is not None:
            journal.delete(version - 1)
            return f"{folder.name}: deleted; created again, it begins at policy {version}"
        # Where a learner goes on from: the state of the newest checkpoint, or of no row at all.
        found = checkpoints(folder)
        start = position(found[-1]) if found else 0
        made_by = lineages[-1].fingerprint if lineages else created.fingerprint
        journal.commit(Draft(journal), [], [LineageRow(made_by, start, version)])
        return f"{folder.name}: row {journal.counters.data_lsn}, policies go on at {version}"
    finally:
        journal.close()
