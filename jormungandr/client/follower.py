"""`Follower`: keeps the newest policy of a model here, fetched by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from urllib.parse import quote

from jormungandr.client.calls import Again, Calls, Pauses
from jormungandr.errors import (
    CheckpointError,
    InternalError,
    JormungandrError,
    ModelGone,
    ModelUnknown,
    PolicyNotReady,
)
from jormungandr.policy import PolicySnapshot
from jormungandr.transport import Response

__all__ = ["Follower"]

log = logging.getLogger("jormungandr")

#: Seconds between two policies: a learner may publish twenty a second, more than acting needs.
BETWEEN = 0.25
#: Longest pause between two attempts, in seconds, whatever a service asks for.
LONGEST_PAUSE = 30.0


class Follower:
    """Asks for newer policies, one request after another, each held open until there is one.

    While the service is away it goes on asking; the policy that is here stays. A policy is swapped
    in whole, after its digest was compared with the one it was announced with.

    Args:
        calls: to the service.
        path: of the model.
        poll: seconds for which one request is held open, 0.05 … 60.
        policy: the role of what is followed; None is what the model serves.
    """

    def __init__(
        self, calls: Calls, path: str, *, poll: float = 20.0, policy: str | None = None
    ) -> None:
        self._calls, self._path, self._policy = calls, path, policy
        self._poll = min(60.0, max(0.05, poll))
        self._snapshot: PolicySnapshot | None = None
        self._confirmed = 0.0
        self._error: JormungandrError | None = None  # after which it has ended
        self._failure: JormungandrError | None = None  # of the last attempt
        self._arrived, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to follow, unless that was done."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="jormungandr-policy", daemon=True
            )
            self._thread.start()

    def newest(self, seconds: float | None = None) -> PolicySnapshot:
        """Return the policy to act with, waiting for the first one.

        Args:
            seconds: at most; None is the patience of all calls.

        Raises:
            ModelGone: the model was deleted, or is another one now.
            JormungandrError: there is no policy in time, or it is refused.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)  # which would grow with every raise
        if self._snapshot is None:
            self.start()
            patience = self._calls.patience if seconds is None else seconds
            self._arrived.wait(patience)
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._snapshot is None:
                expected = f"a first policy within {patience:g} s"
                raise self._failure or PolicyNotReady("policy", expected, "none")
        return self._snapshot

    @property
    def version(self) -> int:
        """Of the newest policy; -1 before there is one."""
        return -1 if self._snapshot is None else self._snapshot.version

    @property
    def age(self) -> float:
        """Seconds since the service said that this is the newest; infinite before there is one."""
        return float("inf") if self._snapshot is None else time.monotonic() - self._confirmed

    def stop(self) -> None:
        """Ask for no more; how a request that is under way ends is nobody's concern."""
        self._stopping.set()

    def close(self) -> None:
        """End the thread; the policy that is here stays."""
        self.stop()
        if self._thread is not None:
            # A request that is held open ends with its connection, also one that just begins.
            end = time.monotonic() + 5.0
            while self._thread.is_alive() and time.monotonic() < end:
                self._calls.close()
                self._thread.join(0.05)

    def _run(self) -> None:
        pauses = Pauses()
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                answer = self._ask()
                new = answer.status != 304
                if new:
                    self._take(answer)
                self._confirmed = time.monotonic()
            except Again as again:
                self._failed(again.failure, pauses.next(again.pause))
                continue
            except JormungandrError as error:
                if error.status < 500:
                    self._error = error
                    self._arrived.set()
                    return
                self._failed(error, pauses.next(0.0))
                continue
            if self._failure is not None:
                log.warning("%s: policies come again", self._path)
            pauses, self._failure = Pauses(), None
            self._arrived.set()
            # One that says "no newer" at once, again and again, is not asked without a pause.
            hasty = not new and time.monotonic() - began < self._poll / 2
            if new or hasty:
                self._stopping.wait(min(BETWEEN, self._poll))

    def _ask(self) -> Response:
        have = self._snapshot
        wait = f"wait={self._poll:.3f}"
        newer = wait if have is None else f"newer_than={have.version}&{wait}"
        if self._policy is not None:
            newer += f"&policy={quote(self._policy, safe='')}"
        timeout = self._poll + self._calls.timeout
        try:
            return self._calls.attempt("GET", f"{self._path}/policy?{newer}", timeout=timeout)
        except ModelUnknown as error:
            if have is None:
                raise
            raise ModelGone(error.where, f"generation {have.generation}", "none") from None

    def _take(self, answer: Response) -> None:
        """Put a policy in the place of the one before it."""
        snapshot, have = PolicySnapshot.from_bytes(answer.body), self._snapshot
        if snapshot.digest() != answer.headers.get("jormungandr-policy-digest"):
            raise CheckpointError("policy", "the digest it was announced with", "another")
        if have is not None and have.generation != snapshot.generation:
            expected, got = f"generation {have.generation}", f"generation {snapshot.generation}"
            raise ModelGone(self._path, expected, got, "it was deleted and created again")
        # A champion may be rolled back to an older one; the newest policy only gets newer.
        promoted = answer.headers.get("jormungandr-policy-role", "latest") != "latest"
        older = have is not None and snapshot.version <= have.version
        if have is not None and older and not (promoted and snapshot.version != have.version):
            raise InternalError("policy", f"one newer than {have.version}", snapshot.version)
        self._snapshot = snapshot

    def _failed(self, failure: JormungandrError, pause: float) -> None:
        """Wait before the next attempt."""
        if self._failure is None and not self._stopping.is_set():
            log.warning("%s; acting goes on with policy %d", failure, self.version)
        self._failure = failure
        self._stopping.wait(min(pause, LONGEST_PAUSE))
