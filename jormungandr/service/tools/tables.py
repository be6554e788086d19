"""Writers of transitions as files: CSV, JSON lines, Parquet; a batch at a time."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import InvalidValue
from jormungandr.rows import TransitionsRow
from jormungandr.service.tools.flat import Layout
from jormungandr.wire import encode

__all__ = ["FORMATS", "Writer", "open_writer"]

FORMATS = ("parquet", "csv", "jsonl")
#: Bytes of transitions gathered into one row group of a Parquet file.
GROUP = 1 << 25


class Writer(Protocol):
    """Takes the rows of a journal one after another."""

    def write(self, row: TransitionsRow) -> None:
        """Write the transitions of a row."""
        ...

    def close(self) -> None:
        """Write what is left, and close the file."""
        ...


def open_writer(path: Path, format: str, layout: Layout, about: dict[str, Any]) -> Writer:  # noqa: A002
    """Open a file for writing.

    Args:
        path: of the file.
        format: one of `FORMATS`.
        layout: of the model.
        about: JSON-able; kept where the format has a place for it.

    Raises:
        InvalidValue: the format cannot hold what the model observes.
    """
    if format == "parquet":
        return _Parquet(path, layout, about)
    return _Csv(path, layout) if format == "csv" else _JsonLines(path, layout)


class _Csv:
    """Comma-separated values; nothing is an empty field, numbers read back to the same bits."""

    def __init__(self, path: Path, layout: Layout) -> None:
        if layout.elements is None:
            shape = list(layout.spec.observation.stored_shape)
            raise InvalidValue("--format", "parquet or jsonl, for images", f"csv, of {shape}")
        self._layout = layout
        self._file: TextIO = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(layout.names)

    def write(self, row: TransitionsRow) -> None:
        """Write one line per transition."""
        columns = map(_texts, self._layout.arrays(row).values())
        self._csv.writerows(zip(*columns, strict=True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _texts(values: NDArray[Any]) -> list[Any]:
    """Return values as CSV has them."""
    if values.dtype.kind == "b":
        return ["true" if value else "false" for value in values.tolist()]
    if values.dtype.kind != "f":
        return ["" if value is None else value for value in values.tolist()]
    # The shortest text that reads back to the same float32, which that of a float is not.
    texts = np.asarray(values).astype(str).tolist()
    missing = np.ma.getmaskarray(values)
    return ["" if gone else text for text, gone in zip(texts, missing, strict=True)]


class _JsonLines:
    """One JSON object per line: a transition as the protocol has it, and what became of it."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._file = path.open("wb")

    def write(self, row: TransitionsRow) -> None:
        """Write one line per transition."""
        arrays = self._layout.arrays(row)
        columns: dict[str, Any] = {}
        for name, values in arrays.items():
            field = name.partition(".")[0]
            if field in ("observation", "next_observation", "next_action_mask"):
                columns.setdefault(field, list(getattr(row.columns, field)))
            elif name == "tags":
                c = row.columns
                columns[name] = [dict(c.tags_of(i)) or None for i in range(len(c))]
            else:
                columns[name] = values.tolist()
        for line in zip(*columns.values(), strict=True):
            self._file.write(encode(dict(zip(columns, line, strict=True))) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Parquet:
    """Apache Parquet; images are lists of uint8 in C order, and the metadata has the model."""

    def __init__(self, path: Path, layout: Layout, about: dict[str, Any]) -> None:
        # An extra without type information: by name, so that types are checked without it too.
        pa: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")

        self._pa, self._layout = pa, layout
        size = int(np.prod(layout.spec.observation.stored_shape))
        kinds = {
            **dict.fromkeys(("lsn", "timestep", "policy_version", "action"), pa.int64()),
            **dict.fromkeys(("behavior_prob", "reward"), pa.float32()),
            **dict.fromkeys(("observation", "next_observation"), pa.list_(pa.uint8(), size)),
            "label": pa.int32(),
        }
        prefixed = {
            "observation.": pa.float32(),
            "next_observation.": pa.float32(),
            "next_action_mask.": pa.bool_(),
        }
        kinds |= dict.fromkeys(("terminated", "truncated"), pa.bool_())
        fields = []
        for name in layout.names:
            prefix = name[: name.find(".") + 1]
            kind = prefixed[prefix] if prefix else kinds.get(name, pa.string())
            fields.append(pa.field(name, kind))
        self._schema = pa.schema(fields, {"jormungandr": msgspec.json.encode(about)})
        self._file = parquet.ParquetWriter(path, self._schema)
        self._batches: list[Any] = []

    def write(self, row: TransitionsRow) -> None:
        """Gather the transitions of a row; a full group is written."""
        pa = self._pa
        columns = []
        for name, values in self._layout.arrays(row).items():
            kind, missing = self._schema.field(name).type, np.ma.getmaskarray(values)
            if values.ndim > 1:
                flat = pa.array(np.ascontiguousarray(values).reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, type=kind))
            else:
                data = np.ascontiguousarray(np.ma.getdata(values))
                columns.append(pa.array(data, type=kind, mask=missing))
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        if sum(batch.nbytes for batch in self._batches) > GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._file.write_table(self._pa.Table.from_batches(self._batches, self._schema))
            self._batches = []

    def close(self) -> None:
        """Write the last group and the file's end."""
        self._flush()
        self._file.close()
