"""``jormungandr doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path

import msgspec

from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="of a service, to look into")
    parser.add_argument(
        "--url", help="of a running service, to ask (default: JORMUNGANDR_URL, if it is set)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token to show (default: JORMUNGANDR_TOKEN, JORMUNGANDR_TOKEN_FILE, or"
        " DIR/operator-token)",
    )
    parser.add_argument(
        "--model",
        metavar="M",
        help="look at what this model learns from instead: of its newest 100000 transitions with"
        " --data-dir, of its figures with --url",
    )
    parser.add_argument("--json", action="store_true", help="print one object per line")


def run(arguments: argparse.Namespace) -> int:
    """Print what each check finds; return 0 when none failed, else the first one's own status."""
    from jormungandr.service.diagnosis.examination import examine, examine_model, exit_status
    from jormungandr.service.diagnosis.running import RunningService

    url = arguments.url or os.environ.get("JORMUNGANDR_URL")
    if arguments.model is not None and arguments.data_dir is None and url is None:
        raise InvalidValue("--model", "--data-dir or --url beside it", "neither")
    service = RunningService(url, _token(arguments)) if url else None
    if arguments.model is not None:
        found = examine_model(arguments.model, arguments.data_dir, service)
    else:
        found = examine(arguments.data_dir, arguments.token_file, service)
    findings = []
    try:
        for finding in found:
            findings.append(finding)
            text = msgspec.json.encode(finding).decode() if arguments.json else str(finding)
            print(text, flush=True)
    except OSError as error:
        raise InvalidValue("--url", "a service that answers", error) from None
    finally:
        if service is not None:
            service.close()
    if not arguments.json:
        counts = Counter[str](finding.status for finding in findings)
        names = {"ok": "good", "warn": "to look at", "fail": "failed", "skip": "not looked at"}
        print(", ".join(f"{counts[status]} {name}" for status, name in names.items()))
    return exit_status(findings)


def _token(arguments: argparse.Namespace) -> str | None:
    """Return the token to show: the one named first that is there."""
    if arguments.token_file is None and "JORMUNGANDR_TOKEN" in os.environ:
        return os.environ["JORMUNGANDR_TOKEN"]
    given = arguments.token_file or os.environ.get("JORMUNGANDR_TOKEN_FILE")
    file = Path(given) if given else None
    if file is None and arguments.data_dir is not None:
        file = arguments.data_dir / "operator-token"
    if file is None:
        return None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None  # the check of the token says why
