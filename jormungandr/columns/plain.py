"""Transitions as actors here mostly send them: `plain_row` for one, `plain_rows` for many.

The general way makes a hundred calls of NumPy whatever the size of the batch, and a dict of each
row. Here only what is beyond doubt passes: exact types, vectors of numbers, plain ids. Whatever
else it is, right or wrong, is looked at the general way, which alone says what is wrong with it. B
is the number of transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from jormungandr.columns.batch import Columns
from jormungandr.protocol import LIMITS, Transition
from jormungandr.settings import FLOAT32_MAX
from jormungandr.spec import ModelSpec
from jormungandr.steps import Steps
from jormungandr.vectors import plain_vector, plain_vectors

__all__ = ["plain_row", "plain_rows"]

#: A probability that float32 holds, and not as 0.
_SMALLEST_PROBABILITY = 1e-30


def _constant(value: Any, dtype: Any) -> NDArray[Any]:
    """Return an array of one that nobody can write to: columns share it."""
    array = np.array([value], dtype=dtype)
    array.setflags(write=False)
    return array


_FIRST = _constant(0, np.int32)
_SPLITS = {"train": _constant(0, np.uint8), "validation": _constant(1, np.uint8)}
_FLAGS = (_constant(False, np.bool_), _constant(True, np.bool_))
_UNKNOWN_PROBABILITY = _constant(np.nan, np.float32)
_UNLABELLED = _constant(-1, np.int32)
_UNMASKED = np.zeros((1, 0), dtype=np.bool_)
_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)


def plain_row(given: Any, spec: ModelSpec) -> Columns | None:
    """Return a transition as checked columns; None where only the general way can tell."""
    if type(given) is not Transition or given.tags is not None:
        return None
    row: Any = given  # its fields are whatever somebody put there
    actor, episode, t, version = row.actor_id, row.episode_id, row.timestep, row.policy_version
    action, reward, p, label = row.action, row.reward, row.behavior_prob, row.label
    split = _SPLITS.get(row.split) if type(row.split) is str else None
    if (
        split is None
        or not (_is_id(actor) and _is_id(episode))
        or type(t) is not int
        or type(version) is not int
        or type(action) is not int
        or type(reward) is not float
        or type(row.terminated) is not bool
        or type(row.truncated) is not bool
        or not 0 <= t <= LIMITS["timestep_max"]
        or not -1 <= version <= LIMITS["timestep_max"]
        or not 0 <= action < len(spec.action_set)
        or not -FLOAT32_MAX <= reward <= FLOAT32_MAX
        or not (p is None or (type(p) is float and _SMALLEST_PROBABILITY <= p <= 1))
    ):
        return None
    if label is not None:
        classes = () if spec.auxiliary is None else spec.auxiliary.classes
        if type(label) is not int or not 0 <= label < len(classes):
            return None
    mask = _plain_mask(row.next_action_mask, spec)
    observation = plain_vector(row.observation, spec.observation)
    after = plain_vector(row.next_observation, spec.observation)
    if mask is None or observation is None or after is None:
        return None
    return Columns(
        actors=(actor,),
        episodes=(episode,),
        actor=_FIRST,
        episode=_FIRST,
        timestep=np.array([t]),
        split=split,
        policy_version=np.array([version]),
        observation=observation,
        action=np.array([action]),
        reward=np.array([reward], dtype=_FLOAT32),
        next_observation=after,
        terminated=_FLAGS[row.terminated],
        truncated=_FLAGS[row.truncated],
        behavior_prob=_UNKNOWN_PROBABILITY if p is None else np.array([p], dtype=_FLOAT32),
        label=_UNLABELLED if label is None else np.array([label], dtype=np.int32),
        next_action_mask=mask,
    )


def plain_rows(rows: Sequence[Any], spec: ModelSpec) -> Columns | None:
    """Return transitions as checked columns; None where only the general way can tell."""
    if spec.action_masks:
        return None
    given: Mapping[str, Any]
    if isinstance(rows, Steps):
        given = rows.fields
    elif set(map(type, rows)) == {Transition}:
        values = list(chain.from_iterable(map(astuple, rows)))
        given = {name: values[i :: len(_FIELDS)] for i, name in enumerate(_FIELDS)}
    else:
        return None
    if any(set(map(type, given[name])) - kinds for name, kinds in _KINDS.items()):
        return None
    actors, episodes = dict.fromkeys(given["actor_id"]), dict.fromkeys(given["episode_id"])
    splits, probability, label = given["split"], given["behavior_prob"], given["label"]
    classes = 0 if spec.auxiliary is None else len(spec.auxiliary.classes)
    known = [p for p in probability if p is not None]
    labelled = [value for value in label if value is not None]
    if not (
        all(map(_is_id, actors))
        and all(map(_is_id, episodes))
        and set(splits) <= _SPLITS.keys()
        and _within(given["timestep"], 0, LIMITS["timestep_max"])
        and _within(given["policy_version"], -1, LIMITS["timestep_max"])
        and _within(given["action"], 0, len(spec.action_set) - 1)
        and all(_SMALLEST_PROBABILITY <= p <= 1 for p in known)
        and (not labelled or _within(labelled, 0, classes - 1))
    ):
        return None
    reward = np.array(given["reward"])
    observation = plain_vectors(given["observation"], spec.observation)
    after = plain_vectors(given["next_observation"], spec.observation)
    if observation is None or after is None or not float(np.abs(reward).max()) <= FLOAT32_MAX:
        return None
    count = len(rows)
    if len(known) < count:
        probability = [np.nan if p is None else p for p in probability]
    if len(labelled) < count:
        label = [-1 if value is None else value for value in label]
    return Columns(
        actors=tuple(actors),
        episodes=tuple(episodes),
        actor=_codes(given["actor_id"], actors),
        episode=_codes(given["episode_id"], episodes),
        timestep=np.array(given["timestep"], dtype=np.int64),
        split=np.array([name != "train" for name in splits], dtype=np.uint8),
        policy_version=np.array(given["policy_version"], dtype=np.int64),
        observation=observation,
        action=np.array(given["action"], dtype=np.int64),
        reward=reward.astype(_FLOAT32),
        next_observation=after,
        terminated=np.array(given["terminated"], dtype=np.bool_),
        truncated=np.array(given["truncated"], dtype=np.bool_),
        behavior_prob=np.array(probability, dtype=_FLOAT32),
        label=np.array(label, dtype=np.int32),
        next_action_mask=np.zeros((count, 0), dtype=np.bool_),
    )


#: What `Transition` has, in the order of `astuple`.
_FIELDS = Transition.__struct_fields__
#: The types of what each field may be here; observations are looked at as arrays.
_KINDS: dict[str, set[type]] = {
    **{name: {str} for name in ("actor_id", "episode_id", "split")},
    **{name: {int} for name in ("timestep", "policy_version", "action")},
    **{name: {bool} for name in ("terminated", "truncated")},
    **{name: {NoneType} for name in ("next_action_mask", "tags")},
    "reward": {float},
    "behavior_prob": {float, NoneType},
    "label": {int, NoneType},
}


def _within(values: Sequence[int], low: int, high: int) -> bool:
    """Whether all integers, at least one, lie in a range."""
    return low <= min(values) and max(values) <= high


def _codes(values: Sequence[str], distinct: dict[str, Any]) -> NDArray[np.int32]:
    """Return the place of each id among the distinct ones, (B,)."""
    if len(distinct) == 1:
        return np.zeros(len(values), dtype=np.int32)
    places = dict(zip(distinct, range(len(distinct)), strict=True))
    return np.array(list(map(places.__getitem__, values)), dtype=np.int32)


def _is_id(value: Any) -> bool:
    """Whether an id is plain ASCII of a fair length."""
    if type(value) is not str or not 1 <= len(value) <= LIMITS["id_bytes"]:
        return False
    return value.isascii() and value.isprintable()


def _plain_mask(mask: Any, spec: ModelSpec) -> NDArray[np.bool_] | None:
    """Return a mask as (1, A) booleans, (1, 0) in a model without masks."""
    if not spec.action_masks:
        return _UNMASKED if mask is None else None
    if type(mask) is not np.ndarray or mask.dtype != _BOOL or mask.shape != (len(spec.action_set),):
        return None
    return mask[None].copy() if mask.any() else None
