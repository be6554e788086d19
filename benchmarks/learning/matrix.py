"""The matrix: which runs are wanted, in which order, and a sitting that does some of them."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning.contenders import CONTENDERS, Contender, seeds_of
from benchmarks.learning.runs import Run, append, fingerprint, known, perform
from benchmarks.learning.tasks import TASKS, Task
from jormungandr.cli.train_jobs import end_with_parent

__all__ = ["BLOCKS", "Job", "estimate", "missing", "perform_all", "wanted"]

_EVERYONE = tuple(CONTENDERS)
_OURS = tuple(name for name in CONTENDERS if name.startswith("ours"))
#: Tasks and contenders, most important first.
BLOCKS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("ou-1344",), _EVERYONE),
    (("cartpole",), _OURS),
    (("ou",), _EVERYONE),
    (("cartpole",), _EVERYONE),
    (("acrobot",), _EVERYONE),
    (("mountaincar",), _EVERYONE),
    (("lunarlander",), _EVERYONE),
)
#: Seconds for a step where no run is known, and for a process to start.
_GUESS, _START = 4e-3, 6.0


@dataclass(frozen=True)
class Job:
    """One run to be done: `fingerprint` marks the settings it will have."""

    name: str
    task: Task
    contender: Contender
    seed: int
    fingerprint: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """That of its run."""
        return self.name, self.contender.name, self.seed, self.fingerprint

    def __str__(self) -> str:
        return f"{self.name}, {self.contender.name}, seed {self.seed}"


def wanted(
    runs: Sequence[Run],
    tasks: Iterable[str] = TASKS,
    contenders: Iterable[str] = CONTENDERS,
    seeds: Sequence[int] | None = None,
) -> Iterator[Job]:
    """Yield the jobs of the matrix, most important first, whether done or not.

    Args:
        runs: known ones.
        tasks: to choose from.
        contenders: to choose from.
        seeds: for everyone; None is each contender's own number of them.
    """
    tasks, contenders, seen = list(tasks), list(contenders), set()
    for names, entering in BLOCKS:
        block = []
        for name in names:
            for who in entering:
                if name not in tasks or who not in contenders or (name, who) in seen:
                    continue
                seen.add((name, who))
                task, contender = TASKS[name], CONTENDERS[who]
                mark = fingerprint(name, task, contender, runs)
                if mark is not None:
                    own = seeds_of(contender, task)
                    mine = range(own) if seeds is None else seeds
                    block += [Job(name, task, contender, seed, mark) for seed in mine]
        yield from sorted(block, key=lambda job: job.seed)  # a block part done has few whole rows


def missing(jobs: Iterable[Job], runs: Iterable[Run]) -> list[Job]:
    """Return the jobs that no run is known of."""
    there = {run.key for run in runs}
    return [job for job in jobs if job.key not in there]


def estimate(job: Job, runs: Sequence[Run]) -> float:
    """Return the seconds that a job is expected to take.

    From runs of this contender on this task, else of anyone on it, else from its seconds per step
    elsewhere.
    """
    here = [run for run in runs if run.settings["shape"]["env_id"] == job.task.env_id]
    mine = [run for run in runs if run.contender == job.contender.name]
    for some in ([run for run in here if run in mine], here, mine):
        if some:
            rate = statistics.median(_seconds(run) / run.steps[-1] for run in some)
            return _START + job.task.steps * rate
    return _START + job.task.steps * _GUESS


def perform_all(jobs: Sequence[Job], path: Path, *, at_once: int, until: float) -> list[str]:
    """Do jobs in order, each in a process of its own, and append them to a file.

    Args:
        jobs: to be done.
        path: of the file.
        at_once: processes.
        until: `time.monotonic` by which all should have ended; what is not expected to is left.

    Returns:
        What went wrong, a line each; the other jobs are done all the same.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # for the children, which load their libraries anew
    waiting, going, wrong = list(jobs), dict[Future[Run], Job](), list[str]()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        at_once, mp_context=spawn, initializer=end_with_parent, max_tasks_per_child=1
    ) as pool:
        while waiting or going:
            runs = known(path)
            while waiting and len(going) < at_once:
                job = waiting.pop(0)
                if time.monotonic() + (seconds := estimate(job, runs)) > until:
                    print(f"{job}: left, it may take {seconds:.0f} s", flush=True)
                    continue
                going[pool.submit(_work, job, path, at_once)] = job
            for done in wait(going, return_when=FIRST_COMPLETED).done:
                job = going.pop(done)
                if (error := done.exception()) is not None:
                    wrong.append(f"{job}: {type(error).__name__}: {error}")
                    print(wrong[-1], flush=True)
                else:
                    run = done.result()
                    print(f"{job}: {run.means[-1]:.2f} in {_seconds(run):.0f} s", flush=True)
    return wrong


def _work(job: Job, path: Path, at_once: int) -> Run:
    run = perform(job.name, job.task, job.contender, job.seed, job.fingerprint, at_once)
    append(run, path)
    return run


def _seconds(run: Run) -> float:
    return run.seconds["training"] + run.seconds["evaluating"]
