"""``jormungandr salvage``: copy what is whole of a damaged data directory."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a data directory no server uses")
    parser.add_argument("out", metavar="OUT", type=Path, help="the copy; nothing may be there")
    parser.add_argument("--model", help="only this one: an id, or ID.GENERATION")


def run(arguments: argparse.Namespace) -> int:
    """Copy; return 0 when it is done, whatever was lost."""
    from jormungandr.service.tools.salvage import salvage

    lost = 0
    for finding in salvage(arguments.dir, arguments.out, arguments.model):
        lost += finding.status == "damage"
        print(finding, flush=True)
    print(f"{lost} lost; what is whole is in {arguments.out}, and {arguments.dir} is as it was")
    return 0
