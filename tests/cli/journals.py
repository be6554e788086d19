"""Data directories as a service leaves them, made without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jormungandr import ModelSpec
from jormungandr.admission import Admission, check_labels
from jormungandr.columns import columns
from jormungandr.ledger import Draft
from jormungandr.service.journal.database import Control, Created
from jormungandr.service.journal.writer import Journal

__all__ = ["Written", "written"]


class Written:
    """A journal that takes what a service would take.

    Args:
        data_dir: of the service.
        spec: of the model.
        name: its folder, ``id.generation``.
        first_version: number of its first policy.
    """

    def __init__(
        self, data_dir: Path, spec: Any, name: str = "m.1", first_version: int = 0
    ) -> None:
        self.spec = spec if isinstance(spec, ModelSpec) else ModelSpec.from_dict(spec)
        self.folder = data_dir / "models" / name
        self.folder.mkdir(parents=True)
        model_id, _, generation = name.rpartition(".")
        created = Created(model_id, int(generation), first_version, self.spec)
        self.journal = Journal(self.folder / "journal.db", created)
        self._admission = Admission(self.spec, int(generation))

    def add(self, rows: Sequence[Any], served: int = 0, published: int = 1_000_000) -> Any:
        """Admit transitions as one request, while policy `served` is the newest."""
        draft = Draft(self.journal)
        receipt, new = self._admission.transitions(
            columns(rows, self.spec), draft, served=served, published=published
        )
        self._keep(draft, new)
        return receipt

    def label(self, rows: Sequence[Any]) -> Any:
        """Admit labels as one request."""
        draft = Draft(self.journal)
        receipt, new = self._admission.labels(check_labels(rows, self.spec), draft)
        self._keep(draft, new)
        return receipt

    def control(self, row: Control) -> None:
        """Record what is not data."""
        self._keep(Draft(self.journal), [], [row])

    def _keep(self, draft: Draft, rows: list[Any], controls: Sequence[Control] = ()) -> None:
        self.journal.commit(draft, rows, controls)
        self.journal.merged(draft)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.close()


def written(data_dir: Path, spec: Any, rows: Sequence[Any], size: int = 7) -> Path:
    """Make a data directory with one model, ``m``, that was sent rows, so many at a time."""
    with Written(data_dir, spec) as journal:
        for i in range(0, len(rows), size):
            journal.add(rows[i : i + size])
    return data_dir
