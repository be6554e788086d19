"""``jormungandr replay``: another specification trained on the rows of a model, and compared."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jormungandr.cli.curves import Curve, difference, table
from jormungandr.cli.opening import check_writable
from jormungandr.cli.train import parse_settings
from jormungandr.errors import DataDirError, InvalidValue
from jormungandr.presets import preset_fields
from jormungandr.spec import ModelSpec

if TYPE_CHECKING:
    from jormungandr.learner.course import Course
    from jormungandr.service.tools.stored import StoredModel

__all__ = ["add_arguments", "run", "varied"]

#: What the rows were made with: another one could not read them, or would read something else.
MADE_WITH = (
    "observation.space",
    "observation.features",
    "observation.frame_stack",
    "actions",
    "action_masks",
    "action_repeat",
    "auxiliary.classes",
)
#: Settings that decide what the held-out loss is a loss of.
MEASURED_BY = ("c51.atoms", "c51.support", "c51.gamma", "c51.double")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "data_dir", metavar="DIR", type=Path, help="of a service; it may be running"
    )
    parser.add_argument("model", metavar="MODEL", help="a model's id, or ID.GENERATION")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="what is different, such as c51.lr=3e-4 or 'c51.hidden=[64,64]'",
    )
    parser.add_argument("--seed", type=int, help="another seed; short for --set seed=N")
    parser.add_argument(
        "--as",
        dest="name",
        metavar="NEW",
        help="keep what comes out as a model of DIR; no service may be running on it",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write both curves whole")


def run(arguments: argparse.Namespace) -> int:
    """Train, compare, and keep what comes out if asked to; return 0."""
    from jormungandr.learner.core import Core
    from jormungandr.learner.course import Course
    from jormungandr.service.datadir import DataDir
    from jormungandr.service.tools.offspring import Offspring
    from jormungandr.service.tools.stored import StoredModel, find_model

    if arguments.json is not None:
        check_writable(arguments.json, "--json", "a file that can be written")
    with contextlib.ExitStack() as stack:
        folder = find_model(arguments.data_dir, arguments.model)
        directory = None
        if arguments.name is not None:
            directory = DataDir(arguments.data_dir)
            stack.callback(directory.close)
        stored = stack.enter_context(StoredModel(folder))
        settings = parse_settings(arguments.set)
        if arguments.seed is not None:
            settings["seed"] = arguments.seed
        spec = varied(stored.spec, settings)
        _check_rows(stored)
        numbers = {"generation": 1, "first_version": 0}
        offspring = None
        if directory is not None:
            offspring = Offspring.named(directory, stored, arguments.name, spec)
            created = offspring.created
            numbers = {
                "generation": created.generation,
                "first_version": created.first_version,
            }
        before, after = Course(Core(stored.spec)), Course(Core(spec, **numbers))
        _train(stored, [before, after])
        curves = (_curve(before), _curve(after))
        _show(stored, spec, curves)
        for warning in after.core.warnings():
            print(f"warning: {warning}")
        if arguments.json is not None:
            _write(arguments.json, stored, spec, curves)
        if offspring is not None:
            where = offspring.write(after.core.save, after.core.snapshot())
            print(f"kept as {offspring.created.model_id!r} in {where}")
    return 0


def varied(spec: ModelSpec, settings: Mapping[str, Any]) -> ModelSpec:
    """Return a specification with some fields changed.

    Raises:
        InvalidInput: (one of its classes) a field that does not exist, a value it cannot have, or
            one without which the rows cannot be read.
    """
    fields = dict(settings)
    if "preset" in fields:  # what it says, and all else as it was
        fields = _over(preset_fields(fields.pop("preset")), fields)
    new = ModelSpec.from_dict(_over(spec.to_dict(), fields))
    mine, other = spec.to_dict(), new.to_dict()
    for path in MADE_WITH:
        old, now = _at(mine, path), _at(other, path)
        # A head that is added finds no labels, and one that is taken away leaves them unread.
        if old != now and not (path == "auxiliary.classes" and None in (old, now)):
            raise InvalidValue(path, f"{_short(old)}, which the rows were made with", _short(now))
    return new


def _over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _over(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _at(fields: Mapping[str, Any], path: str) -> Any:
    at: Any = fields
    for name in path.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:120]


def _check_rows(stored: StoredModel) -> None:
    """Refuse a journal whose first rows are gone, and one that has none.

    Raises:
        DataDirError: naming it.
    """
    if stored.deleted:
        raise DataDirError(str(stored.path), "a model that lives", "one that was deleted")
    if stored.first > 1:
        raise DataDirError(
            str(stored.path),
            "every row from the first",
            f"none before row {stored.first}",
            "export-data and import-data make a model of those that are left",
        )
    if stored.last == 0:
        raise DataDirError(str(stored.path), "rows to train on", "none")


def _train(stored: StoredModel, courses: list[Course]) -> None:
    """Apply every row to each of them, in order."""
    end, tenths = stored.counters.train, 0
    for row in stored.rows():
        for course in courses:
            course.apply(row)
        done = courses[0].core.pacing.transitions
        if end and 10 * done // end > tenths:
            tenths = 10 * done // end
            updates = " and ".join(f"{course.core.update_count:,}" for course in courses)
            print(f"  {done:>9,} of {end:,} training transitions, {updates} updates", flush=True)


def _curve(course: Course) -> Curve:
    return [(point.transitions, point.evaluation) for point in course.points]


def _changes(stored: StoredModel, spec: ModelSpec) -> list[str]:
    """Return the paths at which the new specification differs."""
    return stored.spec.mismatches(spec.to_dict())


def _show(stored: StoredModel, spec: ModelSpec, curves: tuple[Curve, Curve]) -> None:
    created, changes = stored.created, _changes(stored, spec)
    print(f"{created.model_id}.{created.generation}, rows up to {stored.last}")
    mine, other = stored.spec.to_dict(), spec.to_dict()
    for path in changes:
        print(f"  {path}: {_short(_at(mine, path))} -> {_short(_at(other, path))}")
    if not changes:
        print("  the same specification")
    for line in table(*curves):
        print(line)
    apart = [path for path in changes if path in MEASURED_BY]
    print(difference(*curves, apart))


def _write(path: Path, stored: StoredModel, spec: ModelSpec, curves: tuple[Curve, Curve]) -> None:
    """Write both curves, every point of them."""
    import msgspec

    def sides(spec: ModelSpec, curve: Curve) -> dict[str, Any]:
        points = [{"train_transitions": n, **msgspec.to_builtins(e)} for n, e in curve]
        return {"spec": spec.to_dict(), "evaluations": points}

    content = {
        "model_id": stored.created.model_id,
        "generation": stored.created.generation,
        "last_lsn": stored.last,
        "changed": _changes(stored, spec),
        "original": sides(stored.spec, curves[0]),
        "new": sides(spec, curves[1]),
    }
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidValue("--json", "a file that can be written", error) from None
