"""Start-up: the command line, a gateway that answers, a model that acts; and what they weigh."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.speed.kit import Kit
from benchmarks.speed.peers import ROOT
from benchmarks.speed.rows.models import specification
from benchmarks.speed.service import Service, resident
from benchmarks.speed.timing import Case, Contender

__all__ = ["start"]


def start(kit: Kit) -> Iterator[Case]:
    """Yield `--help`, the first answer, the first action, and resident memory."""
    yield Case(
        "start-help",
        "`jormungandr --help`, from the command to its end",
        "ms",
        [
            Contender("ours", "ours", _ran("-m", "jormungandr", "--help"), "no torch, no NumPy"),
            Contender("limit: Python", "limit", _ran("-c", ""), "an interpreter that does nothing"),
            Contender(
                "limit: NumPy", "limit", _ran("-c", "import numpy"), "one that imports NumPy"
            ),
            Contender(
                "limit: torch", "limit", _ran("-c", "import torch"), "one that imports torch"
            ),
        ],
    )
    number = [0]

    def fresh() -> Service:
        number[0] += 1
        return Service(kit.room(f"start-{number[0]}"))

    def ready() -> float:
        began = time.perf_counter()
        with fresh():
            return 1e3 * (time.perf_counter() - began)

    about = "`jormungandr serve` on an empty folder, until it listens"
    yield Case(
        "start-ready", "a gateway that is ready", "ms", [Contender("ours", "ours", ready, about)]
    )

    def action() -> float:
        began = time.perf_counter()
        with fresh() as service, service.connect("m") as learner:
            learner.create(specification())
            learner.act([[0.0, 0.0, 0.0, 0.0]])
            return 1e3 * (time.perf_counter() - began)

    about = "the same, a model created, its learner started, one action"
    yield Case("start-action", "the first action", "ms", [Contender("ours", "ours", action, about)])
    yield from _weights(kit)
    for n in range(1, number[0] + 1):
        shutil.rmtree(kit.room(f"start-{n}"))


def _ran(*arguments: str) -> Callable[[], float]:
    def sample() -> float:
        began = time.perf_counter()
        command = [sys.executable, *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=True, env=os.environ)
        return 1e3 * (time.perf_counter() - began)

    return sample


def _weights(kit: Kit) -> Iterator[Case]:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(kit.room("weights")))
        learner = stack.enter_context(service.connect("m"))
        learner.create(specification())
        learner.act([[0.0, 0.0, 0.0, 0.0]])
        (child,) = (pid for pid in service.children() if resident(pid) > 1)
        found = [
            ("ours, gateway", lambda: resident(service.process.pid), "one model, empty"),
            ("ours, learner", lambda: resident(child), "4-64-64-3×51, replay of 100,000, empty"),
            ("limit: NumPy", _importing("numpy"), "a Python that has imported it"),
            ("limit: torch", _importing("torch"), "likewise"),
        ]
        yield Case(
            "resident",
            "resident memory",
            "MiB",
            [Contender(n, "ours" if "ours" in n else "limit", f, about) for n, f, about in found],
        )


def _importing(name: str) -> Callable[[], float]:
    script = f"import {name}; print(open('/proc/self/statm').read().split()[1])"

    def sample() -> float:
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
        return int(done.stdout) * os.sysconf("SC_PAGE_SIZE") / 2**20

    return sample
