"""`backup` and `restore`: a copy of a data directory that is of one moment for each model.

A backup is a folder with the ``models`` of a data directory and ``backup.json``, which lists every
file with its SHA-256. Checkpoints and policies are copied before the journal, so that the journal
always knows more than they do; SQLite's own backup call reads it in one transaction, whatever a
server does meanwhile. The operator's token is not part of a backup.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from jormungandr.durable import sync_folder, write_synced
from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.ledger import Draft
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import LineageRow, connect
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.service.lock import Lock, reading
from jormungandr.service.tools.file_check import check_checkpoint, file_digest
from jormungandr.service.tools.untouched import untouched
from jormungandr.service.tools.verification import check_model, model_folders
from jormungandr.version import __version__

__all__ = ["EPOCH", "backup", "begin_epoch", "building", "check_new", "restore"]

FORMAT = "jormungandr-backup-1"
MANIFEST = "backup.json"
#: A restored model numbers its policies from the next multiple of this on. No learner gets there by
#: updates (it would take 30 years at a thousand a second), and JSON's integers hold 9,000 of them.
EPOCH = 10**12
#: Times that a model is copied again because its learner dropped what was being copied.
ATTEMPTS = 20


def backup(data_dir: Path, out: Path) -> Iterator[str]:
    """Copy a data directory, also while a server uses it; yield a line per model.

    Args:
        data_dir: of a service.
        out: made; whole when it has its name.

    Raises:
        DataDirError: `out` exists, or what would be copied is damaged.
    """
    check_new(out)
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
            write_synced(made / MANIFEST, _sealed(_listed(made)))


def restore(source: Path, data_dir: Path) -> Iterator[str]:
    """Make a data directory from a backup; yield a line per model.

    What was published after the backup was made is gone, but actors may have seen it: version
    numbers go on at the next multiple of `EPOCH`, so that none ever names two policies.

    Args:
        source: a backup.
        data_dir: made; may be there and empty.

    Raises:
        DataDirError: the backup is not whole, or `data_dir` holds something.
    """
    _check_backup(source)
    if data_dir.is_dir() and not any(data_dir.iterdir()):
        data_dir.rmdir()
    check_new(data_dir)
    with building(data_dir) as made:
        shutil.copytree(source / "models", made / "models")
        for folder in model_folders(made, None):
            for finding in check_model(folder):
                if finding.status == "damage":
                    raise DataDirError(finding.where, "no damage", finding.text)
            yield begin_epoch(folder)
        for path in made.rglob("*"):
            _sync(path)
    lock = Lock(data_dir)
    lock.settle()
    lock.close()


def begin_epoch(folder: Path) -> str:
    """Let the policies of a model go on at a number that was never used; return a line about it.

    Args:
        folder: of a model that no server has open.
    """
    journal = Journal(folder / "journal.db")
    try:
        created, deleted = journal.created, journal.deleted()
        lineages = journal.lineages()
        highest = max(
            created.first_version,
            deleted or 0,
            *(row.version for row in journal.versions()),
            *(row.version for row in lineages),
        )
        version = (highest // EPOCH + 1) * EPOCH
        if deleted is not None:
            journal.delete(version - 1)
            return f"{folder.name}: deleted; created again, it begins at policy {version}"
        # Where a learner goes on from: the state of the newest checkpoint, or of no row at all.
        found = checkpoints(folder)
        start = position(found[-1]) if found else 0
        made_by = lineages[-1].fingerprint if lineages else created.fingerprint
        journal.commit(Draft(journal), [], [LineageRow(made_by, start, version)])
        return f"{folder.name}: row {journal.counters.data_lsn}, policies go on at {version}"
    finally:
        journal.close()


def _copy_model(folder: Path, target: Path, live: bool) -> str:
    """Copy one model so that its rows lead on from its checkpoints; return a line about it."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        if not _copy_files(folder, target):
            continue
        _copy_journal(folder / "journal.db", target / "journal.db", live)
        reader = JournalReader(target / "journal.db", immutable=True)
        first, last = reader.first(), reader.last()
        recorded = {f"{row.version:020d}.safetensors" for row in reader.versions()}
        reader.close()
        kept = [position(path) for path in checkpoints(target)]
        if kept and kept[0] < first - 1:
            continue  # rows were dropped while a newer one took its place
        for path in (target / "policies").glob("*"):
            if path.name not in recorded:
                path.unlink()  # its row was being written
        for finding in check_model(target):
            if finding.status == "damage":
                remedy = "nothing damaged is copied; see `jormungandr salvage`"
                raise DataDirError(finding.where, "no damage", finding.text, remedy)
        for path in target.rglob("*"):
            _sync(path)
        return (
            f"{folder.name}: row {last}, {len(kept)} checkpoints, {len(recorded)} policies recorded"
        )
    raise DataDirError(str(folder), f"a checkpoint that stays for {ATTEMPTS} attempts", "none")


def _copy_files(folder: Path, target: Path) -> bool:
    """Copy checkpoints and policies; return whether what was copied stayed meanwhile."""
    for path in checkpoints(folder):
        copy = target / "checkpoints" / path.name
        try:
            shutil.copytree(path, copy)
            check_checkpoint(copy)
        except (OSError, shutil.Error, CheckpointError) as error:
            if not path.exists():
                return False
            raise DataDirError(str(path), "a whole checkpoint", error) from None
    (target / "policies").mkdir()
    for path in (folder / "policies").glob("*.safetensors"):
        with contextlib.suppress(FileNotFoundError):  # the oldest makes room
            shutil.copyfile(path, target / "policies" / path.name)
    return True


def _copy_journal(source: Path, target: Path, live: bool) -> None:
    """Copy a database in one read transaction."""
    with contextlib.ExitStack() as stack:
        path, immutable = (source, False) if live else stack.enter_context(untouched(source))
        from_ = connect(path, apsw.SQLITE_OPEN_READONLY, immutable=immutable)
        to = connect(target, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            with to.backup("main", from_, "main") as copying:
                while not copying.done:
                    copying.step(-1)  # in parts it would begin anew whenever the server commits
            to.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except apsw.Error as error:
            raise DataDirError(str(source), "a database that can be read", error) from None
        finally:
            to.close()
            from_.close()


@contextlib.contextmanager
def building(out: Path) -> Iterator[Path]:
    """Yield a folder that takes the name `out` when all has gone well, and is gone otherwise."""
    made = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True)
        yield made
        sync_folder(made)
        made.rename(out)
        sync_folder(out.absolute().parent)
    except OSError as error:
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


def _sync(path: Path) -> None:
    if path.is_dir():
        sync_folder(path)
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- the manifest ---------------------------------------------------------------------------------


def _listed(folder: Path) -> dict[str, Any]:
    """Return what a manifest says of the files below a folder."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {
        "format": FORMAT,
        "version": __version__,
        "files": {
            path.relative_to(folder).as_posix(): {
                "bytes": path.stat().st_size,
                "sha256": file_digest(path),
            }
            for path in paths
        },
    }


def _sealed(content: dict[str, Any]) -> bytes:
    """Return a manifest's bytes, with the SHA-256 of the rest."""
    digest = sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1).encode()


def _check_backup(source: Path) -> None:
    """Check a backup against its manifest.

    Raises:
        DataDirError: naming the file that is missing, damaged, or one too many.
    """
    path = source / MANIFEST
    try:
        written = path.read_bytes()
        content = dict(json.loads(written))
        content.pop("sha256")
        files = dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataDirError(str(path), "the manifest of a backup", repr(error)) from None
    if _sealed(content) != written or content["format"] != FORMAT:
        raise DataDirError(str(path), f"a manifest, {FORMAT}", "another, or a damaged one")
    there = _listed(source)["files"]
    for name in sorted(set(files) | set(there)):
        if name not in there:
            raise DataDirError(str(source / name), "a file", "none")
        if name not in files:
            raise DataDirError(str(source / name), "files of the manifest only", "one more")
        if files[name] != there[name]:
            raise DataDirError(str(source / name), "its recorded SHA-256", "another")
