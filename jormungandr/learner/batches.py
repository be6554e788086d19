"""Batches of stored transitions, as a network sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.inputs import VARIANCE_FLOOR, prepared
from jormungandr.learner.c51 import Batch
from jormungandr.learner.replay import Sample
from jormungandr.numerics.compiled import kernels
from jormungandr.spec import ModelSpec

__all__ = ["Moments", "normalized", "of_columns", "of_sample"]

#: Mean and variance of observations.
Moments = tuple[NDArray[np.float64], NDArray[np.float64]]


def of_sample(sample: Sample, spec: ModelSpec, moments: Moments) -> Batch:
    """Return what an update learns from, of a draw from replay."""
    held = sample.held
    if spec.observation.is_image:
        observation = prepared(sample.observation, spec, *moments)
        following = prepared(sample.next_observation, spec, *moments)
    else:
        both = normalized(sample.observations, spec, *moments)  # (B, 2, D)
        observation, following = both[:, 0], both[:, 1]
    return Batch(
        observation=observation,
        action=sample.action,
        reward=held["reward"],
        next_observation=following,
        discount=held["discount"],
        label=held["label"],
        next_action_mask=held["next_action_mask"] if spec.action_masks else None,
        weight=sample.weight,
    )


def of_columns(columns: dict[str, NDArray[Any]], spec: ModelSpec, moments: Moments) -> Batch:
    """Return a batch of columns by name, which have those of `Batch` in the raw."""
    return Batch(
        observation=prepared(columns["observation"], spec, *moments),
        action=columns["action"],
        reward=columns["reward"],
        next_observation=prepared(columns["next_observation"], spec, *moments),
        discount=columns["discount"],
        label=columns["label"],
        next_action_mask=columns["next_action_mask"] if spec.action_masks else None,
    )


def normalized(
    observations: NDArray[Any],
    spec: ModelSpec,
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return what `policy.prepared` does, bit for bit, of observations and successors at once.

    Args:
        observations: (B, 2, D) as stored, of no image.
        spec: the model's.
        mean: (D,).
        var: (D,).
    """
    compiled = kernels()
    if compiled is None or not spec.observation.normalize:
        return prepared(observations, spec, mean, var)
    out = np.empty(observations.shape, dtype=np.float32)
    root = np.sqrt(var + VARIANCE_FLOOR)
    compiled.normalize(observations, mean, root, spec.observation.clip, out)
    return out
