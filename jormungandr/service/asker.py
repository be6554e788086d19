"""`Asker`: who waits for an answer of the event loop: a future, or what behaves like one."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Asker"]


class Asker(Protocol):
    """Is told once."""

    def done(self) -> bool:
        """Whether nobody waits any more."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Take the answer."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Take the reason why there is none."""
        ...
