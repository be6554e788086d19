"""Jormungandr: a reinforcement-learning learner that any environment can be plugged into.

Importing this package registers our environments with Gymnasium and loads no torch; `Learner` alone
is resolved when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jormungandr_envs as _envs  # importing registers the environments
from jormungandr import errors
from jormungandr.client import RemoteLearner, RemotePolicy
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
from jormungandr.version import __version__

if TYPE_CHECKING:
    from jormungandr.learner import Learner

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

del _envs


def __getattr__(name: str) -> Any:
    if name != "Learner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from jormungandr.learner import Learner
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        message = 'Learner needs torch: pip install "jormungandr-rl[learner]"'
        raise ModuleNotFoundError(message, name=error.name) from None
    return Learner
