"""Bytes ⇄ protocol: the bodies of both ends, but for the columns of `jormungandr.packed`.

The service decodes to plain objects and lets `columns()` check them, so that a fault is described
in the same words in process and over HTTP.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from jormungandr.checks import listed
from jormungandr.columns import ARRAYS, OPTIONAL, REQUIRED, Columns
from jormungandr.errors import (
    InvalidType,
    InvalidValue,
    Malformed,
    MissingField,
    NonFinite,
    UnknownField,
    shown,
)
from jormungandr.nesting import check_names
from jormungandr.protocol import SPLITS, LabelsLike, Transition, TransitionsLike

__all__ = [
    "JSON",
    "MSGPACK",
    "decode_object",
    "encode",
    "encode_labels",
    "encode_transitions",
    "fields",
]

#: Media types of bodies.
JSON, MSGPACK = "application/json", "application/msgpack"


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim > 1:  # pixels: a third of what a list takes
            return {"uint8": base64.b64encode(value.tobytes()).decode(), "shape": value.shape}
        return value.tolist()
    if isinstance(value, np.floating):
        return float(value)  # the `item` of a longdouble is a longdouble
    if isinstance(value, np.generic):
        return value.item()
    # Subclasses and look-alikes of what JSON has, which the learner takes in process too.
    look_alikes: Sequence[tuple[type, Any]] = ((str, str), (int, int), (Mapping, dict))
    for kind, plain in (*look_alikes, (Sequence, list)):
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"cannot encode {type(value).__name__} as JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def encode(body: Any) -> bytes:
    """Return JSON; NumPy arrays and scalars become lists and numbers."""
    return _ENCODER.encode(body)


def decode_object(body: bytes, kind: str = JSON) -> dict[str, Any]:
    """Return the object that a body is, as JSON or as MessagePack with the same names.

    Raises:
        Malformed: the body is not of that kind, nested too deeply, not an object, or one in which a
            name is there twice.
    """
    packed = kind == MSGPACK
    expected = "a MessagePack map of names" if packed else "a JSON object"
    remedy = "" if packed else "JSON has no NaN or Infinity"
    try:
        found = _MSGPACK.decode(body) if packed else msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed("body", expected, error, remedy) from None
    if not isinstance(found, dict):
        raise Malformed("body", expected, type(found).__name__)
    if not packed:
        check_names(body, found)
    return found


def _no_extension(code: int, _: memoryview) -> Any:
    raise msgspec.DecodeError(f"extension type {code}")


_MSGPACK = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_no_extension)


def fields(
    body: Mapping[str, Any], required: Mapping[str, Any], optional: Mapping[str, Any]
) -> dict[str, Any]:
    """Check the top-level fields of a request by name and type; a null optional one is absent.

    Raises:
        InvalidInput: a field is missing, unknown, or of the wrong type.
    """
    for name in body:
        if name not in required and name not in optional:
            known = sorted([*required, *optional])
            raise UnknownField(name, f"only {known}", "an unknown field", "check its spelling")
    found = {}
    for name, kind in {**required, **optional}.items():
        value = body.get(name)
        if value is None:
            if name in required:
                raise MissingField(name, "a value", "null" if name in body else "nothing")
            continue
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not fits:
            raise InvalidType(name, _kind_name(kind), shown(value))
        found[name] = value
    return found


def _kind_name(kind: Any) -> str:
    names: dict[Any, str] = {
        list: "a list",
        dict: "an object",
        list | dict: "a list, or an object of lists",
        bool: "true or false",
        str: "a string",
        str | int: "a string or an integer",
    }
    return names.get(kind, "a number")


def encode_transitions(transitions: TransitionsLike) -> bytes:
    """Return the body of `experience/add`.

    JSON has no NaN and no infinity, so those are refused here, in the learner's own words.

    Raises:
        NonFinite: naming the place.
        InvalidType: something that is no transition.
    """
    if isinstance(transitions, Columns):
        rows: Sequence[Any] = _column_rows(transitions)
    else:
        given = listed(transitions, "transitions", "a list of transitions")
        rows = [_row(i, t) for i, t in enumerate(given)]
    for i, row in enumerate(rows):
        for name in ("observation", "next_observation", "reward", "behavior_prob"):
            value = row.get(name)
            if not _finite(value):
                expected = "numbers that are finite in float32"
                raise NonFinite(f"transitions[{i}].{name}", expected, value)
    return _encode_rows("transitions", rows)


def encode_labels(labels: LabelsLike) -> bytes:
    """Return the body of `labels/add`."""
    return _encode_rows("labels", listed(labels, "labels", "a list of labels"))


def _encode_rows(name: str, rows: Sequence[Any]) -> bytes:
    try:
        return encode({name: rows})
    except UnicodeEncodeError as error:  # a lone surrogate
        raise InvalidValue(name, "valid UTF-8", error) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidType(name, "values that JSON can carry", error) from None


def _row(i: int, row: Any) -> Mapping[str, Any]:
    if isinstance(row, Transition):
        names = (*REQUIRED, *(n for n in OPTIONAL if getattr(row, n) is not None))
        return {name: getattr(row, name) for name in names}
    if not isinstance(row, Mapping):
        raise InvalidType(f"transitions[{i}]", "an object", type(row).__name__)
    return row


def _column_rows(c: Columns) -> list[dict[str, Any]]:
    # An array as a row of its own: of images, pixels travel as bytes.
    lists = {
        name: list(getattr(c, name)) if name.endswith("observation") else getattr(c, name).tolist()
        for name in ARRAYS
    }
    rows = []
    for i in range(len(c)):
        row = {name: values[i] for name, values in lists.items() if name not in OPTIONAL}
        row["actor_id"], row["episode_id"] = (
            c.actors[row.pop("actor")],
            c.episodes[row.pop("episode")],
        )
        row["split"] = SPLITS[row["split"]]
        if not math.isnan(lists["behavior_prob"][i]):
            row["behavior_prob"] = lists["behavior_prob"][i]
        if lists["label"][i] >= 0:
            row["label"] = lists["label"][i]
        if lists["next_action_mask"][i]:
            row["next_action_mask"] = lists["next_action_mask"][i]
        if tags := c.tags_of(i):
            row["tags"] = dict(tags)
        rows.append(row)
    return rows


def _finite(value: Any) -> bool:
    """Whether a number or list of numbers has no NaN or infinity; other things are not judged."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, np.ndarray | np.floating):
        if cast("np.dtype[Any]", value.dtype).kind != "f":
            return True
        with np.errstate(over="ignore"):  # a longdouble may be finite beyond float64
            return bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    if isinstance(value, list | tuple):
        return all(_finite(v) for v in value)
    if isinstance(value, Mapping):
        return all(_finite(v) for v in value.values())
    return True
