"""Contenders take turns, and figures are medians and ratios within a turn."""

from __future__ import annotations

import math

import pytest

from benchmarks.speed.timing import (
    UNITS,
    Case,
    Contender,
    Measured,
    Spread,
    counted,
    interleaved,
    looped,
    ratio,
    spread,
    timed,
)


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_each_round_begins_with_the_next_contender() -> None:
    """Three contenders take turns; whoever began a round ends the next one."""
    order: list[str] = []

    def said(name: str) -> Contender:
        return Contender(name, "peer", lambda: order.append(name) or float(len(order)))  # type: ignore[func-returns-value]

    found, failed = interleaved([said("a"), said("b"), said("c")], 3)

    assert "".join(order) == "abcbcacab"
    assert [one.values for one in found] == [(1.0, 6.0, 8.0), (2.0, 4.0, 9.0), (3.0, 5.0, 7.0)]
    assert failed == {}


def test_one_that_fails_is_named_and_the_others_go_on() -> None:
    """A contender that raises is asked no more, and leaves no half of its figures."""
    turns = [0]

    def breaks() -> float:
        turns[0] += 1
        if turns[0] == 2:
            raise RuntimeError("out of memory")
        return 1.0

    well = Contender("well", "ours", lambda: 2.0)
    found, failed = interleaved([Contender("ill", "peer", breaks), well], 4)

    assert [(one.name, one.values) for one in found] == [("well", (2.0, 2.0, 2.0, 2.0))]
    assert failed == {"ill": "failed: out of memory"}
    assert turns == [2]


def test_a_ratio_is_taken_within_each_turn() -> None:
    """A machine that slows down in the middle changes figures, not ratios."""
    mine, other = Measured("a", "ours", (8.0, 4.0, 2.0)), Measured("b", "peer", (4.0, 2.0, 1.0))

    assert spread(mine.values) == Spread(4.0, 2.0, 8.0)
    assert ratio(mine, other) == Spread(2.0, 2.0, 2.0)


def test_nothing_done_in_a_turn_is_no_error() -> None:
    """As on a machine so busy that a server answers nothing in half a second."""
    mine, other = Measured("a", "ours", (2.0, 3.0, 4.0)), Measured("b", "peer", (0.0, 1.0, 2.0))
    assert ratio(mine, other) == Spread(3.0, 2.0, math.inf)


def test_a_loop_is_as_long_as_a_turn() -> None:
    """The count is found by doubling and more, from operations of any cost."""
    for cost in (1e-7, 1e-3, 2.0):
        clock, counts = Clock(), []

        def call(count: int, cost: float = cost, counts: list[int] = counts) -> None:
            counts.append(count)
            clock.now += cost * count  # noqa: B023 - called at once

        count = counted(timed(call, clock), 0.5)

        assert count == pytest.approx(max(1, 0.5 / cost), rel=0.01, abs=1)
        assert counts[0] == 1
        assert sum(counts) * cost < 0.5 or cost > 0.5


def test_a_clock_that_does_not_move_ends_the_search() -> None:
    """Work below a clock's resolution is repeated, but not for ever."""
    assert counted(lambda _: 0.0, 0.5) >= 1 << 30


def test_figures_are_of_the_operations_that_were_timed() -> None:
    """A vector step counts for each of its environments, in the unit of the case."""
    clock = Clock()

    def call(count: int) -> None:
        clock.now += 0.01 * count

    rate = looped("a", "ours", "steps/s", timed(call, clock), 1.0, each=64)
    time = looped("b", "ours", "µs", timed(call, clock), 1.0)

    assert rate.sample() == pytest.approx(6_400)
    assert time.sample() == pytest.approx(10_000)


def test_units_say_which_way_is_better() -> None:
    """Rates are better when larger, times and sizes when smaller."""
    assert [name for name, unit in UNITS.items() if not unit.more] == [
        "µs",
        "ms",
        "s",
        "MiB",
        "bytes",
        "of the raw bytes",
    ]
    with pytest.raises(AssertionError):
        looped("a", "ours", "MiB", lambda _: 1.0, 1.0)
    assert Case("a", "b", "µs", []).noted() == {}
