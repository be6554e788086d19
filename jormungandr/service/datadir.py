"""The data directory: its lock, the operator's token, and the folders of models."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path

import apsw

from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError
from jormungandr.failpoints import reached
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.child.recovery import check_end
from jormungandr.service.journal.database import Created
from jormungandr.service.journal.wal_check import check_wal
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import Lock
from jormungandr.service.tools.verification import check_model
from jormungandr.spec import ModelSpec

__all__ = ["LEARNED", "DataDir", "read_token"]

#: Folders of a model that go with it.
LEARNED = ("policies", "checkpoints")


class DataDir:
    """One directory, one server.

    Args:
        path: created if missing.

    Raises:
        DataDirError: another server holds it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            (path / "models").mkdir(parents=True, exist_ok=True)
            self.lock = Lock(path)
        except OSError as error:
            raise DataDirError(str(path), "a directory that can be written", error) from None
        for junk in (path / "models").glob(".*"):
            shutil.rmtree(junk)  # a creation that was cut short was never acknowledged

    def journals(self) -> list[tuple[Path, Journal]]:
        """Open every journal there is, in order of folder names.

        Raises:
            DataDirError: one cannot be opened, or is older than what was made from it; nothing is
                skipped silently.
        """
        folders = sorted(p for p in (self.path / "models").iterdir() if p.is_dir())
        if not self.lock.in_place:
            # A copy: made while a server wrote, it may be of no single moment.
            for folder in folders:
                _check_copy(folder)
            self.lock.settle()
        return [(folder, _open(folder)) for folder in folders]

    def create(
        self, model_id: str, generation: int, first_version: int, spec: ModelSpec
    ) -> tuple[Path, Journal]:
        """Create a model's folder and journal; both are durable when this returns."""
        models = self.path / "models"
        folder = models / f"{model_id}.{generation}"
        building = models / f".{folder.name}"
        shutil.rmtree(building, ignore_errors=True)  # of an attempt that failed
        building.mkdir()
        made_by = fingerprint(spec.threads)
        created = Created(model_id, generation, first_version, spec, made_by)
        Journal(building / "journal.db", created).close()
        reached("create.journal")
        building.rename(folder)
        reached("create.renamed")
        sync_folder(models)
        reached("create.done")
        return folder, Journal(folder / "journal.db")

    def close(self) -> None:
        """Free the lock."""
        self.lock.close()


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
    except (apsw.Error, UnicodeDecodeError) as error:
        raise DataDirError(str(path), "a journal", error) from None
    if journal.deleted() is None:
        check_end(folder, journal.counters.data_lsn)
    else:  # a deletion that was cut short
        for name in LEARNED:
            shutil.rmtree(folder / name, ignore_errors=True)
    return journal


def read_token(path: Path) -> str:
    """Return the operator's token; made with mode 0600 when the file is missing.

    Raises:
        DataDirError: others may read the file, or it holds no usable token.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise DataDirError(str(path), "a token file that can be made", error) from None
    else:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataDirError(str(path), "a readable token file", error) from None
    if mode & 0o077:
        raise DataDirError(str(path), "mode 0600", oct(mode), f"chmod 600 {path}")
    if not token or not token.isprintable() or " " in token:
        raise DataDirError(str(path), "a token of printable characters", "another")
    return token
