"""`Head`: what a request said of itself, for those after it that say the same.

One client's requests are alike but for their bodies. A head that was parsed, found strict and taken
once needs no parser the next time: the same bytes mean the same.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.types import Scope

__all__ = ["HEADS", "Head"]

#: Heads that are kept of one connection, for actions and for transitions, and bytes of each.
HEADS, BYTES = 2, 2_048

#: The one value that may be another.
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})\r\n", re.IGNORECASE)


class Head:
    """The head of a request that came whole, in one piece, and was the only one in it.

    Args:
        before, after: the bytes around the length of the body.
        scope: of the request.
        place: of the length among its headers.
    """

    __slots__ = ("_after", "_before", "_place", "_scope")

    def __init__(self, before: bytes, after: bytes, scope: Scope, place: int) -> None:
        self._before, self._after, self._scope, self._place = before, after, scope, place

    @classmethod
    def of(cls, data: bytes, scope: Scope) -> Head | None:
        """Return the head of a request; None unless it is written in the most usual way.

        Args:
            data: what came in.
            scope: as it was parsed. Nothing is kept unless it says what `data` does.
        """
        head, end, body = data.partition(b"\r\n\r\n")
        if not end or len(head) > BYTES:
            return None
        first, *lines = head.split(b"\r\n")
        pairs = [line.partition(b":") for line in lines]
        headers = [(name.lower(), value.strip(b" \t")) for name, _, value in pairs]
        said = b"%b %b HTTP/1.1" % (scope["method"].encode(), scope["raw_path"])
        names, length = [name for name, _ in headers], LENGTH.search(head + end)
        if first != said or headers != scope["headers"] or b"expect" in names:
            return None
        if length is None or names.count(b"content-length") != 1 or int(length[1]) != len(body):
            return None
        # What came of it is its own.
        own = {name: value for name, value in scope.items() if name != "grant"}
        before, after = head[: length.start(1)], (head + end)[length.end(1) :]
        return cls(before, after, own, names.index(b"content-length"))

    def match(self, data: bytes) -> tuple[Scope, bytes] | None:
        """Return scope and body of a whole request with this head; None of anything else.

        Args:
            data: what came in, where a request may begin.
        """
        begin = len(self._before)
        end = data.find(b"\r", begin, begin + 7)
        if end < 0 or not data.startswith(self._before) or not data.startswith(self._after, end):
            return None
        length, size = data[begin:end], end + len(self._after)
        if not length.isdigit() or len(data) - size != int(length):
            return None
        headers: list[tuple[bytes, bytes]] = self._scope["headers"].copy()
        headers[self._place] = b"content-length", length
        own: dict[str, Any] = {"headers": headers, "state": self._scope["state"].copy()}
        return {**self._scope, **own}, data[size:]
