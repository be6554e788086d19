"""``jormungandr restore``: make a data directory from a backup."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("backup", metavar="BACKUP", type=Path, help="what `backup` made")
    parser.add_argument(
        "dir", metavar="DIR", type=Path, help="the data directory; empty or not there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Restore; return 0 when the directory is there."""
    from jormungandr.service.tools.restore import restore

    for line in restore(arguments.backup, arguments.dir):
        print(line, flush=True)
    print(f"restored to {arguments.dir}; a server makes a new token unless --token-file names one")
    return 0
