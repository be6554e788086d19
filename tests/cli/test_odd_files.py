"""Files for `import-data`, and places for `export-data`, that a stranger might try."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from jormungandr.cli import main
from tests.cli.journals import written
from tests.cli.test_import_data import Import, give, kept, table
from tests.service.serving import QUIET, experience

__all__ = ["give"]

Capture = pytest.CaptureFixture[str]
NAMES = (
    "actor_id,episode_id,timestep,observation.x,observation.y,action,reward,"
    "next_observation.x,next_observation.y,terminated,truncated"
)
LINE = "a,e,0,1,2,0,0.5,2,3,false,false"


@pytest.mark.parametrize(
    ("names", "lines", "arguments", "message"),
    [
        (NAMES, [LINE.replace("0.5", "1_0")], [], "line 2, column 'reward': expected a number"),
        (NAMES, [LINE], ["--const", "split=train"], "--const: expected no split, which --split"),
        (NAMES, [LINE], ["--map", "reward=split"], "--map: expected no split, which --split says"),
        (
            NAMES,
            [LINE],
            ["--const", "observation=[1,2]"],
            "--map: expected observation whole, or by its elements, got both",
        ),
        (NAMES.replace(".x", ""), [LINE], [], "or by its elements, got both"),
    ],
)
def test_what_could_be_read_in_two_ways(
    give: Import,
    tmp_path: Path,
    capsys: Capture,
    names: str,
    lines: list[str],
    arguments: list[str],
    message: str,
) -> None:
    """It is refused, and nothing is sent."""
    file = table(tmp_path / "x.csv", names, *lines)
    assert give(file, "--split", "validation", *arguments, spec=QUIET) == 1

    assert message in capsys.readouterr().err
    assert kept(tmp_path / "service") == []


def test_an_element_that_no_column_has(give: Import, tmp_path: Path) -> None:
    """One that is the same throughout may be said with --const."""
    names, line = NAMES.replace("observation.y,", "", 1), LINE.replace(",2,0,", ",0,")
    file = table(tmp_path / "x.csv", names, line)
    whole = table(tmp_path / "whole.csv", NAMES, LINE)
    assert give(file, "--split", "train", "--const", "observation.y=2", spec=QUIET) == 0
    assert give(whole, "--split", "train", model="n", spec=QUIET) == 0

    (one,), (other,) = kept(tmp_path / "service"), kept(tmp_path / "service", "n")
    assert one == other


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_no_line_of_names(give: Import, tmp_path: Path, capsys: Capture, content: str) -> None:
    """A CSV file without any is no file of no transitions."""
    (tmp_path / "x.csv").write_text(content)
    assert give(tmp_path / "x.csv", "--split", "train", spec=QUIET) == 1

    message = "FILE: expected a line with the names of columns, got an empty file"
    assert message in capsys.readouterr().err


def test_columns_of_one_name(give: Import, tmp_path: Path, capsys: Capture) -> None:
    """Of two columns of one name in a Parquet file neither is taken."""
    pa: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    columns = [pa.array([1.0]), pa.array([2.0])]
    parquet.write_table(pa.table(columns, names=["reward", "reward"]), tmp_path / "x.parquet")
    assert give(tmp_path / "x.parquet", "--split", "train", spec=QUIET) == 1

    assert "expected different names of columns, got ['reward']" in capsys.readouterr().err


def test_a_specification_that_is_too_deep(tmp_path: Path, capsys: Capture) -> None:
    """It is refused like one that is no JSON."""
    file = table(tmp_path / "x.csv", NAMES, LINE)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    arguments = ["--url", "http://127.0.0.1:9", "--model", "m", "--split", "train"]
    given = ["import-data", str(file), *arguments, "--spec", str(tmp_path / "deep.json")]
    assert main(given) == 1

    assert "--spec: expected a JSON file" in capsys.readouterr().err


# -- out ----------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A directory with a model of a few rows."""
    return str(written(tmp_path / "data", QUIET, experience(2, 3)))


def test_through_a_link(data: str, tmp_path: Path, capsys: Capture) -> None:
    """What a link leads to is written or refused, and the link stays."""
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "file.csv")
    assert main(["export-data", data, "m", str(link)]) == 0
    first = (tmp_path / "file.csv").read_bytes()
    assert main(["export-data", data, "m", str(link)]) == 1
    assert main(["export-data", data, "m", str(link), "--overwrite", "--after", "2"]) == 0

    assert link.is_symlink()
    assert (tmp_path / "file.csv").read_bytes() != first
    assert f"in {link}" in capsys.readouterr().out


def test_no_file(data: str, tmp_path: Path, capsys: Capture) -> None:
    """A pipe or a device is not replaced by a file, not even with --overwrite."""
    os.mkfifo(tmp_path / "pipe.csv")
    assert main(["export-data", data, "m", str(tmp_path / "pipe.csv"), "--overwrite"]) == 1

    assert "OUT: expected a new file, or --overwrite" in capsys.readouterr().err
    assert (tmp_path / "pipe.csv").is_fifo()


def test_a_position_that_is_none(data: str, tmp_path: Path, capsys: Capture) -> None:
    """Rows are after 0 at the earliest."""
    assert main(["export-data", data, "m", str(tmp_path / "x.csv"), "--after", "-5"]) == 1

    assert "--after: expected >= 0, got -5" in capsys.readouterr().err


def test_a_model_is_no_pattern(data: str, tmp_path: Path, capsys: Capture) -> None:
    """A name with a star in it names nothing."""
    assert main(["export-data", data, "m*", str(tmp_path / "x.csv")]) == 1

    assert "MODEL: expected one of ['m'], got 'm*'" in capsys.readouterr().err


def test_a_place_for_curves_is_looked_at_first(data: str, capsys: Capture) -> None:
    """`replay` finds out before it trains that it cannot write."""
    assert main(["replay", data, "m", "--json", "/no/such/place.json"]) == 1

    captured = capsys.readouterr()
    assert "--json: expected a file that can be written" in captured.err
    assert captured.out == ""


def test_one_side_without_updates(data: str, tmp_path: Path, capsys: Capture) -> None:
    """What could not learn is said to, and not that nothing was held out."""
    source = str(
        written(
            tmp_path / "other",
            {
                **QUIET,
                "pacing": {"learning_starts": 4},
                "validation": {"evaluate_every": 1},
                "c51": {**QUIET["c51"], "batch_size": 4},
            },
            experience(8, 4),
        )
    )
    assert main(["replay", source, "m", "--set", "pacing.learning_starts=1000"]) == 0

    assert "the new specification made no updates to evaluate" in capsys.readouterr().out
