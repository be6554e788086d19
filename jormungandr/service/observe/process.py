"""Figures of this process, under the names that Prometheus' own clients use."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jormungandr.service.observe.exposition import Family, Values

__all__ = ["process_families"]

#: Unix time at which this module was loaded: the process began a moment before.
STARTED = time.time()


def process_families() -> Iterator[Family]:
    """Yield what is known of this process; memory and open files on Linux alone."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = Values("counter", "process_cpu_seconds_total", "Processor time, of user and system.")
    cpu.set(usage.ru_utime + usage.ru_stime)
    yield cpu
    began = Values("gauge", "process_start_time_seconds", "When the process began, in Unix time.")
    began.set(STARTED)
    yield began
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = Values("gauge", "process_max_fds", "Most file descriptors that may be open.")
    most.set(soft if soft != resource.RLIM_INFINITY else float("inf"))
    yield most
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        memory = Values("gauge", "process_resident_memory_bytes", "Resident memory.")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory.set(pages * resource.getpagesize())
        files = Values("gauge", "process_open_fds", "File descriptors that are open.")
        files.set(len(os.listdir("/proc/self/fd")))
        yield memory
        yield files
