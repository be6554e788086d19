"""Garbage is collected when nobody waits, and under a steady load now and then all the same."""

from __future__ import annotations

import subprocess
import sys

from jormungandr.service.collecting import LONGEST, WORTH, Collector


class _Scene:
    """A collector among requests and seconds that the test decides about."""

    def __init__(self) -> None:
        self.requests, self.now, self.collections = 0, 0.0, 0
        self.collector = Collector(lambda: self.requests, self._collect, lambda: self.now)

    def _collect(self) -> None:
        self.collections += 1

    def second(self, requests: int, made: int = WORTH) -> int:
        """Let a second pass; return the collections so far."""
        self.requests += requests
        self.now += 1
        self.collector.look(made)
        return self.collections


def test_a_quiet_second_is_used() -> None:
    """Nobody asks: now it costs nobody anything."""
    scene = _Scene()
    assert scene.second(requests=5) == 0
    assert scene.second(requests=0) == 1


def test_nothing_is_walked_for_nothing() -> None:
    """Little was made since the last time."""
    scene = _Scene()
    scene.second(requests=1)
    assert scene.second(requests=0, made=WORTH - 1) == 0


def test_a_load_that_never_ends_is_stopped_once_in_a_while() -> None:
    """Else what refers to itself would pile up."""
    scene = _Scene()
    seconds = 3 * int(LONGEST)
    assert [scene.second(requests=1) for _ in range(seconds)][-1] == 3


def test_a_process_is_taken_over_from_python() -> None:
    """Its oldest generation is never due by itself; the young ones are."""
    code = """
import asyncio, gc
from jormungandr.service.collecting import Collector
async def main():
    Collector(lambda: 0).start()
    print(gc.get_threshold()[2] > 1_000_000, gc.get_freeze_count() > 0, gc.isenabled())
asyncio.run(main())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "True", "True"]
