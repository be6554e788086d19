"""A model whose journal begins with the rows of another: what `jormungandr replay --as` makes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec

from jormungandr.durable import sync_folder
from jormungandr.errors import InvalidValue, ModelConflict
from jormungandr.ledger import Draft
from jormungandr.rows import row_digest
from jormungandr.service.child.fingerprint import fingerprint
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.database import (
    Created,
    VersionRow,
    checksum,
    connect,
    encode_created,
    make_durable,
    transaction,
)
from jormungandr.service.journal.writer import Journal
from jormungandr.service.shelf import PolicyShelf
from jormungandr.service.tools.building import writing
from jormungandr.service.tools.stored import StoredModel, generations
from jormungandr.spec import MODEL_ID, ModelSpec

__all__ = ["Offspring"]


@dataclass(frozen=True)
class Offspring:
    """A model to be made in a data directory that no server holds.

    Its rows keep their positions, payloads and digests, and the ledger comes along: what is sent
    again is known. Its version numbers begin past the highest of the model it comes from, so that
    a version in a copied row names a policy of that one, and of no other.

    Args:
        directory: the data directory, locked.
        source: the model whose rows are copied.
        created: what the new journal says of itself.
    """

    directory: DataDir
    source: StoredModel
    created: Created

    @classmethod
    def named(
        cls, directory: DataDir, source: StoredModel, model_id: str, spec: ModelSpec
    ) -> Offspring:
        """Give it a name, and the numbers that go with it.

        Raises:
            InvalidValue: it is no name.
            ModelConflict: there is a model of that name.
        """
        if MODEL_ID.fullmatch(model_id) is None:
            raise InvalidValue("--as", f"to match {MODEL_ID.pattern}", repr(model_id))
        generation, highest = 0, source.highest_version
        for folder in generations(directory.path, model_id):
            with StoredModel(folder) as earlier:
                if not earlier.deleted:
                    raise ModelConflict("--as", "a new model", f"{model_id!r}, which there is")
                generation = earlier.created.generation
                highest = max(highest, earlier.highest_version)
        origin = f"{source.created.model_id}.{source.created.generation}, row {source.last}"
        created = Created(
            model_id, generation + 1, highest + 1, spec, fingerprint(spec.threads), origin
        )
        return cls(directory, source, created)

    def write(self, save: Callable[[Path], None], policy: Any) -> Path:
        """Make it, whole or not at all, and return its folder.

        Args:
            save: writes the checkpoint of the learner that has applied all rows to a path.
            policy: that learner's `PolicySnapshot`; it is served from the start.
        """
        models = self.directory.path / "models"
        folder = models / f"{self.created.model_id}.{self.created.generation}"
        building = models / f".{folder.name}"
        shutil.rmtree(building, ignore_errors=True)
        try:
            with writing(folder):
                building.mkdir()
                self._copy(building / "journal.db")
                (building / "checkpoints").mkdir()
                save(building / "checkpoints" / f"{self.source.last:020d}")
                self._publish(building, policy)
                sync_folder(building)
                building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        sync_folder(models)
        return folder

    def _copy(self, path: Path) -> None:
        """Copy the journal, and leave of its CONTROL rows what set data rows aside."""
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with contextlib.closing(connect(path, flags)) as connection:
            with connection.backup("main", self.source.connection, "main") as backup:
                while not backup.done:
                    backup.step(10_000)
            make_durable(connection)
            with transaction(connection):
                self._become(connection)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _become(self, connection: apsw.Connection) -> None:
        payload = encode_created(self.created)
        connection.execute(
            "DELETE FROM journal WHERE kind NOT IN ('transitions', 'labels', 'skip', 'create')"
        )
        connection.execute(
            "UPDATE journal SET payload = ?, digest = ? WHERE kind = 'create'",
            (payload, row_digest(1, "create", payload)),
        )
        found = connection.execute("SELECT max(lsn) FROM journal").fetchone()
        counters = replace(self.source.counters, lsn=cast("tuple[int]", found)[0])
        row = ("counters", msgspec.json.encode(asdict(counters)))
        connection.execute("REPLACE INTO meta VALUES (?, ?, ?)", (*row, checksum(*row)))
        connection.execute("DELETE FROM meta WHERE name IN ('seal', 'controls')")

    def _publish(self, folder: Path, policy: Any) -> None:
        """Record the policy, as a service does before it serves one."""
        data, lsn = policy.to_bytes(), self.source.last
        PolicyShelf(folder).write(policy.version, data)
        journal = Journal(folder / "journal.db")
        row = VersionRow(
            policy.version, policy.update_count, lsn, policy.digest(), sha256(data).hexdigest()
        )
        journal.commit(Draft(journal), [], [row])
        journal.close()
