"""`StoredModel`: one model of a data directory, only read; a server may be running beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self, cast

import apsw
import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.errors import DataDirError, ModelUnknown
from jormungandr.ledger import BLOCK, Counters, block_from_bytes
from jormungandr.rows import JournalRow, TransitionsRow
from jormungandr.service.journal.database import check, connect, control_rows, read_meta
from jormungandr.service.journal.reader import JournalReader
from jormungandr.spec import MODEL_ID

__all__ = ["UNFINISHED", "StoredModel", "find_model", "generations", "model_folders"]

#: Names of models' folders that are not finished.
UNFINISHED = re.compile(rf"\.{MODEL_ID.pattern}\.[0-9]+")
#: Rows read per SELECT: each is a request of up to a mebibyte.
ROWS = 16


def generations(data_dir: Path, model_id: str) -> list[Path]:
    """Return the folders of a model id, of living and deleted ones, oldest generation first."""
    found = []
    for folder in (data_dir / "models").iterdir():
        name, _, generation = folder.name.rpartition(".")
        if name == model_id and generation.isdecimal() and (folder / "journal.db").is_file():
            found.append((int(generation), folder))
    return [folder for _, folder in sorted(found)]


def model_folders(data_dir: Path, model: str | None) -> list[Path]:
    """Return the folders of one model, or of all.

    Args:
        data_dir: of a service.
        model: an id, which is all its generations, or ``id.generation``; None is every model.

    Raises:
        DataDirError: no such directory.
        ModelUnknown: no such model in it.
    """
    if model is None:
        return sorted(path.parent for path in (data_dir / "models").glob("[!.]*/journal.db"))
    newest = find_model(data_dir, model)
    return [newest] if "." in model else generations(data_dir, model)


def find_model(data_dir: Path, model: str) -> Path:
    """Return the folder of a model.

    Args:
        data_dir: of a service.
        model: an id, which is its newest generation, or ``id.generation``.

    Raises:
        DataDirError: no such directory.
        ModelUnknown: no such model in it.
    """
    if not (data_dir / "models").is_dir():
        raise DataDirError(str(data_dir), "a data directory of a service", "none")
    model_id, dot, generation = model.partition(".")
    for folder in reversed(generations(data_dir, model_id)):
        if not dot or generation == folder.name.rpartition(".")[2]:
            return folder
    ids = sorted({path.name.rpartition(".")[0] for path in (data_dir / "models").glob("[!.]*.*")})
    raise ModelUnknown("MODEL", f"one of {ids}", repr(model))


class StoredModel:
    """What a journal says of a model, read in short SELECTs.

    Args:
        folder: of the model, from `find_model`.

    Raises:
        DataDirError: it holds no journal that can be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "journal.db"
        try:
            self._reader = JournalReader(self.path)
            self.connection = connect(self.path, apsw.SQLITE_OPEN_READONLY)
            self.created = self._reader.created()
        except apsw.Error as error:
            raise DataDirError(str(self.path), "a journal that can be read", error) from None
        self.spec = self.created.spec

    @property
    def deleted(self) -> bool:
        """Whether the model was deleted, and its rows with it."""
        return bool(control_rows(self.connection, self.path, "delete"))

    @property
    def first(self) -> int:
        """The position from which on every data row is kept."""
        return self._reader.first()

    @property
    def last(self) -> int:
        """The position of the last data row; 0 when there is none."""
        return self._reader.last()

    @property
    def counters(self) -> Counters:
        """The totals of its admissions."""
        return Counters(**read_meta(self.connection, "counters"))

    @property
    def highest_version(self) -> int:
        """The highest number that a policy of the model has, or had before it was deleted."""
        fields = {"version": "version", "lineage": "version", "delete": "highest_version"}
        rows = [
            content[field]
            for kind, field in fields.items()
            for _, content in control_rows(self.connection, self.path, kind)
        ]
        return max(rows, default=self.created.first_version)

    def rows(self, after: int = 0) -> Iterator[JournalRow]:
        """Yield the data rows after a position, up to the last one there is now.

        Raises:
            DataDirError: the model was deleted, or a row is damaged.
        """
        if self.deleted:
            raise DataDirError(str(self.path), "a model that lives", "one that was deleted")
        end = self.last
        while after < end:
            found = self._reader.rows(after, ROWS)
            for row in found:
                if row.lsn <= end:
                    yield row
            after = found[-1].lsn if found else end

    def transitions(self, after: int = 0) -> Iterator[TransitionsRow]:
        """Yield the rows of transitions, each with every label that has been attached to them."""
        for row in self.rows(after):
            if isinstance(row, TransitionsRow):
                labelled = row.columns.with_label(self._labels(row.columns))
                yield TransitionsRow(row.lsn, labelled, row.outcome)

    def _labels(self, c: Columns) -> NDArray[np.int32]:
        """Return (B,) the labels in the ledger: a row itself has only those that came with it."""
        label = c.label.copy()
        places = np.stack([c.actor, c.episode, c.timestep // BLOCK], axis=1)
        for place in np.unique(places, axis=0):
            actor, episode, number = place.tolist()
            found = self.connection.execute(
                "SELECT * FROM ledger WHERE actor = ? AND episode = ? AND block = ?",
                (c.actors[actor], c.episodes[episode], number),
            ).fetchone()
            if found is None:
                continue
            check(f"{self.path}: ledger of {found[:3]}", *found)
            block = block_from_bytes(cast("bytes", found[3]))
            here = np.flatnonzero((places == place).all(axis=1) & (c.timestep % BLOCK < len(block)))
            label[here] = block["label"][c.timestep[here] % BLOCK]
        return label

    def close(self) -> None:
        """Close both connections."""
        self._reader.close()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
