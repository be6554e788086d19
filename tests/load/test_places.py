"""Learner processes at once: so many and no more, each model's in its turn."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jormungandr.service.child import process as process_module
from jormungandr.service.child.places import Places
from jormungandr.service.load.limits import Limits
from tests.service.serving import SPEC, connect, experience, memory, until


def test_first_come_first_served() -> None:
    """A place that is given back goes to whoever has waited longest."""

    async def scenario() -> None:
        places = Places(2)
        a, b, c, d = (places.ask() for _ in range(4))
        assert [p.granted.done() for p in (a, b, c, d)] == [True, True, False, False]
        places.give(b)
        assert c.granted.done()
        assert not d.granted.done()
        places.give(a)
        assert d.granted.result() is True
        assert places.waiting == 0

    asyncio.run(scenario())


def test_a_place_that_is_not_needed_any_more() -> None:
    """Whoever waits may give up; his place is nobody's, and the next one moves up."""

    async def scenario() -> None:
        places = Places(1)
        a, b, c = (places.ask() for _ in range(3))
        places.give(b)
        assert b.granted.result() is False
        places.give(a)
        places.give(a)  # a second time is none
        assert c.granted.result() is True
        assert not places.ask().granted.done()

    asyncio.run(scenario())


def test_as_many_leave_as_wait() -> None:
    """A process is asked to make room only while more wait than already leave."""

    async def scenario() -> None:
        places = Places(2)
        a, b = places.ask(), places.ask()
        assert not places.wanted(a)
        c = places.ask()
        assert places.wanted(a)
        assert places.wanted(b)
        a.leaving = True
        assert not places.wanted(a)
        assert not places.wanted(b)
        places.ask()
        assert places.wanted(b)
        places.give(a)
        assert c.granted.done()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("slice_seconds", [60.0, 0.05], ids=["idle ones go", "busy ones go"])
def test_more_models_than_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    """Models that share a place learn one after another, and come out as they would alone."""
    monkeypatch.setattr(process_module, "SLICE", slice_seconds)
    monkeypatch.setattr(process_module, "PARK_SOON", 0.05)
    names, rows = ["a", "b", "c"], experience(4, 8)
    seen: list[int] = []
    with memory(tmp_path, limits=Limits(max_learners=1)) as http, ThreadPoolExecutor(3) as pool:
        for name in names:
            connect(http, name).create(SPEC)

        def learn(name: str) -> tuple[int, int]:
            client = connect(http, name)
            lsn = [client.add(rows[i : i + 8]).lsn for i in range(0, len(rows), 8)][-1]
            found = client.wait(lsn, 120)
            seen.append(_running(http))
            return found["update_count"], found["policy_version"]

        results = list(pool.map(learn, names))
        until(lambda: _running(http) <= 1, "one at most")

    assert len(set(results)) == 1
    assert results[0][0] > 0
    assert max(seen) <= 1


def _running(http: object) -> int:
    """Return how many learner processes there are."""
    models = connect(http, "a")._calls.request("GET", "/v1/models").body  # type: ignore[arg-type]
    return models.count(b'"pid":') - models.count(b'"pid":null')
