"""`Heartbeat`: a few words of memory in which a learner process shows that it gets on.

The gateway makes them, the learner process writes, the gateway reads, and no message is needed: a
process that is stopped, or whose channel is full, cannot pretend to be well. They stay readable
after its end, and so say which row it was applying.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
from typing import Self

__all__ = ["PHASES", "Heartbeat"]

#: What a learner process may be doing, in the order of their numbers in memory.
PHASES = (
    "importing",
    "recovering",
    "idle",
    "applying",
    "updating",
    "evaluating",
    "checkpointing",
    "publishing",
)

_BYTES = 24
_COUNTER, _PHASE, _LSN = range(3)


class Heartbeat:
    """A counter, a phase and the position of the row being applied, each one aligned word.

    Args:
        fd: of `_BYTES` of memory or file; closed by `close`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _BYTES)
        self._words = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls) -> Self:
        """Return a new one, at its first phase."""
        if sys.platform == "linux":
            fd = os.memfd_create("heartbeat", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, _BYTES)
            # Without the seals a learner could cut the file, and the gateway die of reading it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        else:
            with tempfile.TemporaryFile() as file:
                file.truncate(_BYTES)
                fd = os.dup(file.fileno())
        return cls(fd)

    def beat(self, phase: str | None = None, lsn: int | None = None) -> None:
        """Show progress.

        Args:
            phase: what begins or goes on; None leaves it.
            lsn: of the row being applied, 0 for none; None leaves it.
        """
        if lsn is not None:
            self._words[_LSN] = lsn
        if phase is not None:
            self._words[_PHASE] = PHASES.index(phase)
        self._words[_COUNTER] += 1

    @property
    def counter(self) -> int:
        """Beats so far."""
        return self._words[_COUNTER]

    @property
    def phase(self) -> str:
        """What the process says it is doing; "unknown" when it says nonsense."""
        number = self._words[_PHASE]
        return PHASES[number] if 0 <= number < len(PHASES) else "unknown"

    @property
    def lsn(self) -> int:
        """Position of the row being applied, 0 when there is none."""
        return self._words[_LSN]

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._memory.close()
        os.close(self.fd)
