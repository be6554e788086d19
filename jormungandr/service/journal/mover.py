"""`WalMover`: moves the content of a journal's WAL to its database file, beside the commits.

Automatic checkpoints would run inside a commit, on its thread. These run on a connection and a
thread of their own. A PASSIVE one stops nobody, but a WAL can only begin anew when all of it is
moved, which never holds while commits follow each other; past a second bound the commits are held
for the moment that the rest takes.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import apsw

from jormungandr.failpoints import reached
from jormungandr.service.journal.database import connect, make_durable

__all__ = ["WalMover", "end_process"]

log = logging.getLogger("jormungandr")

#: Pages of 4 KiB after which what is in the WAL is moved, and after each so many more again.
WAL_PAGES = 4_000
#: Pages from which commits are held while the rest is moved and the WAL begun anew.
WAL_LIMIT = 16_000
#: Rounds of moving without holding anybody, before the rest is short enough to hold commits.
ROUNDS = 3
#: Milliseconds that commits are held for somebody who still reads.
READER_TIMEOUT = 200


class WalMover:
    """One journal's.

    Args:
        path: of the database file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Held by whoever writes, from BEGIN to COMMIT.
        self.writing = threading.Lock()
        self._connection: apsw.Connection | None = None
        # Its thread starts when there is something to move first: most models are small.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="wal")
        self._pages = 0
        self._due = WAL_PAGES
        self._moving = False

    def committed(self, pages: int) -> None:
        """Note how long the WAL is after a commit; on the writer's thread, and never waiting."""
        if pages < self._pages:  # it has begun anew
            self._due = WAL_PAGES
        self._pages = pages
        if pages >= self._due and not self._moving:
            self._moving = True
            self._thread.submit(self._move)

    def _move(self) -> None:
        try:
            reached("wal.before")
            for _ in range(ROUNDS):
                moved = self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
                if self._pages - moved < WAL_PAGES // 4:
                    break
            if self._pages >= WAL_LIMIT:
                with self.writing:
                    self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
                    self._pages = 0
            reached("wal.after")
        except apsw.IOError as error:
            end_process(self._path, error)
        except apsw.BusyError:
            log.warning("%s: WAL of %d pages: somebody reads it", self._path, self._pages)
        except apsw.FullError as error:
            log.warning("%s: WAL of %d pages not moved: %s", self._path, self._pages, error)
        except Exception:
            log.exception("%s: WAL not moved", self._path)
        finally:
            # Not at each commit from here on: whoever is in the way needs time to go.
            self._due = self._pages + WAL_PAGES
            self._moving = False

    def _checkpoint(self, mode: int) -> int:
        """Return how many pages of the WAL are in the database file now."""
        if self._connection is None:
            self._connection = connect(self._path, apsw.SQLITE_OPEN_READWRITE)
            make_durable(self._connection)
            self._connection.set_busy_timeout(READER_TIMEOUT)
        return self._connection.wal_checkpoint(mode=mode)[1]

    def close(self) -> None:
        """Finish what is being moved, and close the connection."""
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()


def end_process(path: Path, error: Exception) -> NoReturn:
    """End this process, because a write or a sync of a database has failed.

    After a failed sync nobody knows what is on the disk, and asking again would lie: the kernel
    has marked the pages clean. Recovery after a restart reads what is there.
    """
    log.critical("journal %s: %s; exiting", path, error)
    os._exit(74)
