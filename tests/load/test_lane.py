"""A lane: bounded in bytes and in number, even between tokens, and empty when all is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from jormungandr.errors import Overloaded
from jormungandr.service.load import lane as module
from jormungandr.service.load.lane import Bounds, Held, Lane
from jormungandr.service.load.rates import Rates

BOUNDS = Bounds(service_bytes=100, service_requests=6, model_bytes=80, model_requests=4)


class Room:
    """A lane, and requests that come into it and stay."""

    def __init__(self) -> None:
        self.lane = Lane("requests", BOUNDS, Rates())
        self.stack = ExitStack()
        self._loop = asyncio.new_event_loop()
        self.stack.callback(self._loop.close)

    def enter(self, bearer: str, model_id: str = "m", size: int = 0, waits: bool = False) -> Held:
        """Take a request in, read its body, and let it wait for its turn perhaps."""

        async def never() -> Any:
            raise AssertionError

        held = self.stack.enter_context(self.lane.enter(bearer, model_id, never))
        self.lane.grow(held, size)
        if waits:
            held.waiting = self._loop.create_future()
        return held

    @property
    def holds(self) -> tuple[int, int]:
        """Bytes and requests in it."""
        return self.lane.bytes, self.lane.requests


@pytest.fixture
def room() -> Iterator[Room]:
    """A lane of the test's own."""
    made = Room()
    with made.stack:
        yield made
    assert made.holds == (0, 0)


def test_bytes_of_one_model(room: Room) -> None:
    """A body that is too much is refused before it is kept; that of another model is not."""
    room.enter("a", size=50)

    with pytest.raises(Overloaded, match="expected room for requests, got 50 bytes in 2 requests"):
        room.enter("a", size=31)
    assert room.enter("a", "n", size=40)
    assert room.lane.refused == 1


def test_bytes_of_the_service(room: Room) -> None:
    """All models together have a bound too."""
    room.enter("a", "m", size=60)
    room.enter("a", "n", size=40)

    with pytest.raises(Overloaded):
        room.enter("a", "o", size=1)


def test_requests_of_one_model_and_of_the_service(room: Room) -> None:
    """Requests without a body to speak of are bounded by their number."""
    for model_id in "mmmmnn":
        room.enter("a", model_id)

    for model_id in "mn":
        with pytest.raises(Overloaded):
            room.enter("a", model_id)
    assert room.holds == (0, 6)


def test_a_body_is_counted_as_it_comes() -> None:
    """Bytes count when they are read, from a client that trickles too; an end gives them back."""
    lane = Lane("requests", BOUNDS, Rates())
    parts = iter([b"x" * 30, b"x" * 30, b"x" * 30])
    seen = []

    async def receive() -> Any:
        return {"type": "http.request", "body": next(parts), "more_body": True}

    async def read() -> None:
        with lane.enter("a", "m", receive) as held:
            while True:
                await held()
                seen.append(lane.bytes)

    with pytest.raises(Overloaded):
        asyncio.run(read())
    assert seen == [30, 60]
    assert (lane.bytes, lane.requests) == (0, 0)


def test_who_floods_pushes_himself_out(room: Room) -> None:
    """In a full lane the newest waiting request of whoever holds most goes for another's."""
    flood = [room.enter("flood", waits=True, size=20) for _ in range(4)]
    actor = room.enter("actor", size=20)

    assert [held.waiting is not None and held.waiting.done() for held in flood] == [0, 0, 0, 1]
    assert isinstance(flood[3].waiting.exception(), Overloaded)  # type: ignore[union-attr]
    assert room.holds == (80, 4)
    with pytest.raises(Overloaded):
        room.enter("flood", size=1)
    assert actor.bytes == 20


def test_who_is_already_worked_on_stays(room: Room) -> None:
    """A request that had its turn is not sent away: what it costs has been paid."""
    for _ in range(4):
        room.enter("flood", size=20)

    with pytest.raises(Overloaded):
        room.enter("actor", size=1)


def test_an_even_share_is_all_that_is_given(room: Room) -> None:
    """Whoever holds as much as the one who floods sends nobody away."""
    for bearer in "abab":
        room.enter(bearer, waits=True, size=20)

    for bearer in "ab":
        with pytest.raises(Overloaded):
            room.enter(bearer, size=1)


def test_only_what_makes_room_goes(room: Room) -> None:
    """For room in one model nobody who waits for another is sent away."""
    elsewhere = [room.enter("flood", "n", waits=True, size=9) for _ in range(2)]
    for _ in range(4):
        room.enter("actor", "m", size=1)

    with pytest.raises(Overloaded):
        room.enter("other", "m")
    assert not any(held.waiting.done() for held in elsewhere if held.waiting)


def test_who_would_wait_too_long_is_kept_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal at the door comes late, with nothing read; of too many at once it comes at once."""
    monkeypatch.setattr(module, "OUTSIDE", 2)
    monkeypatch.setattr(module, "OUTSIDE_SECONDS", 0.0)
    lane = Lane("requests", BOUNDS, Rates(), crowded=lambda bearer: bearer == "flood")
    pauses: list[int] = []

    async def knock() -> None:
        pause = asyncio.sleep

        async def sleep(_: float) -> None:
            pauses.append(1)
            await pause(0)

        monkeypatch.setattr(module.asyncio, "sleep", sleep)
        floods = (lane.knock("flood") for _ in range(3))
        refused = await asyncio.gather(*floods, return_exceptions=True)
        assert [type(error) for error in refused] == [Overloaded] * 3
        await lane.knock("actor")

    asyncio.run(knock())
    assert pauses == [1, 1]
    assert (lane.requests, lane.refused) == (0, 3)
