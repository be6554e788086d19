"""The write-ahead log beside a journal: what SQLite would take of it, and what it would cut.

SQLite ends the log at the first frame whose checksum does not fit, and says nothing: it cannot
tell a commit that a power cut tore, which nobody was told of, from a damaged one that was
acknowledged. Here the frames behind that one are looked at too. Each goes on from the checksum
stored before it, so it can be checked on its own; and frames of a later commit are written only
when the earlier one is synced. So a fitting frame of a later commit proves that what lies before it
was durable, and is damaged now. `Journal.seal` makes one such commit when nothing else comes.

The format is that of https://sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import DataDirError

__all__ = ["WalState", "check_wal", "mended_wal", "wal_path"]

HEADER, FRAME_HEADER = 32, 24
#: The last bit says in which order the bytes of a word are summed.
MAGIC = 0x377F0682
#: Frames summed at a time.
CHUNK = 256

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class WalState:
    """What a log holds.

    Args:
        commits: whole ones.
        torn: frames after the last of them, which nobody was told of.
    """

    commits: int = 0
    torn: int = 0


class _Log:
    """A log as arrays, one entry per frame."""

    def __init__(self, database: Path) -> None:
        self.path = wal_path(database)
        there = self.path.exists() and self.path.stat().st_size > 0
        self.data = np.memmap(self.path, np.uint8, "r") if there else np.zeros(0, np.uint8)
        try:
            with database.open("rb") as file:
                size = int.from_bytes(file.read(18)[16:], "big")
        except OSError as error:
            raise DataDirError(str(database), "a journal", error) from None
        # Of the database: the log's own may be what is damaged.
        self.page = 65_536 if size == 1 else size
        if self.page < 512 or self.page & (self.page - 1):
            raise DataDirError(str(database), "a journal", f"pages of {self.page} bytes")
        step = FRAME_HEADER + self.page
        count = max(len(self.data) - HEADER, 0) // step
        self.frames = self.data[HEADER:][: count * step].reshape(count, step)
        heads = self.frames[:, :FRAME_HEADER].copy().view(">u4").astype(np.uint32)
        self.number = heads[:, 0]
        self.size = heads[:, 1]  # of the database in pages, in the last frame of a commit
        self.salt, self.sums = heads[:, 2:4], heads[:, 4:6]
        head = self.data[:HEADER].tobytes().ljust(HEADER, b"\0")
        self.header = np.frombuffer(head, ">u4").astype(np.uint32)

    def header_fits(self) -> bool:
        """Whether SQLite would look at the frames at all."""
        got = _sums(self.data[:24].tobytes(), self.order(), np.zeros(2, np.uint32))
        ours = self.header[0] & ~np.uint32(1) == MAGIC and self.header[2] == self.page
        return bool(ours and (got == self.header[6:]).all())

    def order(self) -> str:
        """Return the dtype of a summed word."""
        return ">u4" if self.header[0] & 1 else "<u4"

    def fitting(self, order: str) -> NDArray[np.bool_]:
        """Return (F,) whether each frame goes on from the checksum stored before it."""
        if not len(self.frames):
            return np.zeros(0, dtype=np.bool_)
        before = np.concatenate([self.header[None, 6:], self.sums[:-1]])
        got = np.empty_like(self.sums)
        for at in range(0, len(self.frames), CHUNK):
            part = slice(at, at + CHUNK)
            frames = self.frames[part]
            summed = np.concatenate([frames[:, :8], frames[:, FRAME_HEADER:]], axis=1)
            got[part] = _sums(summed, order, before[part])
        return np.asarray((got == self.sums).all(axis=1) & (self.number != 0))


def wal_path(database: Path) -> Path:
    """Return where the log of a database is."""
    return database.with_name(database.name + "-wal")


def check_wal(database: Path) -> WalState:
    """Look at the log of a journal that nobody has open.

    Raises:
        DataDirError: a commit that was durable would be cut from it; the frame is named.
    """
    log = _Log(database)
    if not len(log.frames):
        return WalState(0, int(len(log.data) > HEADER))
    where, remedy = str(log.path), "what was acknowledged would be cut; see `jormungandr salvage`"
    if not log.header_fits():
        # The first frame of a log is written when the header is synced.
        if any(log.fitting(order).any() for order in ("<u4", ">u4")):
            raise DataDirError(f"{where}: header", "its checksum", "another", remedy)
        return WalState(0, len(log.frames))
    fits = log.fitting(log.order()) & (log.salt == log.header[4:6]).all(axis=1)
    bad = int(np.argmin(fits)) if not fits.all() else len(fits)
    ends = np.flatnonzero(log.size[:bad]) + 1
    whole = int(ends[-1]) if len(ends) else 0
    later = np.flatnonzero(fits[bad:]) + bad
    if len(later):
        last = int(later[-1])
        # A page is written once per commit: one that comes again is of a later one.
        again = np.isin(log.number[bad + 1 : last + 1], log.number[whole:bad]).any()
        if log.size[bad:last].any() or again:
            page = f"frame {bad} (page {log.number[bad]})"
            raise DataDirError(f"{where}: {page}", "its checksum", "another", remedy)
    mine = (log.salt == log.header[4:6]).all(axis=1)  # others are of the log's earlier rounds
    return WalState(len(ends), int(np.count_nonzero(mine[whole:])))


def mended_wal(database: Path) -> bytes:
    """Return a log in which every frame fits that is not damaged itself.

    What SQLite makes of it may be a mixture: it is for rows that prove themselves by their digest.
    """
    log = _Log(database)
    order = log.order() if log.header_fits() else "<u4"
    if len(log.frames) and not log.header_fits() and log.fitting(">u4").any():
        order = ">u4"
    fits = log.fitting(order)
    if not fits.any():
        return b""
    # Where the salt changes an earlier round goes on, which is in the database already.
    salt = log.header[4:6] if log.header_fits() else log.salt[int(np.argmax(fits))]
    fits &= (log.salt == salt).all(axis=1)
    if not fits.any():
        return b""
    magic = MAGIC | (order == ">u4")
    head = np.array([magic, 3_007_000, log.page, 0, *salt], dtype=np.uint32).astype(">u4").tobytes()
    sums = _sums(head, order, np.zeros(2, np.uint32))
    parts = [head + sums.astype(">u4").tobytes()]
    frames = [
        (int(log.number[i]), log.frames[i, FRAME_HEADER:].tobytes()) for i in np.flatnonzero(fits)
    ]
    # The first page says how many there are: if its newest copy is lost, an older one would not do.
    with database.open("rb") as file:
        first = [page for number, page in frames if number == 1] or [file.read(log.page)]
    pages = max(
        int(log.size[fits].max()), int(log.number[fits].max()), database.stat().st_size // log.page
    )
    frames.append((1, first[-1][:28] + pages.to_bytes(4, "big") + first[-1][32:]))
    for i, (number, page) in enumerate(frames):
        size = pages if i == len(frames) - 1 else 0  # all of it is one commit
        start = np.array([number, size], dtype=np.uint32).astype(">u4").tobytes()
        sums = _sums(start + page, order, sums)
        parts += [start, salt.astype(">u4").tobytes(), sums.astype(">u4").tobytes(), page]
    return b"".join(parts)


def _sums(data: bytes | NDArray[np.uint8], order: str, before: Words) -> Words:
    """Return the checksum (…, 2) of words in pairs, going on from `before` (…, 2).

    For each pair (a, b): s0 += a + s1, then s1 += b + s0, modulo 2^32. That is linear: the sum over
    all pairs is a product with the powers of ((1, 1), (1, 2)), and needs no loop over the words.
    """
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
    words = raw.view(order).astype(np.uint32)
    a, b = words[..., ::2], words[..., 1::2]
    power = _powers(a.shape[-1])  # (n + 1, 2, 2)
    own = np.stack([a, a + b], axis=-1)  # what one pair adds
    added = (power[-2::-1] * own[..., None, :]).sum(axis=(-3, -1), dtype=np.uint32)
    carried = (power[-1] * before[..., None, :]).sum(axis=-1, dtype=np.uint32)
    return np.asarray(added + carried, dtype=np.uint32)


def _powers(n: int) -> Words:
    """Return the powers 0..n of the matrix of one step, (n + 1, 2, 2)."""
    matrix = np.array([[1, 1], [1, 2]], dtype=np.uint32)
    powers = [np.eye(2, dtype=np.uint32)]
    for _ in range(n):
        powers.append(matrix @ powers[-1])
    return np.stack(powers)
