"""The arguments of ``jormungandr serve``, and what they may be."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "check"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--data-dir", type=Path, required=True, help="where everything is kept")
    parser.add_argument(
        "--log-level",
        default="warning",
        choices=["debug", "info", "warning"],
        help="info has a line for every request (default: warning)",
    )
    parser.add_argument(
        "--log-format",
        default="text",
        choices=["text", "json"],
        help="json writes one object per line (default: text)",
    )
    parser.add_argument(
        "--drain-grace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="after SIGTERM, go on answering for so long at least, not ready, so that a load"
        " balancer sees it (default: 0)",
    )
    parser.add_argument(
        "--until-eof",
        action="store_true",
        help="end at once, as by kill -9, when the standard input ends: for a command that runs a"
        " service of its own, and may be killed itself",
    )
    _add_network(parser)
    _add_keeping(parser)
    _add_load(parser)


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network and access (docs/security.md)")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the operator's token; made if missing (default: DATA_DIR/operator-token)",
    )
    group.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="certificate, and those up to its authority, as PEM; read again when it changes",
    )
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, as PEM")
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which clients reach the service, besides the loopback names and --host;"
        " may be given several times",
    )
    group.add_argument(
        "--max-connections",
        type=int,
        default=4_096,
        metavar="N",
        help="open at once; one more is answered 503 and closed (default: 4096)",
    )
    group.add_argument(
        "--max-connections-per-address",
        type=int,
        default=1_024,
        metavar="N",
        help="likewise, of one client address, or IPv6 network; behind a proxy all have one"
        " (default: 1024)",
    )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="listen on other addresses than this machine's own although nothing is encrypted",
    )


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--free-space-floor",
        type=int,
        default=64 << 20,
        metavar="BYTES",
        help="with less free on the volume no data is taken, until there is more; 0 sets no floor"
        " (default: 64 MiB)",
    )
    parser.add_argument(
        "--park-after",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="a learner process that was idle for so long writes a checkpoint and ends; the next"
        " row starts it again (default: 300)",
    )
    keeping = parser.add_mutually_exclusive_group()
    keeping.add_argument(
        "--journal-max-bytes",
        type=int,
        default=10 << 30,
        metavar="BYTES",
        help="of each model's journal; beyond it the oldest rows go that no checkpoint needs"
        " (default: 10 GiB)",
    )
    keeping.add_argument("--keep-journal", action="store_true", help="no row ever goes")
    parser.add_argument(
        "--recovery-budget",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="of updates that a learner that was killed may have to redo; a checkpoint is written"
        " when it would be more (default: 20)",
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how much is taken on (docs/operations.md)")
    group.add_argument(
        "--max-models",
        type=int,
        default=256,
        metavar="N",
        help="that live at once; one more is refused (default: 256)",
    )
    group.add_argument(
        "--max-learners",
        type=int,
        default=12,
        metavar="N",
        help="learner processes at once, of some 300 MB each; further models wait for one that is"
        " idle (default: 12)",
    )
    group.add_argument(
        "--replay-bytes",
        type=int,
        metavar="BYTES",
        help="of the full replays of all models together; a model beyond it is refused (default:"
        " the machine's memory)",
    )
    group.add_argument(
        "--rate-limit",
        type=float,
        metavar="REQUESTS",
        help="a second, of one token, for data or actions; twice as many at once (default: none)",
    )
    group.add_argument(
        "--row-rate-limit",
        type=float,
        metavar="ROWS",
        help="likewise, of transitions, labels and observations (default: none)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be, or should not, before anything is touched.

    Raises:
        InvalidValue: naming the argument.
    """
    from jormungandr.service.access.hosts import is_loopback

    _check_place(arguments.data_dir)
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        missing = "--tls-key" if arguments.tls_key is None else "--tls-cert"
        raise InvalidValue(missing, "a file: a certificate and its key go together", "none")
    if arguments.tls_cert is None and not is_loopback(arguments.host) and not arguments.insecure:
        raise InvalidValue(
            "--host",
            "an address of this machine alone (127.0.0.1)",
            arguments.host,
            "requests and tokens would cross the network unencrypted; give --tls-cert and"
            " --tls-key, or accept that with --insecure",
        )
    if not 0 <= arguments.port <= 65_535:
        raise InvalidValue("--port", "0..65535", arguments.port)
    for name in (
        *("max_connections", "max_connections_per_address"),
        *("max_models", "max_learners", "replay_bytes"),
    ):
        given = getattr(arguments, name)
        if given is not None and given < 1:
            option = f"--{name.replace('_', '-')}"
            raise InvalidValue(option, "1 or more", given)
    for name in ("rate_limit", "row_rate_limit"):
        given = getattr(arguments, name)
        if given is not None and not 0 < given < float("inf"):
            option = f"--{name.replace('_', '-')}"
            raise InvalidValue(option, "more than 0 a second", given)
    if arguments.free_space_floor < 0:
        raise InvalidValue("--free-space-floor", "0 or more bytes", arguments.free_space_floor)
    if not arguments.park_after > 0:
        raise InvalidValue("--park-after", "more than 0 seconds", arguments.park_after)
    if arguments.journal_max_bytes < 1:
        raise InvalidValue("--journal-max-bytes", "1 or more bytes", arguments.journal_max_bytes)
    if not 0 <= arguments.drain_grace <= 600:
        raise InvalidValue("--drain-grace", "0..600 seconds", arguments.drain_grace)
    if not arguments.recovery_budget > 0:
        raise InvalidValue("--recovery-budget", "more than 0 seconds", arguments.recovery_budget)


def _check_place(data_dir: Path) -> None:
    """Refuse a folder of a policy, where a service would begin without any model."""
    what = ""
    with contextlib.suppress(OSError):  # what cannot be read is refused where it is opened
        what = _kept_in(data_dir)
    if what:
        raise InvalidValue(
            "--data-dir",
            "a new directory, or one of a service",
            f"{data_dir}, {what}",
            "a policy that is trained is not served: jormungandr train --service trains through a"
            " service, and export-policy writes the policy for others to act with",
        )


def _kept_in(folder: Path) -> str:
    """Return what a folder is that a training or a learner wrote; "" of any other."""
    if (folder / "models").is_dir():  # a service was begun there before this was refused
        return ""
    trained = [folder / "training.json", *folder.glob("seed-*/training.json")]
    if any(file.is_file() for file in trained):
        return "the folder of a training"
    return "a checkpoint" if (folder / "manifest.json").is_file() else ""
