"""`EvaluationLog`: the evaluations of one training, in order, and in a file if there is one."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from jormungandr.cli.train_files import replace_file, writable
from jormungandr.errors import CheckpointError

__all__ = ["Evaluated", "EvaluationLog"]


class Evaluated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One evaluation during training.

    Args:
        step: training steps before it.
        updates: of the policy.
        policy_version: of the policy.
        episodes: that were played.
        mean, low, high: of their returns, the mean with its 95 % interval.
        worst: return of them.
        length: steps of an episode, on average.
        seconds: of training so far, evaluations left out.
        digest: of the policy.
    """

    step: int
    updates: int
    policy_version: int
    episodes: int
    mean: float
    low: float
    high: float
    worst: float
    length: float
    seconds: float
    digest: str


class EvaluationLog:
    """The evaluations of one training so far.

    Args:
        file: one JSON object a line; None keeps none.
        step: evaluations after it are forgotten: they come again.

    Raises:
        CheckpointError: the file has other lines.
    """

    def __init__(self, file: Path | None, step: int) -> None:
        self._file = file
        self.all: list[Evaluated] = []
        if file is None:
            return
        data = file.read_bytes() if file.exists() else b""
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # half of one: its process was killed
                break
            try:
                evaluated = msgspec.json.decode(line, type=Evaluated)
            except msgspec.MsgspecError as error:
                raise CheckpointError(str(file), "one evaluation a line", error) from None
            if evaluated.step > step:
                break
            self.all.append(evaluated)
        whole = b"".join(_line(evaluated) for evaluated in self.all)
        if whole != data:
            with writable():
                replace_file(file, whole)

    @property
    def best(self) -> Evaluated | None:
        """The one with the highest mean return; of several, the first."""
        return max(self.all, key=lambda evaluated: evaluated.mean, default=None)

    @property
    def last(self) -> Evaluated | None:
        """The newest one."""
        return self.all[-1] if self.all else None

    def add(self, evaluated: Evaluated) -> None:
        """Append one."""
        self.all.append(evaluated)
        if self._file is None:
            return
        with writable(), self._file.open("ab") as file:
            file.write(_line(evaluated))
            file.flush()
            os.fsync(file.fileno())


def _line(evaluated: Evaluated) -> bytes:
    return msgspec.json.encode(evaluated) + b"\n"
