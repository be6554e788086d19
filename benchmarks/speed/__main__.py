"""``python -m benchmarks.speed``: measure rows, beside peers and limits, then write the document.

Every row measures ours, the peers and hand-written limits turn by turn in one run, prints ratios
against the targets, and appends a line to benchmarks/results/speed.jsonl. Of each case the document
shows the newest line. ``--quick`` looks once at everything, keeps nothing, and installs nothing.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.peers import ONE_THREAD, Peers
from benchmarks.speed.results import RESULTS

DOCS = Path(__file__).parents[2] / "docs"


def main() -> int:
    """Run."""
    os.environ.update(ONE_THREAD)  # before NumPy and torch are loaded
    given = _arguments()
    from benchmarks.speed.report import write

    if given.report:
        write(given.results, DOCS)
        return 0
    from benchmarks.speed.rows.registry import ROWS

    unknown = [name for name in given.only if name not in ROWS]
    if unknown:
        print(f"--only: expected some of {', '.join(ROWS)}, got {unknown[0]}", file=sys.stderr)
        return 2
    from benchmarks.speed.run import perform

    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        peers = Peers(allowed=not given.quick)
        try:
            perform(
                [ROWS[name] for name in given.only or ROWS],
                peers,
                Path(folder),
                quick=given.quick,
                results=None if given.quick else given.results,
                began=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )
        finally:
            peers.close()
    if not given.quick and given.results == RESULTS:
        write(given.results, DOCS)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="look once, in under three minutes")
    parser.add_argument("--only", nargs="+", metavar="ROW", default=[], help="rows, by name")
    parser.add_argument("--report", action="store_true", help="only write the document")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--folder",
        type=Path,
        help="where services keep their data: name one on the disk that counts",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
