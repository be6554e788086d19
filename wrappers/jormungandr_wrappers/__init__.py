"""Adapters between environments and a learner: what happens there becomes transitions here.

Handed an `Endpoint`, they import nothing of it: neither torch nor a network.
"""

from jormungandr_wrappers.episode import Choice, Episode, new_run
from jormungandr_wrappers.episodes import Episodes
from jormungandr_wrappers.outbox import Outbox
from jormungandr_wrappers.parallel import ParallelRecorder
from jormungandr_wrappers.recorder import EpisodeRecorder
from jormungandr_wrappers.remote_actor import EpisodeResult, RemoteActor, RunResult
from jormungandr_wrappers.vector import VectorRecorder

__all__ = [
    "Choice",
    "Episode",
    "EpisodeRecorder",
    "EpisodeResult",
    "Episodes",
    "Outbox",
    "ParallelRecorder",
    "RemoteActor",
    "RunResult",
    "VectorRecorder",
    "new_run",
]
