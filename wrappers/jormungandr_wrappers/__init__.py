"""Adapters between environments and a learner: what happens there becomes transitions here.

Handed an `Endpoint`, they import nothing of it: neither torch nor a network. `VecEnvRecorder`, for
Stable-Baselines3, is resolved when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jormungandr_wrappers.episodes import Episodes
from jormungandr_wrappers.overlapped import OverlappedRecorder
from jormungandr_wrappers.paired import Pair, PairedActor, PairedResult
from jormungandr_wrappers.parallel import ParallelRecorder
from jormungandr_wrappers.remote_actor import EpisodeResult, RemoteActor, RunResult
from jormungandr_wrappers.specified import SpecifiedEnv
from jormungandr_wrappers.vector import VectorRecorder

if TYPE_CHECKING:
    from jormungandr_wrappers.vec_env import VecEnvRecorder

__all__ = [
    "EpisodeResult",
    "Episodes",
    "OverlappedRecorder",
    "Pair",
    "PairedActor",
    "PairedResult",
    "ParallelRecorder",
    "RemoteActor",
    "RunResult",
    "SpecifiedEnv",
    "VecEnvRecorder",
    "VectorRecorder",
]


def __getattr__(name: str) -> Any:
    if name != "VecEnvRecorder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from jormungandr_wrappers.vec_env import VecEnvRecorder
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("stable_baselines3", "torch"):
            raise
        message = 'VecEnvRecorder needs Stable-Baselines3: pip install "jormungandr-rl[sb3]"'
        raise ModuleNotFoundError(message, name=error.name) from None
    return VecEnvRecorder
