"""Rates of one token: requests and rows, a burst, and when to come back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jormungandr.errors import Backlog, Overloaded, RateLimited
from jormungandr.service.load import rates as module
from jormungandr.service.load.again import retry_after
from jormungandr.service.load.limits import Limits
from jormungandr.service.load.rates import RateLimit, Rates
from jormungandr.service.load.waits import Waits
from tests.service.serving import QUIET, experience


class Clock:
    """A clock that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def taken(rates: Rates, bearer: str, most: int = 100) -> int:
    """Return how many requests of a token are let through in one moment."""
    for n in range(most):
        try:
            rates.request(bearer)
        except RateLimited:
            return n
    return most


def test_requests() -> None:
    """A burst of two seconds, then the rate; each token has its own."""
    clock = Clock()
    rates = Rates(RateLimit(requests=10), clock)

    assert taken(rates, "a") == 20
    clock.now += 0.5
    assert (taken(rates, "a"), taken(rates, "b")) == (5, 20)
    clock.now += 1e9
    assert taken(rates, "a") == 20
    assert rates.refused == 4


def test_rows_are_owed() -> None:
    """A request that was let through may take more rows than there are; the next one waits."""
    clock = Clock()
    rates = Rates(RateLimit(rows=100), clock)
    rates.request("a")
    rates.rows("a", 1_000)

    with pytest.raises(RateLimited, match="at most 100 rows a second") as raised:
        rates.request("a")
    assert raised.value.retry_after == pytest.approx(8.01)
    rates.request("b")
    clock.now += 8.02
    rates.request("a")


def test_without_a_limit() -> None:
    """Nothing is limited, and nothing remembered, unless it is asked for."""
    rates = Rates()
    rates.rows("a", 1 << 40)

    assert taken(rates, "a", 10_000) == 10_000
    assert vars(rates)["_requests"] == vars(rates)["_rows"] == {}


def test_tokens_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that have all they may have take no memory; those that owe are remembered."""
    monkeypatch.setattr(module, "REMEMBERED", 3)
    clock = Clock()
    rates = Rates(RateLimit(requests=1), clock)
    for name in "abc":
        rates.request(name)
    taken(rates, "b")
    clock.now += 1.0
    rates.request("d")

    assert set(vars(rates)["_requests"]) == {"b", "d"}


def test_retry_after_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are refused together are told different times, never earlier than it helps."""
    monkeypatch.setattr(random, "randrange", random.Random(0).randrange)
    late = RateLimited("token", "less")
    late.retry_after = 4.2

    assert {retry_after(Backlog("model", "less")) for _ in range(50)} == {1, 2, 3}
    assert {retry_after(late) for _ in range(50)} == {5, 6, 7}


def test_waits() -> None:
    """Requests that are held open are bounded, of one token and of all."""
    waits = Waits(service=3, bearer=2)
    with waits.enter("a"), waits.enter("a"):
        with pytest.raises(RateLimited), waits.enter("a"):
            pass
        with waits.enter("b"), pytest.raises(Overloaded), waits.enter("c"):
            pass
        assert waits.requests == 2
    assert waits.requests == 0


def test_over_http(open_app: Any, tmp_path: Any) -> None:
    """A token beyond its rate is 429 with its Retry-After, on each route that takes rows."""
    with open_app(tmp_path, limits=Limits(rate=RateLimit(rows=10))) as app:
        app.connect("m").create(QUIET)
        app.connect("m").add(experience(10, 4))

        for path in ("experience/add", "labels/add", "inference"):
            response = app.request("POST", f"/v1/models/m/{path}", {})
            assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limited")
            assert 2 <= int(response.headers["retry-after"]) <= 5
        assert app.connect("m").info()["accepted"]["train"] > 0  # figures are not limited
