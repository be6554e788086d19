"""Jormungandr: a reinforcement-learning learner that any environment can be plugged into.

Importing this package registers our environments with Gymnasium and loads no torch. What it offers
is resolved when it is first used: the command line, for one, needs little of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jormungandr import errors
from jormungandr.registering import register_with_gymnasium
from jormungandr.version import __version__

if TYPE_CHECKING:
    from jormungandr.client import RemoteLearner, RemotePolicy
    from jormungandr.learner import Learner
    from jormungandr.policy import PolicySnapshot
    from jormungandr.protocol import (
        Endpoint,
        Evaluation,
        InferenceReply,
        Label,
        LabelReceipt,
        Receipt,
        Transition,
    )
    from jormungandr.recorder import EpisodeRecorder
    from jormungandr.spec import ModelSpec

__all__ = [
    "Endpoint",
    "EpisodeRecorder",
    "Evaluation",
    "InferenceReply",
    "Label",
    "LabelReceipt",
    "Learner",
    "ModelSpec",
    "PolicySnapshot",
    "Receipt",
    "RemoteLearner",
    "RemotePolicy",
    "Transition",
    "__version__",
    "errors",
]

#: Where each name comes from.
_MODULES = {
    **dict.fromkeys(("RemoteLearner", "RemotePolicy"), "client"),
    **dict.fromkeys(
        (
            "Endpoint",
            "Evaluation",
            "InferenceReply",
            "Label",
            "LabelReceipt",
            "Receipt",
            "Transition",
        ),
        "protocol",
    ),
    "EpisodeRecorder": "recorder",
    "Learner": "learner",
    "ModelSpec": "spec",
    "PolicySnapshot": "policy",
}

register_with_gymnasium()


def __getattr__(name: str) -> Any:
    if name in _MODULES.values():  # a module of ours, as a name of it would have brought it
        return importlib.import_module(f"jormungandr.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"jormungandr.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        if name != "Learner" or error.name not in ("torch", "safetensors"):
            raise
        message = 'Learner needs torch: pip install "jormungandr-rl[learner]"'
        raise ModuleNotFoundError(message, name=error.name) from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
