"""Prioritized replay alone: draw 64 with their weights, write 64 priorities back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.speed.kit import Kit
from benchmarks.speed.rows.kernels import ABSENT, FAST, choices, compiled, running
from benchmarks.speed.rows.models import columns_of
from benchmarks.speed.timing import Case, Contender, Kind, looped, timed
from jormungandr.learner.replay import Replay
from jormungandr.settings import Replay as ReplaySpec

__all__ = ["replay"]

BATCH = 64


def replay(kit: Kit) -> Iterator[Case]:
    """Yield it at a hundred thousand items, and at a million."""
    for name, capacity in (("replay-100k", 100_000), ("replay-1m", 1_000_000)):
        with kit.peers.contenders("µs", kit.seconds, _others(capacity)) as (others, absent):
            ours = list(_ours(kit, capacity))
            yield Case(
                name,
                f"prioritized replay of {capacity:,}: sample {BATCH}, update {BATCH}",
                "µs",
                [*ours, *others],
                absent if any(one.name == FAST for one in ours) else {**absent, FAST: ABSENT},
            )


def _ours(kit: Kit, capacity: int) -> Iterator[Contender]:
    for name, wanted in choices().items():
        with compiled(wanted):
            held = Replay(ReplaySpec(capacity=capacity, alpha=0.6), (4,))
        _fill(held)
        about = "`Priorities`: draw, weights, and priorities that know whom they were computed for"
        yield looped(
            name, "ours", "µs", timed(running(_draws(held, False), wanted)), kit.seconds, about
        )
        about = "the same with what the items hold"
        run = timed(running(_draws(held, True), wanted))
        yield looped(f"{name}, gathered", "ours", "µs", run, kit.seconds, about)


def _fill(held: Replay) -> None:
    """Fill it, and give the items priorities as updates would have written them."""
    held.add_steps(columns_of(4, 3, held.capacity), 0, 0.99)
    rng = np.random.default_rng(1)
    for _ in range(0, held.capacity, BATCH):
        draw = held.priorities.sample(BATCH, 0.4, rng)
        held.priorities.update(draw, rng.random(BATCH) + 0.1)


def _draws(held: Replay, gathered: bool) -> Callable[[int], object]:
    source = held if gathered else held.priorities
    rng = np.random.default_rng(0)
    fresh = rng.random((64, BATCH)) + 0.1

    def call(count: int) -> None:
        for i in range(count):
            held.priorities.update(source.sample(BATCH, 0.4, rng), fresh[i % 64])

    return call


def _others(capacity: int) -> list[tuple[str, Kind, str, dict[str, Any], str]]:
    given = {"capacity": capacity, "batch": BATCH}
    alone, held = {**given, "gathered": False}, {**given, "gathered": True}
    return [
        ("Tianshou", "peer", "tianshou_replay", alone, "indices, weights, priorities; in numba"),
        ("Tianshou, gathered", "peer", "tianshou_replay", held, "`sample`, and priorities"),
        ("cpprb, gathered", "peer", "cpprb_replay", given, "`sample`, and priorities; in C++"),
        ("limit: numba", "limit", "numba_replay", given, "a binary tree in numba, no checks"),
    ]
