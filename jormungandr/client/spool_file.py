"""`SpoolFile`: requests on their way, in a file that outlives the process that wrote them.

The file is ``JSPOOL1`` and a line feed, and frames one after another: kind (1 byte), length of the
content (4, big-endian), CRC-32 of all that (4), content. Kinds are ``b``, a request that waits:
rows (4), length of the content type (1), content type, body; ``a``, everything in front of this
place is done (8); ``m``, the model and generation that the requests are for, as JSON.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from jormungandr.errors import InvalidValue, StorageFull

__all__ = ["Framed", "SpoolFile"]

log = logging.getLogger("jormungandr")

MAGIC = b"JSPOOL1\n"
HEAD = struct.Struct(">cII")
BATCH = struct.Struct(">IB")
DONE = struct.Struct(">Q")
#: Bytes of frames that are done from which they are dropped.
DROP_FROM = 1 << 20


class Framed(NamedTuple):
    """A request in the file: where its frame begins, its size, and what it carries."""

    place: int
    size: int
    rows: int


class SpoolFile:
    """A file of requests; the oldest is done first.

    A frame is given to the operating system before `append` returns: it survives the end of the
    process, and with `sync` that of the machine. What is done is said by a small frame that is
    never waited for: at worst a request is sent again, and counted as `duplicate`.

    A file that ends in the middle of a frame, as a kill leaves it, is cut there, and what is cut is
    kept in ``FILE.torn``. It grows to twice the size of what waits, and 1 MiB.

    Args:
        path: of the file; made if it is not there.
        sync: wait for the disk after every request.

    Raises:
        InvalidValue: a file of something else, or one that another process uses.
        StorageFull: it cannot be written.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path, self._sync = path, sync
        #: The model and generation that the requests are for; None before it is known.
        self.model: dict[str, Any] | None = None
        self._lock = _locked(path.with_name(path.name + ".lock"))
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            self.waiting = self._read()
        except OSError as error:
            self._lock.close()
            raise StorageFull(str(path), "a file that can be written", error) from None
        except BaseException:
            self._lock.close()
            raise

    def _read(self) -> list[Framed]:
        """Read what is there, cut a torn end, and return what waits."""
        size = os.fstat(self._file).st_size
        magic = self._bytes(0, len(MAGIC))
        self._end = self._done = 0
        if magic != MAGIC:
            if not MAGIC.startswith(magic):  # nor one that was killed as it was made
                os.close(self._file)
                expected = "a spool, or no file yet"
                raise InvalidValue(str(self.path), expected, "something else", "name another file")
            os.ftruncate(self._file, 0)
            self._write(MAGIC)
            return []
        waiting, end = [], len(MAGIC)
        for place, kind, content in self._frames(size):
            end = place + HEAD.size + len(content)
            if kind == b"b":
                waiting.append(Framed(place, end - place, BATCH.unpack_from(content)[0]))
            elif kind == b"a":
                self._done = DONE.unpack(content)[0]
            elif kind == b"m":
                self.model = msgspec.json.decode(content)
        if end < size:
            torn = self.path.with_name(self.path.name + ".torn")
            torn.write_bytes(self._bytes(end, size - end))
            log.warning(
                "%s: cut at byte %d, the %d bytes after it are in %s",
                *(self.path, end, size - end, torn),
            )
            os.ftruncate(self._file, end)
        self._end = end
        return [framed for framed in waiting if framed.place >= self._done]

    def _frames(self, size: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (place, kind, content) of the whole frames, up to the first that is none."""
        place = len(MAGIC)
        while place + HEAD.size <= size:
            kind, length, crc = HEAD.unpack(self._bytes(place, HEAD.size))
            if place + HEAD.size + length > size:
                return
            content = self._bytes(place + HEAD.size, length)
            if _crc(kind, content) != crc:
                return
            yield place, kind, content
            place += HEAD.size + length

    def _bytes(self, place: int, size: int) -> bytes:
        os.lseek(self._file, place, os.SEEK_SET)
        return os.read(self._file, size)

    def belongs_to(self, model: dict[str, Any]) -> None:
        """Say which model and generation the requests are for."""
        self.model = model
        self._append(b"m", msgspec.json.encode(model))

    def append(self, rows: int, media: str, body: bytes) -> Framed:
        """Add a request; it survives the end of this process.

        Raises:
            StorageFull: it does not fit; nothing of it is kept.
        """
        name = media.encode()
        place = self._append(b"b", BATCH.pack(rows, len(name)) + name + body)
        if self._sync:
            os.fsync(self._file)
        return Framed(place, self._end - place, rows)

    def read(self, framed: Framed) -> tuple[str, bytes]:
        """Return the content type and the body of a request that waits.

        Raises:
            StorageFull: the file was damaged meanwhile, or cannot be read.
        """
        data = self._bytes(framed.place, framed.size)
        content = data[HEAD.size :]
        if len(data) != framed.size or data[: HEAD.size] != _head(b"b", content):
            raise StorageFull(str(self.path), "the request that was written", "other bytes")
        start = BATCH.size + BATCH.unpack_from(content)[1]
        return content[BATCH.size : start].decode(), content[start:]

    def done(self, framed: Framed) -> bool:
        """Forget all requests up to this one; return whether it is time to `drop` them.

        Raises:
            StorageFull: that cannot be written; they may be sent again.
        """
        self._done = framed.place + framed.size
        if self._done >= DROP_FROM and self._done >= self._end - self._done:
            return True
        self._append(b"a", DONE.pack(self._done))
        return False

    def drop(self, waiting: list[Framed]) -> list[Framed]:
        """Write what waits into a new file, in the place of this one; return where it is there.

        Raises:
            StorageFull: that cannot be written; what is done may be sent again.
        """
        new = self.path.with_name(self.path.name + ".new")
        parts, moved, place = [MAGIC], [], len(MAGIC)
        if self.model is not None:
            content = msgspec.json.encode(self.model)
            parts.append(_head(b"m", content) + content)
            place += len(parts[-1])
        try:
            with new.open("wb") as file:
                file.writelines(parts)
                for framed in waiting:  # one at a time: they may be many
                    file.write(self._bytes(framed.place, framed.size))
                    moved.append(framed._replace(place=place))
                    place += framed.size
                file.flush()
                os.fsync(file.fileno())
            os.close(self._file)  # Windows replaces no open file
            new.replace(self.path)
            self._file = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise StorageFull(str(self.path), "room to drop what is done", error) from None
        self._end, self._done = place, 0
        return moved

    def _append(self, kind: bytes, content: bytes) -> int:
        """Write a frame at the end and return its place."""
        place = self._end
        self._write(_head(kind, content) + content)
        return place

    def _write(self, data: bytes) -> None:
        view, place = memoryview(data), self._end
        try:
            os.lseek(self._file, place, os.SEEK_SET)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.ftruncate(self._file, place)
            raise StorageFull(str(self.path), "room for a request", error) from None
        self._end = place + len(data)

    def close(self) -> None:
        """Let go of the file, which holds what still waits."""
        os.close(self._file)
        self._lock.close()


def _crc(kind: bytes, content: bytes) -> int:
    return crc32(content, crc32(kind + len(content).to_bytes(4, "big")))


def _head(kind: bytes, content: bytes) -> bytes:
    return HEAD.pack(kind, len(content), _crc(kind, content))


def _locked(path: Path) -> Any:
    """Return a lock file, held until it is closed."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise StorageFull(str(path), "a file that can be written", error) from None
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        expected, remedy = "a spool of this process alone", "give each actor a file of its own"
        raise InvalidValue(str(path), expected, "one that is in use", remedy) from None
    return file
