"""A run: rows one after another, each case told and kept as soon as it is measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.speed.kit import Kit, Row
from benchmarks.speed.machine import described
from benchmarks.speed.peers import Peers
from benchmarks.speed.report import told
from benchmarks.speed.results import Result, append
from benchmarks.speed.timing import Case, interleaved

__all__ = ["measure", "perform"]


def perform(
    rows: Iterable[Row],
    peers: Peers,
    folder: Path,
    *,
    quick: bool,
    results: Path | None,
    began: str,
) -> list[Result]:
    """Measure rows; print each case, and append it.

    Args:
        rows: to be measured.
        peers: their environment.
        folder: an empty one.
        quick: whether to look once.
        results: the file; None keeps nothing.
        began: names the run.
    """
    import torch

    torch.set_num_threads(1)
    kit = Kit(quick, folder, peers)
    machine = described(peers.versions())
    found = []
    for row in rows:
        for case in row(kit):
            result = measure(case, case.rounds or kit.rounds, began, machine)
            found.append(result)
            print(told(result), flush=True)
            if results is not None:
                append(result, results)
    return found


def measure(case: Case, rounds: int, began: str, machine: dict[str, object]) -> Result:
    """Measure one case."""
    measured, failed = interleaved(case.contenders, rounds)
    return Result(
        run=began,
        case=case.name,
        title=case.title,
        unit=case.unit,
        measured=tuple(measured),
        absent={**case.absent, **failed},
        noted=case.noted(),
        machine=machine,
    )
