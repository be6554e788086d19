"""Rows that end whoever applies them: set aside by a journaled row, for good."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.admission import Admission
from jormungandr.columns import columns
from jormungandr.failpoints import VARIABLE
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft
from jormungandr.rows import SkippedRow
from jormungandr.service.journal.database import Created, SkipRow, VersionRow
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.faults.learners import service
from tests.service.serving import SPEC, experience, identity, served, until

#: Of a model that holds all of what is sent here.
LARGE = {**SPEC, "replay": {"capacity": 256}, "validation": {"capacity": 64, "evaluate_every": 1}}
MODEL = ModelSpec.from_dict(LARGE)
BEFORE, BAD, AFTER = (experience(6, 4, actor_id=actor, seed=n) for n, actor in enumerate("xyz"))
REASON = "killed by SIGKILL, perhaps out of memory"


def unlabelled(rows: list[Any]) -> list[Any]:
    """Return transitions without their labels."""
    return [{k: v for k, v in row.items() if k != "label"} for row in rows]


def labels(rows: list[Any]) -> list[Any]:
    """Return the labels of transitions, by what was observed."""
    return [
        {**{k: row[k] for k in identity("", "", 0)}, "label": int(row["observation"][0] > 0)}
        for row in rows
    ]


# -- the state machine --------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    """The journal of a model without rows."""
    made = Journal(tmp_path / "journal.db", Created("m", 1, 0, MODEL))
    yield made
    made.close()


def write(journal: Journal, rows: list[Any], controls: tuple[Any, ...] = ()) -> int:
    """Write transitions, or labels, as one row; return its position."""
    draft, admission = Draft(journal), Admission(MODEL)
    new: Any = ()
    if rows and "reward" in rows[0]:
        _, new = admission.transitions(columns(rows, MODEL), draft, served=0, published=99)
    elif rows:
        given = [((r["actor_id"], r["episode_id"], r["timestep"]), r["label"]) for r in rows]
        _, new = admission.labels(given, draft)
    journal.commit(draft, new, list(controls))
    journal.merged(draft)
    return journal.counters.data_lsn


def read(journal: Journal) -> Core:
    """Return what a learner makes of a journal from its first row on."""
    core, reader = Core(MODEL), JournalReader(journal.path)
    while rows := reader.rows(core.progress.lsn, 2):
        for row in rows:
            core.apply(row)
    reader.close()
    return core


def held(core: Core) -> dict[str, Any]:
    """Return what a learner holds, with the labels, and its policy."""
    arrays = {**core.replay.arrays, **{f"v.{k}": v for k, v in core.validation.arrays.items()}}
    return {
        **{name: array.tobytes() for name, array in arrays.items()},
        "normalizer": core.normalizer.count,
        "digest": core.snapshot().digest(),
        "evaluations": msgspec.to_builtins(list(core.evaluations)),
    }


def test_a_row_that_was_set_aside(journal: Journal) -> None:
    """It comes without its content; the state is that of a journal in which it never was."""
    write(journal, BEFORE)
    bad = write(journal, BAD)
    write(journal, AFTER)
    write(journal, [], (SkipRow(bad, REASON),))
    reader = JournalReader(journal.path)
    (_, row, _) = reader.rows(0)
    reader.close()
    reference = Learner(LARGE)
    reference.add(BEFORE)
    reference.add(AFTER)
    core = read(journal)

    train = sum(r["split"] == "train" for r in BAD)
    assert row == SkippedRow(bad, train, len(BAD) - train, -1)
    assert held(core) == held(reference)
    assert core.info()["quarantined"] == 1
    assert (core.progress.lsn, journal.counters.data_lsn) == (bad + 1, bad + 1)


def test_its_content_is_not_looked_at(journal: Journal) -> None:
    """A row that is set aside may hold anything, also what cannot be read."""
    bad = write(journal, BAD)
    write(journal, [], (SkipRow(bad, REASON),))
    journal._writer.execute("UPDATE journal SET payload = x'c1' WHERE lsn = ?", (bad,))

    assert read(journal).info()["quarantined"] == 1


def test_labels_find_their_transitions(journal: Journal) -> None:
    """Positions count what was accepted: labels before, in and after the gaps go where they should.

    Two rows are set aside, so that one gap lies behind another.
    """
    other = experience(3, 4, actor_id="o", seed=9)
    parts = [unlabelled(rows) for rows in (BEFORE, BAD, AFTER, other, experience(4, 4))]
    lsns = [write(journal, part) for part in parts]
    write(journal, [], (SkipRow(lsns[1], REASON), SkipRow(lsns[3], REASON)))
    for part in parts:
        write(journal, labels(part))
    reference = Learner(LARGE)
    kept = (parts[0], parts[2], parts[4])
    for part in kept:
        reference.add(part)
    for part in kept:
        reference.label(labels(part))
    core = read(journal)

    assert held(core) == held(reference)
    assert (core.replay.arrays["label"][: len(core.replay)] >= 0).all()
    assert core.info()["quarantined"] == 2
    assert core.info()["unlabelled"] == len(parts[1]) + len(parts[3])


@pytest.mark.parametrize("published", [-1, 5, 8, 9, 40])
def test_numbers_that_were_used_in_the_middle_of_it(journal: Journal, published: int) -> None:
    """Policies that were published before the row ended its learner keep their numbers."""
    write(journal, BEFORE)  # 8 updates
    bad = write(journal, BAD)
    versions = [VersionRow(v, v, bad - 1, "0" * 64, "0" * 64) for v in (0, published) if v >= 0]
    write(journal, [], (*versions, SkipRow(bad, REASON)))
    # Of later ones, made without that row, it does not depend.
    write(journal, [], (VersionRow(99, 99, bad, "0" * 64, "0" * 64),))
    reference = Learner(LARGE)
    reference.add(BEFORE)
    core = read(journal)

    version = reference.policy_version
    assert core.policy_version == (published + 1 if published > version else version)
    for name, array in core.snapshot().weights.items():
        np.testing.assert_array_equal(array, reference.snapshot().weights[name])
    assert core.update_count == reference.update_count
    assert core.info()["quarantined"] == 1


def test_gaps_are_kept(journal: Journal, tmp_path: Path) -> None:
    """A checkpoint written after a gap goes on as the state it was written of."""
    lsns = [write(journal, unlabelled(part)) for part in (BEFORE, BAD, AFTER)]
    write(journal, [], (SkipRow(lsns[1], REASON),))
    core = read(journal)
    core.save(tmp_path / "checkpoint")
    back = Core.load(tmp_path / "checkpoint")
    write(journal, labels(BAD + AFTER))
    reader = JournalReader(journal.path)
    for row in reader.rows(core.progress.lsn):
        core.apply(row)
        back.apply(row)
    reader.close()

    assert held(back) == held(core)
    assert vars(back.progress) == vars(core.progress)


# -- the service --------------------------------------------------------------------------------


def set_aside(info: dict[str, Any]) -> list[str]:
    """Return the warnings about rows that were set aside."""
    return [w for w in info["warnings"] if w.startswith("row_quarantined")]


@pytest.mark.slow
def test_row_that_ends_every_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three ends at one row it is set aside; it stays so, also when all is built again."""
    reference = Learner(SPEC)
    reference.add(BEFORE)
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        endpoint.wait(endpoint.add(BEFORE).lsn)
        bad = running.model().journal.counters.lsn + 1
    monkeypatch.setenv(VARIABLE, f"apply.begin@{bad}")
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        running.reached("idle")
        assert endpoint.add(BAD).lsn == bad
        policy = endpoint.act([[1, 1]], deterministic=True)
        (warning,) = until(lambda: set_aside(endpoint.info()), "a warning")
        assert endpoint.act([[1, 1]], deterministic=True) == policy
        lsn = endpoint.add(AFTER).lsn
        reference.add(AFTER)
        info = endpoint.wait(lsn)
        assert set_aside(info) == [warning]
        assert warning.startswith(f"row_quarantined: row {bad} ended the learner again and again")
        assert REASON in warning
        assert (info["learner"]["ends"], info["learner"]["last_end"]) == (3, REASON)
        assert endpoint.metrics()["learner"] == {"ends": 3, "quarantined": [bad]}
        train = sum(row["split"] == "train" for row in BAD)
        assert running.model().journal.skips() == [SkipRow(bad, REASON, train)]
        figures = info
    for checkpoint in (tmp_path / "models" / "m.1" / "checkpoints").iterdir():
        shutil.rmtree(checkpoint)
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        info = endpoint.wait(lsn)
        assert info["learner"]["ends"] == 0
        assert info["quarantined"] == 1
        for name in ("transitions", "normalizer", "policy_version", "update_count", "warnings"):
            assert info[name] == figures[name]
        assert info["transitions"] == reference.info()["transitions"]
        assert served(tmp_path, "m.1").digest() == reference.snapshot().digest()


@pytest.mark.slow
def test_row_that_ends_every_learner_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number stands for two policies, also where some were published half-way through a row."""
    monkeypatch.setenv(VARIABLE, "apply.update:6")
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        bad = endpoint.add(BAD).lsn
        (warning,) = until(lambda: set_aside(endpoint.info()), "a warning")
        monkeypatch.delenv(VARIABLE)
        assert f"row {bad} ended" in warning
        half = max(row.version for row in running.model().journal.versions())
        assert 0 < half <= 6
        lsn = endpoint.add(BEFORE).lsn
        info = endpoint.wait(lsn)

        assert set_aside(info) == [warning]
        assert "rebuilt_differently" not in {w.partition(":")[0] for w in info["warnings"]}
        assert info["policy_version"] == half + 1 + info["update_count"]
        assert info["update_count"] == 8
        reader = JournalReader(running.model().journal.path)
        core = Core(ModelSpec.from_dict(SPEC))
        for row in reader.rows(0):
            core.apply(row)
        reader.close()
        policy = running.model().policy
        assert policy is not None
        assert policy.digest() == core.snapshot().digest()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit and /proc")
def test_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that finds no memory ends, says so, and is started again."""
    spec = {
        **SPEC,
        "c51": {**SPEC["c51"], "hidden": 1024, "batch_size": 1024},
        "replay": {"capacity": 2000},
        "pacing": {"learning_starts": 1100, "updates_per_transition": 0.05},
    }
    rows = experience(150, 10)
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(spec)
        endpoint.wait(endpoint.add(rows[:800]).lsn)
        pid = running.reached("idle")["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        now = int(status.partition("VmSize:")[2].split()[0]) << 10
        resource.prlimit(pid, resource.RLIMIT_AS, (now, now))
        lsn = endpoint.add(rows[800:]).lsn
        info = endpoint.wait(lsn)

        assert "out of memory" in info["learner"]["last_end"]
        assert info["learner"]["ends"] == 1
        assert info["update_count"] > 0
        assert info["transitions"]["train"] + info["transitions"]["validation"] == len(rows)
