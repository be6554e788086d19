"""Failpoints: every listed place is reached somewhere in the source, and ends the process there."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from jormungandr.failpoints import NAMES, VARIABLE, parsed, reached

ROOT = Path(__file__).parents[1]


def calls() -> Counter[str]:
    """Count the calls of `reached` in our package by the name they give."""
    return Counter(
        ast.literal_eval(node.args[0])
        for path in (ROOT / "jormungandr").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "reached"
    )


def test_every_name_is_one_place() -> None:
    """A name that no place has, or two have, or a place without a name, would prove nothing."""
    assert calls() == Counter(NAMES)


def end(value: str, code: str) -> tuple[int, str]:
    """Run code in a process with the variable set; return its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", f"from jormungandr.failpoints import reached\n{code}"],
        env={**os.environ, VARIABLE: value},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_process_ends_at_the_place() -> None:
    """It ends by SIGKILL, which runs nothing more of it, and the count is kept to."""
    code = "for n in range(5):\n    print(n, flush=True)\n    reached('commit.written')"

    assert end("commit.written", code) == (-signal.SIGKILL, "0\n")
    assert end("apply.row, commit.written:3", code) == (-signal.SIGKILL, "0\n1\n2\n")
    assert end("apply.row", code) == (0, "0\n1\n2\n3\n4\n")
    assert end("", code)[0] == 0


def test_the_process_ends_with_a_value() -> None:
    """A place may be named together with what it is reached with."""
    code = "for n in range(5):\n    print(n, flush=True)\n    reached('apply.begin', n)"

    assert end("apply.begin@2", code) == (-signal.SIGKILL, "0\n1\n2\n")
    assert end("apply.begin@7", code) == (0, "0\n1\n2\n3\n4\n")


def test_the_process_stops_at_the_place() -> None:
    """A stopped process is there, and does nothing."""
    code = (
        "import os, signal\nif os.fork() == 0:\n    reached('apply.row')\n    os._exit(0)\n"
        "pid, status = os.waitpid(-1, os.WUNTRACED)\n"
        "print(os.WIFSTOPPED(status), flush=True)\nos.kill(pid, signal.SIGKILL)"
    )

    assert end("apply.row!", code) == (0, "True\n")


@pytest.mark.parametrize(
    "value", ["commit.writen", "commit.written:0", "commit.written:x", "x:1", "x@1", "x!"]
)
def test_a_place_that_is_not_there_is_refused(value: str) -> None:
    """A misspelt place would be a test that kills nothing."""
    with pytest.raises(ValueError, match=VARIABLE):
        parsed(value)
    assert end(value, "")[0] == 1


def test_nothing_is_reached_without_the_variable() -> None:
    """The tests themselves run through every place."""
    for name in NAMES:
        reached(name)
