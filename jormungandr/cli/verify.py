"""``jormungandr verify``: check a data directory against itself, without writing to it."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a data directory no server uses")
    parser.add_argument("--model", help="only this one: an id, or ID.GENERATION")
    parser.add_argument(
        "--full",
        action="store_true",
        help="run the learner again from the first row kept, not from the older checkpoint",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print one line per thing checked; return 0 when all was checked and nothing is damaged."""
    from jormungandr.service.tools.verification import verify

    counts: Counter[str] = Counter()
    for finding in verify(arguments.dir, arguments.model, full=arguments.full):
        counts[finding.status] += 1
        print(finding, flush=True)
    if counts["damage"]:
        print(f"{counts['damage']} damaged; `jormungandr salvage` copies what is whole")
        return 1
    if counts["undone"]:
        print(f"{counts['undone']} checks could not be done")
        return 1
    print(f"{counts['ok']} proven, {counts['gap']} not, no damage")
    return 0
