"""`columns`: the one door at which transitions are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jormungandr.checks import (
    as_array,
    finite_float32,
    float32,
    integer_range,
    listed,
    numeric_dtype,
    refuse_first,
)
from jormungandr.columns.batch import ARRAYS, Columns
from jormungandr.columns.ids import checked_ids
from jormungandr.columns.masks import ALLOWS
from jormungandr.columns.plain import plain_row, plain_rows
from jormungandr.columns.rows import as_mapping, from_rows
from jormungandr.columns.tags import checked_codes
from jormungandr.encoding import check_encoded
from jormungandr.errors import (
    ActionRange,
    DtypeMismatch,
    InvalidType,
    InvalidValue,
    LabelRange,
    ShapeMismatch,
    UnknownSplit,
)
from jormungandr.protocol import LIMITS, Transition
from jormungandr.spec import ModelSpec
from jormungandr.steps import Steps

__all__ = ["columns"]


def columns(
    transitions: Sequence[Transition | Mapping[str, Any]] | Columns, spec: ModelSpec
) -> Columns:
    """Return `transitions` as checked columns.

    Raises:
        InvalidInput: (one of its classes) for the first fault found; nothing has been kept.
    """
    if isinstance(transitions, Columns):
        return _checked(transitions, spec)
    if type(transitions) in (list, Steps) and transitions:
        one = len(transitions) == 1
        plain = plain_row(transitions[0], spec) if one else plain_rows(transitions, spec)
        if plain is not None:
            return plain
    rows = listed(transitions, "transitions", "a list of transitions")
    return _checked(from_rows([as_mapping(i, t) for i, t in enumerate(rows)], spec), spec)


def _checked(given: Columns, spec: ModelSpec) -> Columns:
    """Check values, and cast to the model's dtypes."""
    arrays = {name: as_array(getattr(given, name), f"transitions.{name}") for name in ARRAYS}
    count = arrays["timestep"].size
    o = spec.observation
    is_image, stored = o.is_image, (count, *o.stored_shape)
    actions = len(spec.action_set)
    shapes: dict[str, tuple[int, ...]] = {
        "observation": stored,
        "next_observation": stored,
        "next_action_mask": (count, actions if spec.action_masks else 0),
    }
    for name, array in arrays.items():
        shape = shapes.get(name, (count,))
        if array.shape != shape:
            raise ShapeMismatch(f"transitions.{name}", str(shape), array.shape)

    def at(name: str) -> Any:
        return lambda i: f"transitions[{i}].{name}"

    for name in ("observation", "next_observation", "reward"):
        numeric_dtype(arrays[name], f"transitions.{name}")
        if name != "reward" and is_image:
            if arrays[name].dtype != o.stored_dtype:
                raise DtypeMismatch(f"transitions.{name}", str(o.stored_dtype), arrays[name].dtype)
        else:
            if name != "reward":
                check_encoded(o.described, arrays[name], at(name))
            arrays[name] = finite_float32(arrays[name], at(name))
    integer_range(arrays["action"], 0, actions - 1, ActionRange, at("action"))
    integer_range(arrays["timestep"], 0, LIMITS["timestep_max"], InvalidValue, at("timestep"))
    integer_range(
        arrays["policy_version"], -1, LIMITS["timestep_max"], InvalidValue, at("policy_version")
    )
    integer_range(arrays["split"], 0, 1, UnknownSplit, at("split"))
    classes = 0 if spec.auxiliary is None else len(spec.auxiliary.classes)
    integer_range(arrays["label"], -1, classes - 1, LabelRange, at("label"))
    for name in ("terminated", "truncated", "next_action_mask"):
        if arrays[name].dtype != np.bool_:
            raise InvalidType(f"transitions.{name}", "booleans", arrays[name].dtype)
    if spec.action_masks:
        none = ~arrays["next_action_mask"].any(axis=1) & ~arrays["terminated"]
        refuse_first(none, InvalidValue, at("next_action_mask"), ALLOWS, arrays["next_action_mask"])
    numeric_dtype(arrays["behavior_prob"], "transitions.behavior_prob")
    p = float32(arrays["behavior_prob"])
    refuse_first(  # NaN is neither: it says that none is known
        (p <= 0) | (p > 1),
        InvalidValue,
        at("behavior_prob"),
        "(0, 1] in float32",
        arrays["behavior_prob"],
    )
    arrays["behavior_prob"] = p
    actors = checked_ids(given.actors, arrays["actor"], "actor", at("actor_id"))
    episodes = checked_ids(given.episodes, arrays["episode"], "episode", at("episode_id"))
    tags, tag = checked_codes(given.tags, given.tag, arrays["timestep"], at("tags"))
    arrays = {
        name: a if name.endswith("observation") else a.astype(ARRAYS[name], copy=False)
        for name, a in arrays.items()
    }
    return Columns(actors=actors, episodes=episodes, **arrays, tags=tags, tag=tag)
