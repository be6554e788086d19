"""`PolicyShelf`: the newest served policies of one model, as files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
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
        pins: returns the versions that stay, however old; asked on the thread that writes.
    """

    def __init__(self, folder: Path, pins: Callable[[], Collection[int]] = tuple) -> None:
        self._model, self._folder, self._pins = folder, folder / "policies", pins
        #: Held while files go: what is pinned and then read, stays.
        self._going = threading.Lock()

    def paths(self) -> list[Path]:
        """Return the files, oldest version first."""
        return sorted(p for p in self._folder.glob("*.safetensors") if p.stem.isdigit())

    def write(self, version: int, data: bytes) -> None:
        """Write a policy durably; the oldest that is not pinned makes room.

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
        with self._going:
            pinned = self._pins()
            for old in self.paths()[:-KEEP_POLICIES]:
                if int(old.stem) not in pinned:
                    old.unlink(missing_ok=True)

    def read(self, version: int) -> bytes:
        """Return the bytes of a policy, as they are there.

        Raises:
            OSError: it is not kept any more.
        """
        with self._going:
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
        for version in (int(path.stem) for path in reversed(self.paths())):
            if version in recorded:
                policy = self.whole(version, recorded[version], files[version])
                if policy is not None:
                    return policy
        return None

    def whole(self, version: int, digest: str, file: str) -> PolicySnapshot | None:
        """Return a policy that is as it was recorded; None, and a line in the log, where not.

        Args:
            version: of the policy.
            digest: of its content.
            file: SHA-256 of its file.
        """
        path = self._path(version)
        try:
            data = path.read_bytes()
            policy = PolicySnapshot.from_bytes(data)
        except (OSError, CheckpointError) as error:
            log.error("%s: %s", path, error)
            return None
        if (policy.digest(), sha256(data).hexdigest()) == (digest, file):
            return policy
        log.error("%s: its digest is not the recorded one", path)
        return None
