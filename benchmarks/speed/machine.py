"""What computed, for the record: processor, versions, commit; no names of hosts or folders."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["described"]

OURS = ("torch", "numpy", "numba", "gymnasium", "apsw", "uvicorn", "uvloop", "httptools", "msgspec")
ROOT = Path(__file__).parents[2]


def described(peers: dict[str, str]) -> dict[str, Any]:
    """Return the machine, our versions and those in the peers' environment, and the commit.

    Args:
        peers: versions there.
    """
    versions = {}
    for name in OURS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions,
        "peers": peers,
        "commit": _commit(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit, with a plus if the tree differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
        return done.stdout.decode().strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (commit or "unknown") + ("+" if changed else "")
