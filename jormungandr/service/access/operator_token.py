"""The operator's token: a file that holds it, in clear, for its owner alone."""

from __future__ import annotations

import secrets
from pathlib import Path

from jormungandr.errors import DataDirError
from jormungandr.service.access.private import read_private, write_private

__all__ = ["make_token", "read_token"]

#: Fewer characters could be guessed over the network.
SHORTEST = 16
LONGEST = 4096


def make_token(path: Path) -> None:
    """Make a token of 256 random bits, unless the file is there.

    Raises:
        DataDirError: it cannot be made.
    """
    if not path.exists():
        write_private(path, f"{secrets.token_urlsafe(32)}\n".encode())


def read_token(path: Path) -> str:
    """Return the operator's token.

    Raises:
        DataDirError: there is no such file, others can use it, or it holds no usable token.
    """
    token = read_private(path, LONGEST).decode("latin-1").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise DataDirError(str(path), "a token of printable ASCII characters", "others")
    if len(token) < SHORTEST:
        remedy = "delete the file for one that the service makes, or `openssl rand -base64 32`"
        raise DataDirError(str(path), f"a token of {SHORTEST} characters or more", "fewer", remedy)
    return token
