"""C51 with noisy layers (Fortunato et al. 2018, "Noisy Networks for Exploration")."""

from __future__ import annotations

import numpy as np

from jormungandr.learner.c51 import C51, Batch, Update
from jormungandr.learner.network import noise
from jormungandr.spec import ModelSpec

__all__ = ["NoisyC51"]


class NoisyC51(C51):
    """`C51` whose updates draw noise: once for the online network, once for the target network.

    The loss, and the choice of the bootstrap action where that is the online network's, are under
    the same noise of the online network. Outside an update there is none: held-out losses, and the
    values of a policy, are those of the means.

    Args:
        spec: the model's specification, of a noisy network.
        rng: the initialisation stream.
        stream: of the noise. Who made it keeps it: it goes on where `restore` goes back.
    """

    def __init__(
        self, spec: ModelSpec, rng: np.random.Generator, stream: np.random.Generator
    ) -> None:
        super().__init__(spec, rng)
        self._noise = stream

    def update(self, batch: Batch, updates: int = 0) -> Update:
        """Take one step, as `C51.update` does, under new noise."""
        with noise(self._noise, self.online, self.target):
            return super().update(batch, updates)
