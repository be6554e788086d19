"""``jormungandr backup``: copy a data directory, also while a server uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="a data directory")
    parser.add_argument("out", metavar="OUT", type=Path, help="the backup; nothing may be there")


def run(arguments: argparse.Namespace) -> int:
    """Copy; return 0 when the backup is whole."""
    from jormungandr.service.tools.backup import backup

    for line in backup(arguments.dir, arguments.out):
        print(line, flush=True)
    print(f"backup in {arguments.out}")
    return 0
