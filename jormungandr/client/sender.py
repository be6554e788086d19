"""`Sender`: the thread that takes what waits in a spool to the service."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from jormungandr.client.calls import Again, Calls, Pauses, decoded
from jormungandr.client.merging import merged
from jormungandr.client.refused import Refused
from jormungandr.client.spool import Batch, Spool
from jormungandr.encoder import TransitionEncoder
from jormungandr.errors import (
    Forbidden,
    InvalidValue,
    JormungandrError,
    MethodNotAllowed,
    ModelConflict,
    ModelGone,
    ModelUnknown,
    NotFound,
    StorageFull,
    Unauthenticated,
)
from jormungandr.protocol import LIMITS, Receipt
from jormungandr.wire import MSGPACK

__all__ = ["Sender"]

log = logging.getLogger("jormungandr")

#: Longest pause between two attempts, in seconds, whatever a service asks for.
LONGEST_PAUSE = 60.0
#: Refusals that are not of one request: the next would be refused as well.
OF_ALL = (Unauthenticated, Forbidden, ModelUnknown, NotFound, MethodNotAllowed)


class Sender:
    """Sends a spool's requests, the same bytes until they are answered, one after another.

    Those that have gathered go together, in their order, as far as the limits of a request allow.

    Before the first one, and after each time that the service could not be reached, it asks whether
    the model is still the one that the requests are for: what one model's actors did is nothing for
    another one of the same name to learn from.

    Args:
        spool: of the requests.
        calls: to the service.
        model_id: of the model.
        path: of the model.
        encoder: is told what the service says of the model.
    """

    def __init__(
        self,
        spool: Spool,
        calls: Calls,
        model_id: str,
        path: str,
        encoder: TransitionEncoder,
    ) -> None:
        self._spool, self._calls, self._model_id, self._path = spool, calls, model_id, path
        self._encoder = encoder
        model = spool.model
        if model is not None and model["model_id"] != model_id:
            spool.close()
            raise InvalidValue("spool", f"one of the model {model_id!r}", model["model_id"])
        #: Of the model; None before it is known.
        self.generation: int | None = None if model is None else model["generation"]
        self._checked = False
        self._held: tuple[list[Batch], str, bytes] | None = None  # the same bytes until answered
        self._alone = 0  # how many of the next requests do not go together with others
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jormungandr-spool", daemon=True)
        self._started = threading.Lock()
        if len(spool):
            self.start()

    def start(self) -> None:
        """Begin to send, unless that was done."""
        with self._started:
            if self._thread.ident is None:
                self._thread.start()

    def close(self, seconds: float) -> int:
        """Wait until all is answered, end, and return how many transitions still wait."""
        self._spool.join(seconds, whatever=True)
        self._closing.set()
        left = self._spool.close()
        if self._thread.ident is not None:
            end = time.monotonic() + 5.0
            while self._thread.is_alive() and time.monotonic() < end:
                self._calls.close()  # a request that is under way ends with its connection
                self._thread.join(0.05)
        return left

    def _run(self) -> None:
        pauses = Pauses()
        while not self._closing.is_set():
            try:
                if not self._next():
                    return
            except Again as again:
                if not self._closing.is_set():
                    self._failed(again.failure, pauses.next(again.pause))
            except JormungandrError as error:
                if error.status < 500 or isinstance(error, ModelGone):
                    log.error("nothing is sent any more: %s", error)
                    self._spool.stop(error)
                    return
                self._failed(error, pauses.next(0.0))
            else:
                pauses = Pauses()

    def _failed(self, failure: JormungandrError, pause: float) -> None:
        """Wait before the next attempt."""
        with self._spool.changed:
            if self._spool.failure is None:
                log.warning("%s; %d transitions wait", failure, self._spool.rows)
            self._spool.failure = failure
        self._checked = False
        self._closing.wait(min(pause, LONGEST_PAUSE))

    def _next(self) -> bool:
        """Send the oldest request; return whether to go on.

        Raises:
            Again: it waits on.
            JormungandrError: nothing can be sent, now or for good.
        """
        if self._held is None:
            self._held = self._take()
        if self._held is None:
            return False
        if not self._checked:
            self._check()
        batches, media, body = self._held
        try:
            answer = self._calls.attempt("POST", f"{self._path}/experience/add", body, media)
        except (ModelConflict, ModelUnknown) as error:  # columns say which generation they are for
            raise self._gone(error.expected) from None
        except OF_ALL:
            raise
        except JormungandrError as error:
            if error.status >= 500:  # of a proxy, say: no fault of the request
                raise
            self._held = None
            if len(batches) > 1:
                self._alone = len(batches)  # which of them it is, shows when each goes alone
            else:
                self._spool.refuse(batches[0], Refused(error, batches[0].rows, media, body))
            return True
        receipt = decoded(answer, Receipt)
        self._meet(receipt.generation)
        if self._spool.failure is not None:
            log.warning("the service answers again; %d transitions wait", self._spool.rows)
        self._held = None
        self._spool.done(batches, receipt)
        return True

    def _take(self) -> tuple[list[Batch], str, bytes] | None:
        """Return the next request with the batches in it; None once the spool is closed.

        Where several wait, they go together, if that is possible.
        """
        model = self._encoder.model
        together = LIMITS["transitions_per_request"] if model is not None and not self._alone else 0
        found = self._spool.first(together)
        if not found:
            return None
        self._alone = max(0, self._alone - 1)
        if len(found) > 1 and model is not None:
            try:
                body = merged((request[1:] for request in found), *model)
            except JormungandrError:  # of one that the service will refuse: it says why
                self._alone = len(found) - 1
            else:
                return [batch for batch, *_ in found], MSGPACK, body
        batch, media, body = found[0]
        return [batch], media, body

    def _check(self) -> None:
        try:
            found = decoded(self._calls.attempt("GET", self._path), dict[str, Any])
        except ModelUnknown as error:
            if self.generation is None:
                raise
            raise self._gone(error.expected) from None
        self._meet(found["generation"])
        self._encoder.know(found)
        self._checked = True

    def _meet(self, generation: int) -> None:
        """Remember the model's generation, or refuse another one."""
        if self.generation is None:
            self.generation = generation
            with contextlib.suppress(StorageFull):  # said at the next start
                self._spool.belongs_to(self._model_id, generation)
        elif generation != self.generation:
            raise self._gone(f"generation {generation}")

    def _gone(self, got: str) -> ModelGone:
        expected = f"generation {self.generation} of the model"
        remedy = f"it was deleted; {self._spool.rows} transitions of it still wait"
        return ModelGone(self._model_id, expected, got, remedy)
