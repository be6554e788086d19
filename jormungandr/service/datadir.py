"""The data directory: its lock, and the folders of models."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import apsw

from jormungandr.durable import make_folder, sync_folder
from jormungandr.errors import DataDirError, StorageFull
from jormungandr.failpoints import reached
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.child.recovery import check_end
from jormungandr.service.journal.database import Created, no_room
from jormungandr.service.journal.wal_check import check_wal
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import Lock
from jormungandr.service.tools.listing import LISTING
from jormungandr.service.tools.restore import INSIDE
from jormungandr.service.tools.stored import UNFINISHED
from jormungandr.service.tools.verification import check_model
from jormungandr.spec import ModelSpec

__all__ = ["LEARNED", "DataDir"]

#: Folders of a model that go with it.
LEARNED = ("policies", "checkpoints")


class DataDir:
    """One directory, one server.

    Args:
        path: created if missing.

    Raises:
        DataDirError: another server holds it, it cannot be written, it is a backup, or what was
            to be restored to it is not there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_use(path)
        try:
            make_folder(path, 0o700)  # every observation is in it, in clear
            make_folder(path / "models")
            self.lock = Lock(path)
        except OSError as error:
            raise DataDirError(str(path), "a directory that can be written", error) from None
        for junk in (path / "models").iterdir():
            if UNFINISHED.fullmatch(junk.name):
                shutil.rmtree(junk)  # a creation that was cut short was never acknowledged

    def journals(self) -> list[tuple[Path, Journal]]:
        """Open every journal there is, in order of folder names.

        Raises:
            DataDirError: one cannot be opened, or is older than what was made from it; nothing is
                skipped silently.
        """
        folders = sorted(p for p in (self.path / "models").glob("[!.]*") if p.is_dir())
        if not self.lock.in_place:
            # A copy: made while a server wrote, it may be of no single moment.
            for folder in folders:
                _check_copy(folder)
            self.lock.settle()
        return [(folder, _open(folder)) for folder in folders]

    def create(
        self, model_id: str, generation: int, first_version: int, spec: ModelSpec
    ) -> tuple[Path, Journal]:
        """Create a model's folder and journal; both are durable when this returns.

        Raises:
            StorageFull: the disk is full.
            DataDirError: they cannot be made for another reason. In either case nothing is left.
        """
        models = self.path / "models"
        folder = models / f"{model_id}.{generation}"
        building = models / f".{folder.name}"
        made_by = fingerprint(spec.threads)
        created = Created(model_id, generation, first_version, spec, made_by)
        try:
            shutil.rmtree(building, ignore_errors=True)  # of an attempt that failed
            building.mkdir()
            Journal(building / "journal.db", created).close()
            reached("create.journal")
            building.rename(folder)
            reached("create.renamed")
            sync_folder(models)
            reached("create.done")
            return folder, Journal(folder / "journal.db")
        except (OSError, apsw.Error, StorageFull) as error:
            # Nobody was told of it. Under its name it would be in the way of the next attempt.
            if not building.exists():
                with contextlib.suppress(OSError):
                    folder.rename(building)
            shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, StorageFull):
                raise
            if no_room(error):
                remedy = "free some; nothing was kept"
                raise StorageFull("journal", "room on the disk", error, remedy) from None
            raise DataDirError(str(folder), "a journal that can be made", error) from None

    def close(self) -> None:
        """Free the lock."""
        self.lock.close()


def _check_use(path: Path) -> None:
    """Refuse a directory that looks like one to serve, and is not."""
    if (path / LISTING).exists():
        # Policies would get the numbers of those published since, and it would be a backup no more.
        remedy = "`jormungandr restore` makes a directory of it"
        raise DataDirError(str(path), "a data directory", "a backup", remedy)
    if (path / INSIDE).exists() and not (path / "models").exists():
        # As an empty one it would let clients create their models anew.
        remedy = f"run it again; or remove {path / INSIDE}, to begin with nothing"
        raise DataDirError(str(path), "a data directory", "a restore that did not end", remedy)


def _check_copy(folder: Path) -> None:
    """Refuse a copied model that is not whole."""
    check_wal(folder / "journal.db")
    for finding in check_model(folder):
        if finding.status == "damage":
            remedy = "this directory is a copy; `jormungandr backup` makes one of a running server"
            where = str(folder.parent.parent / finding.where)
            raise DataDirError(where, "no damage", finding.text, remedy)


def _open(folder: Path) -> Journal:
    path = folder / "journal.db"
    try:
        journal = Journal(path)
    except apsw.CantOpenError as error:  # it says no more than that
        remedy = "see who may read and write there, and `ulimit -n`: a model takes 5 open files"
        raise DataDirError(str(path), "a journal that can be opened", error, remedy) from None
    except (apsw.Error, UnicodeDecodeError) as error:
        raise DataDirError(str(path), "a journal", error) from None
    if journal.deleted() is None:
        check_end(folder, journal.counters.data_lsn)
    else:  # a deletion that was cut short
        for name in LEARNED:
            shutil.rmtree(folder / name, ignore_errors=True)
    return journal
