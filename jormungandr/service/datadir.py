"""The data directory: its lock, the operator's token, and the folders of models."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from pathlib import Path

import apsw

from jormungandr.durable import sync_folder
from jormungandr.errors import DataDirError
from jormungandr.service.database import Created
from jormungandr.service.journal import Journal
from jormungandr.spec import ModelSpec

__all__ = ["DataDir", "read_token"]


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
            self._lock = (path / "LOCK").open("w")
        except OSError as error:
            raise DataDirError(str(path), "a directory that can be written", error) from None
        try:
            # Held by the open file: the kernel frees it however this process ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise DataDirError(
                str(path),
                "no other server",
                "one that holds its LOCK",
                "stop it, or use another one",
            ) from None
        for junk in (path / "models").glob(".*"):
            shutil.rmtree(junk)  # a creation that was cut short was never acknowledged

    def journals(self) -> list[tuple[Path, Journal]]:
        """Open every journal there is, in order of folder names.

        Raises:
            DataDirError: one cannot be opened; nothing is skipped silently.
        """
        folders = sorted(p for p in (self.path / "models").iterdir() if p.is_dir())
        return [(folder, _open(folder / "journal.db")) for folder in folders]

    def create(
        self, model_id: str, generation: int, first_version: int, spec: ModelSpec
    ) -> tuple[Path, Journal]:
        """Create a model's folder and journal; both are durable when this returns."""
        models = self.path / "models"
        folder = models / f"{model_id}.{generation}"
        building = models / f".{folder.name}"
        shutil.rmtree(building, ignore_errors=True)  # of an attempt that failed
        building.mkdir()
        created = Created(model_id, generation, first_version, spec)
        Journal(building / "journal.db", created).close()
        building.rename(folder)
        sync_folder(models)
        return folder, Journal(folder / "journal.db")

    def close(self) -> None:
        """Free the lock."""
        self._lock.close()


def _open(path: Path) -> Journal:
    try:
        return Journal(path)
    except apsw.Error as error:
        raise DataDirError(str(path), "a journal", error) from None


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
