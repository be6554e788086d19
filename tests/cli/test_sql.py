"""``jormungandr sql``: questions to a journal, which can change nothing."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jormungandr.cli import main
from jormungandr.service.journal.database import VersionRow
from tests.cli.journals import Written, written
from tests.cli.test_export_data import FULL, IMAGE, full_step
from tests.service.serving import QUIET, SPEC, experience

Capture = pytest.CaptureFixture[str]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
#: The documented questions, by the words before them.
QUESTIONS = dict(
    re.findall(r"^([^\n]+):\n\n```sql\n(SELECT .*?)```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
)


def ask(data_dir: Path, statement: str, *arguments: str, model: str = "m") -> int:
    """Run the command."""
    return main(["sql", str(data_dir), model, statement, *arguments])


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model that two actors sent to, under four policies."""
    path = tmp_path_factory.mktemp("data")
    spec = {**QUIET, "staleness": {"max_policy_lag": 2, "mode": "drop", "stale_share": 0.0}}
    with Written(path, spec) as journal:
        for version in range(4):
            journal.control(VersionRow(version, version, 0, f"digest {version}", f"file {version}"))
            for actor, lag in (("a", 0), ("b", version)):
                rows = experience(1, 2, actor_id=actor, seed=version)
                for row in rows:
                    row |= {
                        "policy_version": version - lag,
                        "episode_id": f"e{version}",
                        "behavior_prob": 0.5,
                        "reward": float(version),
                    }
                journal.add(rows, served=version)
    return path


def result(capsys: Capture) -> list[dict[str, str]]:
    """Return what a command printed as CSV."""
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


EXPECTED: dict[str, list[dict[str, str]]] = {
    "Who sent what, by requests": [
        {"actor": "a", "requests": "4", "first": "3", "last": "12"},
        {"actor": "b", "requests": "4", "first": "4", "last": "13"},
    ],
    "What became of it, for each actor": [
        {"actor_id": "a", "split": "train", "sent": "8", "accepted": "8", "share": "1.0"},
        {"actor_id": "b", "split": "train", "sent": "8", "accepted": "6", "share": "0.75"},
    ],
    "How far behind the newest policy the actions were, where they were this model's": [
        {"actor_id": "a", "mean_lag": "0.0", "longest": "0"},
        {"actor_id": "b", "mean_lag": "1.5", "longest": "3"},
    ],
    "Returns by policy version, of whole episodes": [
        {"version": "0", "episodes": "5", "mean_return": "2.4"},
        {"version": "1", "episodes": "1", "mean_return": "2.0"},
        {"version": "2", "episodes": "1", "mean_return": "4.0"},
        {"version": "3", "episodes": "1", "mean_return": "6.0"},
    ],
    "Which versions were served, and what they had read": [
        {
            "version": str(v),
            "update_count": str(v),
            "applied_lsn": "0",
            "recorded_at": str(2 + 3 * v),
        }
        for v in (3, 2, 1, 0)
    ],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_documented_questions(data_dir: Path, capsys: Capture, question: str) -> None:
    """Each question in docs/journal.md is answered, and where that is written here, so."""
    assert ask(data_dir, QUESTIONS[question], "--format", "csv") == 0
    found = result(capsys)

    assert len(found) > 0
    assert EXPECTED.get(question, found) == found


def test_the_questions_that_are_answered_here_are_documented() -> None:
    """No answer stands for a question that has gone."""
    assert EXPECTED.keys() <= QUESTIONS.keys()
    assert len(QUESTIONS) == 7


def test_documented_specification(data_dir: Path, capsys: Capture) -> None:
    """What --spec takes is in the create row."""
    (statement,) = (sql for words, sql in QUESTIONS.items() if "--spec" in words)
    assert ask(data_dir, statement, "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)

    assert json.loads(row["spec"])["staleness"]["max_policy_lag"] == 2


def test_transitions_are_what_is_exported(tmp_path: Path, capsys: Capture) -> None:
    """The table ``transitions`` has the columns and values of export-data, late labels too."""
    with Written(tmp_path / "data", FULL) as journal:
        journal.add([full_step(0, behavior_prob=0.5), full_step(1, label=1)], served=4)
        journal.label([{"actor_id": "ψ", "episode_id": "e,1", "timestep": 0, "label": 0}])
        journal.add([full_step(2, policy_version=0)], served=4)
    assert main(["export-data", str(tmp_path / "data"), "m", str(tmp_path / "m.jsonl")]) == 0
    capsys.readouterr()
    assert ask(tmp_path / "data", "SELECT * FROM transitions", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)

    for row, line in zip(found, (tmp_path / "m.jsonl").read_text().splitlines(), strict=True):
        step = json.loads(line)
        for field, names in (
            ("observation", ("x", "a, b")),
            ("next_observation", ("x", "a, b")),
            ("next_action_mask", ("HOLD", "GO")),
        ):
            step |= {f"{field}.{n}": v for n, v in zip(names, step.pop(field), strict=True)}
        assert row == step


def test_images_are_left_out_of_transitions(tmp_path: Path, capsys: Capture) -> None:
    """A picture is no value of SQL; the rest of a step is."""
    black = [[0] * 36] * 40
    row = full_step(0, policy_version=-1, observation=black, next_observation=black)
    del row["next_action_mask"]
    written(tmp_path / "data", IMAGE, [row])

    assert ask(tmp_path / "data", "SELECT * FROM transitions", "--format", "csv") == 0
    (found,) = result(capsys)
    assert found["action_label"] == "1"
    assert not any("observation" in name for name in found)


# -- formats ------------------------------------------------------------------------------------

VALUES = "SELECT 1 AS n, 'ü, x' AS text, NULL AS none, x'00ff' AS bytes, 0.5 AS half"


def test_table(data_dir: Path, capsys: Capture) -> None:
    """Aligned columns; nothing is blank, bytes are counted."""
    assert ask(data_dir, f"{VALUES} UNION ALL SELECT 100, '', 1, x'', 2") == 0
    assert capsys.readouterr().out == (
        "n    text  none  bytes      half\n"
        "1    ü, x        (2 bytes)  0.5\n"
        "100        1     (0 bytes)  2\n"
    )


def test_long_and_wide_tables(data_dir: Path, capsys: Capture) -> None:
    """Rows beyond those that decide the widths are printed too, and a wide cell whole."""
    count = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000)"
    assert ask(data_dir, f"{count} SELECT n, 'x' AS x FROM c") == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[1], lines[1000]) == (1001, "1    x", "1000  x")
    assert ask(data_dir, "SELECT printf('%.*c', 100, 'y') AS y, 1 AS z") == 0
    assert capsys.readouterr().out.splitlines()[1] == "y" * 100 + "  1"


def test_csv_and_json(data_dir: Path, capsys: Capture) -> None:
    """Bytes are hexadecimal; no row at all is no line, and an empty list."""
    assert ask(data_dir, VALUES, "--format", "csv") == 0
    assert capsys.readouterr().out == 'n,text,none,bytes,half\n1,"ü, x",,00ff,0.5\n'
    assert ask(data_dir, f"{VALUES} UNION ALL {VALUES}", "--format", "json") == 0
    row = {"n": 1, "text": "ü, x", "none": None, "bytes": "00ff", "half": 0.5}
    assert json.loads(capsys.readouterr().out) == [row, row]
    assert ask(data_dir, f"{VALUES} LIMIT 0", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert ask(data_dir, f"{VALUES} LIMIT 0", "--format", "csv") == 0
    assert capsys.readouterr().out == "n,text,none,bytes,half\n"


# -- nothing but reading ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM journal",
        "INSERT INTO meta VALUES ('x', 'y', 0)",
        "UPDATE journal SET lsn = lsn + 1",
        "WITH x AS (SELECT 1) DELETE FROM meta",
        "DROP TABLE ledger",
        "CREATE TABLE x (y)",
        "CREATE TEMP TABLE x (y)",
        "CREATE VIRTUAL TABLE temp.x USING transitions",
        "ATTACH DATABASE ':memory:' AS x",
        "DETACH DATABASE main",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode",
        "SELECT * FROM pragma_table_info('journal')",
        "SELECT load_extension('x')",
        "VACUUM INTO '{folder}/copy'",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "SAVEPOINT x",
        "INSERT INTO transitions VALUES (1)",
        "SELECT 1; DELETE FROM journal",
        "SELECT 1; SELECT 2",
        "SELECT nothing FROM nowhere",
        "SELEC",
        "",
        "-- a comment",
    ],
)
def test_refused(tmp_path: Path, capsys: Capture, statement: str) -> None:
    """Whatever is no single SELECT is refused, and the directory is as it was."""
    data_dir = written(tmp_path / "data", SPEC, experience(1, 3))
    before = (data_dir / "models" / "m.1" / "journal.db").read_bytes()

    assert ask(data_dir, statement.format(folder=tmp_path)) == 1
    assert "jormungandr sql: SQL: expected " in capsys.readouterr().err
    assert (data_dir / "models" / "m.1" / "journal.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_error_on_the_way(data_dir: Path, capsys: Capture) -> None:
    """A question that fails in the middle says so."""
    assert ask(data_dir, "SELECT json(content || iif(lsn > 1, 'x', '')) FROM controls") == 1
    assert "SQL: expected a SELECT that SQLite can run, got malformed JSON" in (
        capsys.readouterr().err
    )


def test_a_deleted_model_has_its_record(tmp_path: Path, capsys: Capture) -> None:
    """What stays of a deleted model can be asked for, and earlier generations by number."""
    with Written(tmp_path / "data", SPEC) as journal:
        journal.add(experience(1, 2))
        journal.journal.delete(17)
    Written(tmp_path / "data", SPEC, "m.2", first_version=18).journal.close()

    assert ask(tmp_path / "data", "SELECT kind FROM controls", "--format", "csv", model="m.1") == 0
    assert [row["kind"] for row in result(capsys)] == ["create", "delete"]
    assert ask(tmp_path / "data", "SELECT * FROM transitions", model="m.1") == 1
    assert "expected a model that lives" in capsys.readouterr().err
    assert ask(tmp_path / "data", "SELECT kind FROM controls", "--format", "csv") == 0
    assert [row["kind"] for row in result(capsys)] == ["create"]


def test_beside_a_writer(tmp_path: Path, capsys: Capture) -> None:
    """A journal that a service writes to can be asked, and its writer goes on."""
    statement = "SELECT count(*) AS n FROM transitions"
    with Written(tmp_path / "data", SPEC) as journal:
        counts: list[Any] = []
        for row in experience(1, 3):
            journal.add([row])
            assert ask(tmp_path / "data", statement, "--format", "csv") == 0
            counts += [row["n"] for row in result(capsys)]

    assert counts == ["1", "2", "3"]
