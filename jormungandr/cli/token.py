"""``jormungandr token``: tokens that may do some things only; beside a running server too."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jormungandr.errors import InvalidValue
from jormungandr.protocol import SPLITS

if TYPE_CHECKING:
    from jormungandr.service.access.tokens import Token
    from jormungandr.service.http.grants import Scope

__all__ = ["add_arguments", "run"]

#: What `--scope` takes; `actor` stands for what an actor does.
CHOICES = ("actor", "act", "ingest", "policy", "label", "observe", "operate")
DAY = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "make a token and print it; it is shown this once"
    create = actions.add_parser("create", help=text, description=text)
    _add_common(create, "by which it is listed and revoked")
    create.add_argument(
        "--scope",
        action="append",
        required=True,
        choices=CHOICES,
        help="what it allows; may be given several times. act: ask for actions; ingest: send"
        " transitions; policy: fetch weights; label: send labels; observe: read figures; operate:"
        " create, delete, export; actor: act, ingest and policy",
    )
    create.add_argument(
        "--model",
        action="append",
        metavar="PATTERN",
        help="models that it is for, with * and ?; may be given several times (default: all)",
    )
    create.add_argument(
        "--actor-prefix",
        default="",
        metavar="TEXT",
        help="with which every actor id it sends has to begin (default: any)",
    )
    create.add_argument("--split", choices=SPLITS, help="the one split it may send (default: both)")
    create.add_argument(
        "--days", type=float, metavar="N", help="for how long it is good (default: until revoked)"
    )
    text = "list the tokens, without themselves"
    _add_common(actions.add_parser("list", help=text, description=text))
    text = "make a token worthless at once"
    _add_common(actions.add_parser("revoke", help=text, description=text), "of the token")


def _add_common(parser: argparse.ArgumentParser, name: str | None = None) -> None:
    if name is not None:
        parser.add_argument("name", metavar="NAME", help=name)
    parser.add_argument("--data-dir", type=Path, required=True, help="of the service")


def run(arguments: argparse.Namespace) -> int:
    """Do it; return 0."""
    from jormungandr.service.access.tokens import Tokens

    tokens = Tokens(arguments.data_dir)
    if arguments.action == "create":
        if arguments.days is not None and not 0 < arguments.days < 100_000:
            raise InvalidValue("--days", "more than 0, under 100000", arguments.days)
        token = tokens.create(
            arguments.name,
            _scopes(arguments.scope),
            models=arguments.model or ("*",),
            actor_prefix=arguments.actor_prefix,
            split=arguments.split,
            seconds=None if arguments.days is None else arguments.days * DAY,
        )
        # Nothing else goes to standard output: a shell can put it where it belongs.
        print("it is shown this once; keep it in a file of mode 0600", file=sys.stderr)
        print(token)
    elif arguments.action == "revoke":
        tokens.revoke(arguments.name)
        print(f"revoked {arguments.name}")
    else:
        _print(tokens.list())
    return 0


def _scopes(given: Sequence[str]) -> tuple[Scope, ...]:
    from jormungandr.service.access.tokens import ACTOR

    found: list[Scope] = []
    for name in given:
        found += ACTOR if name == "actor" else (cast("Scope", name),)  # argparse has checked it
    return tuple(found)


def _print(tokens: Sequence[Token]) -> None:
    rows = [("name", "scopes", "models", "actor prefix", "split", "made", "good until")]
    rows += [
        (
            token.name,
            ",".join(token.scopes),
            ",".join(token.models),
            token.actor_prefix or "-",
            token.split or "both",
            _day(token.created),
            "no end" if token.expires is None else _day(token.expires),
        )
        for token in tokens
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(seconds))
