"""Tokens besides the operator's: what each allows, and their file.

``DATA_DIR/tokens.json`` holds the SHA-256 of every token, never one itself. A token is 256 random
bits, so its plain digest is as hard to turn back as a password's slow one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from jormungandr.errors import DataDirError, InvalidValue
from jormungandr.protocol import LIMITS, Split
from jormungandr.service.access.private import read_private, write_private
from jormungandr.service.http.grants import OPERATOR, SCOPES, Grant, Scope

__all__ = ["ACTOR", "FILE", "Token", "Tokens", "read_tokens"]

#: The file's name in the data directory.
FILE = "tokens.json"
#: What an actor does: asks for actions or fetches weights, and sends what came of them.
ACTOR: tuple[Scope, ...] = ("act", "ingest", "policy")
#: With which every token begins, so that one in the wrong place is recognised for what it is.
PREFIX = "jrm_"

FORMAT = 1
LONGEST = 16 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
#: Like an id of a model, with ``*`` and ``?``.
PATTERN = re.compile(r"[a-z0-9_*?-]{1,63}")


class Token(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says of one token.

    Args:
        name: by which it is listed and revoked.
        sha256: of the token, in hexadecimal digits.
        scopes: what it allows.
        models: patterns of the models it allows that on.
        actor_prefix: with which every actor id it sends begins.
        split: the one split it may send; None is both.
        created: when it was made, in seconds since 1970.
        expires: from when on it is no good; None is never.
    """

    name: str
    sha256: str
    scopes: tuple[Scope, ...]
    models: tuple[str, ...]
    actor_prefix: str
    split: Split | None
    created: int
    expires: int | None

    def check(self) -> None:
        """Refuse what no token may say.

        Raises:
            InvalidValue: naming the field.
        """
        if NAME.fullmatch(self.name) is None or self.name == OPERATOR.name:
            expected = f"to match {NAME.pattern}, and not to be {OPERATOR.name!r}"
            raise InvalidValue("name", expected, repr(self.name))
        if not self.scopes:
            raise InvalidValue("scopes", f"some of {list(SCOPES)}", "none")
        if not self.models:
            raise InvalidValue("models", "one pattern or more", "none")
        for pattern in self.models:
            if PATTERN.fullmatch(pattern) is None:
                raise InvalidValue("models", f"to match {PATTERN.pattern}", repr(pattern))
        prefix = self.actor_prefix
        if len(prefix.encode(errors="replace")) >= LIMITS["id_bytes"] or not prefix.isprintable():
            expected = f"printable, under {LIMITS['id_bytes']} bytes of UTF-8"
            raise InvalidValue("actor_prefix", expected, repr(prefix))
        if re.fullmatch(r"[0-9a-f]{64}", self.sha256) is None:
            raise InvalidValue("sha256", "64 hexadecimal digits", "another text")

    def grant(self) -> Grant:
        """Return what its bearer may do."""
        return Grant(self.name, frozenset(self.scopes), self.models, self.actor_prefix, self.split)

    def expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and time.time() >= self.expires


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    tokens: tuple[Token, ...]


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Return the tokens of a file, in the order in which they were made; none if it is not there.

    Raises:
        DataDirError: it is damaged, of another format, or others can use it.
    """
    if not path.exists():
        return ()
    try:
        found = msgspec.json.decode(read_private(path, LONGEST), type=_File)
        if found.format != FORMAT:
            raise InvalidValue("format", str(FORMAT), found.format)
        for token in found.tokens:
            token.check()
        for what in ("name", "sha256"):
            if len({getattr(token, what) for token in found.tokens}) < len(found.tokens):
                raise InvalidValue(what, "another one for each token", "one twice")
    except (msgspec.MsgspecError, InvalidValue, UnicodeDecodeError) as error:
        raise DataDirError(str(path), "a file of `jormungandr token`", error) from None
    return found.tokens


class Tokens:
    """The tokens of a data directory, for whoever makes and revokes them.

    A server may use the directory: it reads the file again when it has changed.

    Args:
        data_dir: of a service.

    Raises:
        DataDirError: it is none.
    """

    def __init__(self, data_dir: Path) -> None:
        if not (data_dir / "models").is_dir():
            remedy = "`jormungandr serve` makes one"
            raise DataDirError(str(data_dir), "a data directory of a service", "none", remedy)
        self._folder, self._path = data_dir, data_dir / FILE

    def list(self) -> tuple[Token, ...]:
        """Return all of them.

        Raises:
            DataDirError: the file cannot be used.
        """
        return read_tokens(self._path)

    def create(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        models: Sequence[str] = ("*",),
        actor_prefix: str = "",
        split: Split | None = None,
        seconds: float | None = None,
    ) -> str:
        """Make a token and return it; nobody can find it out again.

        Args:
            name: of no other token.
            scopes: what it allows.
            models: patterns of the models it allows that on.
            actor_prefix: with which every actor id it sends begins.
            split: the one split it may send; None is both.
            seconds: for how long it is good; None is until it is revoked.

        Raises:
            InvalidValue: what no token may say, or a name that another one has.
            DataDirError: the file cannot be used.
        """
        token = PREFIX + secrets.token_urlsafe(32)
        now = int(time.time())
        made = Token(
            name=name,
            sha256=sha256(token.encode()).hexdigest(),
            scopes=tuple(scope for scope in SCOPES if scope in scopes),
            models=tuple(models),
            actor_prefix=actor_prefix,
            split=split,
            created=now,
            expires=None if seconds is None else now + int(seconds),
        )
        made.check()
        with self._alone():
            known = self.list()
            if any(other.name == name for other in known):
                remedy = "revoke that one first, or take another name"
                raise InvalidValue("name", "one that no token has", repr(name), remedy)
            self._write((*known, made))
        return token

    def revoke(self, name: str) -> None:
        """Forget a token; when this returns, a server lets nobody in with it any more.

        Raises:
            InvalidValue: there is none of that name.
            DataDirError: the file cannot be used.
        """
        with self._alone():
            known = self.list()
            kept = tuple(token for token in known if token.name != name)
            if len(kept) == len(known):
                names = ", ".join(token.name for token in known) or "there is none"
                raise InvalidValue("name", "the name of a token", repr(name), f"known: {names}")
            self._write(kept)

    def _write(self, tokens: tuple[Token, ...]) -> None:
        data = msgspec.json.encode(_File(FORMAT, tokens))
        write_private(self._path, msgspec.json.format(data, indent=1) + b"\n")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other command changes the file."""
        handle = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)  # which frees it
