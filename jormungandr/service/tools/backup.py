"""`backup`: a copy of a data directory that is of one moment for each model.

A backup is a folder with the ``models`` of a data directory and ``backup.json``, which lists every
file with its SHA-256. Checkpoints and policies are copied before the journal, so that the journal
always knows more than they do, and after it the policies that only it knows. SQLite's own backup
call reads it in one transaction, whatever a server does meanwhile. The operator's token is not part
of a backup.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import apsw

from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import connect, control_rows
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.lock import reading
from jormungandr.service.tools.building import building, check_apart, check_new
from jormungandr.service.tools.file_check import check_checkpoint
from jormungandr.service.tools.listing import write_listing
from jormungandr.service.tools.stored import model_folders
from jormungandr.service.tools.untouched import untouched
from jormungandr.service.tools.verification import check_model

__all__ = ["backup"]

#: Times that a model is copied again because its learner dropped what was being copied.
ATTEMPTS = 20


def backup(data_dir: Path, out: Path) -> Iterator[str]:
    """Copy a data directory, also while a server uses it; yield a line per model.

    Args:
        data_dir: of a service.
        out: made; whole when it has its name.

    Raises:
        DataDirError: `out` exists or lies in `data_dir`, or what would be copied is damaged.
    """
    check_new(out)
    check_apart(data_dir, out)
    if not (data_dir / "models").is_dir():
        raise DataDirError(str(data_dir), "a data directory of a service", "none")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(reading(data_dir))
            live = False
        except DataDirError:  # a server holds it
            live = True
        with building(out) as made:
            for folder in model_folders(data_dir, None):
                yield _copy_model(folder, made / "models" / folder.name, live)
            (made / "models").mkdir(exist_ok=True)
            write_listing(made)


def _copy_model(folder: Path, target: Path, live: bool) -> str:
    """Copy one model so that its rows lead on from its checkpoints; return a line about it."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        # What such a model has left goes; its journal stays.
        gone = live and _deleted(folder / "journal.db")
        if not gone and not _copy_files(folder, target, live):
            continue
        _copy_journal(folder / "journal.db", target / "journal.db", live)
        reader = JournalReader(target / "journal.db", immutable=True)
        first, last = reader.first(), reader.last()
        recorded = {f"{row.version:020d}.safetensors" for row in reader.versions()}
        reader.close()
        kept = [position(path) for path in checkpoints(target)]
        if kept and kept[0] < first - 1:
            continue  # rows were dropped while a newer one took its place
        _copy_policies(folder, target, recorded)  # what was published, and promoted, meanwhile
        for path in (target / "policies").glob("*"):
            if path.name not in recorded:
                path.unlink()  # its row was being written
        for finding in check_model(target):
            if finding.status == "damage":
                remedy = "nothing damaged is copied; see `jormungandr salvage`"
                raise DataDirError(finding.where, "no damage", finding.text, remedy)
        return (
            f"{folder.name}: row {last}, {len(kept)} checkpoints, {len(recorded)} policies recorded"
        )
    raise DataDirError(str(folder), f"a checkpoint that stays for {ATTEMPTS} attempts", "none")


def _deleted(database: Path) -> bool:
    """Whether a model was deleted that a server has open."""
    try:
        with contextlib.closing(connect(database, apsw.SQLITE_OPEN_READONLY)) as connection:
            return bool(control_rows(connection, database, "delete"))
    except apsw.Error as error:
        raise DataDirError(str(database), "a database that can be read", error) from None


def _copy_files(folder: Path, target: Path, live: bool) -> bool:
    """Copy checkpoints and policies; return whether what was copied stayed meanwhile."""
    for path in checkpoints(folder):
        copy = target / "checkpoints" / path.name
        copy.mkdir(parents=True)
        try:
            for file in path.iterdir():
                shutil.copyfile(file, copy / file.name)
            check_checkpoint(copy)
        except (FileNotFoundError, CheckpointError) as error:
            if not path.exists() or (live and _deleted(folder / "journal.db")):
                return False
            raise DataDirError(str(path), "a whole checkpoint", error) from None
    (target / "policies").mkdir()
    _copy_policies(folder, target)
    return True


def _copy_policies(folder: Path, target: Path, names: Collection[str] | None = None) -> None:
    """Copy policies that are not there yet: those of some names, or all."""
    for path in (folder / "policies").glob("*.safetensors"):
        copy = target / "policies" / path.name
        if not copy.exists() and (names is None or path.name in names):
            with contextlib.suppress(FileNotFoundError):  # the oldest makes room
                shutil.copyfile(path, copy)


def _copy_journal(source: Path, target: Path, live: bool) -> None:
    """Copy a database in one read transaction."""
    with contextlib.ExitStack() as stack:
        path, immutable = (source, False) if live else stack.enter_context(untouched(source))
        from_ = connect(path, apsw.SQLITE_OPEN_READONLY, immutable=immutable)
        to = connect(target, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            _copy_pages(from_, to, source)
            to.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            to.close()
            from_.close()


def _copy_pages(from_: apsw.Connection, to: apsw.Connection, source: Path) -> None:
    try:
        with to.backup("main", from_, "main") as copying:
            while not copying.done:
                copying.step(-1)  # in parts it would begin anew whenever the server commits
    except apsw.FullError:
        raise  # of the copy
    except apsw.Error as error:
        raise DataDirError(str(source), "a database that can be read", error) from None
