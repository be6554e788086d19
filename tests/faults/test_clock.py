"""A clock of the wall that jumps: what is kept, learned and waited for does not look at it."""

from __future__ import annotations

import ast
import http.client
import os
import shutil
import struct
import subprocess
import sys
import time
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.faults.built import build
from tests.faults.checker import (
    SPEC,
    Actors,
    Servers,
    bits,
    check_service,
    check_stored,
    differing,
    newest_checkpoint,
    rebuild,
)
from tests.service.serving import Server, until

PACKAGE = Path(__file__).parents[2] / "jormungandr"

#: What tells the time of day, which may jump.
WALL = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.strftime"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "datetime.fromtimestamp"),
}
#: What tells how long something took, which does not.
STEADY = {"time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.process_time"}
#: Modules that may say what time it is, and what for.
MAY = {
    "service/access/tokens.py": "a token is valid until a date",
    "service/access/watched.py": "a file of which a later change would not show in its own time",
    "service/diagnosis/running.py": "compares the clocks of two machines",
    "service/observe/logs.py": "lines of the log",
    "service/observe/process.py": "when the process was started, as a metric",
}
#: Modules in which a clock of any kind decides nothing that is kept.
TIMELESS = (
    *("learner", "numerics", "admission", "columns"),
    *("ledger.py", "rows.py", "policy.py"),
    *("service/journal/writer.py", "service/journal/database.py"),
    *("service/child/lineage.py", "service/child/recovery.py"),
)
HOUR = 3_600.0


def called(path: Path) -> set[str]:
    """Return the names of what a module calls or hands on, as far as they have two parts."""
    tree = ast.parse(path.read_text())
    names = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {".".join(name.split(".")[-2:]) for name in names | imported}


def test_no_time_of_day_decides_anything() -> None:
    """Neither the service nor the learner looks at a clock that may jump, but to say the time."""
    ours = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] != "cli"]
    found = {str(path.relative_to(PACKAGE)): called(path) & WALL for path in ours}

    assert {name for name, calls in found.items() if calls} <= set(MAY)


def test_no_clock_at_all_in_what_is_kept() -> None:
    """What is written and what is learned depend on no clock, not even a steady one."""
    for name in TIMELESS:
        place = PACKAGE / name
        for path in place.rglob("*.py") if place.is_dir() else [place]:
            assert called(path) & (WALL | STEADY) == set(), path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime here")
@pytest.mark.parametrize("jump", ["-1h", "+1h", "-10y"])
def test_a_clock_that_jumped(tmp_path: Path, jump: str) -> None:
    """A directory from another time is served, and verified, as any other."""
    data = build(tmp_path / "data")
    command = ["faketime", "-f", jump, sys.executable, "-m", "jormungandr", "verify", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- a clock that jumps while a service runs ----------------------------------------------------

#: Imported by every interpreter before anything else: its wall clock is off by what a file says.
SITE = """
import os, struct, time

_fd = os.open({path!r}, os.O_RDONLY)
_real = {{name: getattr(time, name) for name in ("time", "gmtime", "localtime", "strftime")}}

def now():
    return _real["time"]() + struct.unpack("<d", os.pread(_fd, 8, 0))[0]

time.time = now
time.time_ns = lambda: int(now() * 1e9)
time.gmtime = lambda seconds=None: _real["gmtime"](now() if seconds is None else seconds)
time.localtime = lambda seconds=None: _real["localtime"](now() if seconds is None else seconds)
time.strftime = lambda form, *when: _real["strftime"](form, *(when or (time.localtime(),)))
"""


class Clock:
    """The wall clock of a service and its learners, which jumps when it is told to.

    Args:
        folder: made; to be found first on the path of modules.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "offset"
        self.jump(0.0)
        (folder / "sitecustomize.py").write_text(SITE.format(path=str(self._file)))
        self.path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))

    def jump(self, seconds: float) -> None:
        """Let it be off by so much from here on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("<d", seconds))


def said(server: Server) -> float:
    """Return by how much the clock of a service is off, by the date of an answer."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    connection.request("GET", "/v1/health/live")
    response = connection.getresponse()
    date = parsedate_to_datetime(response.headers["date"]).timestamp()
    connection.close()
    return date - time.time()


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """A clock for services of the test."""
    return Clock(tmp_path / "clock")


@pytest.mark.slow
def test_a_clock_that_jumps_while_it_serves(tmp_path: Path, clock: Clock) -> None:
    """An hour back, ten years on, and again: the same order, receipts, duplicates and policies.

    Also rows go when the budget presses, a learner is killed, and a service restarted in the past;
    nobody is taken for hung, waits longer, or is asked to wait.
    """
    data = tmp_path / "data"
    folder = data / "models" / "m.1"
    jumps = [-HOUR, HOUR, 10 * 8_766 * HOUR, -10 * 8_766 * HOUR, -HOUR / 60, HOUR]
    with Servers(data, "--recovery-budget", "0.1") as servers:
        server = servers.start(PYTHONPATH=clock.path)
        with server.connect("m") as endpoint:
            endpoint.create(SPEC)
        with Actors(data, server.url, ["one", "cut"]) as actors:
            for n, jump in enumerate(jumps):
                clock.jump(jump)
                until(
                    lambda jump=jump: abs(said(servers.server) - jump) < HOUR / 120,
                    "an answer of that time",
                )
                goal = actors.acknowledged + 200
                until(lambda goal=goal: actors.acknowledged >= goal, "receipts")
                with servers.server.connect("m") as endpoint:
                    seen = endpoint.info()["applied_lsn"]
                    until(
                        lambda seen=seen, to=endpoint: to.info()["applied_lsn"] > seen,
                        "a learner that gets on",
                    )
                    learner = endpoint.info()["learner"]
                    assert learner["ends"] == 0, learner
                    assert learner["progress_age"] < HOUR / 60
                if n == 3:
                    servers.kill()
                    clock.jump(-HOUR)
                    servers.start(PYTHONPATH=clock.path)
            actors.tell_to_end()
            told = actors.finish()
        with servers.server.connect("m") as endpoint:
            info = check_service(endpoint, told, folder)
            assert info["learner"]["ends"] == 0
        assert servers.server.terminate() == 0
    check_stored(folder, told)
    assert differing(bits(rebuild(folder)), bits(newest_checkpoint(folder))) == []


@pytest.mark.slow
def test_rows_go_whatever_the_time_is(tmp_path: Path, clock: Clock) -> None:
    """Retention goes by bytes and checkpoints: also in a year to come, and in one that is over."""
    data = tmp_path / "data"
    options = ("--recovery-budget", "0.1", "--journal-max-bytes", str(600_000))
    wide = {**SPEC, "observation": {"shape": [64]}}
    with Servers(data, *options) as servers:
        server = servers.start(PYTHONPATH=clock.path)
        with server.connect("m") as endpoint:
            endpoint.create(wide)
            with Actors(data, server.url, ["one"], "--width", "64", "--batch", "20") as actors:
                for jump in (10 * 8_766 * HOUR, -10 * 8_766 * HOUR):
                    clock.jump(jump)
                    first = endpoint.info()["journal"]["first_lsn"]
                    until(
                        lambda first=first: endpoint.info()["journal"]["first_lsn"] > first + 20,
                        "rows that go",
                    )
                actors.tell_to_end()
                told = actors.finish()
            assert check_service(endpoint, told, data / "models" / "m.1")["quarantined"] == 0
        assert server.terminate() == 0
    check_stored(data / "models" / "m.1", told, whole=False)
