"""``jormungandr serve``: the service on a socket, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from typing import Any

from jormungandr.cli.serve_arguments import add_arguments, check
from jormungandr.errors import InvalidValue

__all__ = ["add_arguments", "run"]

#: Seconds; Python's own five milliseconds would add up to a stall of inference.
SWITCH_INTERVAL = 0.001


def run(arguments: argparse.Namespace) -> int:
    """Serve; return 0 after a clean shutdown."""
    if sys.platform == "win32":
        print("jormungandr serve runs on Linux and macOS; clients run anywhere", file=sys.stderr)
        return 1
    check(arguments)
    import uvicorn

    from jormungandr.service import draining
    from jormungandr.service.access.certificates import Certificates
    from jormungandr.service.access.hosts import Hosts
    from jormungandr.service.access.keyring import FileKeyring
    from jormungandr.service.app import create_app
    from jormungandr.service.collecting import Collector
    from jormungandr.service.datadir import DataDir
    from jormungandr.service.http.connection import connections
    from jormungandr.service.http.watch import ConnectionLimits, Watch, open_files
    from jormungandr.service.load.limits import Limits
    from jormungandr.service.load.rates import RateLimit
    from jormungandr.service.observe import logs
    from jormungandr.service.retention import Keeping

    if arguments.until_eof:
        threading.Thread(target=_end_with_input, daemon=True).start()
    logs.configure(arguments.log_format, arguments.log_level)
    # The loop waits this long for a thread that decodes or writes to let it go on, at each step.
    sys.setswitchinterval(SWITCH_INTERVAL)
    hosts = Hosts(arguments.host, arguments.allowed_host)
    certificates = (
        None if arguments.tls_cert is None else Certificates(arguments.tls_cert, arguments.tls_key)
    )
    listener = _listen(arguments.host, arguments.port)
    limits = ConnectionLimits(
        connections=arguments.max_connections,
        connections_per_address=arguments.max_connections_per_address,
    )
    open_files(limits, arguments.max_models)  # before the first journal is opened
    # Before the server: a directory that is held or damaged is refused in one line.
    directory = DataDir(arguments.data_dir)
    for _, journal in directory.journals():
        journal.close()
    directory.close()
    token_file = arguments.token_file or arguments.data_dir / "operator-token"
    keyring = FileKeyring(arguments.data_dir, token_file)

    class Server(draining.DrainingServer):
        """Says where it listens."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                Collector(lambda: self.server_state.total_requests).start()
                port = listener.getsockname()[1]
                host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
                scheme = "http" if certificates is None else "https"
                print(f"listening on {scheme}://{host}:{port}", flush=True)
                print(f"token in {token_file}", flush=True)

    service = create_app(
        arguments.data_dir,
        token=keyring,
        hosts=hosts,
        free_space_floor=arguments.free_space_floor,
        park_after=arguments.park_after,
        keeping=Keeping(
            journal_max_bytes=None if arguments.keep_journal else arguments.journal_max_bytes,
            recovery_budget=arguments.recovery_budget,
        ),
        limits=Limits(
            max_models=arguments.max_models,
            max_learners=arguments.max_learners,
            replay_bytes=arguments.replay_bytes,
            rate=RateLimit(arguments.rate_limit, arguments.row_rate_limit),
        ),
    )
    watch = Watch(limits)
    config = uvicorn.Config(
        service,
        http=connections(watch, service.direct),
        host=arguments.host,
        port=arguments.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who is behind a proxy is not taken from what a request says
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=draining.CONNECTIONS,
        lifespan="on",
    )
    if certificates is not None:
        config.load()  # which would set this to a context that cannot change
        config.ssl = certificates.context
    server = Server(config, service.drain, arguments.drain_grace)
    service.meters.connections = lambda: server.connections
    service.meters.turned_away = lambda: watch.refused
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _end_with_input() -> None:
    """End this process when the standard input ends: whoever held its other end is gone."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGKILL)  # it loses nothing, and nobody waits for more


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
