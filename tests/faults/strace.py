"""strace on a process that runs: what it asks of the kernel, in order, and answers made worse."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.service.serving import DEADLINE, until

#: For tests that need it.
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


class Strace:
    """Attached to every thread of a process, and to those it starts later, until it is left.

    Args:
        pid: of the process.
        folder: for what strace writes.
        options: of strace: ``trace=…``, ``inject=…``, each of them after a ``-e``.
        only: the one file whose calls count; None counts all.
    """

    def __init__(self, pid: int, folder: Path, *options: str, only: Path | None = None) -> None:
        self._output, self._errors = folder / "strace.out", folder / "strace.err"
        expressions = [word for option in options for word in ("-e", option)]
        command = ["strace", "-f", "-yy", "-s", "4096", "-o", str(self._output)]
        if only is not None:
            command += ["-P", str(only)]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, *expressions, "-p", str(pid)], stderr=errors, stdout=errors
            )
        until(lambda: " attached" in self._said() or self._process.poll() is not None, "strace")
        if " attached" not in self._said():
            pytest.skip(f"strace may not attach: {self._said()}")

    def _said(self) -> str:
        return self._errors.read_text()

    def __enter__(self) -> Strace:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the process go on as it was."""
        self._process.terminate()
        self._process.wait(DEADLINE)

    def lines(self) -> list[str]:
        """Return what was written so far: ``PID CALL(…) = RESULT``, in order."""
        return self._output.read_text(errors="replace").splitlines()
