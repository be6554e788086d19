"""Servers that rows talk to: ours, and bare ones that are limits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.speed.peers import ONE_THREAD, ROOT
from jormungandr import RemoteLearner

__all__ = ["Bare", "Service", "resident"]


class Process:
    """A server in a process of its own, that says where it listens; ends with the block.

    Args:
        arguments: of Python.
        python: which one.
    """

    #: Whether it then says another thing, and would miss somebody who reads it.
    _says_more = False

    def __init__(self, *arguments: str, python: str | Path = sys.executable) -> None:
        self.process = subprocess.Popen(
            [python, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.close()
            raise RuntimeError(f"the server did not start: {line!r}")
        self.url = line.removeprefix("listening on ").strip()
        if self._says_more:
            self.process.stdout.readline()
        self.port = int(self.url.rpartition(":")[2])

    def close(self) -> None:
        """End it, and wait until it has."""
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Service(Process):
    """``jormungandr serve``, with its defaults.

    Args:
        folder: of its data.
        arguments: more of them.
    """

    _says_more = True

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        where = ("-m", "jormungandr", "serve", "--data-dir", str(folder), "--port", "0")
        super().__init__(*where, *arguments)
        self.token = (folder / "operator-token").read_text().strip()

    def connect(self, model_id: str, **options: Any) -> RemoteLearner:
        """Return the client of a model."""
        return RemoteLearner(self.url, model_id, self.token, **options)

    def request(self, path: str, body: bytes, media: str = "application/json") -> bytes:
        """Return the bytes of a POST, as they go over the wire."""
        return (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def children(self) -> list[int]:
        """Return the processes of its learners."""
        pid = self.process.pid
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]


class Bare(Process):
    """`benchmarks.speed.bare`: uvicorn as the service has it, and next to nothing behind it.

    Args:
        what: ``echo``, ``starlette``, ``fastapi`` or ``forward``.
        weights: an ``.npz`` file, for the last.
        python: that has what it needs.
    """

    def __init__(
        self, what: str, weights: Path | None = None, python: str | Path = sys.executable
    ) -> None:
        given = () if weights is None else (str(weights),)
        super().__init__("-m", "benchmarks.speed.bare", what, *given, python=python)

    def request(self, body: bytes) -> bytes:
        """Return the bytes of a POST; a header in the place of the token is as long as ours."""
        return (
            f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {'x' * 43}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
