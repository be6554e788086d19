"""A directory that is made beside its place, and has its name when it is whole and synced."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw

from jormungandr.durable import make_folder, sync_file, sync_folder
from jormungandr.errors import DataDirError, StorageFull
from jormungandr.service.journal.database import no_room

__all__ = ["building", "check_apart", "check_new", "sync_all", "unfinished", "writing"]


@contextlib.contextmanager
def building(out: Path) -> Iterator[Path]:
    """Yield a folder that takes the name `out` when all has gone well, and is gone otherwise.

    Raises:
        DataDirError: it cannot be written.
    """
    with writing(out):
        make_folder(out.parent)
        with unfinished(out.with_name(f".{out.name}.tmp")) as made:
            yield made
            sync_all(made)
            made.rename(out)
            sync_folder(out.absolute().parent)


@contextlib.contextmanager
def unfinished(made: Path) -> Iterator[Path]:
    """Yield a new folder that is gone afterwards, unless it was given another name.

    One that a process left when it was killed makes room.

    Raises:
        DataDirError: another process makes one there.
    """
    handle = _claimed(made)
    try:
        yield made
    finally:
        # Under another name it is finished, and this one may be somebody else's by now.
        if _is(made, handle):
            shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def _claimed(made: Path) -> int:
    """Make a folder, and hold it until what is returned is closed, or this process ends."""
    while True:
        with contextlib.suppress(FileExistsError):
            made.mkdir()
        handle = os.open(made, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise DataDirError(str(made), "nobody else who makes it", "another process") from None
        if _is(made, handle) and not any(made.iterdir()):
            return handle
        if _is(made, handle):
            shutil.rmtree(made)
        os.close(handle)


def _is(path: Path, handle: int) -> bool:
    """Whether a name is that of an open folder."""
    return path.exists() and path.stat().st_ino == os.fstat(handle).st_ino


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Say of a place by name that it cannot be written, whatever has found it so.

    Raises:
        DataDirError: it cannot.
    """
    try:
        yield
    except shutil.Error as error:  # of many files, each with its reason
        got: object = error.args[0][0][-1]
    except OSError as error:
        got = error
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        # SQLite has words for some of them only.
        got = "no room" if no_room(error) else error
    except StorageFull as error:
        got = error.got
    else:
        return
    raise DataDirError(str(place), "a place that can be written", got)


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
        else:
            sync_file(path)
