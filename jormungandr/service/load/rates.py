"""`Rates`: how much one token may send in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jormungandr.errors import RateLimited

__all__ = ["RateLimit", "Rates"]

#: Seconds of its rate that a token may save up.
BURST = 2.0
#: Tokens remembered before those that have all they may have are forgotten.
REMEMBERED = 1_024


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What one token may send; None is without a limit.

    Args:
        requests: in a second: of transitions, labels, or for actions.
        rows: in a second: transitions, labels and observations.
    """

    requests: float | None = None
    rows: float | None = None


class _Bucket:
    """What is left of an allowance that fills with time; below zero it is owed."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._left, self._at = rate, rate * BURST, now

    def left(self, now: float) -> float:
        """Return what is left."""
        self._left = min(self._rate * BURST, self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    def take(self, amount: float) -> None:
        """Use up some, more than there is perhaps."""
        self._left -= amount

    def seconds(self, amount: float) -> float:
        """Return after how long there is so much."""
        return max(0.0, (amount - self._left) / self._rate)

    def full(self, now: float) -> bool:
        """Whether nothing is used up."""
        return self.left(now) >= self._rate * BURST


class Rates:
    """One bucket of requests and one of rows for each token that sends.

    How many rows a request has is known when it is decoded: it is let through, and what it took is
    owed by the next one.

    Args:
        limit: of each token.
        clock: in seconds.
    """

    def __init__(
        self,
        limit: RateLimit = RateLimit(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._clock = limit, clock
        self._requests: dict[str, _Bucket] = {}
        self._rows: dict[str, _Bucket] = {}
        #: Requests refused.
        self.refused = 0

    def request(self, bearer: str) -> None:
        """Count a request of a token.

        Raises:
            RateLimited: it has to wait first.
        """
        now, limit = self._clock(), self._limit
        if limit.rows is not None:
            rows = self._bucket(self._rows, bearer, limit.rows, now)
            if rows.left(now) <= 0:
                raise self._refusal(f"at most {limit.rows:g} rows a second", rows.seconds(1.0))
        if limit.requests is not None:
            requests = self._bucket(self._requests, bearer, limit.requests, now)
            if requests.left(now) < 1:
                expected = f"at most {limit.requests:g} requests a second"
                raise self._refusal(expected, requests.seconds(1.0))
            requests.take(1)

    def allows(self, bearer: str) -> bool:
        """Whether a token's next request would be let through."""
        limit = self._limit
        if limit.rows is None and limit.requests is None:
            return True
        now = self._clock()
        if limit.rows is not None:
            rows = self._bucket(self._rows, bearer, limit.rows, now)
            if rows.left(now) <= 0:
                return False
        if limit.requests is None:
            return True
        return self._bucket(self._requests, bearer, limit.requests, now).left(now) >= 1

    def rows(self, bearer: str, count: int) -> None:
        """Count the rows of a request that was let through."""
        if self._limit.rows is not None:
            self._bucket(self._rows, bearer, self._limit.rows, self._clock()).take(count)

    def _bucket(self, buckets: dict[str, _Bucket], bearer: str, rate: float, now: float) -> _Bucket:
        found = buckets.get(bearer)
        if found is None:
            if len(buckets) >= REMEMBERED:
                for name in [name for name, b in buckets.items() if b.full(now)]:
                    del buckets[name]
            found = buckets[bearer] = _Bucket(rate, now)
        return found

    def _refusal(self, expected: str, seconds: float) -> RateLimited:
        self.refused += 1
        error = RateLimited("token", expected, "more", "send larger batches, or fewer")
        error.retry_after = seconds
        return error
