"""How statements of ``jormungandr sql`` end: interrupted, cut off by a reader, or badly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jormungandr.cli import main
from tests.cli.journals import written
from tests.service.serving import QUIET, experience

Capture = pytest.CaptureFixture[str]
COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c {}) SELECT {} FROM c"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with a model of a few rows."""
    return str(written(tmp_path_factory.mktemp("sql") / "data", QUIET, experience(2, 3)))


def started(data: str, statement: str) -> subprocess.Popen[bytes]:
    """Run the command as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "jormungandr", "sql", data, "m", statement],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.fixture
def listening() -> Iterator[None]:
    """What is started hears Ctrl-C, also where these tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_interrupted(data: str) -> None:
    """Ctrl-C ends a statement that would never end."""
    process = started(data, COUNT.format("", "count(*)"))
    with process:
        end = time.monotonic() + 60
        # Before it runs a signal would end it anyway: it has used the processor for a while.
        while _ticks(process.pid) < 300 and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def _ticks(pid: int) -> int:
    """Return the processor time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_reader_that_goes(data: str) -> None:
    """Like `head`: the command ends without a word."""
    process = started(data, COUNT.format("WHERE x < 1000000", "x"))
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_text_that_is_none(data: str, capsys: Capture, form: str) -> None:
    """Bytes that a statement calls text are refused, in the first row or later."""
    for statement in (
        "SELECT CAST(x'ff' AS TEXT)",
        "SELECT 1 UNION ALL SELECT CAST(x'ff' AS TEXT)",
    ):
        assert main(["sql", data, "m", statement, "--format", form]) == 1
        assert "SQL: expected a SELECT that SQLite can run" in capsys.readouterr().err


def test_what_json_cannot_say(data: str, capsys: Capture) -> None:
    """Infinities are numbers too large to read, columns of one name are refused."""
    statement = "SELECT 9e999 AS a, -9e999 AS b, 0.5 AS c, NULL AS d, x'00ff' AS e"
    assert main(["sql", data, "m", statement, "--format", "json"]) == 0
    text = capsys.readouterr().out
    (row,) = json.loads(text, parse_constant=pytest.fail)
    assert row == {"a": float("inf"), "b": float("-inf"), "c": 0.5, "d": None, "e": "00ff"}

    assert main(["sql", data, "m", "SELECT 1 AS a, 2 AS a", "--format", "json"]) == 1
    assert "expected different names of columns, got ['a']" in capsys.readouterr().err
