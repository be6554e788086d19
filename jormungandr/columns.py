"""`Columns`: a batch of transitions as arrays, and the one door at which input is checked.

Rows (structs, dicts, parsed JSON) and arrays both pass `columns()`; after it nothing is checked
again. B is the number of transitions, D the number of elements of an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import (
    INTEGERS,
    as_array,
    bools,
    finite_float32,
    float32,
    floats,
    integer_range,
    integers,
    is_number,
    listed,
    numeric_dtype,
    refuse_first,
    typed,
)
from jormungandr.encoding import encoded
from jormungandr.errors import (
    ActionRange,
    DtypeMismatch,
    InvalidType,
    InvalidValue,
    LabelRange,
    MissingField,
    NonFinite,
    ShapeMismatch,
    UnknownField,
    UnknownSplit,
    shown,
)
from jormungandr.protocol import LIMITS, SPLITS, Transition
from jormungandr.spec import ModelSpec

__all__ = ["Columns", "action_masks", "class_index", "columns"]

TRAIN, VALIDATION = 0, 1

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
OPTIONAL = ("behavior_prob", "label", "next_action_mask")
_FIELDS = frozenset(REQUIRED + OPTIONAL)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """B transitions. Ids are dictionary-encoded: transition i's actor is ``actors[actor[i]]``.

    Args:
        actors, episodes: the distinct ids.
        actor, episode: (B,) int32 indices into them.
        timestep, policy_version, action: (B,) int64.
        split: (B,) uint8, 0 train, 1 validation.
        observation, next_observation: (B, *stored_shape) in the stored dtype: (B, D) float32, or
            images of uint8.
        reward: (B,) float32.
        terminated, truncated: (B,) bool.
        behavior_prob: (B,) float32, NaN where unknown.
        label: (B,) int32, -1 where unknown.
        next_action_mask: (B, A) which actions the successor allows; (B, 0) in a model without
            masks.
    """

    actors: tuple[str, ...]
    episodes: tuple[str, ...]
    actor: NDArray[np.int32]
    episode: NDArray[np.int32]
    timestep: NDArray[np.int64]
    split: NDArray[np.uint8]
    policy_version: NDArray[np.int64]
    observation: NDArray[np.float32]
    action: NDArray[np.int64]
    reward: NDArray[np.floating[Any]]
    next_observation: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    behavior_prob: NDArray[np.floating[Any]]
    label: NDArray[np.int32]
    next_action_mask: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.timestep)

    def take(self, index: NDArray[Any]) -> Columns:
        """Return the transitions at `index` (integers or a mask), in that order."""
        arrays = {name: getattr(self, name)[index] for name in ARRAYS}
        return Columns(actors=self.actors, episodes=self.episodes, **arrays)

    def with_label(self, label: NDArray[np.int32]) -> Columns:
        """Return the same transitions with other labels."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays["label"] = label
        return Columns(actors=self.actors, episodes=self.episodes, **arrays)

    def identity(self, i: int) -> tuple[str, str, int]:
        """Return (actor_id, episode_id, timestep) of transition i."""
        return (
            self.actors[self.actor[i]],
            self.episodes[self.episode[i]],
            int(self.timestep[i]),
        )

    def digests(self) -> NDArray[np.uint64]:
        """Return (B,) 64-bit digests of the content in the model's dtypes.

        Identity, split and label are left out: two encodings of one transition agree, and a label
        may come later. Negative zero and zero are the same number, so they get the same digest.
        """
        parts = [
            _positive_zero(self.observation),
            self.action,
            self.reward + np.float32(0),
            _positive_zero(self.next_observation),
            self.terminated,
            self.truncated,
            # NaN has many bit patterns; "unknown" must have one.
            np.where(np.isnan(self.behavior_prob), np.float32(-1), self.behavior_prob),
            self.policy_version,
            np.ascontiguousarray(self.next_action_mask),
        ]
        count = len(self)
        if count == 0:
            return np.zeros(0, dtype=np.uint64)
        table = np.concatenate([p.reshape(count, -1).view(np.uint8) for p in parts], axis=1)
        digests = [blake2b(row, digest_size=8).digest() for row in table]
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _positive_zero(observation: NDArray[Any]) -> NDArray[Any]:
    """Return observations whose negative zeros are zeros, for bytes to be compared."""
    if observation.dtype.kind != "f":
        return np.ascontiguousarray(observation)
    return np.ascontiguousarray(observation + np.float32(0))


#: Names and dtypes of the array fields, in their order on disk; images are stored as uint8.
ARRAYS: dict[str, np.dtype[Any]] = {
    "actor": np.dtype("<i4"),
    "episode": np.dtype("<i4"),
    "timestep": np.dtype("<i8"),
    "split": np.dtype("u1"),
    "policy_version": np.dtype("<i8"),
    "observation": np.dtype("<f4"),
    "action": np.dtype("<i8"),
    "reward": np.dtype("<f4"),
    "next_observation": np.dtype("<f4"),
    "terminated": np.dtype("?"),
    "truncated": np.dtype("?"),
    "behavior_prob": np.dtype("<f4"),
    "label": np.dtype("<i4"),
    "next_action_mask": np.dtype("?"),
}


def columns(
    transitions: Sequence[Transition | Mapping[str, Any]] | Columns, spec: ModelSpec
) -> Columns:
    """Return `transitions` as checked columns.

    Raises:
        InvalidInput: (one of its classes) for the first fault found; nothing has been kept.
    """
    if isinstance(transitions, Columns):
        return _checked(transitions, spec)
    rows = listed(transitions, "transitions", "a list of transitions")
    return _checked(_from_rows([_as_mapping(i, t) for i, t in enumerate(rows)], spec), spec)


#: What a mask must do.
ALLOWS = "at least one action allowed"


def action_masks(
    values: Any, spec: ModelSpec, count: int, where: str = "action_masks"
) -> NDArray[np.bool_] | None:
    """Return the masks of a request for actions as checked (B, A) booleans; None without masks.

    Args:
        values: B rows of A booleans, or of 0 and 1; of a single observation also one row.
        spec: says whether there are masks, and of how many actions.
        count: B.
        where: the name of their place in an error.

    Raises:
        InvalidInput: (one of its classes) masks of a model without, none of one with, another
            shape, or a row that allows nothing.
    """
    _check_given(values, spec, where)
    if values is None:
        return None
    rows = listed(values, where, "a list of masks")
    single = count == 1 and len(rows) > 0 and np.ndim(rows[0]) == 0
    masks = _masks([rows] if single else rows, spec, lambda i: f"{where}[{i}]")
    if len(masks) != count:
        raise ShapeMismatch(where, f"one per observation ({count})", len(masks))
    refuse_first(~masks.any(axis=1), InvalidValue, lambda i: f"{where}[{i}]", ALLOWS, masks)
    return masks


def _check_given(values: Any, spec: ModelSpec, where: str) -> None:
    if values is None and spec.action_masks:
        remedy = "the model has action_masks; where everything is allowed, say so"
        raise MissingField(where, "a mask", "nothing", remedy)
    if values is not None and not spec.action_masks:
        remedy = "create the model with action_masks: true"
        raise UnknownField(where, "no mask: the model has none", "a mask", remedy)


def _masks(rows: Sequence[Any], spec: ModelSpec, at: Any) -> NDArray[np.bool_]:
    """Return rows of booleans, or of 0 and 1, as (B, A)."""
    actions = len(spec.action_set)
    masks = np.zeros((len(rows), actions), dtype=np.bool_)
    for i, row in enumerate(rows):
        array = as_array(row, at(i))
        if array.shape != (actions,):
            got = array.shape if isinstance(row, Sequence | np.ndarray) else shown(row)
            raise ShapeMismatch(at(i), f"({actions},), one per action", got)
        if array.dtype.kind not in "biu" or not ((array == 0) | (array == 1)).all():
            raise InvalidType(at(i), "true or false for each action", shown(row))
        masks[i] = array
    return masks


def _next_masks(rows: list[Mapping[str, Any]], spec: ModelSpec, at: Any) -> NDArray[np.bool_]:
    """Return the masks of the successors, (B, A), or (B, 0) in a model without masks.

    The successor of a termination is bootstrapped from by nobody, so its mask may be left out.
    """
    given = [row.get("next_action_mask") for row in rows]
    for i, (mask, row) in enumerate(zip(given, rows, strict=True)):
        if mask is not None or not row["terminated"]:
            _check_given(mask, spec, at(i))
    if not spec.action_masks:
        return np.zeros((len(rows), 0), dtype=np.bool_)
    every = [True] * len(spec.action_set)
    return _masks([every if mask is None else mask for mask in given], spec, at)


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


def check_id(value: Any, where: str) -> None:
    """Refuse an id that is not 1-128 bytes of UTF-8 without control characters."""
    if not isinstance(value, str):
        raise InvalidType(where, "a string", shown(value))
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidValue(where, "valid UTF-8", repr(value)) from None
    if not 1 <= size <= LIMITS["id_bytes"]:
        raise InvalidValue(where, f"1..{LIMITS['id_bytes']} bytes of UTF-8", f"{size} bytes")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise InvalidValue(where, "no control characters", repr(value))


def check_timestep(value: Any, where: str) -> None:
    """Refuse a timestep that is not an integer in 0 … 2**53 - 1."""
    if not is_number(value, INTEGERS):
        raise InvalidType(where, "an integer", shown(value))
    if not 0 <= value <= LIMITS["timestep_max"]:
        raise InvalidValue(where, f"0..{LIMITS['timestep_max']}", value)


def encode_ids(values: Iterable[str]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Dictionary-encode ids in order of first appearance, as plain strings."""
    codes: dict[str, int] = {}
    index = np.fromiter((codes.setdefault(v, len(codes)) for v in values), dtype=np.int32)
    return tuple(map(str, codes)), index


def _as_mapping(i: int, row: Any) -> Mapping[str, Any]:
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


def _from_rows(rows: list[Mapping[str, Any]], spec: ModelSpec) -> Columns:
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
        next_action_mask=_next_masks(rows, spec, at("next_action_mask")),
    )


def _checked(given: Columns, spec: ModelSpec) -> Columns:
    """Check values, and cast to the model's dtypes."""
    arrays = {name: as_array(getattr(given, name), f"transitions.{name}") for name in ARRAYS}
    count = arrays["timestep"].size
    o = spec.observation
    widths: dict[str, tuple[int, ...]] = {
        "observation": o.stored_shape,
        "next_observation": o.stored_shape,
        "next_action_mask": (len(spec.action_set) if spec.action_masks else 0,),
    }
    for name, array in arrays.items():
        shape = (count, *widths.get(name, ()))
        if array.shape != shape:
            raise ShapeMismatch(f"transitions.{name}", str(shape), array.shape)

    def at(name: str) -> Any:
        return lambda i: f"transitions[{i}].{name}"

    for name in ("observation", "next_observation", "reward"):
        numeric_dtype(arrays[name], f"transitions.{name}")
        if name != "reward" and o.is_image:
            if arrays[name].dtype != o.stored_dtype:
                raise DtypeMismatch(f"transitions.{name}", str(o.stored_dtype), arrays[name].dtype)
        else:
            arrays[name] = finite_float32(arrays[name], at(name))
    integer_range(arrays["action"], 0, len(spec.action_set) - 1, ActionRange, at("action"))
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
    bad = ~(np.isnan(p) | ((p > 0) & (p <= 1)))
    refuse_first(
        bad, InvalidValue, at("behavior_prob"), "(0, 1] in float32", arrays["behavior_prob"]
    )
    arrays["behavior_prob"] = p
    actors = _checked_ids(given.actors, arrays["actor"], "actor", at("actor_id"))
    episodes = _checked_ids(given.episodes, arrays["episode"], "episode", at("episode_id"))
    arrays = {
        name: a if name.endswith("observation") else a.astype(ARRAYS[name], copy=False)
        for name, a in arrays.items()
    }
    return Columns(actors=actors, episodes=episodes, **arrays)


def _checked_ids(ids: Any, code: NDArray[Any], kind: str, at: Any) -> tuple[str, ...]:
    """Check a dictionary of ids and the codes into it; return plain strings."""
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise InvalidType(f"transitions.{kind}s", "a list of ids", type(ids).__name__)
    integer_range(code, 0, len(ids) - 1, InvalidValue, at)
    first = {k: len(code) - 1 - i for i, k in enumerate(code[::-1].tolist())}
    for k, value in enumerate(ids):
        check_id(value, at(first.get(k, "?")))
    if len(set(ids)) < len(ids):  # two codes for one id would hide a repeated identity
        raise InvalidValue(f"transitions.{kind}s", "different ids", "one of them twice")
    return tuple(map(str, ids))
