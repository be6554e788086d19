"""Files of a training, written so that the process may end at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jormungandr.durable import sync_folder, write_synced
from jormungandr.errors import InvalidValue

__all__ = ["WRITABLE", "replace_file", "writable"]

WRITABLE = "a folder that can be written"


def replace_file(file: Path, data: bytes) -> None:
    """Write a file whole, in place of an earlier one."""
    temporary = file.with_name(f".{file.name}.tmp")
    write_synced(temporary, data)
    temporary.replace(file)
    sync_folder(file.parent)


@contextlib.contextmanager
def writable() -> Iterator[None]:
    """Say what the disk says in the words of the argument that names the place."""
    try:
        yield
    except OSError as error:  # a full disk, say
        raise InvalidValue("--out", WRITABLE, error) from None
