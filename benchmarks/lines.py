"""Files of JSON lines that only grow, and that several writers and a killed one may share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["append_line", "lines"]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what the lines of a file say; of one that is not there, nothing.

    A line that a killed process left unfinished is named on stderr and left out.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            print(f"{path}:{number}: an unfinished line, left out", file=sys.stderr)
            continue
        yield fields


def append_line(text: str, path: Path) -> None:
    """Add a line, durably: one write at the file's end, so that writers do not mix.

    Raises:
        OSError: the disk took part of it, which is left out when it is read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = text.encode() + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line  # someone died in a line
        if os.write(handle, line) != len(line):
            raise OSError(f"{path}: the disk took part of a line; it is left out when read")
        os.fsync(handle)
    finally:
        os.close(handle)
