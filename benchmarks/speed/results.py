"""Results: a JSON line for each case that was measured, in a file that only grows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lines import append_line, lines
from benchmarks.speed.timing import Measured

__all__ = ["RESULTS", "Result", "append", "known", "newest"]

RESULTS = Path(__file__).parents[1] / "results" / "speed.jsonl"


@dataclass(frozen=True)
class Result:
    """One case of one run.

    Args:
        run: when the run began, in UTC: what has the same was measured together.
        case, title, unit: of the case.
        measured: what the contenders measured.
        absent: by name, who did not take part, and why.
        noted: figures beside.
        machine: that it ran on, with the versions of what computed and the commit.
    """

    run: str
    case: str
    title: str
    unit: str
    measured: tuple[Measured, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    noted: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> Measured | None:
        """Return what one contender measured, if it did."""
        return next((one for one in self.measured if one.name == name), None)

    def why(self, name: str) -> str:
        """Return why a contender measured nothing."""
        return self.absent.get(name, "not in this run")


def append(result: Result, path: Path = RESULTS) -> None:
    """Add a result to the file, durably."""
    append_line(json.dumps(_rounded(asdict(result)), separators=(",", ":")), path)


def known(path: Path = RESULTS) -> list[Result]:
    """Return the results of a file, in their order."""
    found = []
    for fields in lines(path):
        measured = tuple(
            Measured(**{**one, "values": tuple(one["values"])}) for one in fields.pop("measured")
        )
        found.append(Result(**fields, measured=measured))
    return found


def newest(results: Iterable[Result]) -> dict[str, Result]:
    """Return the last result of each case."""
    return {result.case: result for result in results}


def _rounded(value: Any) -> Any:
    """Return figures with six digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value
