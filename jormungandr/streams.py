"""The independent random streams of a model."""

from __future__ import annotations

import numpy as np

__all__ = ["network_noise", "streams"]


def streams(
    seed: int,
) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Return the independent random streams of a model: initialisation, sampling, acting.

    Drawing more from one never shifts another. The acting stream is all that a gateway needs; with
    it a service that is waited for acts as a learner in process does, draw for draw.
    """
    children = np.random.SeedSequence(seed).spawn(3)
    initialisation, sampling, acting = (np.random.default_rng(child) for child in children)
    return initialisation, sampling, acting


def network_noise(seed: int) -> np.random.Generator:
    """Return the stream of the noise in a model's updates: the child after those of `streams`."""
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])
