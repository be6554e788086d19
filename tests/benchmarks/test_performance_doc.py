"""docs/performance.md is what the results say between its marks, and ours outside of them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.speed.curves import CURVES
from benchmarks.speed.report import BLOCK, PAGE, document, plots, told
from benchmarks.speed.results import Result, known, newest
from benchmarks.speed.timing import Measured

DOCS = Path(__file__).parents[2] / "docs"


def made(case: str, *measured: Measured, **fields: object) -> Result:
    """Return a result."""
    given = {"run": "2026-01-01T00:00:00Z", "title": "the work", "unit": "updates/s", **fields}
    return Result(case=case, measured=measured, **given)  # type: ignore[arg-type]


OURS = Measured("ours", "ours", (400.0, 410.0, 420.0), "all of it")
PEER = Measured("SB3 DQN", "peer", (200.0, 205.0, 210.0), "its own")
LIMIT = Measured("limit: closed form", "limit", (800.0, 820.0, 840.0), "products in NumPy")


def test_the_document_is_what_the_results_say() -> None:
    """Generated parts and plots are those of benchmarks/results/speed.jsonl, to the byte."""
    text, found = (DOCS / PAGE).read_text("utf-8"), newest(known())

    assert document(text, found) == text
    files = plots(found)
    for name, picture in files.items():
        assert (DOCS / name).read_text("utf-8") == picture, name
    there = {f"plots/speed/{path.name}" for path in (DOCS / "plots" / "speed").glob("*.svg")}
    assert there == set(files)


def test_every_case_is_shown() -> None:
    """No case of the results is without a place in the document."""
    shown = {match[2] for match in BLOCK.finditer((DOCS / PAGE).read_text("utf-8"))}

    assert set(newest(known())) <= shown
    assert set(CURVES) <= shown


def test_what_is_between_the_marks_is_replaced_and_nothing_else() -> None:
    """The words around a block stay; a second time changes nothing."""
    text = "# A\n\n<!-- speed: update-small -->\nold\n<!-- end -->\n\nwords | of ours\n"
    found = {"update-small": made("update-small", OURS, PEER, LIMIT)}
    once = document(text, found)

    assert once.startswith("# A\n\n<!-- speed: update-small -->\n")
    assert once.endswith("<!-- end -->\n\nwords | of ours\n")
    assert "old" not in once
    assert "| ours | 410 [400, 420] |  | all of it |" in once
    assert "| SB3 DQN | 205 [200, 210] | 2.00 [2.00, 2.00] | its own |" in once
    assert document(once, found) == once


def test_targets_tell_misses_and_what_was_not_measured() -> None:
    """A miss is bold, with its figure; an absent peer leaves a target open, with the reason."""
    text = "<!-- speed: targets -->\n<!-- end -->"
    lacking = {"Tianshou C51 + PER": "failed: no wheel"}
    missed = Measured("ours", "ours", (300.0, 300.0, 300.0))
    found = document(text, {"update-small": made("update-small", missed, PEER, absent=lacking)})

    assert "| the work | ≥ 1.7 × SB3 DQN | 1.46 × [1.43, 1.50] | **missed** |" in found
    assert (
        "| the work | ≥ 4 × Tianshou C51 + PER | not measured: Tianshou C51 + PER: failed" in found
    )
    assert "| http-one | ≤ 1.3 × bare ASGI + forward | not measured | – |" in found


def test_a_curve_has_a_table_and_a_plot() -> None:
    """A case with an axis shows the medians along it, and a picture with a line for each name."""
    lines = [
        Measured(name, "ours", (factor * x, 2 * factor * x, 3 * factor * x), "", x)
        for name, factor in (("over HTTP", 2.0), ("in process", 1.0))
        for x in (1.0, 16.0, 256.0)
    ]
    result = made("growth-inference", *lines, unit="µs")
    text = document("<!-- speed: growth-inference -->\n<!-- end -->", {result.case: result})

    assert "| µs, by observations in a request | 1 | 16 | 256 |" in text
    assert "| over HTTP | 4.00 | 64.0 | 1,024 |" in text
    (picture,) = plots({result.case: result}).values()
    root = ElementTree.fromstring(picture)
    assert len(root.findall("{*}polyline")) == 2
    assert [t.text for t in root.findall("{*}text")].count("observations in a request") == 1
    assert "over HTTP at 16" in told(result)


def test_a_terminal_is_told_what_a_limit_is_made_of() -> None:
    """Each limit is followed by its ingredients, each target by its verdict."""
    said = told(made("update-small", OURS, PEER, LIMIT, noted={"backlog": 3}))

    assert "made of: products in NumPy" in said
    assert "ours is 0.50 × that" in said
    assert "ok   ≥ 1.7 × SB3 DQN: 2.00 × [2.00, 2.00]" in said
    assert "backlog: 3" in said


@pytest.mark.parametrize("name", ["hostname", "/home", "/work", "/tmp"])
def test_results_name_no_host_and_no_folder(name: str) -> None:
    """What is kept of the machine is what decides speed."""
    assert not any(name in str(result.machine) for result in known())
