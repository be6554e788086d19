"""`Forks`: runs Python in processes that need not import torch, Gymnasium and the like again.

One process imports them and none of ours; each program runs in a fork of it, which knows nothing
of the others. That spares a test most of what a process costs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """What became of a program; a negative `returncode` is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """A process that has imported much, and is forked for each program."""

    def __init__(self) -> None:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("JORMUNGANDR_")}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.forked"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=ours,
            text=True,
        )

    def run(self, code: str, folder: Path, **environment: str) -> Done:
        """Run a program as ``python -W error -c`` does, warnings being errors.

        Args:
            code: the program.
            folder: that it runs in.
            environment: variables that it has beside those of this process.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        given = {"code": code, "folder": str(folder), "environment": environment}
        stdin.write(json.dumps(given) + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, f"the process that is forked has ended: {self._process.poll()}"
        found: list[Any] = json.loads(answer)
        return Done(*found)

    def script(self, file: Path, *arguments: str, **environment: str) -> Done:
        """Run a file as ``python -W error FILE`` does, in the folder of the repository."""
        line = [str(file), *arguments]
        code = f"import runpy, sys\nsys.argv, sys.path[0] = {line!r}, {str(file.parent)!r}\n"
        return self.run(
            f"{code}runpy.run_path({str(file)!r}, run_name='__main__')", ROOT, **environment
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _program(given: dict[str, Any], out: int, errors: int) -> int:
    """Run a program, in the fork; return its status."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.chdir(given["folder"])
    os.environ.update(given["environment"])
    status = 0
    try:
        exec(compile(given["code"], "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _serve() -> None:
    import tempfile
    import warnings

    import gymnasium  # noqa: F401
    import stable_baselines3  # noqa: F401
    import torch  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a process of several threads is forked
                pid = os.fork()
            if not pid:
                os._exit(_program(json.loads(line), out.fileno(), errors.fileno()))
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            texts = []
            for file in (out, errors):
                file.seek(0)
                texts.append(file.read().decode())
        print(json.dumps([status, *texts]), flush=True)


if __name__ == "__main__":
    _serve()
