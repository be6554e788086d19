"""What a learner goes on from: the newest checkpoint that is whole and belongs here, or nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import torch

from jormungandr import Learner
from jormungandr.admission import Admission
from jormungandr.columns import columns
from jormungandr.errors import CheckpointError, DataDirError
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft
from jormungandr.service.child.keeper import Keeper
from jormungandr.service.child.recovery import check_end, checkpoints, recover, refused
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.database import Created, LineageRow
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.service.serving import QUIET, SPEC, Server, experience, until

MODEL = ModelSpec.from_dict(SPEC)
CREATED = Created("m", 1, 0, MODEL)
ROWS = experience(12, 5)
BATCH = 4


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a model whose journal holds `ROWS` in requests of four."""
    folder = tmp_path / "models" / "m.1"
    folder.mkdir(parents=True)
    journal = Journal(folder / "journal.db", CREATED)
    for at in range(0, len(ROWS), BATCH):
        draft = Draft(journal)
        part = columns(ROWS[at : at + BATCH], MODEL)
        _, new = Admission(MODEL).transitions(part, draft, served=0, published=0)
        journal.commit(draft, new, [])
        journal.merged(draft)
    journal.close()
    return folder


def recovered(folder: Path, upto: int = 10_000) -> Core:
    """Return a learner that has recovered and read on, up to a position."""
    reader = JournalReader(folder / "journal.db")
    core: Core = recover(folder, reader)
    for row in reader.rows(core.progress.lsn, 1_000):
        if row.lsn <= upto:
            core.apply(row)
    reader.close()
    return core


def save(folder: Path, *positions: int) -> None:
    """Write the checkpoints that a learner of the journal writes at these positions."""
    for lsn in positions:
        recovered(folder, lsn).save(folder / "checkpoints" / f"{lsn:020d}")


def start(folder: Path) -> int:
    """Return the position that recovery begins from."""
    reader = JournalReader(folder / "journal.db")
    lsn = int(recover(folder, reader).progress.lsn)
    reader.close()
    return lsn


def damage(folder: Path, lsn: int, file: str = "tensors.safetensors") -> None:
    """Flip a byte in a checkpoint."""
    path = folder / "checkpoints" / f"{lsn:020d}" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def drop(folder: Path, upto: int) -> None:
    """Let the rows up to a position go, as retention does."""
    journal = Journal(folder / "journal.db")
    while journal.drop_rows(upto, 1 << 20):
        pass
    journal.close()


def whole() -> str:
    """Return the digest of the policy of a learner that was never interrupted."""
    learner = Learner(SPEC)
    learner.add(ROWS)
    return learner.snapshot().digest()


def names(folder: Path) -> list[str]:
    """Return the names in the folder of checkpoints, without leading zeros."""
    return sorted(path.name.lstrip("0") for path in (folder / "checkpoints").iterdir())


def test_newest_first(folder: Path) -> None:
    """The newest that verifies is taken, then the one before it, then the rows from the first."""
    save(folder, 6, 11)
    assert start(folder) == 11
    damage(folder, 11)
    assert start(folder) == 6
    assert names(folder) == ["11.corrupt", "6"]
    damage(folder, 6, "state.json")
    assert start(folder) == 0
    assert names(folder) == ["11.corrupt", "6.corrupt"]
    assert recovered(folder).snapshot().digest() == whole()


@pytest.mark.parametrize("file", ["manifest.json", "state.json", "tensors.safetensors"])
def test_nothing_left(folder: Path, file: str) -> None:
    """With no checkpoint whole and first rows gone a model is refused, never started empty."""
    save(folder, 6, 11)
    drop(folder, 6)
    damage(folder, 11, file)
    assert start(folder) == 6
    assert recovered(folder).snapshot().digest() == whole()
    damage(folder, 6, file)
    for _ in range(2):
        with pytest.raises(CheckpointError) as raised:
            start(folder)
        message = str(raised.value)
        assert f"set aside: {6:020d}.corrupt, {11:020d}.corrupt" in message
        assert "rows before 7 are no longer kept" in message
        assert "restore a backup" in message
    (folder / "checkpoints" / f"{6:020d}.corrupt").rename(folder / "kept")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(CheckpointError, match="set aside: no checkpoint"):
        start(folder)


def test_put_back(folder: Path, tmp_path: Path) -> None:
    """A whole copy put back in the place of a damaged one is gone on from."""
    save(folder, 6, 11)
    shutil.copytree(folder / "checkpoints" / f"{11:020d}", tmp_path / "copy")
    drop(folder, 6)
    damage(folder, 11)
    damage(folder, 6)
    with pytest.raises(CheckpointError):
        start(folder)
    shutil.copytree(tmp_path / "copy", folder / "checkpoints" / f"{11:020d}")

    assert start(folder) == 11
    assert recovered(folder).snapshot().digest() == whole()


def test_checkpoint_before_the_rows_kept(folder: Path) -> None:
    """A checkpoint from which the rows that follow are gone is of no use, and says so."""
    save(folder, 3, 6, 11)
    drop(folder, 6)
    damage(folder, 11)
    damage(folder, 6)
    with pytest.raises(CheckpointError, match=rf"{3:020d}\.foreign"):
        start(folder)


@pytest.mark.parametrize("how", ["spec", "generation", "name"])
def test_of_another_model(folder: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """A checkpoint that somebody put there is named, set aside, and never deleted."""
    save(folder, 6)
    other = Learner({**SPEC, "seed": 5} if how == "spec" else SPEC)
    other.generation = 2 if how == "generation" else 1
    other.add(ROWS)
    other.save(folder / "checkpoints" / f"{11:020d}")

    assert start(folder) == 6
    assert names(folder) == ["11.foreign", "6"]
    assert f"{11:020d}" in caplog.text
    assert ("another model" if how != "name" else "position of its name") in caplog.text
    assert recovered(folder).snapshot().digest() == whole()


def test_older_journal(folder: Path, tmp_path: Path) -> None:
    """A journal that ends before a checkpoint is an older copy: refused, and both are named."""
    first = DataDir(tmp_path)
    for _, opened in first.journals():
        opened.close()
    first.close()
    shutil.copy(folder / "journal.db", tmp_path / "backup")
    journal = Journal(folder / "journal.db")
    draft = Draft(journal)
    part = columns(experience(2, 4, actor_id="b"), MODEL)
    _, new = Admission(MODEL).transitions(part, draft, served=0, published=0)
    journal.commit(draft, new, [])
    journal.close()
    save(folder, 6, 17)
    shutil.copy(tmp_path / "backup", folder / "journal.db")
    expected = rf"{17:020d} was made from, got one that ends at row 16"

    with pytest.raises(DataDirError, match=expected):
        start(folder)
    with pytest.raises(DataDirError, match=expected):
        check_end(folder, 16)
    directory = DataDir(tmp_path)
    with pytest.raises(DataDirError, match="put the newer journal back"):
        directory.journals()
    directory.close()
    done = subprocess.run(
        [sys.executable, "-m", "jormungandr", "serve", "--data-dir", tmp_path, "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{17:020d}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert names(folder) == ["17", "6"]


def test_second_checkpoint_of_a_position(folder: Path) -> None:
    """Where nothing came in between, two checkpoints of one position are as good as two others."""
    core = recovered(folder)
    keeper = Keeper(folder, core)
    keeper.ask()
    keeper.write()
    keeper.ask()
    keeper.write()
    assert names(folder) == ["16"]
    for _ in range(2):
        keeper.ask(again=True)
        keeper.write()
        assert names(folder) == ["16", "16.again"]
    assert start(folder) == 16
    path = checkpoints(folder)[-1] / "state.json"
    path.write_bytes(path.read_bytes() + b" ")

    assert start(folder) == 16
    assert refused(folder) == [f"{16:020d}.again.corrupt"]
    Keeper(folder, core).write()
    assert names(folder) == ["16", "16.again.corrupt"]


def test_lineage_that_was_left(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint of the course before a lineage that began earlier is set aside."""
    save(folder, 6, 11)
    journal = Journal(folder / "journal.db")
    draft = Draft(journal)
    journal.commit(draft, [], [LineageRow({"cpu": "another"}, 6, 500)])
    journal.close()

    assert start(folder) == 6
    assert names(folder) == ["11.foreign", "6"]
    assert "the lineage that began after row 6" in caplog.text
    core = recovered(folder)
    assert core.progress.lineages == 1
    before = recovered_without_lineages(folder)
    assert core.policy_version == 500 + core.update_count - before


def recovered_without_lineages(folder: Path) -> int:
    """Return how many updates the checkpoint at row 6 had made."""
    return int(Core.load(folder / "checkpoints" / f"{6:020d}").update_count)


# -- the budget -----------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [7, 20])
@pytest.mark.parametrize("again", [False, True])
def test_updates_to_redo_stay_within_the_budget(folder: Path, budget: int, again: bool) -> None:
    """Wherever a learner is killed, what the next one has to redo is within the budget.

    An update counts as a second. The next learner, on its way back, keeps to it as well.
    """
    updates, written = 0, 0
    reader = JournalReader(folder / "journal.db")
    core = recover(folder, reader)
    keeper = Keeper(folder, core, budget, clock=lambda: 0.0)
    for row in reader.rows(0, 1_000):
        before = core.update_count
        core.apply(row)
        # Killed now, before anything is written, the work since the last checkpoint is lost.
        kept = checkpoints(folder)
        lost = core.update_count - (Core.load(kept[-1]).update_count if kept else 0)
        updates = max(updates, lost)
        keeper.worked(core.update_count - before)
        if keeper.due:
            keeper.write()
            written += 1
        if again and row.lsn == 11:
            core = recover(folder, reader)
            for redone in reader.rows(core.progress.lsn, 1_000):
                if redone.lsn <= row.lsn:
                    core.apply(redone)
            keeper = Keeper(folder, core, budget, clock=lambda: 0.0)
            keeper.worked(core.update_count - Core.load(checkpoints(folder)[-1]).update_count)
    reader.close()

    assert core.update_count == 37
    assert budget // 2 <= updates <= budget
    assert 1 <= written <= core.update_count // 3 + 1
    assert len(checkpoints(folder)) <= 2


@pytest.mark.parametrize(("starting", "work"), [(0.0, 20.0), (3.0, 17.0), (60.0, 10.0)])
def test_starting_counts_as_work(folder: Path, starting: float, work: float) -> None:
    """What a restart needs before it can redo anything is taken from the budget, up to half."""
    keeper = Keeper(folder, recovered(folder), 20.0, starting=starting)
    keeper.worked(work / 2 - 0.25)
    keeper.worked(0.25)
    assert not keeper.due
    keeper.worked(work / 2 - 0.25)  # with the longest row on top, it is one too many
    assert keeper.due


def test_long_writing_waits_for_as_much_work(folder: Path) -> None:
    """A checkpoint that takes longer than the budget does not leave the learner without time."""
    now = [0.0]
    core = recovered(folder)

    class Slow:
        progress = core.progress

        def save(self, path: Path) -> None:
            core.save(path)
            now[0] += 30.0

    keeper = Keeper(folder, Slow(), 1.0, clock=lambda: now[0])
    keeper.worked(2.0)
    assert keeper.due
    keeper.write()
    keeper.worked(29.0)
    assert not keeper.due
    keeper.worked(1.0)
    assert keeper.due


def test_nothing_done_is_nothing_due(folder: Path) -> None:
    """Without work no checkpoint is due, however small the budget."""
    keeper = Keeper(folder, recovered(folder, 3), 1e-9)
    assert not keeper.due
    keeper.ask()
    assert keeper.due
    keeper.write()
    assert not keeper.due


# -- a service ------------------------------------------------------------------------------------


def test_failed_model(tmp_path: Path) -> None:
    """Without a checkpoint to go on from a model says so; it takes data, and serves its policy."""
    spec = {**QUIET, "pacing": {"learning_starts": 8, "updates_per_transition": 1.0}}
    with Server(tmp_path) as server:
        endpoint = server.connect("m")
        endpoint.create(spec)
        endpoint.wait(endpoint.add(ROWS[:30]).lsn)
        served = endpoint.act([[0.5, -1.0]], deterministic=True)
        endpoint.close()
    folder = tmp_path / "models" / "m.1"
    drop(folder, 1_000)
    (path,) = checkpoints(folder)
    (path / "state.json").write_bytes(b"{}")
    with Server(tmp_path) as server:
        endpoint = server.connect("m")
        info: Any = until(
            lambda: (i := endpoint.info())["learner"]["state"] == "failed" and i, "its end"
        )
        assert f"{path.name}.corrupt" in info["learner"]["error"]
        assert "restore a backup" in info["learner"]["error"]
        assert endpoint.act([[0.5, -1.0]], deterministic=True) == served
        assert endpoint.add(ROWS[30:]).accepted == len(ROWS) - 30
        assert endpoint.info()["update_count"] == 0
        endpoint.close()
    assert not checkpoints(folder)


def test_rows_are_all_there_or_named(folder: Path) -> None:
    """What retention dropped is known by position, for ever; the ledger knows every identity."""
    drop(folder, 6)
    reader = JournalReader(folder / "journal.db")
    assert (reader.first(), reader.last()) == (7, 16)
    assert [row.lsn for row in reader.rows(0, 3)] == [7, 8, 9]
    reader.close()
    journal = Journal(folder / "journal.db")
    assert journal.first() == 7
    draft = Draft(journal)
    receipt, new = Admission(MODEL).transitions(columns(ROWS, MODEL), draft, served=0, published=0)
    assert (receipt.duplicate, len(new)) == (len(ROWS), 0)
    assert journal.drop_rows(6, 1 << 20) == 0
    journal.close()
    connection = apsw.Connection(str(folder / "journal.db"))
    kinds = connection.execute("SELECT kind, count(*) FROM journal GROUP BY kind").fetchall()
    connection.close()
    assert sorted(kinds) == [("create", 1), ("transitions", 10)]
