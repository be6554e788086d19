"""`Outbox`: transitions on their way to an endpoint, kept until it has answered for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any, cast

from jormungandr.checks import INTEGERS, is_number
from jormungandr.errors import (
    BodyTooLarge,
    InvalidType,
    InvalidValue,
    JormungandrError,
    ModelGone,
    shown,
)
from jormungandr.protocol import LIMITS, Endpoint, Receipt, Transition
from jormungandr.steps import Steps, joined

__all__ = ["NOTHING", "Outbox", "added", "check_endpoint"]

#: The receipt of nothing.
NOTHING = Receipt(accepted=0, duplicate=0, stale_dropped=0, lsn=0, policy_version=-1, generation=0)


def added(total: Receipt, got: Receipt) -> Receipt:
    """Return counts added up, and the last lsn, version and generation."""
    return Receipt(
        accepted=total.accepted + got.accepted,
        duplicate=total.duplicate + got.duplicate,
        stale_dropped=total.stale_dropped + got.stale_dropped,
        lsn=got.lsn,
        policy_version=got.policy_version,
        generation=got.generation,
    )


class Outbox:
    """Gather transitions into batches, and drop none before its receipt.

    A transition whose receipt got lost on the way is sent again; the endpoint knows its identity
    and counts it as `duplicate`. So sending again is always safe.

    How many rows fit a request depends on how wide their observations are: a request that is too
    large for the endpoint goes again in halves, and later ones are no larger than what fitted.

    A model that was deleted and created again under its id ends it: what the one's actors do is
    nothing for the other to learn from.

    An endpoint with a spool takes transitions without waiting for the service: they leave `unsent`
    when it has them, and count in `receipt` once they are answered.

    Args:
        endpoint: takes the transitions.
        batch_size: transitions to gather before they are sent, at least 1.
    """

    def __init__(self, endpoint: Endpoint, batch_size: int) -> None:
        check_endpoint(endpoint, "endpoint")
        if not is_number(batch_size, INTEGERS):
            raise InvalidType("batch_size", "an integer", shown(batch_size))
        if batch_size < 1:
            raise InvalidValue("batch_size", ">= 1", batch_size)
        self.endpoint, self.batch_size = endpoint, batch_size
        self._receipt = NOTHING
        self._generation = 0  # of the model, from the first receipt on
        self._spooled = getattr(endpoint, "spool", None) is not None
        self._on_their_way: deque[Future[Receipt]] = deque()  # with the endpoint's spool
        self._parts: list[Sequence[Transition]] = []  # of what is unsent, as they came
        self._count = 0  # of transitions in them
        self._fits = LIMITS["transitions_per_request"]  # rows; less once that was too large a body

    @property
    def receipt(self) -> Receipt:
        """Of all that was answered: counts added up, and the last lsn, version and generation."""
        while self._on_their_way and self._on_their_way[0].done():
            answered = self._on_their_way.popleft()
            if answered.exception() is None:  # what was refused, the endpoint itself tells
                self._receipt = added(self._receipt, answered.result())
        return self._receipt

    @property
    def unsent(self) -> tuple[Transition, ...]:
        """Transitions that the endpoint has not taken, oldest first."""
        return tuple(chain.from_iterable(self._parts))

    def put(self, transitions: Iterable[Transition]) -> None:
        """Take transitions, and send all there are once they make a batch.

        Raises:
            JormungandrError: the endpoint's own; what it has not taken stays in `unsent`.
        """
        self.keep(transitions)
        if self._count >= self.batch_size:
            self.send()

    def keep(self, transitions: Iterable[Transition]) -> None:
        """Take transitions and send nothing yet; the next `put`, `send` or `flush` does."""
        part = transitions if type(transitions) is Steps else list(transitions)
        self._parts.append(part)
        self._count += len(part)

    def send(self) -> Receipt:
        """Send all there are, in as few requests as the limits allow, and return `receipt`.

        Raises:
            BodyTooLarge: a single transition is more than the endpoint takes; it stays first in
                `unsent`.
            ModelGone: the model is another one now.
            JormungandrError: the endpoint's own; what it has not taken stays in `unsent`.
        """
        endpoint = cast("Any", self.endpoint)  # `send` is of those with a spool
        self._check_generation()
        unsent = joined(self._parts)
        self._parts = [unsent]
        while unsent:
            batch = unsent[: self._fits]
            try:
                if self._spooled:
                    self._on_their_way.append(endpoint.send(batch))
                else:
                    self._receipt = added(self._receipt, endpoint.add(batch))
            except BodyTooLarge:
                if len(batch) == 1:
                    raise
                self._fits = len(batch) // 2  # nothing of a refused request was kept
                continue
            unsent = unsent[len(batch) :]
            self._parts, self._count = [unsent], len(unsent)
            self._check_generation()
        return self.receipt

    def _check_generation(self) -> None:
        """Refuse to go on with another model than the one that was there at first."""
        now = self.receipt.generation
        self._generation = self._generation or now
        if now != self._generation:
            expected, got = f"generation {self._generation} of the model", f"generation {now}"
            raise ModelGone("endpoint", expected, got, "it was deleted and created again")

    def flush(self) -> Receipt:
        """Send all there are, wait until a spool has an answer to all of it, and return `receipt`.

        Raises:
            WaitTimeout: the spool's was not in time; what it has goes on waiting.
            JormungandrError: as for `send`.
        """
        self.send()
        if self._spooled:
            cast("Any", self.endpoint).flush()
        return self.receipt

    def flush_after(self, error: BaseException | None) -> None:
        """Send what is left when a block is done, or left by an error that is not an endpoint's.

        After an endpoint's error another attempt would most likely wait as long and fail again; an
        interrupt should not wait at all. Either way the transitions stay in `unsent`.
        """
        if error is None or (
            isinstance(error, Exception) and not isinstance(error, JormungandrError)
        ):
            self.send()

    def discard(self) -> tuple[Transition, ...]:
        """Give up what is unsent and return it, when the endpoint refuses it for good."""
        dropped, self._parts, self._count = self.unsent, [], 0
        return dropped


def check_endpoint(endpoint: object, where: str) -> None:
    """Refuse what cannot take transitions.

    Raises:
        InvalidType: naming the place.
    """
    if not callable(getattr(endpoint, "add", None)):
        expected = "an Endpoint, such as Learner or RemoteLearner"
        raise InvalidType(where, expected, type(endpoint).__name__)
