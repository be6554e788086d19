"""`Columns`: a batch of transitions as arrays, and the one door at which input is checked.

Rows (structs, dicts, parsed JSON) and arrays both pass `columns()`; after it nothing is checked
again. B is the number of transitions, D the number of elements of an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import (
    ActionRange,
    DtypeMismatch,
    InvalidInput,
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

__all__ = ["Columns", "class_index", "columns", "is_number", "listed", "observations"]

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
OPTIONAL = ("behavior_prob", "label")
_FIELDS = frozenset(REQUIRED + OPTIONAL)
_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
#: Sequences of something else than numbers, and what has no order.
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """B transitions. Ids are dictionary-encoded: transition i's actor is ``actors[actor[i]]``.

    Args:
        actors, episodes: the distinct ids.
        actor, episode: (B,) int32 indices into them.
        timestep, policy_version, action: (B,) int64.
        split: (B,) uint8, 0 train, 1 validation.
        observation, next_observation: (B, D) float32.
        reward: (B,) float32.
        terminated, truncated: (B,) bool.
        behavior_prob: (B,) float32, NaN where unknown.
        label: (B,) int32, -1 where unknown.
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
            np.ascontiguousarray(self.observation + np.float32(0)),
            self.action,
            self.reward + np.float32(0),
            np.ascontiguousarray(self.next_observation + np.float32(0)),
            self.terminated,
            self.truncated,
            # NaN has many bit patterns; "unknown" must have one.
            np.where(np.isnan(self.behavior_prob), np.float32(-1), self.behavior_prob),
            self.policy_version,
        ]
        count = len(self)
        if count == 0:
            return np.zeros(0, dtype=np.uint64)
        table = np.concatenate([p.reshape(count, -1).view(np.uint8) for p in parts], axis=1)
        digests = [blake2b(row, digest_size=8).digest() for row in table]
        return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


#: Names of the array fields, in their order on disk and on the wire.
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


def observations(values: Any, spec: ModelSpec, where: str = "observations") -> NDArray[np.float32]:
    """Return observations as checked (B, D) float32; a single one becomes a batch of one."""
    shape = spec.observation.shape
    if isinstance(values, np.ndarray):
        _numeric_dtype(values, where)
        array = values
    else:
        rows = listed(values, where, "a list of observations")
        if len(rows) == 0:
            return np.zeros((0, *shape), dtype=np.float32)
        single = not isinstance(rows[0], Sequence | np.ndarray) or isinstance(rows[0], str)
        array = _stack([rows] if single else rows, shape, lambda i: f"{where}[{i}]")
    if array.shape == shape:
        array = array[None]
    if array.ndim != 1 + len(shape) or array.shape[1:] != shape:
        raise ShapeMismatch(where, f"(B, {', '.join(map(str, shape))})", array.shape)
    return _finite_float32(array, lambda i: f"{where}[{i}]")


def listed(values: Any, where: str, expected: str) -> list[Any]:
    """Return what a caller handed over as a list; refuse what cannot be one."""
    try:
        if not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
            raise TypeError
        iterator = iter(values)  # an array without axes raises TypeError
    except TypeError:
        raise InvalidType(where, expected, type(values).__name__) from None
    return list(iterator)


def is_number(value: Any, kinds: tuple[type, ...] = _NUMBERS) -> bool:
    """Whether a value is a number; bool and timedelta64 are integers by inheritance only."""
    return isinstance(value, kinds) and not isinstance(value, bool | np.timedelta64)


def class_index(label: Any, spec: ModelSpec, where: str) -> int:
    """Return the index of an auxiliary class given as index or name."""
    if spec.auxiliary is None:
        raise LabelRange(where, "no label: the model has no auxiliary head", shown(label))
    classes = spec.auxiliary.classes
    if isinstance(label, str):
        if label in classes:
            return classes.index(label)
    elif is_number(label, _INTEGERS) and 0 <= label < len(classes):
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
    if not is_number(value, _INTEGERS):
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
        _typed(field(name), (str,), "a string", InvalidType, at(name))
    actors, actor = encode_ids(field("actor_id"))
    episodes, episode = encode_ids(field("episode_id"))
    splits = field("split")
    for i, split in enumerate(splits):
        if not isinstance(split, str) or split not in SPLITS:
            raise UnknownSplit(f"transitions[{i}].split", f"one of {list(SPLITS)}", shown(split))
    shape = spec.observation.shape
    given = [row.get("behavior_prob") for row in rows]
    probability = _floats([1.0 if p is None else p for p in given], at("behavior_prob"))
    _first(np.isnan(probability), NonFinite, at("behavior_prob"), "(0, 1]", probability)
    probability[[p is None for p in given]] = np.nan
    labels = [row.get("label") for row in rows]
    return Columns(
        actors=actors,
        episodes=episodes,
        actor=actor,
        episode=episode,
        timestep=_integers(field("timestep"), InvalidType, at("timestep"), LIMITS["timestep_max"]),
        split=np.fromiter(map(SPLITS.index, splits), dtype=np.uint8),
        policy_version=_integers(
            field("policy_version"), InvalidType, at("policy_version"), LIMITS["timestep_max"]
        ),
        observation=_stack(field("observation"), shape, at("observation")),
        action=_integers(field("action"), ActionRange, at("action"), len(spec.action_set) - 1),
        reward=_floats(field("reward"), at("reward")),  # cast where it is checked
        next_observation=_stack(field("next_observation"), shape, at("next_observation")),
        terminated=_bools(field("terminated"), at("terminated")),
        truncated=_bools(field("truncated"), at("truncated")),
        behavior_prob=probability,
        label=np.array(
            [
                -1 if v is None else class_index(v, spec, f"transitions[{i}].label")
                for i, v in enumerate(labels)
            ],
            dtype=np.int32,
        ),
    )


def _checked(given: Columns, spec: ModelSpec) -> Columns:
    """Check values, and cast to the model's dtypes."""
    arrays = {name: _as_array(getattr(given, name), f"transitions.{name}") for name in ARRAYS}
    count = arrays["timestep"].size
    for name, array in arrays.items():
        shape = (count, *spec.observation.shape) if name.endswith("observation") else (count,)
        if array.shape != shape:
            raise ShapeMismatch(f"transitions.{name}", str(shape), array.shape)

    def at(name: str) -> Any:
        return lambda i: f"transitions[{i}].{name}"

    for name in ("observation", "next_observation", "reward"):
        _numeric_dtype(arrays[name], f"transitions.{name}")
        arrays[name] = _finite_float32(arrays[name], at(name))
    _integer_range(arrays["action"], 0, len(spec.action_set) - 1, ActionRange, at("action"))
    _integer_range(arrays["timestep"], 0, LIMITS["timestep_max"], InvalidValue, at("timestep"))
    _integer_range(
        arrays["policy_version"], -1, LIMITS["timestep_max"], InvalidValue, at("policy_version")
    )
    _integer_range(arrays["split"], 0, 1, UnknownSplit, at("split"))
    classes = 0 if spec.auxiliary is None else len(spec.auxiliary.classes)
    _integer_range(arrays["label"], -1, classes - 1, LabelRange, at("label"))
    for name in ("terminated", "truncated"):
        if arrays[name].dtype != np.bool_:
            raise InvalidType(f"transitions.{name}", "booleans", arrays[name].dtype)
    _numeric_dtype(arrays["behavior_prob"], "transitions.behavior_prob")
    p = _float32(arrays["behavior_prob"])
    bad = ~(np.isnan(p) | ((p > 0) & (p <= 1)))
    _first(bad, InvalidValue, at("behavior_prob"), "(0, 1] in float32", arrays["behavior_prob"])
    arrays["behavior_prob"] = p
    actors = _checked_ids(given.actors, arrays["actor"], "actor", at("actor_id"))
    episodes = _checked_ids(given.episodes, arrays["episode"], "episode", at("episode_id"))
    arrays = {name: a.astype(ARRAYS[name], copy=False) for name, a in arrays.items()}
    return Columns(actors=actors, episodes=episodes, **arrays)


def _checked_ids(ids: Any, code: NDArray[Any], kind: str, at: Any) -> tuple[str, ...]:
    """Check a dictionary of ids and the codes into it; return plain strings."""
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise InvalidType(f"transitions.{kind}s", "a list of ids", type(ids).__name__)
    _integer_range(code, 0, len(ids) - 1, InvalidValue, at)
    first = {k: len(code) - 1 - i for i, k in enumerate(code[::-1].tolist())}
    for k, value in enumerate(ids):
        check_id(value, at(first.get(k, "?")))
    if len(set(ids)) < len(ids):  # two codes for one id would hide a repeated identity
        raise InvalidValue(f"transitions.{kind}s", "different ids", "one of them twice")
    return tuple(map(str, ids))


def _as_array(values: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:  # a ragged list
        raise ShapeMismatch(where, "an array", "lists of different lengths") from None


def _first(
    bad: NDArray[np.bool_], error: type[InvalidInput], at: Any, expected: str, values: NDArray[Any]
) -> None:
    if bad.any():
        i = int(np.argmax(bad))
        raise error(at(i), expected, values[i])


def _integer_range(
    values: NDArray[Any], low: int, high: int, error: type[InvalidInput], at: Any
) -> None:
    if values.dtype.kind not in "iu":
        raise error(at("…"), "integers", values.dtype)
    _first((values < low) | (values > high), error, at, f"{low}..{high}", values)


def _typed(
    values: list[Any], kinds: tuple[type, ...], expected: str, error: type[InvalidInput], at: Any
) -> None:
    """Refuse the first value whose type is not one of `kinds`."""
    if set(map(type, values)) <= set(kinds):
        return
    for i, value in enumerate(values):
        if not (isinstance(value, kinds) if bool in kinds else is_number(value, kinds)):
            raise error(at(i), expected, shown(value))


def _integers(
    values: list[Any], error: type[InvalidInput], at: Any, largest: int
) -> NDArray[np.int64]:
    expected = f"an integer in 0..{largest}" if error is ActionRange else "an integer"
    _typed(values, _INTEGERS, expected, error, at)
    for i, value in enumerate(values):
        # Looked at as Python integers, since 2**70 does not fit an int64 array.
        if not -1 <= value <= largest:
            kind = error if error is ActionRange else InvalidValue
            raise kind(at(i), f"{0 if error is ActionRange else -1}..{largest}", value)
    return np.array(values, dtype=np.int64)


def _floats(values: list[Any], at: Any) -> NDArray[np.float64]:
    _typed(values, _NUMBERS, "a number", InvalidType, at)
    return _array(values, at)


def _bools(values: list[Any], at: Any) -> NDArray[np.bool_]:
    _typed(values, (bool, np.bool_), "true or false", InvalidType, at)
    return np.array(values, dtype=np.bool_)


def _stack(values: Sequence[Any], shape: tuple[int, ...], at: Any) -> NDArray[Any]:
    """Stack B observations given as arrays or lists of numbers."""
    if not values:
        return np.zeros((0, *shape), dtype=np.float64)
    for i, v in enumerate(values):
        if isinstance(v, np.ndarray):
            _numeric_dtype(v, at(i))
            given = v.shape
        elif isinstance(v, Sequence) and not isinstance(v, _NO_LISTS):
            given = (len(v),)
        else:
            raise ShapeMismatch(at(i), f"a list of {shape[0]} numbers", shown(v))
        if given != shape:
            raise ShapeMismatch(at(i), str(shape), given)
    if all(isinstance(v, np.ndarray) for v in values):
        return np.stack(values)
    if not set(map(type, chain.from_iterable(values))) <= {int, float}:
        for i, v in enumerate(values):
            for j, x in enumerate(v):
                if isinstance(x, Sequence | np.ndarray) and not isinstance(x, str):
                    raise ShapeMismatch(f"{at(i)}[{j}]", "a number", shown(x))
                if not is_number(x):
                    raise DtypeMismatch(f"{at(i)}[{j}]", "a number", shown(x))
    return _array(values, at)


def _array(values: Sequence[Any], at: Any) -> NDArray[np.float64]:
    try:
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite
            return np.array(values, dtype=np.float64)
    except ValueError:  # a sequence that is not as long as it says
        raise ShapeMismatch(at(0), "numbers", "another sequence") from None
    except OverflowError:  # an integer beyond float64
        if len(values) > 1:
            for i, value in enumerate(values):
                _array([value], lambda _, i=i: at(i))
        raise NonFinite(at(0), "numbers that are finite in float32", "an integer beyond") from None


def _numeric_dtype(array: NDArray[Any], where: str) -> None:
    if array.dtype.kind not in "fiu":
        raise DtypeMismatch(where, "numbers", array.dtype)


def _finite_float32(array: NDArray[Any], at: Any) -> NDArray[np.float32]:
    """Cast, then look: 1e39 is finite in float64 and infinite in float32."""
    cast = _float32(array)
    finite = np.isfinite(cast).all(axis=tuple(range(1, cast.ndim)))
    if not finite.all():
        i = int(np.argmin(finite))
        raise NonFinite(at(i), "numbers that are finite in float32", array[i])
    return cast


def _float32(array: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)
