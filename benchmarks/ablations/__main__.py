"""``python -m benchmarks.ablations``: train what is missing, then write docs/ablations.md.

The base is the preset of CartPole-v1, or what ``--base`` gives. A sitting may be stopped at any
time; the next one goes on. ``--list`` names the changes, ``--report`` only writes the document.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.ablations.changes import SEEDS, changes, contender
from benchmarks.ablations.report import document
from benchmarks.learning.matrix import Job, estimate, missing, perform_all
from benchmarks.learning.ours import Ours, tuned
from benchmarks.learning.runs import RESULTS, fingerprint, known
from benchmarks.learning.tasks import TASKS, Task
from jormungandr import ModelSpec

ABLATIONS = RESULTS.with_name("ablations.jsonl")
DOCUMENT = Path(__file__).parents[2] / "docs" / "ablations.md"


def main() -> int:
    """Run."""
    given = _arguments()
    if given.report:
        _write(given.results)
        return 0
    task = dataclasses.replace(TASKS["cartpole"], steps=given.steps)
    base, runs = _base(given.base, task), known(given.results)
    found = {change.name: change for change in changes(base, task.steps)}
    if given.list:
        for change in found.values():
            print(f"{change.name}: {json.dumps(change.fields)}")
        return 0
    if unknown := set(given.only) - set(found):
        print(f"--only: no such change: {', '.join(sorted(unknown))}; see --list", file=sys.stderr)
        return 2
    jobs = []
    for name in given.only or found:
        who = contender(base, found[name])
        mark = fingerprint("cartpole", task, who, runs)
        assert mark is not None
        jobs += [Job("cartpole", task, who, seed, mark) for seed in given.seeds]
    jobs = missing(jobs, runs)
    total = sum(estimate(job, runs) for job in jobs)
    print(f"{len(jobs)} runs to do, about {total / 60:.0f} core-minutes", flush=True)
    until = math.inf if given.minutes is None else time.monotonic() + 60 * given.minutes
    wrong = perform_all(jobs, given.results, at_once=given.jobs, until=until)
    if given.results == ABLATIONS:
        _write(given.results)
    else:
        print(document(known(given.results)))
    return bool(wrong)


def _base(given: str | None, task: Task) -> ModelSpec:
    """Return the base: the task's preset, another one, or the fields in a JSON file."""
    fields: dict[str, Any] | None = tuned(task)
    if given is not None:
        path = Path(given)
        fields = json.loads(path.read_text("utf-8")) if path.is_file() else {"preset": given}
    if fields is None:
        raise SystemExit(f"--base: {task.env_id} has no preset: name one, or a file of fields")
    spec = Ours("base", lambda _: fields).spec(task, 0)
    assert spec is not None
    return spec


def _write(results: Path) -> None:
    DOCUMENT.write_text(document(known(results)), encoding="utf-8")
    print(f"wrote {DOCUMENT}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", help="a preset, or a JSON file with fields of a specification")
    parser.add_argument("--only", nargs="*", default=[], metavar="CHANGE")
    parser.add_argument("--steps", type=int, default=TASKS["cartpole"].steps)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--minutes", type=float, help="start nothing that may end later")
    parser.add_argument("--results", type=Path, default=ABLATIONS)
    parser.add_argument("--list", action="store_true", help="only name the changes")
    parser.add_argument("--report", action="store_true", help="only write the document")
    given = parser.parse_args()
    every = TASKS["cartpole"].every
    if given.steps < every or given.steps % every:
        parser.error(f"--steps: expected a multiple of {every}, got {given.steps}")
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    return given


if __name__ == "__main__":
    sys.exit(main())
