"""`Commits`: requests of one model joined into groups, each one transaction and one sync.

Admission runs on the event loop; the commit itself runs on the journal's own thread. While one
group syncs the next one gathers, and nobody is answered before the commit that holds what he sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from jormungandr.errors import JormungandrError
from jormungandr.ledger import Draft
from jormungandr.rows import Row
from jormungandr.service.database import Control
from jormungandr.service.journal import Journal

__all__ = ["Admit", "Commits"]

log = logging.getLogger("jormungandr")

#: Requests admitted into one commit.
GROUP = 256

#: Decides over a draft of the ledger; returns an answer and the rows to write.
Admit = Callable[[Draft], tuple[Any, Sequence[Row]]]
T = TypeVar("T")


@dataclass
class _Job:
    """One thing to admit, and who waits for its answer."""

    admit: Admit
    answer: asyncio.Future[Any]
    control: Control | None = None


class Commits:
    """The one way into a journal; lives on one event loop.

    Args:
        journal: opened for writing.
        written: called on the loop after each commit that wrote data rows.
    """

    def __init__(self, journal: Journal, written: Callable[[], None]) -> None:
        self.journal, self._written = journal, written
        # The one thread that touches the writing connection.
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._committer = asyncio.get_running_loop().create_task(self._commit_groups())

    @property
    def waiting(self) -> int:
        """Requests that no group has taken yet."""
        return self._queue.qsize()

    async def submit(self, admit: Admit, control: Control | None = None) -> Any:
        """Admit in the order of the calls; return the answer when what it stands for is durable.

        Args:
            admit: decides; an error it raises is the caller's, and concerns nobody else.
            control: a CONTROL row to write in the same transaction.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Job(admit, answer, control))
        return await answer

    async def on_writer(self, call: Callable[..., T], *arguments: Any) -> T:
        """Run a call on the journal's thread, between two commits."""
        return await asyncio.get_running_loop().run_in_executor(self._writing, call, *arguments)

    async def join(self) -> None:
        """Return when everything submitted so far has its answer."""
        await self._queue.join()

    async def close(self) -> None:
        """Answer what has come in, and close the journal."""
        await self.join()
        self._committer.cancel()
        self._writing.shutdown()
        self.journal.close()

    async def _commit_groups(self) -> None:
        while True:
            jobs = [await self._queue.get()]
            while len(jobs) < GROUP and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
                await asyncio.sleep(0)
            try:
                await self._commit(jobs)
            except Exception as error:
                log.exception("%s: commit group failed", self.journal.created.model_id)
                _fail(jobs, error)
            finally:
                for _ in jobs:
                    self._queue.task_done()

    async def _commit(self, jobs: list[_Job]) -> None:
        """Admit in order, write in one transaction, then answer."""
        group = Draft(self.journal)
        rows: list[Row] = []
        controls: list[Control] = []
        answers: list[tuple[_Job, Any]] = []
        for job in jobs:
            mine = Draft(group)
            try:
                answer, new = job.admit(mine)
            except JormungandrError as error:
                _fail([job], error)
                continue
            group.merge(mine)
            rows += new
            if job.control is not None:
                controls.append(job.control)
            answers.append((job, answer))
        if rows or controls:
            try:
                await self.on_writer(self.journal.commit, group, rows, controls)
            except JormungandrError as error:
                _fail([job for job, _ in answers], error)
                return
            self.journal.merged(group)
            if rows:
                self._written()
        for job, answer in answers:
            if not job.answer.done():  # its client may have gone; what it sent is kept
                job.answer.set_result(answer)
        if rows:
            await self.on_writer(self.journal.move_wal)


def _fail(jobs: list[_Job], error: BaseException) -> None:
    for job in jobs:
        if not job.answer.done():
            job.answer.set_exception(error)
