"""JSON transitions straight into columns: the body as it mostly comes, without a dict per row.

Typed decoding takes less than the general way does, never more: a body that it does not take, right
or wrong, is decoded the general way, which alone says what is wrong with it. B is the number of
transitions.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.columns import Columns
from jormungandr.columns.ids import encode_ids
from jormungandr.nesting import colons
from jormungandr.protocol import LIMITS, SPLITS, Transition
from jormungandr.spaces import Box
from jormungandr.spec import ModelSpec

__all__ = ["typed_rows"]


class _Row(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A transition of vectors, without a label's name, a mask or tags."""

    actor_id: str
    episode_id: str
    timestep: int
    split: Literal["train", "validation"]
    policy_version: int
    observation: list[float]
    action: int
    reward: float
    next_observation: list[float]
    terminated: bool
    truncated: bool
    behavior_prob: float | None = None
    label: int | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    transitions: list[_Row]


_DECODER = msgspec.json.Decoder(_Body)
#: Names that every row has.
_NAMES = len(_Row.__struct_fields__) - 2


def typed_rows(body: bytes, spec: ModelSpec) -> Columns | list[Transition] | None:
    """Return the transitions of a body of `experience/add`, for `columns()` to check.

    Nothing in it is nested more deeply than it should be, and no name is there twice: both end in
    None, as does most of what is wrong or out of the ordinary. What `columns()` refuses of the rest
    it may describe in other words than of the same body decoded the general way.
    """
    rows = _decoded(body, spec)
    if not 0 < len(rows) <= LIMITS["transitions_per_request"]:
        return None
    probability, label = [r.behavior_prob for r in rows], [r.label for r in rows]
    given = 2 * len(rows) - probability.count(None) - label.count(None)
    if not _has_names(body, 1 + _NAMES * len(rows) + given):
        return None
    if any(x is not None and x < 0 for x in label):  # which in columns stands for none
        return None
    return [_step(rows[0])] if len(rows) == 1 else _joined(rows, probability, label)


def _decoded(body: bytes, spec: ModelSpec) -> list[_Row]:
    """Return rows of vectors as wide as the model's; none of anything else."""
    o = spec.observation
    if not isinstance(o.described, Box) or o.is_image or spec.action_masks:
        return []
    try:
        rows = _DECODER.decode(body).transitions
    except (msgspec.DecodeError, ValueError):
        return []
    (width,) = o.stored_shape
    fit = all(len(r.observation) == width == len(r.next_observation) for r in rows)
    return rows if fit else []


def _has_names(body: bytes, names: int) -> bool:
    """Whether there are just so many: no name is there twice, and none is null."""
    # What is exact takes longer, and is for ids with a colon.
    return body.count(b":") == names or colons(body) == names


def _step(row: _Row) -> Transition:
    """Return a single transition as actors in this process send it."""
    given = {name: getattr(row, name) for name in row.__struct_fields__}
    for name in ("observation", "next_observation"):
        given[name] = np.array(given[name], dtype=np.float64)
    return Transition(**given)


def _joined(rows: list[_Row], probability: list[float | None], label: list[int | None]) -> Columns:
    """Return many as arrays, whose values are the door's to check."""
    count = len(rows)
    actors, actor = encode_ids([r.actor_id for r in rows])
    episodes, episode = encode_ids([r.episode_id for r in rows])
    return Columns(
        actors=actors,
        episodes=episodes,
        actor=actor,
        episode=episode,
        timestep=np.array([r.timestep for r in rows]),
        split=np.array([r.split == SPLITS[1] for r in rows], dtype=np.uint8),
        policy_version=np.array([r.policy_version for r in rows]),
        observation=_vectors([r.observation for r in rows]),
        action=np.array([r.action for r in rows]),
        reward=np.array([r.reward for r in rows], dtype=np.float64),
        next_observation=_vectors([r.next_observation for r in rows]),
        terminated=np.array([r.terminated for r in rows]),
        truncated=np.array([r.truncated for r in rows]),
        behavior_prob=np.array(probability, dtype=np.float64),
        label=np.array([-1 if x is None else x for x in label]),
        next_action_mask=np.zeros((count, 0), dtype=np.bool_),
    )


def _vectors(values: list[list[float]]) -> NDArray[Any]:
    """Return rows of one length as float64, (B, D)."""
    flat = np.fromiter(chain.from_iterable(values), np.float64, len(values) * len(values[0]))
    return flat.reshape(len(values), -1)
