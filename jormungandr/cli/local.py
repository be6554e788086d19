"""A service of this machine for as long as a command needs one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from jormungandr.errors import InternalError

__all__ = ["end", "service"]


@contextlib.contextmanager
def service(data_dir: Path) -> Iterator[tuple[str, str]]:
    """Run ``jormungandr serve`` on a free port; yield its address and token."""
    # What --in-process can do without.
    from jormungandr.service.access.operator_token import read_token

    command = [
        *(sys.executable, "-m", "jormungandr", "serve"),
        *("--data-dir", str(data_dir), "--port", "0", "--until-eof"),
    ]
    # Killed, this process takes the service with it: nobody else would know whom to stop.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # it was asked for
    try:
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise InternalError("jormungandr serve", "an address", line or "its end")
        yield line.removeprefix("listening on ").strip(), read_token(data_dir / "operator-token")
    finally:
        process.terminate()
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Wait for a process that has been told to end; kill one that does not."""
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
