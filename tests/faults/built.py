"""A data directory as a server leaves it, made in this process: quick, and the same each time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from jormungandr.admission import Admission, check_labels
from jormungandr.columns import columns
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.database import VersionRow
from jormungandr.service.shelf import PolicyShelf
from jormungandr.spec import ModelSpec
from tests.service.serving import SPEC, experience, identity

#: Transitions of 16 episodes, four of them held out.
ROWS = experience(16, 6)
#: Rows after which a checkpoint is written.
CHECKPOINTS = (8, 14)
BATCH = 6


class Built:
    """One model, and what its learner makes of what is sent.

    Args:
        data_dir: made.
        spec: of the model.
    """

    def __init__(self, data_dir: Path, spec: dict[str, Any] = SPEC, model_id: str = "m") -> None:
        self.directory = DataDir(data_dir)
        self.directory.lock.settle()
        self.spec = ModelSpec.from_dict(spec)
        self.folder, self.journal = self.directory.create(model_id, 1, 0, self.spec)
        self.shelf = PolicyShelf(self.folder)
        self.core = Core(self.spec)
        self._admission = Admission(self.spec)
        self._published: set[int] = set()

    def _keep(self, draft: Draft, rows: Any, controls: Any = ()) -> None:
        self.journal.commit(draft, rows, controls)
        self.journal.merged(draft)

    def add(self, transitions: list[Any]) -> None:
        """Admit transitions, and let the learner apply them."""
        draft = Draft(self.journal)
        _, rows = self._admission.transitions(
            columns(transitions, self.spec), draft, served=0, published=10_000
        )
        self._keep(draft, rows)
        for row in rows:
            self.core.apply(row)

    def label(self, labels: list[Any]) -> None:
        """Admit labels, and let the learner apply them."""
        draft = Draft(self.journal)
        _, rows = self._admission.labels(check_labels(labels, self.spec), draft)
        self._keep(draft, rows)
        for row in rows:
            self.core.apply(row)

    def publish(self) -> None:
        """Record the newest policy."""
        policy = self.core.snapshot()
        data = policy.to_bytes()
        if policy.version in self._published:
            return
        self._published.add(policy.version)
        self.shelf.write(policy.version, data)
        row = VersionRow(
            policy.version,
            policy.update_count,
            self.core.progress.lsn,
            policy.digest(),
            sha256(data).hexdigest(),
        )
        self.control(row)

    def control(self, row: Any) -> None:
        """Record a CONTROL row."""
        draft = Draft(self.journal)
        self._keep(draft, [], [row])

    def checkpoint(self) -> None:
        """Write the learner's state."""
        folder = self.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        self.core.save(folder / f"{self.core.progress.lsn:020d}")

    def close(self) -> None:
        """Let go of everything, as a clean shutdown does."""
        self.journal.close()
        self.directory.close()


def build(data_dir: Path, *, killed: bool = False, sealed: bool = True) -> Path:
    """Make a directory with rows, labels, policies and two checkpoints.

    Args:
        data_dir: made.
        killed: as after kill -9 of the server: what was committed last is in the WAL.
        sealed: whether it was idle for a while before.
    """
    source = data_dir.with_name(data_dir.name + ".live") if killed else data_dir
    built = Built(source)
    for n, at in enumerate(range(0, len(ROWS), BATCH)):
        built.add(ROWS[at : at + BATCH])
        if n == 3:
            built.label([{**identity("a", "e50", t), "label": 1} for t in range(3)])
            built.label([{**identity("a", "e0", 0), "label": 1}])
        built.publish()
        if n in CHECKPOINTS:
            built.checkpoint()
            if n == CHECKPOINTS[-1] and killed:
                built.journal._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    if killed:
        if sealed:
            built.journal.seal()
        shutil.copytree(source, data_dir)
    built.close()
    if killed:
        shutil.rmtree(source)
    return data_dir


def files(data_dir: Path) -> Iterator[Path]:
    """Yield the files that hold something: the lock, the token and the index of a WAL do not."""
    for path in sorted((data_dir / "models").rglob("*")):
        if path.is_file() and path.name not in ("learner.lock", "journal.db-shm"):
            yield path


def contents(folder: Path) -> dict[str, Any]:
    """Return everything that the tables of a model's journal hold, as SQLite reads it."""
    copy = folder.parent.parent / "contents"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in folder.glob("journal.db*"):
        if not path.name.endswith("-shm"):
            shutil.copyfile(path, copy / path.name)
    connection = apsw.Connection(str(copy / "journal.db"))
    names = ["meta", "journal", "episode", "ledger", "pending_label"]
    tables = {
        n: connection.execute(f"SELECT * FROM {n} ORDER BY 1, 2, 3").fetchall() for n in names
    }
    # It holds nothing: damage to it costs nothing.
    tables["meta"] = [row for row in tables["meta"] if row[0] != "seal"]
    connection.close()
    shutil.rmtree(copy)
    return tables


__all__ = ["BATCH", "ROWS", "Built", "build", "contents", "files"]
