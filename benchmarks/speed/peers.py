"""The peers: an environment of their own, made on first use, and a process that runs them in it.

They want other versions than we do, and than each other; and what a limit is compiled with is no
business of our environment. A peer that cannot be installed is absent, in words.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import Contender, Kind, looped

__all__ = ["ONE_THREAD", "Peer", "Peers", "PeersMissing"]

ROOT = Path(__file__).parents[2]
#: What is installed, in this order: torch first, and by its version, so that a CPU wheel that is at
#: hand is taken. Where one fails, those after it are tried all the same.
REQUIREMENTS = (
    "torch==2.13.0",
    "numpy",
    "numba",
    "stable-baselines3>=2.7,<3",
    "sb3-contrib>=2.7,<3",
    "tianshou>=2,<3",
    "torchrl",
    "cpprb",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class PeersMissing(RuntimeError):
    """There is no environment of the peers; the text says why."""


class Peer:
    """The process that runs the peers' workloads, when it is told to.

    Args:
        python: of their environment.
    """

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.speed.peer.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
        )
        self._built = 0

    def versions(self) -> dict[str, str]:
        """Return what is installed there."""
        found: dict[str, str] = self._ask({"versions": True})["versions"]
        return found

    @contextlib.contextmanager
    def loop(self, workload: str, given: dict[str, Any]) -> Iterator[Callable[[int], float]]:
        """Build a workload, and yield what runs it so many times and returns its own seconds.

        Raises:
            RuntimeError: it cannot be built, or fails while it runs.
        """
        self._built += 1
        name = f"{workload}-{self._built}"
        self._ask({"build": workload, "as": name, "with": given})

        def run(count: int) -> float:
            return float(self._ask({"run": name, "count": count})["own"])

        try:
            yield run
        finally:
            with contextlib.suppress(RuntimeError):
                self._ask({"drop": name})

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise RuntimeError("the peers' process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


class Peers:
    """The environment, and the process in it; both are made when they are first asked for.

    Args:
        allowed: whether an environment that is not there may be made.
        folder: of it; None is ``$JORMUNGANDR_BENCH_VENV``, or ``.bench/peers`` in the repository.
    """

    def __init__(self, allowed: bool = True, folder: Path | None = None) -> None:
        given = os.environ.get("JORMUNGANDR_BENCH_VENV")
        self._folder = folder or Path(given or ROOT / ".bench" / "peers")
        self._allowed = allowed
        self._peer: Peer | None = None
        self._missing: str | None = None

    def versions(self) -> dict[str, str]:
        """Return what is installed in it; nothing if there is none."""
        try:
            return self._running().versions()
        except (PeersMissing, RuntimeError):
            return {}

    @contextlib.contextmanager
    def contenders(
        self, unit: str, seconds: float, wanted: list[tuple[str, Kind, str, dict[str, Any], str]]
    ) -> Iterator[tuple[list[Contender], dict[str, str]]]:
        """Yield contenders, and by name why one is absent.

        Args:
            unit: that their loops are counted in.
            seconds: of a turn.
            wanted: the name of each, its kind, its workload and arguments, and what it does.
        """
        found: list[Contender] = []
        absent: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            for name, kind, workload, given, about in wanted:
                try:
                    run = stack.enter_context(self._running().loop(workload, given))
                except (PeersMissing, RuntimeError) as error:
                    absent[name] = str(error)
                    continue
                found.append(looped(name, kind, unit, run, seconds, about))
            yield found, absent

    def python(self) -> Path:
        """Return that of their environment.

        Raises:
            PeersMissing: there is none.
        """
        if self._missing is not None:
            raise PeersMissing(self._missing)
        try:
            return self._python()
        except PeersMissing as error:
            self._missing = str(error)
            raise

    def close(self) -> None:
        """End the process, if there is one."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _running(self) -> Peer:
        if self._peer is None:
            self._peer = Peer(self.python())
        return self._peer

    def _python(self) -> Path:
        python = self._folder / "bin" / "python"
        ready = self._folder / "ready"
        if ready.exists() and ready.read_text() == "\n".join(REQUIREMENTS):
            return python
        if not self._allowed:
            raise PeersMissing("the peers' environment is not made yet")
        print(f"making the peers' environment in {self._folder}: a few minutes", file=sys.stderr)
        venv.create(self._folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for wanted in REQUIREMENTS:
            done = subprocess.run([*install, wanted], check=False)
            if done.returncode:
                print(f"{wanted} cannot be installed; its rows will say so", file=sys.stderr)
        ready.write_text("\n".join(REQUIREMENTS))
        return python
