"""``jormungandr serve``: the service on a socket, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "run"]

#: Seconds; Python's own five milliseconds would add up to a stall of inference.
SWITCH_INTERVAL = 0.001


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--data-dir", type=Path, required=True, help="where everything is kept")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument(
        "--token-file",
        type=Path,
        help="holds the operator's token; made if missing (default: DATA_DIR/operator-token)",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen on other addresses than this machine's own although nothing is encrypted",
    )
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
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning"])


def run(arguments: argparse.Namespace) -> int:
    """Serve; return 0 after a clean shutdown."""
    if sys.platform == "win32":
        print("jormungandr serve runs on Linux and macOS; clients run anywhere", file=sys.stderr)
        return 1
    if not _is_loopback(arguments.host) and not arguments.insecure:
        raise InvalidValue(
            "--host",
            "an address of this machine alone (127.0.0.1)",
            arguments.host,
            "requests and tokens would cross the network unencrypted; --insecure accepts that",
        )
    if not 0 <= arguments.port <= 65_535:
        raise InvalidValue("--port", "0..65535", arguments.port)
    if arguments.free_space_floor < 0:
        raise InvalidValue("--free-space-floor", "0 or more bytes", arguments.free_space_floor)
    if not arguments.park_after > 0:
        raise InvalidValue("--park-after", "more than 0 seconds", arguments.park_after)
    if arguments.journal_max_bytes < 1:
        raise InvalidValue("--journal-max-bytes", "1 or more bytes", arguments.journal_max_bytes)
    if not arguments.recovery_budget > 0:
        raise InvalidValue("--recovery-budget", "more than 0 seconds", arguments.recovery_budget)
    import uvicorn

    from jormungandr.service.app import create_app
    from jormungandr.service.datadir import DataDir, read_token
    from jormungandr.service.retention import Keeping

    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # The loop waits this long for a thread that decodes or writes to let it go on, at each step.
    sys.setswitchinterval(SWITCH_INTERVAL)
    listener = _listen(arguments.host, arguments.port)
    # Before the server: a directory that is held or damaged is refused in one line.
    directory = DataDir(arguments.data_dir)
    for _, journal in directory.journals():
        journal.close()
    directory.close()
    token_file = arguments.token_file or arguments.data_dir / "operator-token"
    token = read_token(token_file)

    class Server(uvicorn.Server):
        """Says where it listens, and ends with status 0 when it is asked to end."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = listener.getsockname()[1]
                host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
                print(f"listening on http://{host}:{port}", flush=True)
                print(f"token in {token_file}", flush=True)

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn would raise the signal again after its shutdown, and so end by it.
            before = {
                s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    config = uvicorn.Config(
        create_app(
            arguments.data_dir,
            token=token,
            free_space_floor=arguments.free_space_floor,
            park_after=arguments.park_after,
            keeping=Keeping(
                journal_max_bytes=None if arguments.keep_journal else arguments.journal_max_bytes,
                recovery_budget=arguments.recovery_budget,
            ),
        ),
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
        lifespan="on",
    )
    server = Server(config)
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _listen(host: str, port: int) -> socket.socket:
    """Take the address before anything is made on the disk.

    Raises:
        InvalidValue: it cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidValue("--host, --port", "an address that is free", error) from None
    return listener


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
