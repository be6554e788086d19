"""Transitions as structs, dicts or parsed JSON, into columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jormungandr.checks import (
    INTEGERS,
    bools,
    floats,
    integers,
    is_number,
    refuse_first,
    typed,
)
from jormungandr.columns.batch import Columns
from jormungandr.columns.ids import encode_ids
from jormungandr.columns.masks import next_masks
from jormungandr.columns.tags import encode_tags
from jormungandr.encoding import encoded
from jormungandr.errors import (
    ActionRange,
    InvalidType,
    LabelRange,
    MissingField,
    NonFinite,
    UnknownField,
    UnknownSplit,
    shown,
)
from jormungandr.protocol import LIMITS, SPLITS, Transition
from jormungandr.spec import ModelSpec

__all__ = ["OPTIONAL", "REQUIRED", "as_mapping", "class_index", "from_rows"]

REQUIRED = (
    "actor_id",
    "episode_id",
    "timestep",
    "split",
    "policy_version",
    "observation",
    "action",
    "reward",
    "next_observation",
    "terminated",
    "truncated",
)
OPTIONAL = ("behavior_prob", "label", "next_action_mask", "tags")
_FIELDS = frozenset(REQUIRED + OPTIONAL)


def class_index(label: Any, spec: ModelSpec, where: str) -> int:
    """Return the index of an auxiliary class given as index or name."""
    if spec.auxiliary is None:
        raise LabelRange(where, "no label: the model has no auxiliary head", shown(label))
    classes = spec.auxiliary.classes
    if isinstance(label, str):
        if label in classes:
            return classes.index(label)
    elif is_number(label, INTEGERS) and 0 <= label < len(classes):
        return int(label)
    raise LabelRange(where, f"0..{len(classes) - 1} or one of {list(classes)}", shown(label))


def as_mapping(i: int, row: Any) -> Mapping[str, Any]:
    """Return transition i of a batch as a mapping of known fields."""
    if isinstance(row, Transition):
        return {name: getattr(row, name) for name in row.__struct_fields__}
    if not isinstance(row, Mapping):
        raise InvalidType(f"transitions[{i}]", "an object", type(row).__name__)
    if not row.keys() <= _FIELDS:
        name = min(shown(key, str) for key in row.keys() - _FIELDS)
        raise UnknownField(
            f"transitions[{i}].{name}", "only known fields", name, "check its spelling"
        )
    return row


def from_rows(rows: list[Mapping[str, Any]], spec: ModelSpec) -> Columns:
    """Return rows as columns whose types are checked; their values are the door's to check."""
    for name in REQUIRED:
        for i, row in enumerate(rows):
            if row.get(name) is None:
                got = "null" if name in row else "nothing"
                raise MissingField(f"transitions[{i}].{name}", "a value", got)

    def field(name: str) -> list[Any]:
        return [row[name] for row in rows]

    def at(name: str) -> Any:
        return lambda i: f"transitions[{i}].{name}"

    for name in ("actor_id", "episode_id"):
        typed(field(name), (str,), "a string", InvalidType, at(name))
    actors, actor = encode_ids(field("actor_id"))
    episodes, episode = encode_ids(field("episode_id"))
    splits = field("split")
    for i, split in enumerate(splits):
        if not isinstance(split, str) or split not in SPLITS:
            raise UnknownSplit(f"transitions[{i}].split", f"one of {list(SPLITS)}", shown(split))
    given = [row.get("behavior_prob") for row in rows]
    probability = floats([1.0 if p is None else p for p in given], at("behavior_prob"))
    refuse_first(np.isnan(probability), NonFinite, at("behavior_prob"), "(0, 1]", probability)
    probability[[p is None for p in given]] = np.nan
    labels = [row.get("label") for row in rows]
    tags, tag = encode_tags([row.get("tags") for row in rows], at("tags"))
    return Columns(
        actors=actors,
        episodes=episodes,
        actor=actor,
        episode=episode,
        timestep=integers(field("timestep"), InvalidType, at("timestep"), LIMITS["timestep_max"]),
        split=np.fromiter(map(SPLITS.index, splits), dtype=np.uint8),
        policy_version=integers(
            field("policy_version"), InvalidType, at("policy_version"), LIMITS["timestep_max"]
        ),
        observation=encoded(
            field("observation"), spec.observation, at("observation"), "transitions"
        ),
        action=integers(field("action"), ActionRange, at("action"), len(spec.action_set) - 1),
        reward=floats(field("reward"), at("reward")),  # cast where it is checked
        next_observation=encoded(
            field("next_observation"), spec.observation, at("next_observation"), "transitions"
        ),
        terminated=bools(field("terminated"), at("terminated")),
        truncated=bools(field("truncated"), at("truncated")),
        behavior_prob=probability,
        label=np.array(
            [
                -1 if v is None else class_index(v, spec, f"transitions[{i}].label")
                for i, v in enumerate(labels)
            ],
            dtype=np.int32,
        ),
        next_action_mask=next_masks(rows, spec, at("next_action_mask")),
        tags=tags,
        tag=tag,
    )
