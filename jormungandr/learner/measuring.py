"""How good the networks are on held-out transitions: a measurement that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.learner.batches import Moments, of_columns
from jormungandr.learner.c51 import C51, Losses
from jormungandr.learner.network import numeric_threads

__all__ = ["CHUNK", "measured"]

#: Transitions per forward pass.
CHUNK = 4_096


def measured(
    algorithm: C51,
    moments: Moments,
    columns: dict[str, NDArray[Any]],
    begins: Callable[[], None],
) -> Losses:
    """Return the losses of transitions.

    Args:
        algorithm: whose networks are measured.
        moments: of the observations, latched with those networks.
        columns: of `batches.of_columns`, (B, ...); B > 0.
        begins: called before each forward pass.
    """
    parts = []
    for at in range(0, len(columns["action"]), CHUNK):
        begins()
        cut = {name: array[at : at + CHUNK] for name, array in columns.items()}
        with numeric_threads(algorithm.spec.threads):
            parts.append(algorithm.losses(of_columns(cut, algorithm.spec, moments)))
    return Losses(
        categorical=np.concatenate([part.categorical for part in parts]),
        auxiliary=np.concatenate([part.auxiliary for part in parts]),
        correct=np.concatenate([part.correct for part in parts]),
    )
