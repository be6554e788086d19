"""A machine that computes otherwise: a new lineage, past every number that was used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import Learner, PolicySnapshot, RemoteLearner
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.service.child import fingerprint as fingerprints
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.child.lineage import ahead, check_course, enter
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import LineageRow
from tests.service.serving import SPEC, Server, experience, served

ROWS = experience(20, 9)
#: Names the default explicitly: another fingerprint, and the same bits.
OTHER = {"ONEDNN_MAX_CPU_ISA": "ALL"}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


# -- which rows a state meets ---------------------------------------------------------------------


def lineage(applied_lsn: int, version: int) -> LineageRow:
    """Return a row."""
    return LineageRow({"cpu": f"{version}"}, applied_lsn, version)


@dataclass
class Progress:
    """Of a state."""

    lsn: int
    version: int = 0
    lineages: int = 0


@dataclass
class State:
    """Stands for a core: counts what it is told."""

    progress: Progress
    numbers: list[int] = field(default_factory=list)

    def renumber(self, version: int, lineages: int = 1) -> None:
        """Take another number."""
        self.progress.version, self.numbers = version, [*self.numbers, version]
        self.progress.lineages += lineages


def test_rows_ahead() -> None:
    """In order; one that began earlier than those before it took over from them."""
    rows = [lineage(4, 10), lineage(9, 20), lineage(9, 30), lineage(6, 40), lineage(12, 50)]

    assert [(n, row.version) for n, row in ahead(rows, 0)] == [(1, 10), (4, 40), (5, 50)]
    assert [n for n, _ in ahead(rows, 1)] == [4, 5]
    assert [n for n, _ in ahead(rows[:3], 1)] == [2, 3]
    assert ahead(rows, 5) == []


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 6))
def test_recovery_goes_the_way_that_was_gone(starts: list[int], restart: int) -> None:
    """From any checkpoint of the way the same rows are met, with the same numbers.

    Each lineage began where its learner had recovered to, and that one read on to the last row.
    """
    rows: list[LineageRow] = []
    states = {0: (Progress(0), [])}  # by position: what a learner that goes the newest way has seen
    for n, lsn in enumerate(starts):
        before, seen = states[lsn] if lsn in states else states[max(k for k in states if k <= lsn)]
        at = Progress(lsn, before.version, before.lineages)
        rows.append(lineage(lsn, 100 * (n + 1)))
        state = State(at, list(seen))
        enter(state, rows)
        assert state.numbers[-1] == rows[-1].version
        states = {k: v for k, v in states.items() if k < lsn}
        for further in range(lsn, 8):
            states[further] = (Progress(further, state.progress.version, len(rows)), state.numbers)
    start = max(k for k in states if k <= restart)
    progress, seen = states[start]
    again = State(Progress(start, progress.version, progress.lineages), list(seen))
    check_course(again, rows, "checkpoint")
    for lsn in range(start, 8):
        again.progress.lsn = lsn
        enter(again, rows)
        assert lsn not in states or again.numbers == states[lsn][1]

    assert rows == [] or again.numbers == states[7][1]
    assert again.progress.lineages == len(rows)


def test_state_of_a_way_that_was_left() -> None:
    """A state beyond the place where another lineage began is none to go on from."""
    rows = [lineage(6, 100)]
    check_course(State(Progress(6)), rows, "it")
    check_course(State(Progress(9, lineages=1)), rows, "it")
    with pytest.raises(CheckpointError, match="the lineage that began after row 6"):
        check_course(State(Progress(7)), rows, "it")
    with pytest.raises(CheckpointError, match="at most 1 lineages"):
        check_course(State(Progress(9, lineages=2)), rows, "it")


# -- another number -------------------------------------------------------------------------------


def test_renumbered() -> None:
    """The same policy under another number; what follows is numbered from there."""
    one, two = Learner(SPEC), Learner(SPEC)
    for learner in (one, two):
        learner.add(ROWS[:60])
    before = two.snapshot()
    two.renumber(1_000)
    after = two.snapshot()
    assert (after.version, after.update_count) == (1_000, before.update_count)
    assert same_weights(before, after)
    assert two.info()["lineages"] == two.progress.lineages == 1
    with pytest.raises(InvalidValue, match="past 1000"):
        two.renumber(1_000)
    for learner in (one, two):
        learner.add(ROWS[60:])

    assert two.policy_version - 1_000 == one.policy_version - before.version
    assert same_weights(one.snapshot(), two.snapshot())


def test_renumbered_while_diverged() -> None:
    """While the last good policy is served, it is what gets the number."""
    spec = {**SPEC, "divergence": {"patience": 1, "copy_every": 5}}
    learner = Learner(spec)
    learner.add(ROWS[:40])
    for parameter in learner.algorithm.online.parameters():
        parameter.data.fill_(float("nan"))
    learner.update()
    assert learner.diverged
    before = learner.snapshot()
    learner.renumber(500)

    assert learner.served_version == learner.snapshot().version == 500
    assert same_weights(before, learner.snapshot())
    learner.update()
    assert (learner.policy_version, learner.served_version) == (501, 500)


def test_lineages_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    """A state read back knows how many it has passed."""
    learner = Learner(SPEC)
    learner.add(ROWS[:60])
    learner.renumber(500, 3)
    learner.save(tmp_path / "saved")

    assert Learner.load(tmp_path / "saved").progress.lineages == 3
    assert Learner.load(tmp_path / "saved").policy_version == 500


def same_weights(one: PolicySnapshot, two: PolicySnapshot) -> bool:
    """Whether two policies are the same but for their numbers."""
    arrays = [{**p.weights, "mean": p.mean, "var": p.var} for p in (one, two)]
    return arrays[0].keys() == arrays[1].keys() and all(
        np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0]
    )


# -- the fingerprint ------------------------------------------------------------------------------


def test_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """What decides bits is in it, what does not is not, and it is the same every time."""
    base = fingerprint(1)
    assert fingerprint(1) == base
    assert all(isinstance(value, str) for value in base.values())
    assert fingerprint(2) != base
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert fingerprint(1)["kernels"] == "MKL_CBWR=COMPATIBLE"
    monkeypatch.delenv("MKL_CBWR")
    monkeypatch.setattr(fingerprints, "NUMERICS", 99)
    assert {k for k, v in fingerprint(1).items() if v != base[k]} == {"numerics"}
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert fingerprint(1) == base


# -- a service ------------------------------------------------------------------------------------


def records(data_dir: Path, kind: str) -> list[Any]:
    """Return what the CONTROL rows of a kind say."""
    path = data_dir / "models" / "m.1" / "journal.db"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute(
        "SELECT payload FROM journal WHERE kind = ? ORDER BY lsn", (kind,)
    ).fetchall()
    connection.close()
    return [msgspec.json.decode(payload) for (payload,) in rows]


def send(endpoint: RemoteLearner, rows: list[Any], version: int) -> dict[str, Any]:
    """Send rows of a policy, in small requests, and return the figures once they are learned."""
    receipts = [
        endpoint.add([{**row, "policy_version": version} for row in rows[at : at + 5]])
        for at in range(0, len(rows), 5)
    ]
    assert sum(receipt.accepted for receipt in receipts) == len(rows)
    return endpoint.wait(receipts[-1].lsn)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """``start()``: a server on the test's directory, ended with the test."""
    running: list[Server] = []

    def build() -> Server:
        running.append(Server(tmp_path))
        return running[-1]

    yield build
    for server in running:
        server.kill()


def mismatches(info: dict[str, Any]) -> list[str]:
    """Return what is said of policies that came out otherwise than recorded."""
    return [warning for warning in info["warnings"] if "rebuilt_differently" in warning]


@pytest.mark.slow
def test_another_machine(
    start: Callable[[], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions jump past the highest, what is served never goes back, and all of it again.

    The learner recovers from a checkpoint older than what was served; killed later, it comes back
    through the lineage to the same bits.
    """
    reference = Learner(SPEC)
    server = start()
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    send(endpoint, ROWS[:60], -1)
    endpoint.close()
    assert server.terminate() == 0  # with a checkpoint
    folder = tmp_path / "models" / "m.1"
    (written,) = map(position, checkpoints(folder))
    reference.add([{**row, "policy_version": -1} for row in ROWS[:60]])
    at_checkpoint = reference.update_count

    server = start()
    endpoint = server.connect("m")
    before = send(endpoint, ROWS[60:120], -1)
    assert mismatches(before) == []
    server.kill()
    endpoint.close()
    highest = max(record["version"] for record in records(tmp_path, "version"))
    assert before["policy_version"] == highest > at_checkpoint
    assert records(tmp_path, "lineage") == []
    assert records(tmp_path, "create")[0]["fingerprint"] == fingerprint(1)

    for name, value in OTHER.items():
        monkeypatch.setenv(name, value)
    server = start()
    endpoint = server.connect("m")
    assert endpoint.act([[0.5, -1.0]]).policy_version >= highest
    info = send(endpoint, ROWS[120:150], highest)
    reference.add([{**row, "policy_version": -1} for row in ROWS[60:120]])
    reference.add([{**row, "policy_version": 0} for row in ROWS[120:150]])
    (row,) = records(tmp_path, "lineage")
    assert row == {
        "fingerprint": fingerprint(1),
        "applied_lsn": written,
        "version": highest + 1,
    }
    assert info["lineages"] == 1
    assert info["update_count"] == reference.update_count
    jump = highest + 1 - at_checkpoint
    assert info["policy_version"] == reference.policy_version + jump
    assert mismatches(info) == []
    policy = served(tmp_path, "m.1")
    assert same_weights(policy, reference.snapshot())
    # Nobody was served a policy that had seen less than the one before it.
    positions = [record["applied_lsn"] for record in records(tmp_path, "version")]
    assert positions == sorted(positions)
    server.kill()
    endpoint.close()

    server = start()
    endpoint = server.connect("m")
    info = send(endpoint, ROWS[150:], info["policy_version"])
    reference.add([{**row, "policy_version": 0} for row in ROWS[150:]])
    assert info["lineages"] == 1
    assert info["policy_version"] == reference.policy_version + jump
    assert mismatches(info) == []  # every policy met again had the digest recorded for it
    endpoint.close()
    assert server.terminate() == 0
    assert len(records(tmp_path, "lineage")) == 1
    assert same_weights(served(tmp_path, "m.1"), reference.snapshot())
    assert served(tmp_path, "m.1").version == reference.policy_version + jump
