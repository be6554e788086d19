"""A directory that is made beside its place, and has its name when it is whole and synced."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw

from jormungandr.durable import make_folder, sync_folder
from jormungandr.errors import DataDirError

__all__ = ["building", "check_apart", "check_new", "sync_all"]


@contextlib.contextmanager
def building(out: Path) -> Iterator[Path]:
    """Yield a folder that takes the name `out` when all has gone well, and is gone otherwise.

    Raises:
        DataDirError: it cannot be written.
    """
    made = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    try:
        make_folder(out.parent)
        made.mkdir()
        yield made
        sync_all(made)
        made.rename(out)
        sync_folder(out.absolute().parent)
    except (OSError, apsw.FullError, apsw.CantOpenError) as error:
        raise DataDirError(str(out), "a place that can be written", error) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check_new(out: Path) -> None:
    """Refuse a place where something is.

    Raises:
        DataDirError: something is.
    """
    if out.exists() or out.is_symlink():
        raise DataDirError(str(out), "a place where nothing is", "something", "choose another")


def check_apart(source: Path, out: Path) -> None:
    """Refuse a place inside of what is read: it would become part of it.

    Raises:
        DataDirError: it is.
    """
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise DataDirError(str(out), f"a place outside of {source}", "one in it", "choose another")


def sync_all(folder: Path) -> None:
    """Make a folder durable, with everything below it."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
