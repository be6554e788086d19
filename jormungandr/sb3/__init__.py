"""C51 in the shape Stable-Baselines3 users know: an algorithm like its DQN, and its policies."""

try:
    import stable_baselines3 as _sb3
except ModuleNotFoundError as error:
    if error.name not in ("stable_baselines3", "torch"):
        raise
    message = 'jormungandr.sb3 needs Stable-Baselines3: pip install "jormungandr-rl[sb3]"'
    raise ModuleNotFoundError(message, name=error.name) from None

from jormungandr.sb3.algorithm import C51
from jormungandr.sb3.moments import ObservationMoments
from jormungandr.sb3.networks import CategoricalNetwork
from jormungandr.sb3.policies import C51Policy, CnnPolicy, MlpPolicy, MultiInputPolicy
from jormungandr.sb3.rates import AnnealedRate
from jormungandr.sb3.replay import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSamples,
)

__all__ = [
    "C51",
    "AnnealedRate",
    "C51Policy",
    "CategoricalNetwork",
    "CnnPolicy",
    "MlpPolicy",
    "MultiInputPolicy",
    "ObservationMoments",
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedSamples",
]

del _sb3
