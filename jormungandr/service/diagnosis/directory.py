"""A data directory: who may use it, who does, its volume, its journals."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jormungandr.errors import JormungandrError
from jormungandr.service.diagnosis.finding import Finding, fail, ok, skip, warn

__all__ = ["check_directory", "check_disk", "check_journals", "check_token"]

#: Free bytes below which a service takes no data, and below which one should be told.
FLOOR, LITTLE = 64 << 20, 1 << 30
#: Seconds of a sync: above the first, one-row requests come to fewer than fifty a second.
SLOW, TOO_FAST = 0.02, 0.00001
#: Syncs tried.
SYNCS = 20
#: Kinds of file system that forget, and those on which locks or shared memory cannot be relied on.
VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs"})
REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph"})
#: Newest rows of each journal whose digests are checked.
ROWS = 256


def check_directory(path: Path) -> Iterator[Finding]:
    """Look at who may use the directory, and whether a server does."""
    if not path.is_dir():
        remedy = "`jormungandr serve --data-dir` makes it; check the path"
        yield fail("directory", f"{path}: no directory", remedy)
        return
    about = path.stat()
    mode = stat.S_IMODE(about.st_mode)
    if mode & stat.S_IWOTH:
        yield fail("directory", f"mode {mode:04o}: anybody may write", f"chmod o-w {path}")
        return
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        remedy = f"run as its owner (user id {about.st_uid}), or chown it"
        yield fail("directory", f"{path} cannot be written: {error.strerror}", remedy)
        return
    holder = _holder(path / "LOCK")
    if mode & (stat.S_IROTH | stat.S_IXOTH) == (stat.S_IROTH | stat.S_IXOTH):
        remedy = f"chmod 700 {path}: transitions and policies are in it"
        yield warn("directory", f"mode {mode:04o}: anybody may read; {holder}", remedy)
    else:
        yield ok("directory", f"mode {mode:04o}; {holder}")


def _holder(lock: Path) -> str:
    try:
        with lock.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                try:
                    return f"used by the server with process id {json.load(file)['pid']}"
                except (ValueError, KeyError, TypeError):
                    return "used by a server"
    except OSError:
        pass
    return "no server uses it"


def check_token(path: Path) -> Iterator[Finding]:
    """Look at the file of the operator's token."""
    from jormungandr.service.access.operator_token import read_token

    if not path.exists():
        yield skip("token", f"{path}: not made yet", "the first start makes it")
        return
    try:
        token = read_token(path)
    except JormungandrError as error:
        remedy = error.remedy or "put a token there that its owner alone can read"
        yield fail("token", f"{error.where}: expected {error.expected}, got {error.got}", remedy)
        return
    yield ok("token", f"{path}: {len(token)} characters, its owner's alone")


def check_disk(path: Path) -> Iterator[Finding]:
    """Look at free space, the kind of file system, and how long a sync takes."""
    if not path.is_dir():
        yield skip("disk", f"{path}: no directory")
        return
    volume = os.statvfs(path)
    free, kind = volume.f_bavail * volume.f_frsize, _kind(path)
    said = f"{free / (1 << 30):.2f} GiB free, {kind or 'unknown file system'}"
    if free < FLOOR:
        yield fail("disk", said, "free some: below 64 MiB no data is taken (503 storage_full)")
        return
    if volume.f_favail == 0 and volume.f_files > 0:
        yield fail("disk", f"{said}, no inode left", "remove files, or use another volume")
        return
    if kind in REMOTE:
        remedy = "keep it on a local file system: locks, shared memory and syncs have to hold"
        yield fail("disk", said, remedy)
        return
    try:
        median, worst = _sync_times(path)
    except OSError as error:
        yield fail("disk", f"{said}; a sync failed: {error.strerror}", "look at the kernel's log")
        return
    said += f", sync {median * 1e3:.2f} ms (worst of {SYNCS}: {worst * 1e3:.2f})"
    if kind in VOLATILE:
        yield warn("disk", said, "nothing there outlives the machine: use a disk")
    elif median > SLOW:
        remedy = "every acknowledgement waits for one: use a faster disk, send more rows at a time"
        yield warn("disk", said, remedy)
    elif median < TOO_FAST:
        yield warn("disk", said, "no disk syncs so fast: this volume does not, and may lose data")
    elif free < LITTLE:
        yield warn("disk", said, "free some: journals take up to --journal-max-bytes each")
    else:
        yield ok("disk", said)


def _sync_times(path: Path) -> tuple[float, float]:
    """Return (median, longest) seconds of syncs of 4 KiB."""
    times = []
    with tempfile.TemporaryFile(dir=path, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times), max(times)


def _kind(path: Path) -> str | None:
    """Return the kind of file system that holds a path, as Linux mounted it."""
    best: tuple[int, str | None] = (-1, None)
    real = str(path.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text()
    except OSError:
        return None
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best[0]:
            best = len(point), kind
    return best[1]


def check_journals(path: Path) -> Iterator[Finding]:
    """Look quickly through every journal: its WAL, its records, its newest rows.

    Beside a server too. `verify` looks at everything.
    """
    from jormungandr.service.journal.wal_check import check_wal
    from jormungandr.service.tools.stored import StoredModel

    folders = sorted(file.parent for file in (path / "models").glob("[!.]*/journal.db"))
    served = "used by" in _holder(path / "LOCK")
    wrong, rows = [], 0
    for folder in folders:
        try:
            if not served:  # which goes on writing it meanwhile
                check_wal(folder / "journal.db")
            with StoredModel(folder) as model:
                if not model.deleted:
                    rows += sum(1 for _ in model.rows(max(0, model.last - ROWS)))
        except JormungandrError as error:
            wrong.append(str(error))
        except Exception as error:  # what SQLite makes of damage has many classes
            wrong.append(f"{folder / 'journal.db'}: {error}")
    if wrong:
        remedy = "`jormungandr verify` names what is damaged, `salvage` copies what is whole"
        yield fail("journals", "; ".join(wrong), remedy)
    else:
        yield ok("journals", f"{len(folders)} journals, {rows} newest rows match their digests")
