"""Our environments, registered as soon as Gymnasium is there too.

Gymnasium takes longer to import than all of ours: who asks the command line for help need not wait
for it. `gymnasium.make("OUSpread-v0")` works once both are imported, whichever was first.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_with_gymnasium"]

_GYMNASIUM, _ENVS = "gymnasium", "jormungandr_envs"


class _Watching:
    """Waits for Gymnasium to be imported, and leaves every other module to who finds them.

    Who only looks whether it is installed gets the same answer; it goes on waiting.
    """

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where Gymnasium is, registering once it is imported; None of anything else."""
        if name != _GYMNASIUM or self._asking:
            return None
        from importlib.util import find_spec  # which brings a dozen modules

        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        loader = None if spec is None else spec.loader
        if loader is None:
            return None
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            importlib.import_module(_ENVS)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register_with_gymnasium() -> None:
    """Register now where Gymnasium is imported, else when it is."""
    if _GYMNASIUM in sys.modules:
        importlib.import_module(_ENVS)
    elif not any(isinstance(finder, _Watching) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watching())
