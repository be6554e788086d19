"""``jormungandr export-data``: every transition with its provenance, in three formats."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jormungandr import ModelSpec
from jormungandr.cli import main
from jormungandr.columns import columns
from jormungandr.service.journal.database import SkipRow
from jormungandr.service.tools import stored as stored_module
from jormungandr.service.tools.stored import StoredModel
from jormungandr.service.tools.tables import _texts
from tests.cli.journals import Written, written
from tests.service.serving import QUIET, SPEC, experience

Capture = pytest.CaptureFixture[str]

#: A model with everything that a column can be of.
FULL: dict[str, Any] = {
    "observation": {"features": ["x", "a, b"]},
    "actions": [{"label": "HOLD", "value": 0}, {"label": "GO", "value": 1}],
    "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1},
    "action_masks": True,
    "staleness": {"max_policy_lag": 1, "mode": "drop", "stale_share": 0.0},
    "pacing": {"learning_starts": 1_000_000},
}


def full_step(timestep: int, **fields: Any) -> dict[str, Any]:
    """Return a transition of that model."""
    return {
        "actor_id": "ψ",
        "episode_id": "e,1",
        "timestep": timestep,
        "split": "train",
        "policy_version": 4,
        "observation": [0.1, -2.5],
        "action": 1,
        "reward": 1e-8,
        "next_observation": [3.0, 16777216.0],
        "terminated": False,
        "truncated": False,
        "next_action_mask": [True, False],
        **fields,
    }


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A directory with such a model: one transition stale, one labelled inline, one later."""
    with Written(tmp_path / "data", FULL) as journal:
        journal.add([full_step(0, behavior_prob=0.3), full_step(1, label="UP")], served=4)
        journal.label([{"actor_id": "ψ", "episode_id": "e,1", "timestep": 0, "label": "DOWN"}])
        end = full_step(2, policy_version=1, terminated=True)
        held_out = full_step(0, episode_id="v", split="validation", policy_version=-1)
        journal.add([end, held_out], served=5)
    return tmp_path / "data"


def export(data_dir: Path, out: Path, *arguments: str) -> int:
    """Run the command."""
    return main(["export-data", str(data_dir), "m", str(out), *arguments])


def test_csv(full: Path, tmp_path: Path, capsys: Capture) -> None:
    """One line per transition: provenance, outcome, every element by name, later labels too."""
    assert export(full, tmp_path / "out.csv") == 0

    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == (
        "lsn,actor_id,episode_id,timestep,split,policy_version,behavior_prob,label,label_name,"
        'outcome,tags,observation.x,"observation.a, b",action,action_label,reward,'
        "next_observation.x,"
        '"next_observation.a, b",terminated,truncated,next_action_mask.HOLD,next_action_mask.GO\n'
        '2,ψ,"e,1",0,train,4,0.3,0,DOWN,accepted,,'
        "0.1,-2.5,1,GO,1e-08,3.0,1.6777216e+07,false,false,true,false\n"
        '2,ψ,"e,1",1,train,4,,1,UP,accepted,,'
        "0.1,-2.5,1,GO,1e-08,3.0,1.6777216e+07,false,false,true,false\n"
        '4,ψ,"e,1",2,train,1,,,,stale_dropped,,'
        "0.1,-2.5,1,GO,1e-08,3.0,1.6777216e+07,true,false,true,false\n"
        "4,ψ,v,0,validation,-1,,,,accepted,,"
        "0.1,-2.5,1,GO,1e-08,3.0,1.6777216e+07,false,false,true,false\n"
    )
    assert capsys.readouterr().out.startswith("4 transitions of m.1, up to row 4, in ")


def test_json_lines(full: Path, tmp_path: Path) -> None:
    """One object per line: a transition of the protocol, and what became of it."""
    assert export(full, tmp_path / "out.jsonl") == 0
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    first, second, *_ = map(json.loads, lines)

    assert len(lines) == 4
    extra = {"lsn": 2, "label_name": "UP", "action_label": "GO", "outcome": "accepted"}
    float32 = {"observation": [float(np.float32(0.1)), -2.5], "reward": float(np.float32(1e-8))}
    assert second == full_step(1, label=1, behavior_prob=None, tags=None, **float32) | extra
    step = {name: value for name, value in first.items() if name not in extra}
    assert columns([step], ModelSpec.from_dict(FULL)).digests().tolist() == (
        columns([full_step(0, behavior_prob=0.3)], ModelSpec.from_dict(FULL)).digests().tolist()
    )


def test_parquet(full: Path, tmp_path: Path) -> None:
    """Typed columns with the values of the CSV file, and the model in the metadata."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert export(full, tmp_path / "out.parquet") == 0
    assert export(full, tmp_path / "out.csv") == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))

    kinds = {field.name: str(field.type) for field in table.schema}
    assert list(kinds) == list(lines[0])
    assert set(kinds.values()) == {"int64", "int32", "float", "string", "bool"}
    read: dict[str, Any] = {
        "int64": int,
        "int32": int,
        "float": lambda text: float(np.float32(text)),
        "string": str,
        "bool": "true".__eq__,
    }
    assert table.to_pylist() == [
        {name: read[kinds[name]](text) if text else None for name, text in line.items()}
        for line in lines
    ]
    about = json.loads(table.schema.metadata[b"jormungandr"])
    assert (about["model_id"], about["generation"]) == ("m", 1)
    assert ModelSpec.from_dict(about["spec"]) == ModelSpec.from_dict(FULL)


@given(hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False)))
def test_numbers_read_back_to_the_same_bits(values: Any) -> None:
    """The text of a float32 in a CSV file is that number, through a double too."""
    back = np.array([float(text) for text in _texts(values)]).astype(np.float32)

    assert back.tobytes() == values.tobytes()


IMAGE: dict[str, Any] = {
    "observation": {"shape": [40, 36], "dtype": "uint8"},
    "actions": 2,
    "replay": {"capacity": 8},
    "validation": {"capacity": 8},
    "pacing": {"learning_starts": 1_000_000},
}


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, list[Any]]:
    """A directory with a model of images, and what it was sent."""
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 256, (4, 40, 36), dtype=np.uint8)
    rows = [
        {
            **full_step(t, policy_version=-1, observation=seen[t], next_observation=seen[t + 1]),
            "episode_id": "e",
        }
        for t in range(3)
    ]
    for row in rows:
        del row["next_action_mask"]
    return written(tmp_path / "data", IMAGE, rows, 2), rows


def test_images(pictures: tuple[Path, list[Any]], tmp_path: Path, capsys: Capture) -> None:
    """CSV says that it holds no images; the others hold them as arrays of the same bytes."""
    parquet = pytest.importorskip("pyarrow.parquet")
    data_dir, rows = pictures

    assert export(data_dir, tmp_path / "out.csv") == 1
    assert "--format: expected parquet or jsonl, for images, got csv, of [40, 36]" in (
        capsys.readouterr().err
    )
    assert [p.name for p in tmp_path.iterdir()] == ["data"]

    assert export(data_dir, tmp_path / "out.parquet") == 0
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for line, row in zip(table, rows, strict=True):
        assert line["observation"] == row["observation"].reshape(-1).tolist()
        assert line["next_observation"] == row["next_observation"].reshape(-1).tolist()

    assert export(data_dir, tmp_path / "out.jsonl") == 0
    lines = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    spec = ModelSpec.from_dict(IMAGE)
    ours = {"lsn", "label_name", "action_label", "outcome"}
    again = columns([{k: v for k, v in line.items() if k not in ours} for line in lines], spec)
    assert again.digests().tolist() == columns(rows, spec).digests().tolist()


def test_elements_without_names_go_by_their_index(tmp_path: Path) -> None:
    """Stacked frames and spaces without features have numbered elements."""
    spec = {**QUIET, "observation": {"features": ["x", "y"], "frame_stack": 2}}
    row = {**experience(1, 1)[0], "observation": [[1, 2], [3, 4]], "next_observation": [1, 2, 3, 4]}
    written(tmp_path / "data", spec, [row])

    assert export(tmp_path / "data", tmp_path / "out.csv") == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        (line,) = csv.DictReader(file)
    assert [line[f"observation.{i}"] for i in range(4)] == ["1.0", "2.0", "3.0", "4.0"]


def test_after(tmp_path: Path) -> None:
    """--after goes on where an earlier export ended, and a journal is read beside its writer."""
    with Written(tmp_path / "data", SPEC) as journal:
        for row in experience(1, 4):
            journal.add([row])
        assert export(tmp_path / "data", tmp_path / "all.csv") == 0
        assert export(tmp_path / "data", tmp_path / "rest.csv", "--after", "3") == 0
    whole = (tmp_path / "all.csv").read_text().splitlines()

    assert len(whole) == 5
    assert (tmp_path / "rest.csv").read_text().splitlines() == [whole[0], *whole[3:]]


def test_a_few_rows_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in SELECTs of a few, the next when those before have been dealt with."""
    written(tmp_path / "data", SPEC, experience(2, 10), 1)
    monkeypatch.setattr(stored_module, "ROWS", 3)
    limits, taken = [], 0
    with StoredModel(tmp_path / "data" / "models" / "m.1") as stored:
        read = stored._reader.rows

        def counted(after: int, limit: int) -> Any:
            limits.append((taken, limit))
            return read(after, limit)

        monkeypatch.setattr(stored._reader, "rows", counted)
        for _ in stored.transitions():
            taken += 1

    assert limits == [(n, 3) for n in range(0, 20, 3)]


def test_rows_that_were_set_aside_or_dropped_are_missing_and_said_so(
    tmp_path: Path, capsys: Capture
) -> None:
    """A quarantined row is left out, and so are rows that retention has dropped."""
    with Written(tmp_path / "data", SPEC) as journal:
        for row in experience(1, 4):
            journal.add([row])
        journal.control(SkipRow(3, "it ends whoever applies it"))
        journal.journal._write_meta("dropped", 2)
        journal.journal._writer.execute("DELETE FROM journal WHERE lsn = 2")
    assert export(tmp_path / "data", tmp_path / "out.csv") == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()

    assert [line.partition(",")[0] for line in lines] == ["lsn", "4", "5"]
    assert "rows before 3 are no longer in the journal" in capsys.readouterr().out


def test_a_damaged_row_leaves_no_file(tmp_path: Path, capsys: Capture) -> None:
    """What cannot be exported whole is not exported; a file that was there stays."""
    data_dir, out = written(tmp_path / "data", SPEC, experience(2, 6)), tmp_path / "out.csv"
    out.write_text("mine")
    with apsw.Connection(str(data_dir / "models/m.1/journal.db")) as connection:
        connection.execute("UPDATE journal SET payload = zeroblob(9) WHERE lsn = 3")
    connection.close()

    assert export(data_dir, out, "--overwrite") == 1
    assert "row 3: expected its recorded SHA-256" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "out.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m", "out"], "OUT: expected a name that ends with one of"),
        (["m", "data"], "OUT: expected a name that ends with one of"),
        (["m", "data", "--format", "csv"], "OUT: expected a new file, or --overwrite"),
        (["m", "is.csv"], "OUT: expected a new file, or --overwrite"),
        (["m", "nowhere/x.csv"], "OUT: expected a file that can be written"),
        (["n", "out.csv"], "MODEL: expected one of ['m'], got 'n'"),
        (["m.2", "out.csv"], "MODEL: expected one of ['m'], got 'm.2'"),
        (["../m", "out.csv"], "MODEL: expected one of ['m'], got '../m'"),
    ],
)
def test_refusals(tmp_path: Path, capsys: Capture, arguments: list[str], message: str) -> None:
    """What cannot be is one line that says why."""
    data_dir = written(tmp_path / "data", SPEC, experience(1, 2))
    (tmp_path / "is.csv").write_text("mine")
    model, out, *rest = arguments

    assert main(["export-data", str(data_dir), model, str(tmp_path / out), *rest]) == 1
    assert message in capsys.readouterr().err
    assert (tmp_path / "is.csv").read_text() == "mine"


def test_no_directory_and_no_model_any_more(tmp_path: Path, capsys: Capture) -> None:
    """A place that is no data directory stays as it is; a deleted model has no rows."""
    assert export(tmp_path / "nowhere", tmp_path / "out.csv") == 1
    assert "expected a data directory of a service" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with Written(tmp_path / "data", SPEC) as journal:
        journal.add(experience(1, 2))
        journal.journal.delete(0)

    assert export(tmp_path / "data", tmp_path / "out.csv") == 1
    assert "expected a model that lives" in capsys.readouterr().err


def test_without_pyarrow_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Parquet needs an extra, and says which."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    written(tmp_path / "data", SPEC, experience(1, 2))

    assert export(tmp_path / "data", tmp_path / "out.parquet") == 1
    assert 'pip install "jormungandr-rl[data]"' in capsys.readouterr().err
