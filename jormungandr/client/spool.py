"""`Spool`: transitions that wait for the service, bounded, in memory or in a file."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from jormungandr.checks import INTEGERS, is_number
from jormungandr.client.refused import KEEP, Refused
from jormungandr.client.spool_file import Framed, SpoolFile
from jormungandr.errors import InvalidValue, JormungandrError, StorageFull, Unavailable
from jormungandr.outbox import NOTHING, added
from jormungandr.protocol import Receipt

__all__ = ["Batch", "Spool"]

log = logging.getLogger("jormungandr")

#: Bytes of requests that go together: what is made of them takes a few times that for a moment.
MERGE_BYTES = 1 << 20


@dataclass(eq=False, slots=True)
class Batch:
    """A request that waits.

    Args:
        rows: how many transitions it has.
        size: bytes it takes in the spool.
        content: content type and body, or where in the file they are.
        awaited: whether somebody waits for this one, and is told what became of it.
        receipt: what became of it.
    """

    rows: int
    size: int
    content: tuple[str, bytes] | Framed
    awaited: bool = False
    receipt: Future[Receipt] = field(default_factory=Future)


class Spool:
    """A bounded queue of requests; a thread sends them, one after another, in order.

    Without a file, what waits is lost with the process. With one, it is in the file before `send`
    returns, and the next process that opens the file goes on with it: what had arrived already is
    counted as `duplicate`, so nothing is stored twice. `SpoolFile` describes the file.

    Args:
        file: its path; one file for one actor at a time, and for one model.
        max_bytes: bytes that may wait; a single request always may.
        max_rows: transitions that may wait.
        on_full: ``block`` waits for room, ``raise`` raises `Unavailable`.
        sync: wait for the disk after every request, so that it survives a loss of power too.

    Raises:
        InvalidValue: an argument that is none, a file of something else, or one in use.
        StorageFull: the file cannot be written.
    """

    def __init__(
        self,
        file: str | Path | None = None,
        *,
        max_bytes: int = 64 << 20,
        max_rows: int = 1_000_000,
        on_full: Literal["block", "raise"] = "block",
        sync: bool = False,
    ) -> None:
        for name, value in (("max_bytes", max_bytes), ("max_rows", max_rows)):
            if not is_number(value, INTEGERS) or value < 1:
                raise InvalidValue(name, "an integer >= 1", value)
        if on_full not in ("block", "raise"):
            raise InvalidValue("on_full", "'block' or 'raise'", repr(on_full))
        self.max_bytes, self.max_rows, self.on_full = max_bytes, max_rows, on_full
        self._file = None if file is None else SpoolFile(Path(file), sync=sync)
        self._batches: deque[Batch] = deque()
        #: Bytes and transitions that wait.
        self.bytes = self.rows = 0
        #: Of all that was sent: counts added up, and the last lsn, version and generation.
        self.receipt = NOTHING
        #: The newest refused requests, and how many there were.
        self.refused: deque[Refused] = deque(maxlen=KEEP)
        self.refused_count = 0
        #: Why the last attempt to send failed; None when it did not.
        self.failure: JormungandrError | None = None
        #: Notified when anything changes; held while it does.
        self.changed = threading.Condition()
        self._stopped: JormungandrError | None = None  # nothing is sent any more
        self._untold: deque[JormungandrError] = deque(maxlen=KEEP)
        self.closed = False
        for framed in [] if self._file is None else self._file.waiting:
            self._enter(Batch(framed.rows, framed.size, framed))

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._batches)

    @property
    def model(self) -> dict[str, Any] | None:
        """Model id and generation that the file's requests are for, if it says so."""
        return None if self._file is None else self._file.model

    @property
    def kept(self) -> bool:
        """Whether what waits outlives this process."""
        return self._file is not None

    def belongs_to(self, model_id: str, generation: int) -> None:
        """Say which model what waits is for."""
        model = {"model_id": model_id, "generation": generation}
        with self.changed:
            if self._file is not None and self._file.model != model:
                self._file.belongs_to(model)

    # -- in -------------------------------------------------------------------------------------

    def put(self, rows: int, media: str, body: bytes, *, awaited: bool = False) -> Batch:
        """Take a request.

        Raises:
            Unavailable: there is no room, and `on_full` is ``raise``.
            StorageFull: the file cannot be written.
            JormungandrError: what `check` raises; the request is not taken.
        """
        with self.changed:
            self.check()
            while self._batches and not self._fits(rows, len(body)):
                if self.on_full == "raise":
                    waits = f"{self.rows} transitions, {self.bytes} bytes"
                    if self.failure is not None:
                        waits += f"; {self.failure}"
                    raise Unavailable("spool", f"room for {rows} more transitions", waits)
                self.changed.wait()
                self.check()
            if self._file is None:
                batch = Batch(rows, len(body), (media, body), awaited)
            else:
                framed = self._file.append(rows, media, body)
                batch = Batch(rows, framed.size, framed, awaited)
            self._enter(batch)
            self.changed.notify_all()
            return batch

    def _fits(self, rows: int, size: int) -> bool:
        return self.rows + rows <= self.max_rows and self.bytes + size <= self.max_bytes

    def _enter(self, batch: Batch) -> None:
        self._batches.append(batch)
        self.bytes, self.rows = self.bytes + batch.size, self.rows + batch.rows

    def check(self) -> None:
        """Raise what was not yet told.

        Raises:
            JormungandrError: of a request that was refused, once; or why nothing is sent any more.
        """
        with self.changed:
            if self._untold:
                raise self._untold.popleft()
            if self._stopped is not None:
                raise self._stopped.with_traceback(None)  # which would grow with every raise

    def join(self, seconds: float, *, whatever: bool = False) -> bool:
        """Wait until all is answered; return whether it is, or something is to be told first.

        Args:
            seconds: at most.
            whatever: wait on, also when something is to be told.
        """
        with self.changed:
            return self.changed.wait_for(
                lambda: (
                    not self._batches
                    or self._stopped is not None
                    or (bool(self._untold) and not whatever)
                ),
                seconds,
            )

    # -- out ------------------------------------------------------------------------------------

    def first(self, rows: int = 0) -> list[tuple[Batch, str, bytes]]:
        """Return the oldest request with its content type and body, waiting for one.

        Args:
            rows: of requests that may go together; as many of the next ones come along as have no
                more than that together, if nobody waits for the receipt of one of them.

        Returns:
            None of them once this is closed.

        Raises:
            StorageFull: the file cannot be read.
        """
        with self.changed:
            self.changed.wait_for(lambda: self._batches or self.closed)
            if self.closed:
                return []
            found, size = 1, self._batches[0].size
            count = self._batches[0].rows
            for batch in islice(self._batches, 1, None):
                count, size = count + batch.rows, size + batch.size
                alone = self._batches[0].awaited or batch.awaited
                if alone or count > rows or size > MERGE_BYTES:
                    break
                found += 1
            return [(batch, *self._read(batch)) for batch in islice(self._batches, found)]

    def _read(self, batch: Batch) -> tuple[str, bytes]:
        if isinstance(batch.content, Framed):
            assert self._file is not None
            return self._file.read(batch.content)
        return batch.content

    def done(self, batches: Sequence[Batch], receipt: Receipt) -> None:
        """Forget the oldest requests, which had one receipt together."""
        with self.changed:
            self.receipt = added(self.receipt, receipt)
            self.failure = None
            self._leave(batches)
        for batch in batches[:-1]:
            batch.receipt.set_result(replace(receipt, accepted=0, duplicate=0, stale_dropped=0))
        batches[-1].receipt.set_result(receipt)

    def refuse(self, batch: Batch, refused: Refused) -> None:
        """Set the oldest request aside, unless somebody is told right now."""
        with self.changed:
            self.failure = None
            if not batch.awaited:
                self.refused_count += 1
                self.refused.append(refused)
                place = None if self._file is None else refused.write_beside(self._file.path)
                e = refused.error
                where = "`spool.refused`" if place is None else place
                remedy = f"{refused.rows} transitions are set aside in {where}"
                remedy = f"{e.remedy}; {remedy}" if e.remedy else remedy
                told = type(e)(e.where, e.expected, e.got, remedy)
                log.error("refused: %s", told)
                self._untold.append(told)
            self._leave([batch])
        batch.receipt.set_exception(refused.error)

    def _leave(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            assert self._batches[0] is batch
            self._batches.popleft()
            self.bytes, self.rows = self.bytes - batch.size, self.rows - batch.rows
        last = batches[-1].content
        if isinstance(last, Framed):
            assert self._file is not None
            try:
                if self._file.done(last):
                    waiting = [b.content for b in self._batches if isinstance(b.content, Framed)]
                    moved = self._file.drop(waiting)
                    for batch, framed in zip(self._batches, moved, strict=True):
                        batch.content = framed
            except StorageFull as error:  # at worst they are sent again
                log.warning("%s", error)
        self.changed.notify_all()

    def stop(self, error: JormungandrError) -> None:
        """Send nothing any more; what waits stays, and every call says why."""
        with self.changed:
            self._stopped = error
            for batch in self._batches:
                if not batch.receipt.done():
                    batch.receipt.set_exception(error)
            self.changed.notify_all()

    def close(self) -> int:
        """Let go of the file; return how many transitions still wait."""
        with self.changed:
            if not self.closed:
                self.closed = True
                self.changed.notify_all()
                if self._file is not None:
                    self._file.close()
            return self.rows
