"""``python -m benchmarks.learning``: train what is missing, then write docs/benchmarks.md.

A sitting may be stopped at any time: a run is kept when it has ended, and the next sitting does the
others. ``--quick`` is one seed of the short task for everyone, in under three minutes and in a file
of its own; ``--report`` only writes the document.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.learning.contenders import CONTENDERS
from benchmarks.learning.matrix import estimate, missing, perform_all, wanted
from benchmarks.learning.report import brief, document
from benchmarks.learning.runs import RESULTS, known
from benchmarks.learning.tasks import TASKS

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Run."""
    given = _arguments()
    if given.quick:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "quick.jsonl"
            jobs = list(wanted([], ["ou-1344"], given.contenders, [0]))
            wrong = perform_all(jobs, path, at_once=given.jobs, until=math.inf)
            print(brief(known(path)))
        return bool(wrong)
    if given.report:
        _write(given.results)
        return 0
    runs = known(given.results)
    absent = {name: lack for name in given.tasks if (lack := TASKS[name].missing())}
    for name, lack in absent.items():
        print(f'{name}: {lack}; pip install "jormungandr-rl[benchmarks]"', file=sys.stderr)
    tasks = [name for name in given.tasks if name not in absent]
    jobs = missing(wanted(runs, tasks, given.contenders, given.seeds), runs)
    total = sum(estimate(job, runs) for job in jobs)
    print(f"{len(jobs)} runs to do, about {total / 60:.0f} core-minutes", flush=True)
    if given.plan:
        for job in jobs:
            print(f"{job}: about {estimate(job, runs):.0f} s")
        return 0
    wrong = perform_all(jobs, given.results, at_once=given.jobs, until=given.until)
    if given.results == RESULTS:
        _write(given.results)
    else:
        print(brief(known(given.results)))
    return bool(wrong or absent)


def _write(results: Path) -> None:
    for name, text in document(known(results)).items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--contenders", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, nargs="*", help="for everyone, not each one's own")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only write the document")
    parser.add_argument("--plan", action="store_true", help="only say what there is to do")
    parser.add_argument("--quick", action="store_true", help="one seed of the short task")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="start nothing that may end later")
    budget.add_argument("--until", metavar="HH:MM", help="the same, by the clock")
    given = parser.parse_args()
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    try:
        given.until = _deadline(given.minutes, given.until)
    except ValueError:
        parser.error(f"--until: expected HH:MM, got {given.until!r}")
    return given


def _deadline(minutes: float | None, until: str | None) -> float:
    """Return the end of a sitting by `time.monotonic`: infinite without a budget."""
    if minutes is not None:
        return time.monotonic() + 60 * minutes
    if until is None:
        return math.inf
    now = datetime.datetime.now()
    clock = datetime.time.fromisoformat(until)
    end = datetime.datetime.combine(now.date(), clock)
    if end <= now:
        end += datetime.timedelta(days=1)
    return time.monotonic() + (end - now).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
