"""Recovery: from the checkpoints of a model to the learner that reads on; in the child alone.

The newest checkpoint that verifies and belongs to this journal, else the one before it, else the
journal from its first row, where it is whole. What is refused is renamed, named in the log, and
never deleted.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.failpoints import reached
from jormungandr.service.child.lineage import check_course, enter
from jormungandr.service.journal.database import LineageRow
from jormungandr.service.journal.reader import JournalReader

__all__ = ["AGAIN", "check_end", "checkpoints", "position", "recover", "refused"]

log = logging.getLogger("jormungandr.host")

#: Ends the name of a second checkpoint of one position.
AGAIN = ".again"
#: End the names of checkpoints that were refused: damaged ones, and those that do not belong here.
ASIDE = (".corrupt", ".foreign")

_NAME = re.compile(rf"\d{{20}}({re.escape(AGAIN)})?")


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a model, oldest position first."""
    found = folder / "checkpoints"
    return sorted(p for p in found.glob("*") if _NAME.fullmatch(p.name)) if found.exists() else []


def position(checkpoint: Path) -> int:
    """Return the position of the last row that a checkpoint has applied, by its name."""
    return int(checkpoint.name.removesuffix(AGAIN))


def refused(folder: Path) -> list[str]:
    """Return the names of checkpoints of a model that were set aside."""
    found = folder / "checkpoints"
    return sorted(p.name for p in found.glob("*") if p.suffix in ASIDE) if found.exists() else []


def check_end(folder: Path, last: int) -> None:
    """Refuse a journal that ends before a checkpoint made from it: it is an older copy.

    To go on from it would give positions and versions that were used a second meaning.

    Args:
        folder: of the model.
        last: position of the journal's last data row.

    Raises:
        DataDirError: naming both.
    """
    newer = [path for path in checkpoints(folder) if position(path) > last]
    if newer:
        raise DataDirError(
            str(folder / "journal.db"),
            f"the journal that checkpoint {newer[-1].name} was made from",
            f"one that ends at row {last}",
            "put the newer journal back; to give up what it held, move the folders of newer"
            " checkpoints away",
        )


def recover(folder: Path, reader: JournalReader) -> Any:
    """Return the learner that reads on, at the position it has come to.

    Args:
        folder: of the model.
        reader: of its journal.

    Raises:
        CheckpointError: no checkpoint is usable, and rows before those kept would be needed.
        DataDirError: the journal is damaged, or older than a checkpoint.
    """
    # Imported here, in the process that needs torch, after its thread counts are set.
    import torch

    from jormungandr.learner.core import Core

    torch.use_deterministic_algorithms(True)
    for unfinished in (folder / "checkpoints").glob(".*.tmp"):
        shutil.rmtree(unfinished)  # of a learner that was killed as it wrote
    created, lineages, first = reader.created(), reader.lineages(), reader.first()
    check_end(folder, reader.last())
    for path in reversed(checkpoints(folder)):
        try:
            core = Core.load(path)
        except CheckpointError as error:
            _set_aside(path, ".corrupt", error)
            continue
        try:
            if core.generation != created.generation or core.spec != created.spec:
                raise CheckpointError(
                    str(path), f"one of {created.model_id!r}", "one that is of another model"
                )
            _check_place(core, path, first, lineages)
        except CheckpointError as error:
            _set_aside(path, ".foreign", error)
            continue
        reached("recovery.checkpoint")
        break
    else:
        if first > 1:
            aside = ", ".join(refused(folder)) or "no checkpoint"
            raise CheckpointError(
                str(folder / "checkpoints"),
                f"a checkpoint that verifies, since rows before {first} are no longer kept",
                f"none (set aside: {aside})",
                "put a whole one back from a copy, or restore a backup; without one the model can"
                " only be deleted",
            )
        core = Core(
            created.spec, generation=created.generation, first_version=created.first_version
        )
    enter(core, lineages)
    return core


def _check_place(core: Any, path: Path, first: int, lineages: Sequence[LineageRow]) -> None:
    """Refuse a state from which the journal's rows do not lead on.

    Raises:
        CheckpointError: it is not at the position of its name, rows after it are gone, or it went
            on where another lineage began.
    """
    lsn = core.progress.lsn
    if lsn != position(path):
        raise CheckpointError(str(path), "a state at the position of its name", f"one at row {lsn}")
    if lsn < first - 1:
        raise CheckpointError(str(path), f"one at row {first - 1} or later", "rows after it gone")
    check_course(core, lineages, str(path))


def _set_aside(path: Path, suffix: str, error: CheckpointError) -> None:
    log.error("checkpoint set aside: %s", error)
    aside = path.with_name(path.name + suffix)
    shutil.rmtree(aside, ignore_errors=True)  # an earlier one of this position
    path.rename(aside)
