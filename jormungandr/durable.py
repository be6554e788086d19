"""Files that are on the disk when a call returns."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["make_folder", "sync_file", "sync_folder", "write_synced"]


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait for the disk; its name is durable only after `sync_folder`."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the disk has what others have written to a file."""
    # Windows syncs only what is open for writing; elsewhere it need not be ours to write.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, so that a power cut forgets none.

    Args:
        path: of the folder; one that is there stays as it is.
        mode: who may do what in it, less what the process's umask takes; of this folder alone.
    """
    path = path.absolute()
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode, exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: a rename alone is atomic, and may be forgotten."""
    if os.name == "nt":  # folders cannot be opened there, and renames are journaled
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
