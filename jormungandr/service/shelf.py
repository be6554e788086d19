"""`PolicyShelf`: the newest served policies of one model, as files."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from jormungandr.durable import sync_folder, write_synced
from jormungandr.errors import CheckpointError
from jormungandr.failpoints import reached
from jormungandr.policy import PolicySnapshot

__all__ = ["PolicyShelf"]

log = logging.getLogger("jormungandr")

#: Policies kept.
KEEP_POLICIES = 16


class PolicyShelf:
    """Files named by version in the folder ``policies`` of a model.

    Args:
        folder: of the model.
    """

    def __init__(self, folder: Path) -> None:
        self._model, self._folder = folder, folder / "policies"

    def paths(self) -> list[Path]:
        """Return the files, oldest version first."""
        return sorted(p for p in self._folder.glob("*.safetensors") if p.stem.isdigit())

    def write(self, version: int, data: bytes) -> None:
        """Write a policy durably; the oldest makes room.

        Raises:
            OSError: it is not there.
        """
        if not self._folder.exists():
            self._folder.mkdir()
            sync_folder(self._model)
        path = self._path(version)
        temporary = path.with_suffix(".tmp")
        write_synced(temporary, data)
        reached("publish.written")
        temporary.rename(path)
        sync_folder(self._folder)
        for old in self.paths()[:-KEEP_POLICIES]:
            old.unlink(missing_ok=True)

    def read(self, version: int) -> bytes:
        """Return the bytes of a policy, as they are there.

        Raises:
            OSError: it is not kept any more.
        """
        return self._path(version).read_bytes()

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020d}.safetensors"

    def newest(
        self, recorded: Mapping[int, str], files: Mapping[int, str]
    ) -> PolicySnapshot | None:
        """Return the newest policy that is as it was recorded.

        Args:
            recorded: version to digest, from the journal.
            files: version to SHA-256 of its file.
        """
        for path in reversed(self.paths()):
            if int(path.stem) not in recorded:
                continue
            try:
                data = path.read_bytes()
                policy = PolicySnapshot.from_bytes(data)
            except (OSError, CheckpointError) as error:
                log.error("%s: %s", path, error)
                continue
            version = int(path.stem)
            if (policy.digest(), sha256(data).hexdigest()) == (recorded[version], files[version]):
                return policy
            log.error("%s: its digest is not the recorded one", path)
        return None
