"""``jormungandr replay``: another specification on the same rows, compared, and kept if asked."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.cli import main
from jormungandr.cli.curves import LINES, difference, table
from jormungandr.cli.replay import varied
from jormungandr.errors import JormungandrError
from jormungandr.protocol import Evaluation
from jormungandr.service.child.recovery import recover
from jormungandr.service.journal.database import SkipRow, VersionRow
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.tools.stored import StoredModel, find_model
from tests.cli.journals import Written, written
from tests.faults.volumes import Volume
from tests.service.serving import SPEC, Server, experience, identity

Capture = pytest.CaptureFixture[str]

#: It evaluates every third update.
SPARSE: dict[str, Any] = {**SPEC, "validation": {"capacity": 16, "evaluate_every": 3}}


def replay(data_dir: Path, *arguments: str, model: str = "m") -> int:
    """Run the command."""
    return main(["replay", str(data_dir), model, *arguments])


def curves(data_dir: Path, *arguments: str) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Run the command and return both curves, and all that it wrote."""
    out = data_dir.parent / "curves.json"
    assert replay(data_dir, *arguments, "--json", str(out)) == 0
    content = json.loads(out.read_bytes())
    return content["original"]["evaluations"], content["new"]["evaluations"], content


def by_hand(spec: dict[str, Any], rows: list[Any], labels: list[Any]) -> list[Any]:
    """Return the curve of a `Learner` that is given the rows one by one, then labels."""
    learner, found, seen = Learner(spec), [], 0
    for row in rows:
        learner.add([row])
        for evaluation in learner.metrics()["evaluations"][seen:]:
            n = learner.info()["transitions"]["train"]
            found.append({"train_transitions": n, **evaluation})
            seen += 1
    assert labels == []
    return found


# -- the comparison -----------------------------------------------------------------------------


def test_both_curves_are_those_of_a_learner(tmp_path: Path, capsys: Capture) -> None:
    """The original and the new curve are, to the bit, what a `Learner` makes of the same rows."""
    rows = experience(8, 9)
    written(tmp_path / "data", SPARSE, rows)
    changed = {**SPARSE, "c51": {**SPARSE["c51"], "lr": 0.01}, "seed": 4}
    original, new, content = curves(tmp_path / "data", "--set", "c51.lr=0.01", "--seed", "4")

    assert original == by_hand(SPARSE, rows, [])
    assert new == by_hand(changed, rows, [])
    assert len(new) > 10
    assert new != original
    assert ModelSpec.from_dict(content["new"]["spec"]) == ModelSpec.from_dict(changed)
    assert (content["model_id"], content["generation"], content["last_lsn"]) == ("m", 1, 12)
    assert content["changed"] == ["seed", "c51.lr"]

    out = capsys.readouterr().out
    assert "  seed: 0 -> 4\n  c51.lr: 0.0005 -> 0.01\n" in out
    a, b = original[-1]["validation_loss"], new[-1]["validation_loss"]
    assert f"validation_loss {b - a:+.4f} ({a:.4f} -> {b:.4f}); auxiliary_accuracy " in out
    line = f"{original[-1]['train_transitions']:,}  .*{original[-1]['update_count']} .*{a:.4f}"
    assert re.search(line + f".* {b:.4f} ", out)


def test_the_same_specification_is_the_same_curve(tmp_path: Path, capsys: Capture) -> None:
    """Without a change nothing changes, late labels included."""
    with Written(tmp_path / "data", SPARSE) as journal:
        rows = experience(5, 9)
        journal.add(rows)
        journal.label([{**identity("a", "e4", 0), "label": 1}])
        journal.add([{**row, "actor_id": "b"} for row in rows])
        original, new, content = curves(tmp_path / "data")

    assert original == new
    assert content["changed"] == []
    out = capsys.readouterr().out
    assert "  the same specification\n" in out
    assert "validation_loss +0.0000" in out


def test_what_admission_decided_holds(tmp_path: Path) -> None:
    """What was dropped as stale stays dropped under a rule that would have taken it."""
    spec = {**SPARSE, "staleness": {"max_policy_lag": 1, "mode": "drop", "stale_share": 0.0}}
    rows = [{**row, "policy_version": t % 3} for t, row in enumerate(experience(6, 10))]
    with Written(tmp_path / "data", spec) as journal:
        receipt = journal.add(rows, served=3)
    _, new, _ = curves(tmp_path / "data", "--set", "staleness.mode=accept")
    original, other, _ = curves(tmp_path / "data", "--set", "staleness.max_policy_lag=null")

    assert receipt.stale_dropped > 20
    assert new == other == original
    assert new[-1]["train_transitions"] <= receipt.accepted


def test_rows_that_were_set_aside_are_passed_over(tmp_path: Path) -> None:
    """A quarantined row is trained on by neither."""
    rows = experience(6, 10)
    with Written(tmp_path / "data", SPARSE) as journal:
        for i in range(0, 60, 10):
            journal.add(rows[i : i + 10])
        journal.control(SkipRow(4, "it ends whoever applies it"))
    original, new, _ = curves(tmp_path / "data")

    assert original == new
    last = by_hand(SPARSE, [*rows[:20], *rows[30:]], [])[-1]
    assert (last["update_count"], last["validation_loss"]) == (
        new[-1]["update_count"],
        new[-1]["validation_loss"],
    )


def test_another_pace_is_aligned_by_transitions(tmp_path: Path, capsys: Capture) -> None:
    """Curves with other numbers of updates stand side by side where they have read the same."""
    written(tmp_path / "data", SPARSE, experience(4, 10))
    original, new, _ = curves(tmp_path / "data", "--set", "pacing.updates_per_transition=3")
    out = capsys.readouterr().out

    assert original[0]["train_transitions"] == 11
    assert [e["update_count"] for e in new if e["train_transitions"] == 11] == [9]
    assert re.search(r"^ +11 +3 +\d\.\d+ +\d\.\d+ +9 +\d\.\d+ +\d\.\d+$", out, re.MULTILINE)
    assert re.search(r"^ +12 {30,}12 +\d\.\d+ +\d\.\d+$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("setting", "told"),
    [("c51.support=[-3,3]", True), ("c51.gamma=0.5", True), ("c51.lr=0.1", False)],
)
def test_losses_that_do_not_compare(
    tmp_path: Path, capsys: Capture, setting: str, told: bool
) -> None:
    """A loss over another support or discount is another loss, and the last line says so."""
    written(tmp_path / "data", SPARSE, experience(3, 10))
    assert replay(tmp_path / "data", "--set", setting) == 0
    out = capsys.readouterr().out

    path = setting.partition("=")[0]
    assert (f", which says nothing: {path} changes what is measured; aux" in out) == told


def test_nothing_held_out(tmp_path: Path, capsys: Capture) -> None:
    """Without held-out transitions there is nothing to compare, and that is said."""
    rows = [{**row, "split": "train"} for row in experience(2, 9)]
    written(tmp_path / "data", SPARSE, rows)

    assert replay(tmp_path / "data", "--set", "c51.lr=0.1") == 0
    assert "nothing was evaluated: no updates, or none held out" in capsys.readouterr().out


def evaluation(update: int, loss: float, accuracy: float | None = None) -> Evaluation:
    """Return a point of a curve."""
    return Evaluation(
        policy_version=update,
        update_count=update,
        transitions=9,
        validation_loss=loss,
        auxiliary_accuracy=accuracy,
    )


def test_table_is_short_and_keeps_both_ends() -> None:
    """A long curve is thinned out evenly; accuracies have columns where there are any."""
    long = [(10 * i, evaluation(i, 1 / i)) for i in range(1, 1001)]
    lines = table(long, long[::2])
    assert len(lines) == 2 + LINES
    assert lines[0].split() == ["training", "original", "new"]
    assert lines[1].split() == ["transitions", *["update", "loss"] * 2]
    assert lines[2].split() == ["10", "1", "1.0000", "1", "1.0000"]
    assert lines[-1].split() == ["10,000", "1,000", "0.0010"]

    few = [(5, evaluation(1, 2.0, 0.5)), (7, evaluation(3, 1.0))]
    lines = table(few, few[1:])
    assert [line.split() for line in lines[1:]] == [
        ["transitions", *["update", "loss", "accuracy"] * 2],
        ["5", "1", "2.0000", "0.500"],
        ["7", "3", "1.0000", "3", "1.0000"],
    ]
    assert difference(few, few[1:]).endswith(": validation_loss +0.0000 (1.0000 -> 1.0000)")


# -- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("actions=4", "actions: expected [{"),
        ("actions=3", "actions: expected [{"),
        ("observation.shape=[3]", "observation.shape: expected [2], got [3]"),
        ('observation.features=["y","x"]', 'observation.features: expected ["x", "y"], which'),
        ("observation.frame_stack=2", "observation.frame_stack: expected 1, which the rows"),
        ("action_masks=true", "action_masks: expected false, which the rows were made with, got"),
        ("action_repeat=2", "action_repeat: expected 1, which the rows were made with, got 2"),
        ('auxiliary.classes=["A","B"]', 'auxiliary.classes: expected ["DOWN", "UP"], which'),
        ("c51.lr=-1", "c51.lr: expected a number > 0, got -1.0"),
        ("c51.learning_rate=1", "c51.learning_rate: expected one of ["),
        ("c51=1", "c51: expected an object with any of"),
        ("lr", "--set: expected PATH=VALUE, got 'lr'"),
    ],
)
def test_refused_changes(tmp_path: Path, capsys: Capture, setting: str, message: str) -> None:
    """What the rows cannot be read with is refused by its path, before anything is trained."""
    written(tmp_path / "data", SPARSE, experience(1, 3))

    assert replay(tmp_path / "data", "--set", setting) == 1
    captured = capsys.readouterr()
    assert f"jormungandr replay: {message}" in captured.err
    assert captured.out == ""


def test_a_preset_is_what_it_says_and_all_else_as_it_was() -> None:
    """Its fields over those of the model, and single ones over both."""
    spec = ModelSpec.from_dict(SPEC)
    new = varied(spec, {"preset": "control", "c51": {"lr": 0.25}})

    assert (new.c51.lr, new.c51.n_step, new.replay.alpha) == (0.25, 3, 0.0)
    assert (new.observation, new.action_set) == (spec.observation, spec.action_set)


def test_changes_that_the_rows_do_not_mind() -> None:
    """Normalisation, the clip, a head more or less, and whole groups may be other ones."""
    spec = ModelSpec.from_dict(SPEC)
    new = varied(
        spec,
        {
            "observation": {"normalize": False, "clip": 5.0},
            "auxiliary": None,
            "c51": {"hidden": [16, 8], "n_step": 3},
            "replay": {"capacity": 8},
        },
    )
    assert new.observation.features == ("x", "y")
    assert (new.observation.normalize, new.auxiliary) == (False, None)
    assert (new.c51.hidden, new.c51.atoms) == ((16, 8), 11)
    bare = ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 2})
    assert varied(bare, {"auxiliary": {"classes": ["A", "B"]}}).auxiliary is not None
    with pytest.raises(JormungandrError, match=r"observation\.space"):
        varied(bare, {"observation": {"space": {"shape": [3]}, "shape": [3]}})


def test_labels_without_a_head(tmp_path: Path) -> None:
    """Without its head a model leaves the labels unread."""
    written(tmp_path / "data", SPARSE, experience(4, 10))
    _, new, _ = curves(tmp_path / "data", "--set", "auxiliary=null")

    assert {point["auxiliary_accuracy"] for point in new} == {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda j: j.journal.delete(0), "expected a model that lives, got one that was deleted"),
        (lambda j: None, "expected rows to train on, got none"),
        (
            lambda j: (j.add(experience(1, 3)), j.journal._write_meta("dropped", 1)),
            "expected every row from the first, got none before row 2",
        ),
    ],
)
def test_journals_without_their_rows(
    tmp_path: Path, capsys: Capture, change: Any, message: str
) -> None:
    """A model whose rows are gone cannot be trained again."""
    with Written(tmp_path / "data", SPARSE) as journal:
        change(journal)

    assert replay(tmp_path / "data") == 1
    assert message in capsys.readouterr().err


def test_no_model_and_no_place_to_write(tmp_path: Path, capsys: Capture) -> None:
    """An unknown model, a file that cannot be."""
    written(tmp_path / "data", SPARSE, experience(1, 3))

    assert replay(tmp_path / "data", model="n") == 1
    assert "MODEL: expected one of ['m'], got 'n'" in capsys.readouterr().err
    assert replay(tmp_path / "data", "--json", str(tmp_path / "no" / "x.json")) == 1
    assert "--json: expected a file that can be written" in capsys.readouterr().err


# -- what is kept -------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with a model that has everything: policies, late and waiting labels, a skip."""
    rows = experience(8, 9)
    with Written(tmp_path / "data", SPARSE) as journal:
        for version, i in enumerate(range(0, 72, 9)):
            journal.control(VersionRow(version, version, 0, f"digest {version}", "file"))
            journal.add([{**row, "policy_version": version} for row in rows[i : i + 9]])
        journal.label([{**identity("a", "e7", 0), "label": 1}])
        journal.label([{**identity("z", "later", 0), "label": 0}])
        journal.control(SkipRow(5, "a reason"))
        journal.control(VersionRow(8, 8, 19, "digest 8", "file"))
    return tmp_path / "data"


def data_rows(folder: Path) -> list[Any]:
    """Return all of a journal's data rows, and what sets rows aside."""
    connection = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found = connection.execute(
        "SELECT * FROM journal WHERE kind IN ('transitions', 'labels', 'skip') ORDER BY lsn"
    ).fetchall()
    for name in ("episode", "ledger", "pending_label"):
        found += connection.execute(f"SELECT * FROM {name}").fetchall()
    connection.close()
    return found


def test_a_model_of_its_own(source: Path, capsys: Capture) -> None:
    """The rows keep their bytes, the ledger comes along, and verify makes the policy again."""
    assert replay(source, "--set", "c51.lr=0.01", "--as", "better") == 0
    out = capsys.readouterr().out
    folder = source / "models" / "better.1"
    assert f"kept as 'better' in {folder}" in out
    assert data_rows(folder) == data_rows(source / "models" / "m.1")
    with StoredModel(folder) as new, StoredModel(find_model(source, "m")) as old:
        assert new.created.first_version == old.highest_version + 1 == 9
        assert new.created.origin == "m.1, row 19"
        assert new.spec == varied(old.spec, {"c51": {"lr": 0.01}})
        assert (new.first, new.last) == (1, old.last)
        kinds = new.connection.execute(
            "SELECT lsn, kind FROM journal WHERE kind NOT IN ('transitions', 'labels') ORDER BY lsn"
        ).fetchall()
        assert new.counters.lsn == 21
    assert kinds == [(1, "create"), (20, "skip"), (21, "version")]


@pytest.mark.slow
def test_it_verifies(tmp_path: Path, capsys: Capture) -> None:
    """`verify --full` makes its policy again from the copied rows, bit for bit."""
    written(tmp_path / "data", SPARSE, experience(6, 9))
    assert replay(tmp_path / "data", "--set", "c51.lr=0.01", "--as", "better") == 0
    assert main(["verify", str(tmp_path / "data"), "--full"]) == 0
    out = capsys.readouterr().out

    assert "models/better.1: 1 policies made again, bit for bit as recorded" in out


def test_recovery_of_it_is_the_learner_that_was_trained(source: Path) -> None:
    """From its checkpoint and from its first row a learner comes to the same bits."""
    assert replay(source, "--set", "c51.lr=0.01", "--as", "better") == 0
    folder = source / "models" / "better.1"
    digests, reader = [], JournalReader(folder / "journal.db")
    for start in (19, 0):
        core = recover(folder, reader)
        assert core.progress.lsn == start
        for row in reader.rows(core.progress.lsn, 100):
            core.apply(row)
        digests.append((core.progress, core.snapshot().version, core.snapshot().digest()))
        for path in (folder / "checkpoints").iterdir():
            path.rename(folder / path.name)
    reader.close()

    assert digests[0] == digests[1]
    assert digests[0][0].updates > 20


def test_a_name_is_given_once(source: Path, capsys: Capture) -> None:
    """A living model is not replaced; after a deleted one generations and versions go on."""
    names = [path.name for path in (source / "models").iterdir()]
    for name, message in (
        ("m", "--as: expected a new model, got 'm', which there is"),
        ("M", "--as: expected to match"),
        ("../x", "--as: expected to match"),
    ):
        assert replay(source, "--as", name) == 1
        assert message in capsys.readouterr().err
    assert [path.name for path in (source / "models").iterdir()] == names

    with Written(source, SPARSE, "old.3") as journal:
        journal.journal.delete(41)
    assert replay(source, "--as", "old") == 0
    with StoredModel(find_model(source, "old")) as new:
        assert (new.created.generation, new.created.first_version) == (4, 42)


def test_a_server_that_holds_the_directory(source: Path, capsys: Capture) -> None:
    """Beside a server curves are printed, and nothing is kept."""
    with (source / "LOCK").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert replay(source, "--as", "better") == 1
        captured = capsys.readouterr()
        assert "expected no other server" in captured.err
        assert captured.out == ""
        assert replay(source, "--set", "c51.lr=0.1") == 0
    assert [path.name for path in (source / "models").iterdir()] == ["m.1"]


def test_a_failure_leaves_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A model that cannot be written whole is not there, and the directory is free again."""
    from jormungandr.service.tools.offspring import Offspring

    def fail(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(Offspring, "_publish", fail)
    assert replay(source, "--as", "better") == 1
    place = source / "models" / "better.1"
    assert f"{place}: expected a place that can be written, got no" in capsys.readouterr().err
    assert [path.name for path in (source / "models").iterdir()] == ["m.1"]
    monkeypatch.undo()
    assert replay(source, "--as", "better") == 0


def test_no_room_for_a_model(source: Path, tmp_path: Path, capsys: Capture) -> None:
    """However little is missing, one line names the place, and nothing of the model is there."""
    volume = Volume(tmp_path / "volume", 1)
    try:
        data = Path(shutil.copytree(source, volume.path / "data"))
        used = 4096 * sum(
            -(-path.stat().st_size // 4096) for path in data.rglob("*") if path.is_file()
        )
        refused = 0
        # Room for what is opened to read the rows, and then more and more.
        for free in range(64, 1024, 32):
            (volume.path / "filler").write_bytes(bytes(max(0, (1 << 20) - used - free * 1024)))
            if replay(data, "--as", "better") == 0:
                break
            refused += 1
            assert "better.1: expected a place that can be written, got " in capsys.readouterr().err
            assert [path.name for path in (data / "models").iterdir()] == ["m.1"]
        assert refused > 2
        assert sorted(path.name for path in (data / "models").iterdir()) == ["better.1", "m.1"]
    finally:
        volume.unmount()


@pytest.mark.slow
def test_it_is_served_and_goes_on(tmp_path: Path) -> None:
    """A service serves its policy at once, knows its rows, and learns on."""
    rows = experience(8, 9)
    written(tmp_path / "data", SPARSE, rows)
    assert replay(tmp_path / "data", "--set", "c51.lr=0.01", "--as", "better") == 0
    spec = {**SPARSE, "c51": {**SPARSE["c51"], "lr": 0.01}}
    learner = Learner(spec, first_version=1)
    for i in range(0, 72, 7):
        learner.add(rows[i : i + 7])
    with Server(tmp_path / "data") as server, server.connect("better") as endpoint:
        first = endpoint.act([[0.0, 1.0]], deterministic=True)
        assert first.policy_version == learner.policy_version
        assert endpoint.add(rows[:9]).duplicate == 9
        more = [{**row, "actor_id": "b"} for row in rows]
        learner.add(more)
        info = endpoint.wait(endpoint.add(more).lsn)
        again = endpoint.act([[0.0, 1.0]], deterministic=True)

    assert info["policy_version"] == again.policy_version == learner.policy_version
    assert info["update_count"] == learner.update_count > 90
    assert again.expected_values == learner.act([[0.0, 1.0]], deterministic=True).expected_values
    assert info["warnings"] == learner.warnings()
