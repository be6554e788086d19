"""Recovery: from the checkpoints of a model to the learner that reads on; in the child alone."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from jormungandr.errors import CheckpointError
from jormungandr.service.database import Created

__all__ = ["checkpoints", "recover"]

log = logging.getLogger("jormungandr.host")


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders of a model, oldest position first."""
    found = folder / "checkpoints"
    return sorted(p for p in found.glob("*") if p.name.isdigit()) if found.exists() else []


def recover(folder: Path, created: Created) -> Any:
    """Return the newest checkpoint that verifies, or a new learner: every row is kept.

    Args:
        folder: of the model.
        created: what the journal's first row says.
    """
    # Imported here, in the process that needs torch, after its thread counts are set.
    import torch

    from jormungandr.learner.core import Core

    torch.use_deterministic_algorithms(True)
    for unfinished in (folder / "checkpoints").glob(".*.tmp"):
        shutil.rmtree(unfinished)  # of a learner that was killed as it wrote
    for path in reversed(checkpoints(folder)):
        try:
            core = Core.load(path)
        except CheckpointError as error:
            log.error("checkpoint set aside: %s", error)
            aside = path.with_suffix(".corrupt")
            shutil.rmtree(aside, ignore_errors=True)  # an earlier one of this position
            path.rename(aside)
            continue
        if core.generation == created.generation and core.spec == created.spec:
            return core
        log.error("checkpoint %s is of another model", path)
    return Core(created.spec, generation=created.generation, first_version=created.first_version)
