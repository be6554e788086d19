"""``backup.json``: the files of a backup by name, with the SHA-256 of each, and of itself."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from jormungandr.durable import write_synced
from jormungandr.errors import DataDirError
from jormungandr.service.tools.file_check import file_digest
from jormungandr.version import __version__

__all__ = ["LISTING", "check_listed", "write_listing"]

FORMAT = "jormungandr-backup-1"
LISTING = "backup.json"


def write_listing(folder: Path) -> None:
    """List the files below a folder in it."""
    write_synced(folder / LISTING, _sealed(_listed(folder)))


def check_listed(source: Path) -> list[str]:
    """Check a backup against its listing; return the names of its files.

    Raises:
        DataDirError: naming the file that is missing, damaged, or one too many.
    """
    path = source / LISTING
    try:
        written = path.read_bytes()
        content = dict(json.loads(written))
        content.pop("sha256")
        files = dict(content["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
    return sorted(there)


def _listed(folder: Path) -> dict[str, Any]:
    """Return what is said of the files below a folder."""
    paths = sorted(
        p
        for p in folder.rglob("*")
        if p.is_file() and p.name != LISTING and not _left_by_reading(p)
    )
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


def _left_by_reading(path: Path) -> bool:
    """Whether SQLite left a file beside a database that it has only read; it holds nothing.

    Whoever asks a backup something leaves such files, and it is as good as before.
    """
    return path.suffix == ".db-shm" or (path.suffix == ".db-wal" and not path.stat().st_size)


def _sealed(content: dict[str, Any]) -> bytes:
    """Return the bytes of a listing, with the SHA-256 of the rest."""
    digest = sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1).encode()
