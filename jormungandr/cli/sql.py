"""``jormungandr sql``: a question to the journal of a model, in SQL."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "run"]

#: Rows that decide how wide the columns of a table are.
WIDTH_ROWS = 200
WIDEST = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "data_dir", metavar="DIR", type=Path, help="of a service; it may be running"
    )
    parser.add_argument("model", metavar="MODEL", help="a model's id, or ID.GENERATION")
    parser.add_argument(
        "statement",
        metavar="SQL",
        help="a SELECT over the tables that docs/journal.md describes, transitions and versions",
    )
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")


def run(arguments: argparse.Namespace) -> int:
    """Print the result; return 0."""
    from jormungandr.service.tools.query import Query
    from jormungandr.service.tools.stored import StoredModel, find_model

    write = {"table": _table, "csv": _csv, "json": _json}[arguments.format]
    with StoredModel(find_model(arguments.data_dir, arguments.model)) as stored:
        query = Query(stored, arguments.statement)
        write(query.names, query.rows())
    return 0


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print aligned columns; the first rows decide their widths."""
    left = iter(rows)
    first = [list(map(_shown, row)) for row in islice(left, WIDTH_ROWS)]
    widths = [min(WIDEST, max(map(len, column))) for column in zip(names, *first, strict=True)]
    for cells in chain([list(names)], first, (list(map(_shown, row)) for row in left)):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([value.hex() if isinstance(value, bytes) else value for value in row])


def _json(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a list of objects, one a line; bytes are hexadecimal."""
    again = sorted({name for name in names if names.count(name) > 1})
    if again:
        raise InvalidValue("SQL", "different names of columns", again, "name them with AS")
    before = "[\n"
    for row in rows:
        fields = ", ".join(
            f"{json.dumps(name)}: {_value(value)}" for name, value in zip(names, row, strict=True)
        )
        print(before, "{", fields, "}", sep="", end="")
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _value(value: Any) -> str:
    """Return a value as JSON; what is infinite as a number too large, for it has no name there."""
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(value, default=bytes.hex)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    return "" if value is None else str(value)
