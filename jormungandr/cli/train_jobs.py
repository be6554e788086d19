"""Several trainings: one after the other, or several at once, each in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from gymnasium.error import Error as GymnasiumError

from jormungandr.cli.train_loop import tell, train
from jormungandr.cli.train_plan import Plan
from jormungandr.cli.train_table import Outcome, judged
from jormungandr.errors import InternalError, JormungandrError

__all__ = ["end_with_parent", "train_all"]


def train_all(plans: Sequence[Plan], jobs: int, progress: Callable[[str], None]) -> list[Outcome]:
    """Train every plan, and judge what came of it; return that in the order of the plans.

    Args:
        plans: what to train.
        jobs: how many at once; 1 trains in this process.
        progress: takes lines of progress; from other processes they are printed.

    Raises:
        JormungandrError, gymnasium.error.Error, ModuleNotFoundError: the first one of any training;
            the others are ended.
    """
    if jobs == 1:
        return [_outcome(plan, progress) for plan in plans]
    waiting, running = list(enumerate(plans)), dict[Connection, tuple[int, SpawnProcess]]()
    outcomes = dict[int, Outcome]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, plan = waiting.pop(0)
                running.update([_begun(number, plan)])
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                number, process = running[connection]
                outcomes[number] = _received(plans[number], connection, process)
                del running[connection]
    finally:
        for connection, (_, process) in running.items():
            process.terminate()
            process.join()
            connection.close()
    return [outcomes[number] for number in range(len(plans))]


def _outcome(plan: Plan, progress: Callable[[str], None]) -> Outcome:
    return judged(train(plan, progress), plan.seed, plan.env_id, plan.eval_episodes)


def _begun(number: int, plan: Plan) -> tuple[Connection, tuple[int, SpawnProcess]]:
    spawning = multiprocessing.get_context("spawn")  # torch and threads do not survive a fork
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_work, args=(theirs, plan), daemon=True)
    with _uninterrupted():
        process.start()
    theirs.close()
    return ours, (number, process)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C from what is started meanwhile: the command has it, and ends the others."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # which a first start does, and lets signals through then
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(plan: Plan, connection: Connection, process: SpawnProcess) -> Outcome:
    try:
        got = connection.recv()
    except EOFError:
        process.join()
        where, got = f"training of seed {plan.seed}", f"exit {process.exitcode}"
        raise InternalError(where, "an outcome", got) from None
    process.join()
    connection.close()
    if isinstance(got, Exception):
        raise got
    assert isinstance(got, Outcome)
    return got


def _work(connection: Connection, plan: Plan) -> None:
    """Train in a process that was made for it, and ends with the one that made it."""
    end_with_parent()
    with contextlib.suppress(BrokenPipeError):
        try:
            connection.send(_outcome(plan, tell))
        except (JormungandrError, GymnasiumError, ModuleNotFoundError) as error:
            connection.send(error)


def end_with_parent() -> None:
    """Have this process end when the one that made it does, however that ends."""
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child
    parent.join()
    os._exit(1)  # as if killed: what is kept is whole at any time
