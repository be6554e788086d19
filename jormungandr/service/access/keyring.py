"""Keyrings: which token is whose, and what its bearer may do."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from jormungandr.errors import Unauthenticated
from jormungandr.service.access.operator_token import make_token, read_token
from jormungandr.service.access.tokens import FILE, Token, read_tokens
from jormungandr.service.access.watched import Watched
from jormungandr.service.http.grants import NOBODY, OPERATOR, Grant

__all__ = ["FileKeyring", "Keyring", "OneToken"]


class Keyring(Protocol):
    """Knows tokens."""

    def grant(self, token: bytes) -> Grant:
        """Return what the bearer of a token may do.

        Raises:
            Unauthenticated: nobody is known by it, or not any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    grant: Grant
    token: Token | None = None


#: What a token that nobody has is compared with; it has no token, so nobody gets in by it.
_NONE = _Entry(bytes(32), NOBODY)


class OneToken:
    """A keyring with the operator's token alone.

    Args:
        token: the operator's.
    """

    def __init__(self, token: str) -> None:
        self._digest = sha256(token.encode()).digest()

    def grant(self, token: bytes) -> Grant:
        """Return the operator's grant.

        Raises:
            Unauthenticated: it is another token.
        """
        if not hmac.compare_digest(sha256(token).digest(), self._digest):
            raise unknown()
        return OPERATOR


class FileKeyring:
    """The keyring of a data directory: the operator's token, and those of `jormungandr token`.

    It says what the files say at that moment. A file that cannot be used changes nothing.

    Args:
        data_dir: with `tokens.json`, or without.
        token_file: of the operator's token; made if it is missing.

    Raises:
        DataDirError: one of the files cannot be used.
    """

    def __init__(self, data_dir: Path, token_file: Path) -> None:
        make_token(token_file)
        file = data_dir / FILE
        self._operator = Watched(
            token_file, read=lambda: sha256(read_token(token_file).encode()).digest()
        )
        self._others = Watched(file, read=lambda: _entries(read_tokens(file)))

    def grant(self, token: bytes) -> Grant:
        """Return what the bearer of a token may do.

        Raises:
            Unauthenticated: nobody is known by it, it was revoked, or its time is over.
        """
        # Digests are compared, whole and in constant time: nothing of a token shows in how long
        # it takes. To find an entry by its digest tells nothing: nobody can choose a token for it.
        digest = sha256(token).digest()
        found = self._others.get().get(digest, _NONE)
        operator = hmac.compare_digest(digest, self._operator.get())
        known = hmac.compare_digest(digest, found.digest)
        if operator:
            return OPERATOR
        if not known or found.token is None:
            raise unknown()
        if found.token.expired():
            raise unknown("one whose time is over")
        return found.grant


def _entries(tokens: tuple[Token, ...]) -> dict[bytes, _Entry]:
    entries = [_Entry(bytes.fromhex(token.sha256), token.grant(), token) for token in tokens]
    return {entry.digest: entry for entry in entries}


def unknown(got: str = "another") -> Unauthenticated:
    """Return the error of a request that bears no token that is known."""
    return Unauthenticated(
        "Authorization",
        "Bearer and a token of this service",
        got,
        "set JORMUNGANDR_TOKEN_FILE to the file that `jormungandr serve` names, or to one with a"
        " token of `jormungandr token create`",
    )
