"""Turns: one request at a time, token after token, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jormungandr.errors import Overloaded
from jormungandr.service.load.lane import Bounds, Held, Lane
from jormungandr.service.load.rates import Rates
from jormungandr.service.load.turns import Turns

OPEN: Callable[[], bool] = lambda: True  # noqa: E731 - one line, and typed


class Course:
    """What had its turn, in order."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.done = turns, list[str]()
        self._lane = Lane("requests", Bounds(), Rates())

    async def go(
        self, bearer: str, name: str, model_id: str = "m", is_open: Callable[[], bool] = OPEN
    ) -> None:
        """Have a turn, and hold it for two turns of the loop."""

        async def never() -> Any:
            raise AssertionError

        held = Held(self._lane, bearer, model_id, never)
        async with self.turns.turn(held, is_open):
            begun = len(self.done)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(self.done) == begun  # nobody else had one meanwhile
            self.done.append(name)


def run(scenario: Callable[[Course], Any], longest: float = 60.0) -> list[str]:
    """Return what had its turn in a scenario."""

    async def all_of_it() -> list[str]:
        course = Course(Turns(longest))
        async with asyncio.timeout(60):
            await scenario(course)
        assert course.turns.waiting == 0
        return course.done

    return asyncio.run(all_of_it())


def test_in_turns_between_tokens() -> None:
    """A token that came first with many requests is followed by another one's first."""

    async def scenario(course: Course) -> None:
        many = [course.go("flood", f"f{n}") for n in range(6)]
        await asyncio.gather(*many, course.go("a", "a0"), course.go("a", "a1"), course.go("b", "b"))

    assert run(scenario) == ["f0", "f1", "a0", "b", "f2", "a1", "f3", "f4", "f5"]


def test_in_turns_between_the_models_of_a_token() -> None:
    """One model's requests do not keep those of another waiting, also under one token."""

    async def scenario(course: Course) -> None:
        many = [course.go("a", f"m{n}") for n in range(4)]
        await asyncio.gather(*many, course.go("a", "n0", "n"), course.go("a", "n1", "n"))

    assert run(scenario) == ["m0", "m1", "n0", "m2", "n1", "m3"]


def test_a_model_that_is_behind_is_passed_over() -> None:
    """Who waits for a model whose commits are behind does not keep others waiting."""
    behind = [True]

    async def scenario(course: Course) -> None:
        waiting = asyncio.create_task(course.go("a", "late", "slow", lambda: not behind[0]))
        await asyncio.gather(course.go("a", "a", "m"), course.go("b", "b", "m"))
        assert not waiting.done()
        behind[0] = False
        course.turns.look()
        await waiting

    assert run(scenario) == ["a", "b", "late"]


def test_the_loop_is_let_go_between_two_turns() -> None:
    """Whoever else is ready goes on before the next turn begins."""
    order = []

    async def scenario(course: Course) -> None:
        async def other() -> None:
            for n in range(12):
                order.append(n)
                await asyncio.sleep(0)

        async def noted(name: str) -> None:
            await course.go("a", name)
            order.append(name)

        await asyncio.gather(noted("x"), noted("y"), other())

    run(scenario)
    between = order[order.index("x") : order.index("y")]
    assert len(between) == 5  # x, two of y's own, one in which it is resumed, and one to let go


def test_who_has_waited_too_long() -> None:
    """A turn that does not come in time is a 503; the others are not held up by it."""

    async def scenario(course: Course) -> None:
        with pytest.raises(Overloaded, match=r"a turn within 0\.01 s"):
            await course.go("a", "never", "m", lambda: False)
        await course.go("a", "next")
        assert course.turns.expired == 1

    assert run(scenario, longest=0.01) == ["next"]


def test_clients_that_go() -> None:
    """A request that is cancelled while it waits, or as its turn comes, holds nobody up."""

    async def scenario(course: Course) -> None:
        first = asyncio.create_task(course.go("a", "first"))
        waiting = asyncio.create_task(course.go("a", "waiting"))
        coming = asyncio.create_task(course.go("b", "coming"))
        last = asyncio.create_task(course.go("c", "last"))
        await asyncio.sleep(0)
        waiting.cancel()
        await first
        while "b" in course.turns._queues:
            await asyncio.sleep(0)
        coming.cancel()  # it has been given the turn, and has not gone on yet
        await asyncio.gather(waiting, coming, return_exceptions=True)
        await last

    assert run(scenario) == ["first", "last"]


def test_a_queue_that_is_too_long_for_its_token() -> None:
    """What waits of one token, times the length of a turn, says whether another would be in time.

    Of a token that has next to nothing waiting, another one always may.
    """
    now = [0.0]

    async def scenario(course: Course) -> None:
        course.turns._clock = lambda: now[0]

        async def slow(bearer: str, n: int) -> None:
            await course.go(bearer, f"{bearer}{n}")
            now[0] += 1.0  # a turn takes a second

        waiting = [asyncio.create_task(slow("flood", n)) for n in range(40)]
        await asyncio.sleep(0)
        assert not course.turns.crowded("flood")  # nothing is known yet
        await asyncio.gather(*waiting[:20])
        assert course.turns.crowded("flood")
        assert not course.turns.crowded("actor")
        await asyncio.gather(*waiting)
        assert not course.turns.crowded("flood")

    run(scenario, longest=20.0)
