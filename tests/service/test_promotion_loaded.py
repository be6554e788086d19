"""Policies asked for by version: read once however many ask, the last ones asked for stay."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jormungandr.errors import PolicyGone
from jormungandr.service.promotion.loaded import Loaded


class Files:
    """Policies on a disk that answers when it is told to."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.answers = threading.Event()
        self.answers.set()
        self.gone: set[int] = set()

    def __call__(self, version: int) -> Any:
        """Read one."""
        self.read.append(version)
        assert self.answers.wait(60)
        if version in self.gone:
            raise PolicyGone("policy", "a policy that is kept", version)
        return SimpleNamespace(version=version)


def test_whoever_is_asked_for_stays() -> None:
    """The one that nobody has asked for longest goes first, not the one that came first."""
    files = Files()
    loaded = Loaded(files, 2)

    async def ask() -> None:
        for version in (1, 2, 1, 3, 1, 2):
            assert (await loaded.get(version)).version == version

    asyncio.run(ask())
    assert files.read == [1, 2, 3, 2]


def test_one_read_for_all_who_ask_at_once() -> None:
    """Also where one of them does not wait for it."""
    files = Files()
    loaded = Loaded(files, 2)

    async def ask() -> list[Any]:
        files.answers.clear()
        tasks = [asyncio.ensure_future(loaded.get(5)) for _ in range(6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        files.answers.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    left, *found = asyncio.run(ask())
    assert isinstance(left, asyncio.CancelledError)
    assert [policy.version for policy in found] == [5] * 5
    assert files.read == [5]


def test_what_failed_is_tried_again() -> None:
    """All who waited for it are told, and the next one who asks has it read anew."""
    files = Files()
    files.gone.add(7)
    loaded = Loaded(files, 2)

    async def ask() -> None:
        for failed in await asyncio.gather(loaded.get(7), loaded.get(7), return_exceptions=True):
            assert isinstance(failed, PolicyGone)
        with pytest.raises(PolicyGone):
            await loaded.get(7)
        files.gone.clear()
        assert (await loaded.get(7)).version == 7

    asyncio.run(ask())
    assert files.read == [7, 7, 7]
