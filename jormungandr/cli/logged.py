"""Logged data: the records of a CSV, JSON-lines or Parquet file, and where they stand."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jormungandr.errors import InvalidValue

__all__ = ["FORMATS", "Place", "Record", "read_records"]

FORMATS = ("parquet", "csv", "jsonl")
#: Rows of a Parquet file held at a time.
BATCH = 1_024


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a line of a text file, a row of a table."""

    file: Path
    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.kind} {self.number}"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a file: values by column; text as it stands, where a file has only text."""

    place: Place
    values: Mapping[str, Any]


def read_records(path: Path, format: str) -> Iterator[Record]:  # noqa: A002 - the option's word
    """Yield the records of a file, in order, a few at a time.

    Raises:
        InvalidValue: the file cannot be read, or a line of it.
    """
    reader = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}[format]
    try:
        yield from reader(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("FILE", f"a {format} file", error) from None


def _csv(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        names: list[str] = []
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                where = Place(path, "line", reader.line_num)
                raise InvalidValue(str(where), "comma-separated values", error) from None
            if row is None:
                if not names:
                    raise InvalidValue("FILE", "a line with the names of columns", "an empty file")
                return
            place = Place(path, "line", reader.line_num)
            if not names:
                names = row
                _check_names(str(place), names)
            elif row:
                if len(row) != len(names):
                    raise InvalidValue(str(place), f"{len(names)} fields", len(row))
                yield Record(place, dict(zip(names, row, strict=True)))


def _check_names(where: str, names: list[str]) -> None:
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise InvalidValue(where, "different names of columns", again)


def _json_lines(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = Place(path, "line", number)
            if not line.strip():
                continue
            try:
                values = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise InvalidValue(str(place), "a JSON object", error) from None
            if not isinstance(values, dict):
                raise InvalidValue(str(place), "a JSON object", type(values).__name__)
            yield Record(place, values)


def _parquet(path: Path) -> Iterator[Record]:
    # An extra without type information: by name, so that types are checked without it too.
    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")

    try:
        number = 0
        with parquet.ParquetFile(path) as file:
            _check_names(str(path), file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(Place(path, "row", number), values)
    except pa.ArrowException as error:
        raise InvalidValue("FILE", "a Parquet file", error) from None
