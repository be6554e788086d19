"""`Fields`: what the columns of logged data stand for in a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from jormungandr.cli.logged import Record
from jormungandr.errors import InvalidType, InvalidValue, MissingField, UnknownField
from jormungandr.service.tools.flat import Layout

__all__ = ["Fields"]

#: What a column may stand for, beside the elements of the three arrays.
SCALARS = (
    "actor_id",
    "episode_id",
    "timestep",
    "split",
    "policy_version",
    "action",
    "reward",
    "terminated",
    "truncated",
    "behavior_prob",
    "label",
    "outcome",
    "tags",
)
ARRAYS = ("observation", "next_observation", "next_action_mask")
#: Written by `export-data` for people to read; the file says the same elsewhere.
FOR_PEOPLE = ("lsn", "label_name", "action_label")


@dataclass
class Fields:
    """What the columns of a file stand for in a model.

    Args:
        layout: of the model.
        given: field by column, where the column has another name.
        constant: text by field, for what the file does not say.
        split: the column that holds the split, if one does.
        ignore: whether columns that stand for nothing are left out; else they are refused.
    """

    layout: Layout
    given: Mapping[str, str] = field(default_factory=dict)
    constant: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    ignore: bool = False

    def __post_init__(self) -> None:
        spec, elements = self.layout.spec, self.layout.elements or []
        self._elements: dict[str, tuple[str, int]] = {
            f"{name}.{element}": (name, i)
            for name in ARRAYS[:2]
            for i, element in enumerate(elements)
        }
        if spec.action_masks:
            named = enumerate(self.layout.actions)
            self._elements |= {f"next_action_mask.{a}": ("next_action_mask", i) for i, a in named}
        self._known: dict[tuple[str, ...], dict[str, str]] = {}
        for where, names in (("--map", self.given.values()), ("--const", self.constant)):
            for name in names:
                if not self._stands_for(name):
                    raise UnknownField(where, f"one of {self._fields()}", repr(name))
                if name == "split":
                    raise InvalidValue(where, "no split, which --split says", "one")

    def _stands_for(self, name: str) -> bool:
        return name in SCALARS or name in ARRAYS or name in self._elements

    def _fields(self) -> list[str]:
        return [*SCALARS, *ARRAYS, *self._elements][:40]

    def column(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the column of a record that a field comes from, for messages."""
        fields = self.targets(values)
        found = [c for c, target in fields.items() if target.partition(".")[0] == name]
        return repr(found[0]) if len(found) == 1 else repr(name)

    def targets(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return field by column, for records of these columns."""
        key = tuple(values)
        if key not in self._known:
            if len(self._known) > 1_000:
                self._known.clear()
            self._known[key] = self._resolve(key)
        return self._known[key]

    def _resolve(self, columns: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in self.given:
            if name not in columns:
                raise MissingField("--map", f"a column {name!r}", f"only {list(columns)[:40]}")
        if self.split is not None and self.split not in columns:
            where = f"--split column:{self.split}"
            raise MissingField(where, "that column", f"only {list(columns)[:40]}")
        for column in columns:
            target = "split" if column == self.split else self.given.get(column, column)
            if target == "split" and column != self.split:
                continue  # another way to split was asked for
            if target in self.constant or (column not in self.given and column in FOR_PEOPLE):
                continue
            if not self._stands_for(target):
                if self.ignore:
                    continue
                remedy = "--map it, or leave out what stands for nothing with --ignore-others"
                raise UnknownField(f"column {column!r}", "a field", "another name", remedy)
            if target in found.values():
                raise InvalidValue("--map", f"one column for {target}", "two")
            found[column] = target
        given = {*found.values(), *self.constant}
        for name in ARRAYS:
            parts = [part for part, (whole, _) in self._elements.items() if whole == name]
            missing = [part for part in parts if part not in given]
            if name in given and len(missing) < len(parts):
                raise InvalidValue("--map", f"{name} whole, or by its elements", "both")
            if 0 < len(missing) < len(parts):
                raise MissingField("FILE", f"columns for {missing[:40]}", "none")
        return found

    def read(self, record: Record) -> dict[str, Any]:
        """Return the fields that a record gives, as the protocol has them; empty ones are left out.

        Raises:
            InvalidInput: (one of its classes) naming the line and the column.
        """
        found: dict[str, Any] = {}
        for name, text in self.constant.items():
            self._put(found, name, text, f"--const {name}")
        for column, name in self.targets(record.values).items():
            value = record.values[column]
            if value is not None and value != "":
                self._put(found, name, value, f"{record.place}, column {column!r}")
        return found

    def _put(self, found: dict[str, Any], name: str, value: Any, where: str) -> None:
        if name in self._elements:
            whole, i = self._elements[name]
            size = sum(1 for other, _ in self._elements.values() if other == whole)
            parse = _boolean if whole == "next_action_mask" else _number
            found.setdefault(whole, [None] * size)[i] = parse(value, where)
        elif name in ARRAYS:
            found[name] = self._array(name, value, where)
        else:
            found[name] = _PARSERS.get(name, _as_it_is)(value, where)

    def _array(self, name: str, value: Any, where: str) -> Any:
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise InvalidType(where, "a JSON list", error) from None
        o = self.layout.spec.observation
        if o.is_image and name != "next_action_mask" and isinstance(value, list):
            size = int(np.prod(o.stored_shape))
            if len(value) == size and size != o.stored_shape[0]:  # of a Parquet file: flat
                return np.array(value, dtype=np.uint8).reshape(o.stored_shape)
        return value


def _as_it_is(value: Any, where: str) -> Any:
    return value


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool | float) or not isinstance(value, str | int):
        raise InvalidType(where, "a name", repr(value))
    return str(value)


def _integer(value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidType(where, "an integer", repr(value))


def _number(value: Any, where: str) -> float:
    if not isinstance(value, str):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        raise InvalidType(where, "a number", repr(value))
    try:
        if "_" in value:  # Python's own way to write numbers, and nobody else's
            raise ValueError(value)
        return float(value)
    except ValueError:
        raise InvalidType(where, "a number", repr(value)) from None


def _boolean(value: Any, where: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    text = str(value).strip().lower()
    if text not in known:
        raise InvalidType(where, "true or false, or 1 or 0", repr(value))
    return known[text]


def _class(value: Any, where: str) -> int | str:
    """Return the index or the name of a class."""
    return (
        _integer(value, where) if re.fullmatch(r"[0-9]{1,9}", str(value)) else _text(value, where)
    )


def _tags(value: Any, where: str) -> Any:
    """Return tags; a file of text has them as a JSON object."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise InvalidType(where, "a JSON object of strings", error) from None


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    "actor_id": _text,
    "episode_id": _text,
    "timestep": _integer,
    "policy_version": _integer,
    "action": _integer,
    "reward": _number,
    "terminated": _boolean,
    "truncated": _boolean,
    "behavior_prob": _number,
    "label": _class,
    "tags": _tags,
}
