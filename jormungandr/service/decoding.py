"""`Decoder`: bodies into what is admitted, the large ones beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["LOOP_BYTES", "Decoder"]

#: Bytes of a body from which decoding and checking it leaves the event loop: some 200 rows.
LOOP_BYTES = 1 << 16

T = TypeVar("T")


class Decoder:
    """Runs decoders in the order in which it is called, large bodies on one thread of their own.

    One thread, since Python runs one at a time; and not that of forward passes, which would wait.
    A connection sends its next request when the last one is answered, so its order is kept.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="decode")

    async def __call__(self, decode: Callable[[bytes], T], body: bytes) -> T:
        """Return what `decode` makes of a body; an error it raises is the caller's."""
        if len(body) < LOOP_BYTES:
            return decode(body)
        return await asyncio.get_running_loop().run_in_executor(self._thread, decode, body)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False)
