"""docs/faults.md: every fault names a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[list[str]]:
    """Return the cells of every row of every table of the document, without the heads."""
    found = []
    for line in (ROOT / "docs" / "faults.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] != "fault":
            found.append(cells)
    return found


def functions(path: Path) -> set[str]:
    """Return the names of the tests of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: re.sub(r"\W+", "-", row[0])[:40])
def test_every_fault_names_a_test(row: list[str]) -> None:
    """A row says what happens, what is kept and which test makes it happen."""
    assert len(row) == 4, row
    assert all(row), row
    named = NAMED.findall(row[3])
    assert named, f"no test is named for: {row[0]}"
    for file, name in named:
        assert (ROOT / file).exists(), file
        assert name in functions(ROOT / file), f"{file} has no {name}"


def test_the_table_is_there() -> None:
    """The document has the faults of the table it came from, by number at least."""
    assert len(rows()) >= 30
