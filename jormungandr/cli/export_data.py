"""``jormungandr export-data``: the transitions of a model as a table, with their provenance."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from jormungandr.durable import sync_file, sync_folder
from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "run"]

FORMATS = ("parquet", "csv", "jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "data_dir", metavar="DIR", type=Path, help="of a service; it may be running"
    )
    parser.add_argument("model", metavar="MODEL", help="a model's id, or ID.GENERATION")
    parser.add_argument("out", metavar="OUT", type=Path, help="file to write")
    parser.add_argument("--format", choices=FORMATS, help="default: what OUT's name ends with")
    parser.add_argument(
        "--after", type=int, default=0, metavar="LSN", help="only rows after this position"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file at OUT")


def run(arguments: argparse.Namespace) -> int:
    """Write the file, whole or not at all; return 0."""
    from jormungandr.service.tools.flat import Layout
    from jormungandr.service.tools.stored import StoredModel, find_model
    from jormungandr.service.tools.tables import open_writer

    out: Path = arguments.out.resolve()  # what a link leads to, not the link
    format = arguments.format or out.suffix.removeprefix(".")  # noqa: A001 - the option's word
    if format not in FORMATS:
        raise InvalidValue(
            "OUT", f"a name that ends with one of {list(FORMATS)}, or --format", arguments.out
        )
    if out.exists() and not (out.is_file() and arguments.overwrite):
        raise InvalidValue("OUT", "a new file, or --overwrite", arguments.out)
    if arguments.after < 0:
        raise InvalidValue("--after", ">= 0", arguments.after)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    count, last = 0, arguments.after
    with StoredModel(find_model(arguments.data_dir, arguments.model)) as stored:
        created = stored.created
        about = {
            "model_id": created.model_id,
            "generation": created.generation,
            "spec": created.spec.to_dict(),
        }
        try:
            writer = open_writer(temporary, format, Layout(stored.spec), about)
            try:
                for row in stored.transitions(arguments.after):
                    writer.write(row)
                    count, last = count + len(row.columns), row.lsn
            finally:
                writer.close()
            sync_file(temporary)  # a power cut leaves the old file or the new one, and no empty one
            temporary.rename(out)
            sync_folder(out.parent)
        except OSError as error:
            raise InvalidValue("OUT", "a file that can be written", error) from None
        finally:
            temporary.unlink(missing_ok=True)
        first = stored.first
    name = f"{created.model_id}.{created.generation}"
    print(f"{count:,} transitions of {name}, up to row {last}, in {arguments.out}")
    if first - 1 > arguments.after:
        print(f"rows before {first} are no longer in the journal")
    return 0
