"""`Commits`: requests of one model joined into groups, each one transaction and one sync.

Admission runs on the event loop; the commit itself runs on the journal's own thread. While one
group syncs the next one gathers, and nobody is answered before the commit that holds what he sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

from jormungandr.errors import JormungandrError, StorageFull, Unavailable
from jormungandr.failpoints import reached
from jormungandr.ledger import Draft
from jormungandr.rows import Row
from jormungandr.service.asker import Asker
from jormungandr.service.journal.database import Control
from jormungandr.service.journal.writer import Journal
from jormungandr.service.observe.meters import Meters

__all__ = ["Admit", "Commits"]

log = logging.getLogger("jormungandr")

#: Requests admitted into one commit.
GROUP = 256
#: Transitions after which a group takes no further request.
GROUP_ITEMS = 8_192
#: Requests and transitions that wait for a group before no more are decoded: here they wait in the
#: order in which they came, and before, in turns between those who send.
WAITING, WAITING_ITEMS = GROUP, GROUP_ITEMS
#: Transitions admitted before the event loop is let go for whoever else waits, some two
#: milliseconds; and how many of them a request stands for besides its own.
TURN, REQUEST = 256, 32
#: Answers given before it is let go again: each has a reply to write.
ANSWERS = 16
#: Seconds without a request after which the last commit is sealed.
SEAL_AFTER = 1.0

#: Decides over a draft of the ledger; returns an answer and the rows to write.
Admit = Callable[[Draft], tuple[Any, Sequence[Row]]]
T = TypeVar("T")


class Room(Protocol):
    """Where data may find no room."""

    def shortage(self) -> StorageFull | None:
        """Return the error of who wants to write data now; None while there is room."""
        ...


async def _nothing() -> None:
    pass


@dataclass(slots=True)
class _Job:
    """One thing to admit, and who waits for its answer."""

    admit: Admit
    answer: Asker
    items: int
    control: Control | None = None


class Commits:
    """The one way into a journal; lives on one event loop.

    Args:
        journal: opened for writing.
        space: that data rows leave free; CONTROL rows, few and small, may use it.
        written: called on the loop after each commit that wrote data rows.
        between: awaited after each group, before the next is admitted.
        meters: count commits; None counts for nobody.
        relieved: called when requests that waited were taken into a group.
    """

    def __init__(
        self,
        journal: Journal,
        space: Room,
        written: Callable[[], None],
        between: Callable[[], Awaitable[None]] = _nothing,
        meters: Meters | None = None,
        relieved: Callable[[], None] = lambda: None,
    ) -> None:
        self.journal, self._space, self._written = journal, space, written
        self._between, self._meters = between, meters or Meters()
        self._relieved, self._items = relieved, 0
        # The one thread that touches the writing connection.
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._unsealed = False
        #: What whoever submits is told, once the journal is being closed.
        self.refusal: JormungandrError | None = None
        self._committer = asyncio.get_running_loop().create_task(self._commit_groups())

    @property
    def waiting(self) -> int:
        """Requests that no group has taken yet."""
        return self._queue.qsize()

    def is_open(self) -> bool:
        """Whether more may come: beyond what the next two groups take, it waits undecoded."""
        behind = self.waiting >= WAITING or self._items >= WAITING_ITEMS
        return self.refusal is not None or not behind

    async def submit(self, admit: Admit, control: Control | None = None, items: int = 1) -> Any:
        """Admit in the order of the calls; return the answer when what it stands for is durable.

        Args:
            admit: decides; an error it raises is the caller's, and concerns nobody else.
            control: a CONTROL row to write in the same transaction.
            items: how many transitions or labels are to be admitted.

        Raises:
            JormungandrError: of `admit`, of a commit that failed, or the `refusal`.
        """
        if self.refusal is not None:
            # One error for many: with the traces of all it would grow.
            raise self.refusal.with_traceback(None)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.put(admit, answer, items, control)
        return await answer

    def put(
        self, admit: Admit, answer: Asker, items: int = 1, control: Control | None = None
    ) -> None:
        """Do what `submit` does, for somebody who is told; while there is no `refusal`."""
        self._queue.put_nowait(_Job(admit, answer, items, control))
        self._items += items

    async def record(self, control: Control) -> bool:
        """Record a decision, on a full disk when there is room; return whether it is recorded.

        It is not where the journal is being closed, or damaged.
        """
        while self.refusal is None:
            try:
                await self.submit(lambda _: (None, ()), control)
            except JormungandrError as error:
                if self._is_closing():
                    return False
                name = self.journal.created.model_id
                log.warning("%s: %s row not recorded yet: %s", name, control.kind, error)
                if not isinstance(error, Unavailable):
                    return False
                await asyncio.sleep(1.0)
            else:
                return True
        return False

    def _is_closing(self) -> bool:
        return self.refusal is not None

    def nudge(self) -> None:
        """Have what comes between two groups done, also when nobody sends anything."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Job(lambda _: (None, ()), answer, 0))

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
            jobs = [await self._next()]
            items = jobs[0].items
            while len(jobs) < GROUP and items < GROUP_ITEMS and not self._queue.empty():
                while len(jobs) < GROUP and items < GROUP_ITEMS and not self._queue.empty():
                    jobs.append(self._queue.get_nowait())
                    items += jobs[-1].items
                await asyncio.sleep(0)  # whoever comes meanwhile goes with them
            self._items -= items
            self._relieved()
            try:
                await self._commit(jobs)
                await self._between()
            except Exception as error:
                log.exception("%s: commit group failed", self.journal.created.model_id)
                _fail(jobs, error)
            finally:
                for _ in jobs:
                    self._queue.task_done()

    async def _next(self) -> _Job:
        """Return the next request; while none comes, seal what was committed last."""
        if self._unsealed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEAL_AFTER):
                    return await self._queue.get()
            try:
                await self.on_writer(self.journal.seal)
            except Exception as error:  # a full disk, say: the next one is sealed
                name = self.journal.created.model_id
                log.warning("%s: last commit not sealed: %s", name, error)
            self._unsealed = False
        return await self._queue.get()

    async def _commit(self, jobs: list[_Job]) -> None:
        """Admit in order, write in one transaction, then answer."""
        group = Draft(self.journal)
        rows: list[Row] = []
        controls: list[Control] = []
        answers: list[tuple[_Job, Any]] = []
        shortage = self._space.shortage()
        turn = 0
        for job in jobs:
            mine = Draft(group)
            try:
                answer, new = job.admit(mine)
            except Exception as error:  # whatever it is, it concerns nobody else
                if not isinstance(error, JormungandrError):
                    log.exception("%s: a request not admitted", self.journal.created.model_id)
                _fail([job], error)
                continue
            if new and shortage is not None:  # what is known already is answered all the same
                _fail([job], shortage)
                continue
            group.merge(mine)
            rows += new
            if job.control is not None:
                controls.append(job.control)
            answers.append((job, answer))
            reached("admit.request")
            turn += job.items + REQUEST
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)
        if rows or controls:
            began = perf_counter()
            try:
                await self.on_writer(self.journal.commit, group, rows, controls)
            except JormungandrError as error:
                _fail([job for job, _ in answers], error)
                return
            items = sum(job.items for job, _ in answers)
            self._meters.committed(len(answers), items, perf_counter() - began)
            self.journal.merged(group)
            self._unsealed = True
            reached("commit.merged")
            if rows:
                self._written()
        for n, (job, answer) in enumerate(answers, 1):
            if not job.answer.done():  # its client may have gone; what it sent is kept
                job.answer.set_result(answer)
            if n % ANSWERS == 0:
                await asyncio.sleep(0)


def _fail(jobs: list[_Job], error: Exception) -> None:
    for job in jobs:
        if not job.answer.done():
            job.answer.set_exception(error)
