"""Targets are judged by what was measured, and by nothing where nothing was."""

from __future__ import annotations

import pytest

from benchmarks.speed.report import BLOCK, PAGE
from benchmarks.speed.results import RESULTS, Result, append, known, newest
from benchmarks.speed.targets import TARGETS, Target, judged, number
from benchmarks.speed.timing import UNITS, Measured

OURS = Measured("ours", "ours", (100.0, 110.0, 120.0))
SLOW = Measured("slow", "peer", (50.0, 50.0, 40.0))


def result(*measured: Measured, **fields: object) -> Result:
    """Return a result of a case."""
    given = {"run": "r", "case": "c", "title": "work", "unit": "updates/s", **fields}
    return Result(**given, measured=measured)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "met", "text"),
    [
        (Target("c", ">=", 2, "slow"), True, "2.20 × [2.00, 3.00]"),
        (Target("c", ">=", 2.5, "slow"), False, "2.20 × [2.00, 3.00]"),
        (Target("c", "<=", 2.5, "slow"), True, "2.20 × [2.00, 3.00]"),
        (Target("c", ">=", 110), True, "110 [100, 120]"),
        (Target("c", "<=", 109), False, "110 [100, 120]"),
        (Target("c", "<=", 0.5, "ours", who="slow"), True, "0.45 × [0.33, 0.50]"),
        (Target("c", ">=", 2, "gone"), None, "not measured: gone: failed: no wheel"),
        (Target("c", ">=", 2, "slow", who="other"), None, "not measured: other: not in this run"),
    ],
)
def test_verdicts(target: Target, met: bool | None, text: str) -> None:
    """The median of the turns decides; without a figure there is no verdict."""
    found = target.judge(result(OURS, SLOW, absent={"gone": "failed: no wheel"}))

    assert (found.met, found.text) == (met, text)


def test_words() -> None:
    """A target says whom it is over, and of whom it is if not of ours."""
    assert Target("c", ">=", 4, "Tianshou").text("updates/s") == "≥ 4 × Tianshou"
    assert Target("c", "<=", 15).text("µs") == "≤ 15.0 µs"
    assert Target("c", "<=", 0.6, "T", who="ours [fast]").text("") == "ours [fast]: ≤ 0.6 × T"
    assert judged(result(OURS)) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0123, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (99.96, "100"),
        (5e6, "5,000,000"),
    ],
)
def test_numbers_have_the_digits_that_count(value: float, text: str) -> None:
    """Three of them, or all before the point."""
    assert number(value) == text


def test_results_survive_the_file(tmp_path: object) -> None:
    """A line is read as it was written, to six digits; of each case the last one counts."""
    path = tmp_path / "speed.jsonl"  # type: ignore[operator]
    at = Measured("ours", "ours", (1 / 3,), "about", 10.0)
    append(result(at, absent={"x": "why"}, noted={"n": 1.5}, machine={"cores": 2}), path)
    append(result(OURS), path)

    first, last = known(path)
    assert first.measured == (Measured("ours", "ours", (0.333333,), "about", 10.0),)
    assert (first.absent, first.noted, first.machine) == ({"x": "why"}, {"n": 1.5}, {"cores": 2})
    assert newest([first, last]) == {"c": last}
    assert known(tmp_path / "none.jsonl") == []  # type: ignore[operator]


def test_every_target_has_its_place_in_the_document() -> None:
    """docs/performance.md shows each case that a target is of; units are known."""
    text = (RESULTS.parents[2] / "docs" / PAGE).read_text("utf-8")
    shown = {match[2] for match in BLOCK.finditer(text)}

    assert {target.case for target in TARGETS} <= shown
    assert all(found.unit in UNITS for found in known())
