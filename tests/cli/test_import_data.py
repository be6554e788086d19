"""``jormungandr import-data``: logged data for a model, ours and foreign, with clear refusals."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from jormungandr import ModelSpec
from jormungandr.cli import import_data as module
from jormungandr.cli import main
from jormungandr.cli.steps import split_rule
from jormungandr.errors import Backlog
from jormungandr.outbox import Outbox
from jormungandr.protocol import Receipt, Transition
from jormungandr.service import learning as learning_module
from jormungandr.service.tools.stored import StoredModel, find_model
from tests.cli.journals import Written, written
from tests.cli.test_export_data import FULL, IMAGE, full_step
from tests.service.conftest import NoProcess
from tests.service.serving import QUIET, SPEC, connect, experience, identity, memory

Capture = pytest.CaptureFixture[str]
Import = Callable[..., int]


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """``give(FILE, …)``: import into a service in this process, whose data is in ``service``."""
    monkeypatch.setattr(learning_module, "LearnerProcess", NoProcess)
    with memory(tmp_path / "service") as http:
        monkeypatch.setattr(
            module, "RemoteLearner", lambda url, model_id, token: connect(http, model_id)
        )
        specs = tmp_path / "specs"
        specs.mkdir()

        def run(file: Path, *arguments: str, spec: Any = None, model: str = "m") -> int:
            given = ["--url", "http://here", "--model", model, *arguments]
            if "--split" not in arguments:
                given += ["--split", "column:split"]
            if spec is not None:
                path = specs / "spec.json"
                path.write_text(json.dumps(spec))
                given += ["--spec", str(path)]
            return main(["import-data", str(file), *given])

        yield run


def kept(data_dir: Path, model: str = "m") -> list[tuple[Any, ...]]:
    """Return (identity, split, version, digest, label) of every transition of a model."""
    found = []
    with StoredModel(find_model(data_dir, model)) as stored:
        for row in stored.transitions():
            c = row.columns
            for i, digest in enumerate(c.digests().tolist()):
                version, label = int(c.policy_version[i]), int(c.label[i])
                found.append((c.identity(i), int(c.split[i]), version, digest, label))
    return found


def table(path: Path, names: str, *lines: str) -> Path:
    """Write a CSV file."""
    path.write_text("\n".join([names, *lines]) + "\n")
    return path


# -- what export-data wrote ---------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_round_trip(give: Import, tmp_path: Path, form: str, capsys: Capture) -> None:
    """Exported and imported: the same identities, splits, labels and digests; again: all known."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    with Written(tmp_path / "data", SPEC) as journal:
        journal.add(experience(8, 40))
        journal.label([{**identity("a", "e7", 0), "label": "UP"}])
    file = tmp_path / f"m.{form}"
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0
    capsys.readouterr()

    assert give(file, spec=SPEC) == 0
    assert capsys.readouterr().out == (
        "320 transitions (240 train, 80 validation) to m:\n"
        "  320 accepted, 0 known already, 0 dropped as stale; durable at row 3\n"
    )
    assert kept(tmp_path / "service") == kept(tmp_path / "data")
    assert kept(tmp_path / "data")[280][4] == 1
    assert give(file) == 0
    assert "  0 accepted, 320 known already, " in capsys.readouterr().out
    assert len(kept(tmp_path / "service")) == 320


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_round_trip_of_masks_versions_and_probabilities(
    give: Import, tmp_path: Path, form: str, capsys: Capture
) -> None:
    """Versions are another model's and become -1; what was stale there is left out, and said."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    rows = [full_step(t, behavior_prob=0.3 if t else None, label=1) for t in range(3)]
    stale = full_step(3, policy_version=0)
    with Written(tmp_path / "data", FULL) as journal:
        journal.add([*rows, stale], served=5)
    with Written(tmp_path / "other", FULL) as journal:
        journal.add([{**row, "policy_version": -1} for row in rows])
    file = tmp_path / f"m.{form}"
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0

    assert give(file, spec=FULL) == 0
    assert kept(tmp_path / "service") == kept(tmp_path / "other")
    out = capsys.readouterr().out
    assert "  1 left out: dropped as stale where they were exported from" in out


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_round_trip_of_images(give: Import, tmp_path: Path, form: str) -> None:
    """Pixels come back as they were."""
    if form == "parquet":
        pytest.importorskip("pyarrow")
    seen = np.random.default_rng(0).integers(0, 256, (4, 40, 36), dtype=np.uint8)
    rows = [
        {**full_step(t, policy_version=-1, observation=seen[t], next_observation=seen[t + 1])}
        for t in range(3)
    ]
    for row in rows:
        del row["next_action_mask"]
    written(tmp_path / "data", IMAGE, rows)
    file = tmp_path / f"m.{form}"
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0

    assert give(file, spec=IMAGE) == 0
    assert kept(tmp_path / "service") == kept(tmp_path / "data")


def test_versions_of_the_same_model_are_kept_when_asked_to(
    give: Import, tmp_path: Path, capsys: Capture
) -> None:
    """With --keep-versions, what a model itself had written is known to it."""
    rows = [{**row, "policy_version": 0} for row in experience(1, 3)]
    written(tmp_path / "data", QUIET, rows)
    assert main(["export-data", str(tmp_path / "data"), "m", str(tmp_path / "m.csv")]) == 0

    assert give(tmp_path / "m.csv", "--keep-versions", spec=QUIET) == 0
    assert kept(tmp_path / "service") == kept(tmp_path / "data")
    assert give(tmp_path / "m.csv") == 1
    assert "m.csv, line 2: expected the content first sent" in capsys.readouterr().err


# -- foreign files ------------------------------------------------------------------------------

PLAIN = ("ep,o0,o1,a,r,done", "7,0.5,1,0,1.5,0", "7,1.5,2,2,2.5,0", "7,2.5,3,1,3.5,1")
MAPPED = [
    *("--map", "ep=episode_id", "--map", "o0=observation.x", "--map", "o1=observation.y"),
    *("--map", "a=action", "--map", "r=reward", "--map", "done=terminated"),
    *("--const", "actor_id=log", "--const", "truncated=false", "--split", "train"),
]


def stored_steps(data_dir: Path) -> list[tuple[Any, ...]]:
    """Return (timestep, observation, reward, next observation, terminated, truncated) of each."""
    found: list[tuple[Any, ...]] = []
    with StoredModel(find_model(data_dir, "m")) as stored:
        for row in stored.transitions():
            c = row.columns
            columns = (c.timestep, c.observation, c.reward, c.next_observation)
            found += zip(
                *(values.tolist() for values in (*columns, c.terminated, c.truncated)), strict=True
            )
    return found


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (
            "drop",
            [
                (0, [0.5, 1.0], 1.5, [1.5, 2.0], False, False),
                (1, [1.5, 2.0], 2.5, [2.5, 3.0], False, True),
            ],
        ),
        (
            "repeat",
            [
                (0, [0.5, 1.0], 1.5, [1.5, 2.0], False, False),
                (1, [1.5, 2.0], 2.5, [2.5, 3.0], False, False),
                (2, [2.5, 3.0], 3.5, [2.5, 3.0], True, False),
            ],
        ),
    ],
)
def test_foreign_columns_and_derived_successors(
    give: Import, tmp_path: Path, capsys: Capture, last: str, expected: list[Any]
) -> None:
    """A successor is the next row of the episode; the last step is dropped or repeated if asked."""
    file = table(tmp_path / "log.csv", *PLAIN)

    assert give(file, *MAPPED, "--last", last, spec=QUIET) == 0
    assert stored_steps(tmp_path / "service") == expected
    (first, *_) = kept(tmp_path / "service")
    assert first[:3] == (("log", "7", 0), 0, -1)
    assert ("1 left out: without a successor" in capsys.readouterr().out) == (last == "drop")
    assert give(file, *MAPPED, "--last", last) == 0
    assert f"0 accepted, {len(expected)} known already" in capsys.readouterr().out


def test_a_last_step_without_successor_is_refused(
    give: Import, tmp_path: Path, capsys: Capture
) -> None:
    """Nothing is made up: the line is named, and what can be done about it."""
    assert give(table(tmp_path / "log.csv", *PLAIN), *MAPPED, spec=QUIET) == 1
    assert (
        "log.csv, line 4, column 'next_observation': expected a value, or timestep 3 of the"
        " episode further down, got neither; --last drop leaves out such steps"
    ) in capsys.readouterr().err


def test_interleaved_episodes_gaps_and_an_end_without_a_flag(give: Import, tmp_path: Path) -> None:
    """Each episode finds its own successors; at a gap one is missing, at the end it is cut off."""
    names = "actor_id,episode_id,timestep,observation,action,reward,terminated,truncated,split"
    lines = [
        f'{actor},{episode},{t},"[{x}, 0]",0,{x},false,{cut},{split}'
        for actor, episode, t, x, cut, split in [
            ("p", "e", 0, 1, "false", "train"),
            ("q", "e", 0, 10, "false", "validation"),
            ("p", "e", 1, 2, "false", "train"),
            ("q", "e", 1, 20, "true", "validation"),
            ("p", "e", 5, 6, "false", "train"),
            ("p", "e", 6, 7, "false", "train"),
            ("p", "e", 7, 8, "false", "train"),
        ]
    ]
    file = table(tmp_path / "log.csv", names, *lines)

    assert give(file, "--last", "drop", spec=QUIET) == 0
    short = [
        (t, int(o[0]), int(n[0]), cut) for t, o, _, n, _, cut in stored_steps(tmp_path / "service")
    ]
    assert short == [(0, 10, 20, True), (0, 1, 2, False), (5, 6, 7, False), (6, 7, 8, True)]


def test_json_lines_with_successors_need_no_order(give: Import, tmp_path: Path) -> None:
    """Steps of the protocol, with fields left out where they may be, and another split column."""
    rows = experience(1, 3)[::-1]
    for row in rows:
        del row["policy_version"], row["split"]
    rows[0]["fold"], rows[1]["fold"], rows[2]["fold"] = "validation", "train", "train"
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, rows)) + b"\n\n")

    assert give(file, "--split", "column:fold", spec=QUIET) == 0
    assert [(k[0][2], k[1]) for k in kept(tmp_path / "service")] == [(2, 1), (1, 0), (0, 0)]


def test_parquet_of_others(give: Import, tmp_path: Path) -> None:
    """Lists of numbers are observations, integers are names of episodes."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "episode": [1, 1, 2],
        "obs": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
        "next_observation": [[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
        "action": [0, 1, 2],
        "reward": [0.5, 1.0, 1.5],
        "terminated": [False, True, True],
        "comment": [None, None, None],
    }
    parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    given = ["--map", "episode=episode_id", "--map", "obs=observation", "--ignore-others"]
    constant = ["--const", "actor_id=log", "--const", "truncated=0", "--split", "validation"]

    assert give(tmp_path / "log.parquet", *given, *constant, spec=QUIET) == 0
    assert [k[0] for k in kept(tmp_path / "service")] == [
        ("log", "1", 0),
        ("log", "1", 1),
        ("log", "2", 0),
    ]


# -- splits -------------------------------------------------------------------------------------


def test_a_fraction_is_of_whole_episodes(give: Import, tmp_path: Path) -> None:
    """About so many episodes are held out, whole, the same ones each time, by the seed."""
    rows = [{**row, "split": "train"} for row in experience(200, 2)]
    written(tmp_path / "data", QUIET, rows, 100)
    file = tmp_path / "m.csv"
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0

    assert give(file, "--split", "fraction:0.2", spec=QUIET) == 0
    assert give(file, "--split", "fraction:0.2", "--seed", "1", spec=QUIET, model="n") == 0
    by_seed = []
    for model in ("m", "n"):
        splits: dict[str, set[int]] = {}
        for (_, episode, _), split, *_ in kept(tmp_path / "service", model):
            splits.setdefault(episode, set()).add(split)
        assert all(len(found) == 1 for found in splits.values())
        held = {episode for episode, found in splits.items() if found == {1}}
        assert 20 <= len(held) <= 60
        by_seed.append(held)
    assert by_seed[0] != by_seed[1]
    assert give(file, "--split", "fraction:0.2") == 0  # all known: the same episodes again


@pytest.mark.parametrize(
    "rule",
    ["half", "fraction:", "fraction:x", "fraction:0", "fraction:1", "fraction:nan", "column:"],
)
def test_no_split_rule(give: Import, tmp_path: Path, capsys: Capture, rule: str) -> None:
    """Anything else is refused with what there is."""
    assert give(table(tmp_path / "log.csv", *PLAIN), "--split", rule) == 1
    assert "--split: expected train, validation, column:NAME, or fraction:F" in (
        capsys.readouterr().err
    )


def test_the_documented_rule_of_a_fraction() -> None:
    """An episode is held out when its hash is below the fraction: nothing else decides."""
    from hashlib import sha256

    column, split = split_rule("fraction:0.3", 5)
    numbers = [
        int.from_bytes(sha256(f"5\0a\0e{i}".encode()).digest()[:8], "big") / 2**64
        for i in range(50)
    ]

    assert column is None
    assert [split(("a", f"e{i}")) for i in range(50)] == [
        "validation" if number < 0.3 else "train" for number in numbers
    ]


# -- faults are named by file, line and column --------------------------------------------------

GOOD = {
    "actor_id": "a",
    "episode_id": "e",
    "timestep": "0",
    "split": "train",
    "observation.x": "1",
    "observation.y": "2",
    "action": "1",
    "reward": "0.5",
    "next_observation.x": "1",
    "next_observation.y": "2",
    "terminated": "0",
    "truncated": "0",
}


def lines_with(path: Path, **changed: Any) -> Path:
    """Write a good line and one that is changed; None takes a column away."""
    fields = {name.replace("__", "."): value for name, value in changed.items()}
    bad = {k: v for k, v in {**GOOD, "timestep": "1", **fields}.items() if v is not None}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, bad.keys(), extrasaction="ignore")
        writer.writeheader()
        writer.writerows([{**bad, **GOOD}, bad])
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": "much"}, "line 3, column 'reward': expected a number, got 'much'"),
        ({"reward": "nan"}, "line 3, column 'reward': expected"),
        ({"reward": "1e39"}, "line 3, column 'reward': expected"),
        ({"reward": ""}, "line 3, column 'reward': expected a value, got nothing"),
        ({"action": "3"}, "line 3, column 'action': expected 0..2, got 3"),
        ({"action": "1.0"}, "line 3, column 'action': expected an integer, got '1.0'"),
        ({"timestep": "-1"}, "line 3, column 'timestep': expected 0..9007199254740991"),
        ({"timestep": ""}, "line 3, column 'timestep': expected a value, got nothing"),
        ({"terminated": "maybe"}, "line 3, column 'terminated': expected true or false"),
        ({"observation__y": "x"}, "line 3, column 'observation.y': expected a number, got 'x'"),
        ({"observation__y": "inf"}, "line 3, column 'observation': expected numbers that are"),
        ({"observation__y": ""}, "line 3, column 'observation'[1]: expected a number, got None"),
        ({"actor_id": "a" * 129}, "line 3, column 'actor_id': expected 1..128 bytes"),
        ({"episode_id": ""}, "line 3, column 'episode_id': expected a value, got nothing"),
        ({"split": "test"}, "line 3, column 'split': expected one of ['train', 'validation']"),
        ({"split": ""}, "line 3, column 'split': expected a value, got nothing"),
        ({"timestep": "0", "reward": "9"}, "line 3: expected one content per identity"),
        ({"label": "2"}, "column 'label': expected 0..1 or one of ['DOWN', 'UP'], got 2"),
        ({"label": "LEFT"}, "column 'label': expected 0..1 or one of ['DOWN', 'UP'], got 'LEFT'"),
        ({"behavior_prob": "0"}, "line 2, column 'behavior_prob': expected (0, 1]"),
        ({"outcome": "lost"}, "line 2, column 'outcome': expected accepted or stale_dropped"),
        ({"observation__y": None}, "FILE: expected columns for ['observation.y'], got none"),
        ({"truncated": None}, "line 2, column 'truncated': expected a value, got nothing; --map"),
        ({"surprise": "1"}, "column 'surprise': expected a field, got another name; --map it"),
    ],
)
def test_faults_name_the_place(
    give: Import, tmp_path: Path, capsys: Capture, changed: dict[str, Any], message: str
) -> None:
    """The file, the line, the column, what was expected and what stands there."""
    file = lines_with(tmp_path / "log.csv", **changed)

    assert give(file, spec=QUIET) == 1
    error = capsys.readouterr().err
    assert message in error
    if "line" in message:
        assert f"{file}, line" in error


def test_a_conflict_with_what_is_known_names_the_line(
    give: Import, tmp_path: Path, capsys: Capture
) -> None:
    """What the service refuses is traced back to the file; what came before it is kept."""
    assert give(lines_with(tmp_path / "log.csv"), spec=QUIET) == 0
    capsys.readouterr()

    assert give(lines_with(tmp_path / "log.csv", reward="7")) == 1
    assert "log.csv, line 3: expected the content first sent, got another" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"a,a\n1,2\n", "line 1: expected different names of columns"),
        ("x.csv", b"a,b\n1,2,3\n", "line 2: expected 2 fields, got 3"),
        ("x.csv", b'a,b\n1,"2\n', "x.csv, line"),
        ("x.csv", b"a\n\xff\n", "FILE: expected a csv file"),
        ("x.jsonl", b'{"a": 1}{\n', "line 1: expected a JSON object"),
        ("x.jsonl", b"[1]\n", "line 1: expected a JSON object, got list"),
        ("x.parquet", b"PAR1", "FILE: expected a Parquet file"),
        ("x.txt", b"", "FILE: expected a name that ends with one of"),
    ],
)
def test_no_table(
    give: Import, tmp_path: Path, capsys: Capture, name: str, content: bytes, message: str
) -> None:
    """A file that is no table says where it stops being one."""
    if name == "x.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)

    assert give(tmp_path / name, "--ignore-others", "--split", "train", spec=QUIET) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--map", "o0"], "--map: expected NAME=VALUE"),
        (["--map", "o0=observation.z"], "--map: expected one of ["),
        (["--map", "o9=observation.x"], "--map: expected a column 'o9', got only ["),
        (
            ["--map", "a=reward", "--map", "r=reward", "--ignore-others"],
            "--map: expected one column for reward",
        ),
        (["--const", "x=1"], "--const: expected one of ["),
        (["--const", "actor_id=1", "--const", "actor_id=2"], "--const: expected 'actor_id' once"),
        (["--const", "reward=much"], "--const reward: expected a number, got 'much'"),
        (["--split", "column:fold"], "--split column:fold: expected that column"),
    ],
)
def test_refused_arguments(
    give: Import, tmp_path: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    """A mistake in the column map is told before anything is sent."""
    split = [] if "--split" in arguments else ["--split", "train"]

    assert give(table(tmp_path / "log.csv", *PLAIN), *arguments, *split, spec=QUIET) == 1
    assert message in capsys.readouterr().err
    made = (tmp_path / "service" / "models").iterdir()
    assert all(kept(tmp_path / "service", path.name) == [] for path in made)


def test_no_model_and_another_model(give: Import, tmp_path: Path, capsys: Capture) -> None:
    """Without a specification the model has to exist; with one it has to be that one."""
    file = lines_with(tmp_path / "log.csv")
    assert give(file) == 1
    assert "--model: expected one that exists, got m; --spec FILE, or" in capsys.readouterr().err
    assert give(file, "--preset", "control") == 1
    assert "--preset: expected one that says what is observed" in capsys.readouterr().err
    assert give(file, "--env", "OUSpread-v0") == 1
    assert "--env: expected a --preset beside it" in capsys.readouterr().err
    assert give(file, spec=QUIET) == 0
    assert give(file, spec={**QUIET, "seed": 4}) == 1
    assert "differences at seed" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert give(file, "--spec", str(tmp_path / "bad.json")) == 1
    assert "--spec: expected a JSON file" in capsys.readouterr().err
    assert give(tmp_path / "none.csv") == 1
    assert "FILE: expected a file" in capsys.readouterr().err


def test_a_preset_takes_its_spaces_from_an_environment(give: Import, tmp_path: Path) -> None:
    """``--preset`` with ``--env`` makes the model that ``train`` would make."""
    lines = ("7,0.5,1,1,1,0,1.0,0", "7,1.5,2,1,1,1,1.0,0")
    file = table(tmp_path / "log.csv", "ep,o0,o1,o2,o3,a,r,done", *lines)
    columns = [pair for i in range(4) for pair in ("--map", f"o{i}=observation.{i}")]
    others = [pair for pair in MAPPED if "observation" not in pair]
    mapped = [*columns, "--map", "ep=episode_id", "--map", "a=action", "--map", "r=reward"]
    mapped += ["--map", "done=terminated", *others[others.index("--const") :], "--last", "drop"]
    assert give(file, "--preset", "control", "--env", "CartPole-v1", *mapped) == 0

    assert len(kept(tmp_path / "service")) == 1
    with contextlib.closing(gymnasium.make("CartPole-v1")) as env:
        wanted = ModelSpec.for_env(env, preset="control")
    with StoredModel(find_model(tmp_path / "service", "m")) as stored:
        assert stored.spec == wanted


def test_a_learner_that_is_behind_is_waited_for() -> None:
    """Backlog is no failure: the import goes on when what it sent has been applied."""
    step = Transition(**experience(1, 1)[0])

    class Slow:
        waited: list[int] = []  # noqa: RUF012
        calls = 0

        def add(self, rows: Any) -> Receipt:
            self.calls += 1
            if self.calls == 2:
                raise Backlog("model", "a learner at most 5 transitions behind", 6)
            given = dict.fromkeys(("duplicate", "stale_dropped", "policy_version"), 0)
            return Receipt(accepted=len(rows), lsn=self.calls, generation=1, **given)

        def wait(self, lsn: int) -> None:
            self.waited.append(lsn)

    slow: Any = Slow()
    outbox = Outbox(slow, 1)
    for _ in range(2):
        outbox.keep([step])
        module._flush(slow, outbox)

    assert (outbox.receipt.accepted, outbox.receipt.lsn, slow.waited) == (2, 3, [1])


# -- a directory without a service --------------------------------------------------------------


@pytest.mark.slow
def test_offline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With --data-dir a service runs for as long as it takes, and the model learns."""
    written(tmp_path / "data", SPEC, experience(6, 10))
    file, spec = tmp_path / "m.csv", tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    assert main(["export-data", str(tmp_path / "data"), "m", str(file)]) == 0
    to = ["--data-dir", str(tmp_path / "new"), "--model", "m", "--spec", str(spec)]

    assert main(["import-data", str(file), *to, "--split", "column:split", "--wait"]) == 0
    out = capfd.readouterr().out
    assert "60 accepted" in out
    assert "policy version 32, after 32 updates" in out
    assert kept(tmp_path / "new") == kept(tmp_path / "data")
    (checkpoint,) = (tmp_path / "new" / "models" / "m.1" / "checkpoints").iterdir()
    assert ModelSpec.from_dict(SPEC) == ModelSpec.from_dict(
        json.loads((checkpoint / "state.json").read_bytes())["spec"]
    )
