"""`Waits`: requests that are held open until something happens, bounded in number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from jormungandr.errors import Overloaded, RateLimited

__all__ = ["Waits"]

#: Requests held open at once: of all tokens, and of one.
SERVICE, BEARER = 2_048, 1_024


class Waits:
    """Counts barriers and long polls.

    Args:
        service: how many there may be.
        bearer: how many of one token.
    """

    def __init__(self, service: int = SERVICE, bearer: int = BEARER) -> None:
        self._service, self._bearer = service, bearer
        self._held: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        """Requests that are held open."""
        return self._held.total()

    @contextmanager
    def enter(self, bearer: str) -> Iterator[None]:
        """Hold a request open until the block ends.

        Raises:
            RateLimited: its token has as many as it may have.
            Overloaded: the service has.
        """
        if self._held[bearer] >= self._bearer:
            raise RateLimited("wait", f"at most {self._bearer} at once with one token", "more")
        if self.requests >= self._service:
            raise Overloaded("wait", f"at most {self._service} at once", "more")
        self._held[bearer] += 1
        try:
            yield
        finally:
            self._held[bearer] -= 1
            if not self._held[bearer]:
                del self._held[bearer]
