"""What is installed here: Python and packages, SQLite, torch, the limits of a process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jormungandr.service.diagnosis.finding import Finding, fail, ok, warn

__all__ = ["check_limits", "check_packages", "check_sqlite", "check_torch"]

#: Of ours, what a service needs.
EXTRAS = ("service", "learner")
#: The first SQLite without a fault that can corrupt a WAL with two connections.
SQLITE = (3, 51, 3)
#: File descriptors: a connection and a few per model.
FILES, FEW_FILES = 256, 4_096
#: Seconds for a process that imports torch from a cold disk.
IMPORT = 300

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_BOUND = re.compile(r"(>=|<|==|>|<=|!=|~=)\s*([0-9.]+)")


def check_packages() -> Iterator[Finding]:
    """Compare Python and every package that a service needs with what ours asks for."""
    python = platform.python_version()
    wrong, found = [], [f"Python {python}"]
    asked = importlib.metadata.metadata("jormungandr-rl")["Requires-Python"] or ""
    if not all(_holds(python, op, bound) for op, bound in _BOUND.findall(asked)):
        wrong.append(f"Python {python} is not {asked}")
    for name, bounds in _requirements():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
            continue
        found.append(f"{name} {version}")
        wrong += [
            f"{name} {version} is not {op}{bound}"
            for op, bound in bounds
            if not _holds(version, op, bound)
        ]
    if wrong:
        yield fail("packages", ", ".join(wrong), 'pip install --upgrade "jormungandr-rl[service]"')
    else:
        yield ok("packages", ", ".join(dict.fromkeys(found)))


def _requirements() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield (package, its bounds) of what a service needs."""
    for text in importlib.metadata.requires("jormungandr-rl") or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is None or match[1] == "jormungandr-rl":
            continue
        marker = match[3] or ""
        extra = re.search(r"extra == ['\"]([^'\"]*)", marker)
        if extra is not None and extra[1] not in EXTRAS:
            continue
        if "win32" in marker and sys.platform == "win32":
            continue
        yield match[1], [(op, bound) for op, bound in _BOUND.findall(match[2])]


def _holds(version: str, op: str, bound: str) -> bool:
    have, want = _numbers(version), _numbers(bound)
    width = max(len(have), len(want))
    have, want = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
    return {
        ">=": have >= want,
        "<": have < want,
        "==": have == want,
        ">": have > want,
        "<=": have <= want,
    }.get(op, True)


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_sqlite(folder: Path | None) -> Iterator[Finding]:
    """Ask SQLite for its version, and whether it keeps a WAL where journals are.

    Args:
        folder: on the volume to try; None is that of temporary files.
    """
    try:
        import apsw
    except ImportError as error:
        yield fail("sqlite", error, 'pip install "jormungandr-rl[service]"')
        return
    version = apsw.sqlite_lib_version()
    if _numbers(version) < SQLITE:
        wanted = ".".join(map(str, SQLITE))
        yield fail(
            "sqlite", f"SQLite {version}", f"upgrade apsw: {wanted} has a WAL without a fault"
        )
        return
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as there:
            connection = apsw.Connection(str(Path(there) / "try.db"))
            mode = connection.pragma("journal_mode", "wal")
            connection.pragma("synchronous", "full")
            connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (1)")
            connection.close()
    except (apsw.Error, OSError) as error:
        yield fail("sqlite", f"no database can be written: {error}", "see the checks of the disk")
        return
    if mode != "wal":
        remedy = "use a local file system: SQLite's WAL needs shared memory"
        yield fail("sqlite", f"journal mode {mode!r} instead of a WAL", remedy)
        return
    yield ok("sqlite", f"SQLite {version}, apsw {apsw.apsw_version()}, WAL, synchronous=FULL")


def check_torch() -> Iterator[Finding]:
    """Have a process of its own import torch as learners do, and say on how many threads."""
    code = (
        "import time; t = time.perf_counter(); import torch, numpy;"
        "torch.use_deterministic_algorithms(True); torch.set_num_threads(1);"
        "x = torch.ones(64, 64); assert float((x @ x)[0, 0]) == 64.0;"
        "print(torch.__version__, round(time.perf_counter() - t, 1))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            timeout=IMPORT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield fail("torch", f"not imported within {IMPORT} s", "look at the disk and the memory")
        return
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        yield fail("torch", said, 'pip install "jormungandr-rl[learner]"')
        return
    version, seconds = done.stdout.split()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    measured = f"torch {version} in {seconds} s, {cores} processors"
    if (cores or 1) < 2:
        remedy = "a learner and the gateway share it: give the service two or more"
        yield warn("torch", measured, remedy)
    else:
        yield ok("torch", measured)


def check_limits() -> Iterator[Finding]:
    """Look at what the system lets a process have, as started from here."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    remedy = "raise it: `ulimit -n 65536`, or LimitNOFILE= of a systemd unit"
    if size != resource.RLIM_INFINITY:
        yield fail("limits", f"files of at most {size} bytes", "`ulimit -f unlimited`")
    elif files != resource.RLIM_INFINITY and files < FILES:
        yield fail("limits", f"{files} open files", remedy)
    elif files != resource.RLIM_INFINITY and files < FEW_FILES:
        yield warn("limits", f"{files} open files: each connection is one", remedy)
    else:
        yield ok("limits", f"{files} open files" if files > 0 else "any number of open files")
