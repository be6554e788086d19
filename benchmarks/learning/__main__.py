"""``python -m benchmarks.learning``: train what is missing, and print the table.

``--quick`` is one seed of the short task, in under three minutes and in a file of its own.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.learning.contenders import CONTENDERS, enters
from benchmarks.learning.report import table
from benchmarks.learning.runs import RESULTS, known, perform
from benchmarks.learning.tasks import TASKS


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--contenders", nargs="*", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(10)))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only print what there is")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.quick:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "quick.jsonl"
            for contender in given.contenders:
                if enters(contender, TASKS["ou-1344"]):
                    perform("ou-1344", contender, 0, path)
            print(table(known(path)))
        return
    there = {run.key for run in known(given.results)}
    for seed in () if given.report else given.seeds:
        for task in given.tasks:
            for contender in given.contenders:
                new = (task, contender, seed) not in there
                if new and enters(contender, TASKS[task]):
                    run = perform(task, contender, seed, given.results)
                    last = run.evaluations[-1]
                    print(f"{task} {contender} seed {seed}: {last} {run.seconds} s", flush=True)
    print(table(known(given.results)))


if __name__ == "__main__":
    main()
