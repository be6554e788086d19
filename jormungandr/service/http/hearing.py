"""Work that is done only for as long as whoever asked for it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from jormungandr.errors import Unavailable

__all__ = ["while_heard"]

T = TypeVar("T")


async def while_heard(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what `work` returns, unless whoever asked for it goes before it is done.

    Raises:
        Unavailable: nobody waits for the answer.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, hearing = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, hearing), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Unavailable("client", "one that waits for its answer", "none")
        return working.result()
    finally:
        working.cancel()
        hearing.cancel()
        await asyncio.gather(working, hearing, return_exceptions=True)
