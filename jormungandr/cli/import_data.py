"""``jormungandr import-data``: logged transitions for a model, through a service like any actor's.

With ``--data-dir`` a service is started on a free port of this machine for as long as it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from jormungandr.cli.fields import Fields
from jormungandr.cli.local import service
from jormungandr.cli.logged import FORMATS, read_records
from jormungandr.cli.making import make_env
from jormungandr.cli.new_spec import spec_for
from jormungandr.cli.steps import Step, Steps, split_rule
from jormungandr.client import RemoteLearner
from jormungandr.columns import columns
from jormungandr.errors import Backlog, InvalidValue, JormungandrError, ModelUnknown
from jormungandr.outbox import Outbox
from jormungandr.presets import preset_fields
from jormungandr.protocol import Receipt
from jormungandr.service.tools.flat import Layout
from jormungandr.spec import ModelSpec, preset_names

__all__ = ["add_arguments", "run"]

#: Transitions checked and sent together.
BATCH = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("file", metavar="FILE", type=Path, help="logged data, in order of time")
    parser.add_argument("--format", choices=FORMATS, help="default: what FILE's name ends with")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--data-dir", type=Path, help="of a service that is not running")
    to.add_argument("--url", help="of a service that is; its token as for every client")
    parser.add_argument("--model", required=True, help="id of the model that learns from it")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--spec", type=Path, help="JSON file of the model's specification, if new")
    what.add_argument(
        "--preset",
        choices=preset_names(),
        help="or a named one, with --env where it leaves observation and actions open",
    )
    parser.add_argument(
        "--env", metavar="ENV", help="environment id, whose spaces the rows are of; with --preset"
    )
    parser.add_argument(
        "--split",
        required=True,
        metavar="RULE",
        help="train, validation, column:NAME, or fraction:F: hold out about so many episodes",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the episodes that fraction takes")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="COLUMN=FIELD",
        help="what a column is, such as o0=observation.0 or done=terminated",
    )
    parser.add_argument(
        "--const",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="what no column says, such as actor_id=log or truncated=false",
    )
    parser.add_argument(
        "--ignore-others", action="store_true", help="leave out columns that stand for nothing"
    )
    parser.add_argument(
        "--last",
        choices=("refuse", "drop", "repeat"),
        default="refuse",
        help="steps whose successor the file does not have: refuse them (default), drop them, or"
        " let terminated ones repeat their observation and drop the others",
    )
    parser.add_argument(
        "--keep-versions",
        action="store_true",
        help="the policy versions in FILE are this very model's; otherwise all are -1",
    )
    parser.add_argument("--wait", action="store_true", help="until the learner has applied it all")


def run(arguments: argparse.Namespace) -> int:
    """Send the file, say what became of it; return 0."""
    file: Path = arguments.file
    form = arguments.format or file.suffix.removeprefix(".")
    if form not in FORMATS:
        raise InvalidValue(
            "FILE", f"a name that ends with one of {list(FORMATS)}, or --format", file
        )
    split_column, split = split_rule(arguments.split, arguments.seed)
    given, constant = _pairs("--map", arguments.map), _pairs("--const", arguments.const)
    new = _new_spec(arguments)
    if not file.is_file():
        raise InvalidValue("FILE", "a file", file)
    with _endpoint(arguments) as endpoint:
        if new is not None:
            endpoint.create(new)
        try:
            spec = ModelSpec.from_dict(endpoint.info()["spec"])
        except ModelUnknown:
            remedy = "--spec FILE, or --preset NAME with --env ENV, creates it"
            raise InvalidValue("--model", "one that exists", arguments.model, remedy) from None
        fields = Fields(Layout(spec), given, constant, split_column, arguments.ignore_others)
        steps = Steps(fields, split, arguments.keep_versions, arguments.last)
        receipt, splits = _send(endpoint, spec, steps, steps.read(read_records(file, form)))
        counts = ", ".join(f"{n:,} {name}" for name, n in splits.items() if n)
        print(f"{sum(splits.values()):,} transitions ({counts or 'none'}) to {arguments.model}:")
        print(
            f"  {receipt.accepted:,} accepted, {receipt.duplicate:,} known already,"
            f" {receipt.stale_dropped:,} dropped as stale; durable at row {receipt.lsn}"
        )
        if steps.stale:
            print(f"  {steps.stale:,} left out: dropped as stale where they were exported from")
        if steps.dropped:
            print(f"  {steps.dropped:,} left out: without a successor")
        if arguments.wait:
            info = endpoint.wait(receipt.lsn)
            print(f"policy version {info['policy_version']}, after {info['update_count']} updates")
    return 0


def _pairs(where: str, given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name or not value:
            raise InvalidValue(where, "NAME=VALUE", repr(pair))
        if name in found:
            raise InvalidValue(where, f"{name!r} once", "twice")
        found[name] = value
    return found


def _new_spec(arguments: argparse.Namespace) -> ModelSpec | None:
    """Return the specification to create the model with, if it is to be created."""
    if arguments.env is not None:
        if arguments.preset is None:
            raise InvalidValue("--env", "a --preset beside it", arguments.env)
        with contextlib.closing(make_env(arguments.env)) as env:
            return spec_for(env, arguments.preset, {})
    if arguments.preset is not None:
        if "actions" not in preset_fields(arguments.preset):
            expected = "one that says what is observed and done, or --env beside it"
            remedy = "--spec is a file with observation and actions, and it may name a preset"
            raise InvalidValue("--preset", expected, arguments.preset, remedy)
        return ModelSpec.preset(arguments.preset)
    if arguments.spec is None:
        return None
    try:
        return ModelSpec.from_dict(json.loads(arguments.spec.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue("--spec", "a JSON file", error) from None


@contextlib.contextmanager
def _endpoint(arguments: argparse.Namespace) -> Iterator[RemoteLearner]:
    """Connect to the model, at a service that runs or at one of this command's own."""
    with contextlib.ExitStack() as stack:
        url, token = arguments.url, None
        if url is None:
            url, token = stack.enter_context(service(arguments.data_dir))
        yield stack.enter_context(RemoteLearner(url, arguments.model, token))


def _send(
    endpoint: RemoteLearner, spec: ModelSpec, steps: Steps, read: Iterable[Step]
) -> tuple[Receipt, dict[str, int]]:
    """Send steps in batches; return what became of them, and how many there were by split.

    Raises:
        JormungandrError: naming the line. What came before it is kept: sent again, it is known.
    """
    outbox, splits = Outbox(endpoint, BATCH), {"train": 0, "validation": 0}
    left = iter(read)
    while batch := tuple(islice(left, BATCH)):
        transitions = [step.transition() for step in batch]
        try:
            columns(transitions, spec)
            outbox.keep(transitions)
            _flush(endpoint, outbox)
        except JormungandrError as error:
            raise _placed(error, batch[-len(outbox.unsent) :], steps.fields) from None
        for transition in transitions:
            splits[transition.split] += 1
    return outbox.receipt, splits


def _flush(endpoint: RemoteLearner, outbox: Outbox) -> None:
    """Send what there is, as fast as the learner lets us."""
    while True:
        try:
            outbox.flush()
        except Backlog:
            endpoint.wait(outbox.receipt.lsn)
        else:
            return


def _placed(error: JormungandrError, batch: tuple[Step, ...], fields: Fields) -> JormungandrError:
    """Return the same error with the line of the file in place of the transition's number."""
    match = re.match(r"transitions\[(\d+)\]\.?(\w*)(.*)", error.where)
    if match is None:
        return error
    record = batch[int(match[1])].record
    where = str(record.place)
    if match[2]:
        where += f", column {fields.column(match[2], record.values)}{match[3]}"
    return type(error)(where, error.expected, error.got, error.remedy)
