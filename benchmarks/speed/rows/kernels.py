"""Our compiled loops, the extra ``fast``: with them and without, in one process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest.mock import patch

from jormungandr.numerics.compiled import kernels

__all__ = ["ABSENT", "FAST", "choices", "compiled", "running"]

FAST = "ours [fast]"
ABSENT = "numba is not installed: pip install 'jormungandr-rl[fast]'"


def choices() -> dict[str, bool]:
    """Return the names of what of ours can be measured, and whether each has the loops."""
    return {"ours": False} if kernels() is None else {"ours": False, FAST: True}


@contextlib.contextmanager
def compiled(wanted: bool) -> Iterator[None]:
    """Let what is made and run inside have the loops, or not have them."""
    with contextlib.ExitStack() as stack:
        if not wanted:
            for name, module in list(sys.modules.items()):
                if name.startswith("jormungandr.") and vars(module).get("kernels") is kernels:
                    stack.enter_context(patch.object(module, "kernels", lambda: None))
        yield


def running(call: Callable[[int], object], wanted: bool) -> Callable[[int], object]:
    """Return what runs a loop with the compiled loops, or without."""

    def run(count: int) -> None:
        with compiled(wanted):
            call(count)

    return run
