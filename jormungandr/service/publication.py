"""`Publication`: the policies of one model, each recorded in its journal before it is served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from hashlib import sha256
from pathlib import Path
from typing import Any

from jormungandr.errors import JormungandrError, StorageFull
from jormungandr.failpoints import reached
from jormungandr.policy import PolicySnapshot
from jormungandr.service.child.messages import as_lineage, as_policy, snapshot
from jormungandr.service.journal.commits import Commits
from jormungandr.service.journal.database import LineageRow, VersionRow
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.writer import Journal
from jormungandr.service.shelf import PolicyShelf

__all__ = ["Publication"]

log = logging.getLogger("jormungandr")

#: Digests remembered, to compare with what a restarted learner makes again.
KEEP_DIGESTS = 10_000


class Publication:
    """Which policies there were, and the one that is served.

    Args:
        folder: of the model.
        journal: of it.
        commits: the way into the journal.
        space: that must stay free.
        pins: returns the versions whose files are kept, however old.
        long_ago: returns the digest of one of them.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        commits: Commits,
        space: FreeSpace,
        pins: Callable[[], Collection[int]] = tuple,
        long_ago: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._created, self._commits, self._space = journal.created, commits, space
        self._long_ago = long_ago
        self.shelf = PolicyShelf(folder, pins)
        versions = journal.versions(KEEP_DIGESTS)
        self._published = {v.version: v.digest for v in versions}
        #: First version of the newest lineage: those before come out otherwise here.
        self._lineage = max((row.version for row in journal.lineages()), default=0)
        self._highest = max(self._published, default=self._created.first_version)
        self.policy: PolicySnapshot | None = self.shelf.newest(
            self._published, {v.version: v.file for v in versions}
        )
        #: Of the policy served; None before there is one.
        self.row = {v.version: v for v in versions}.get(self.served)
        #: Position of the last row that the policy served has seen.
        self._policy_lsn = 0 if self.row is None else self.row.applied_lsn
        #: A rebuilt version whose digest is not the recorded one.
        self.mismatched: int | None = None

    @property
    def served(self) -> int:
        """The newest version served; the first one's number until it is."""
        return self._created.first_version if self.policy is None else self.policy.version

    @property
    def newest(self) -> PolicySnapshot:
        """The policy served, where there is one."""
        assert self.policy is not None  # whoever asks has waited for it
        return self.policy

    @property
    def highest(self) -> int:
        """The highest version there is a journaled row of."""
        return self._highest

    def digest(self, version: int) -> str | None:
        """Return the digest that a policy was recorded with; None of one long ago."""
        return self._published.get(version) or self._long_ago(version)

    def read(self, version: int) -> bytes:
        """Return the bytes of a policy that is kept.

        Raises:
            OSError: it is not.
        """
        return self.shelf.read(version)

    async def lineage(self, given: dict[str, Any]) -> None:
        """Record that policies come from other numerics from here on, and under what number.

        Raises:
            Garbage: it is no message that asks for one.
        """
        message = as_lineage(given)
        version = max(message.version, self._highest + 1)
        if await self._commits.record(
            LineageRow(message.fingerprint, message.applied_lsn, version)
        ):
            reached("recovery.lineage")
            self._lineage = version
            log.warning("%s: a new lineage begins at policy %d", self._created.model_id, version)

    async def policy_made(self, given: dict[str, Any]) -> None:
        """Record a policy, then serve it; one that was recorded before is only compared.

        Raises:
            Garbage: it is no policy of this model.
        """
        message = as_policy(given)
        version, digest = message.version, message.digest
        recorded = self._published.get(version)
        if recorded is not None and recorded != digest and version >= self._lineage:
            self.mismatched = version
            log.error("%s: policy %d is not the one recorded", self._created.model_id, version)
        known = bool(self._published) and version <= self._highest
        # One that was recorded is served again where its file was lost or damaged meanwhile.
        newer = self.policy is None or version > self.policy.version
        if known and not (recorded == digest and newer):
            return
        # Of a new lineage that still catches up: it has seen less than the one served.
        if self.policy is not None and message.applied_lsn < self._policy_lsn:
            return
        created = self._created
        policy = await asyncio.get_running_loop().run_in_executor(
            None, snapshot, message, created.spec, created.generation
        )
        row = VersionRow(
            version,
            message.update_count,
            message.applied_lsn,
            digest,
            sha256(message.bytes).hexdigest(),
        )
        if await self._write(row, message.bytes) and await self._record(row):
            reached("publish.serving")
            self.policy, self.row, self._policy_lsn = policy, row, row.applied_lsn

    async def _write(self, row: VersionRow, data: bytes) -> bool:
        """Make a policy's file durable; on a full disk, wait until it is not."""
        while self._commits.refusal is None:
            try:
                self._space.check()
                await asyncio.get_running_loop().run_in_executor(
                    None, self.shelf.write, row.version, data
                )
            except (StorageFull, OSError) as error:
                name = self._created.model_id
                log.warning("%s: policy %d not recorded: %s", name, row.version, error)
                await asyncio.sleep(1.0)
            except JormungandrError:  # the model is being closed
                return False
            else:
                reached("publish.file")
                return True
        return False

    async def _record(self, row: VersionRow) -> bool:
        """Make a policy's VERSION row durable, unless there is one."""
        if row.version in self._published:
            return True
        if not await self._commits.record(row):
            return False
        reached("publish.row")
        self._published[row.version] = row.digest
        self._highest = row.version
        if len(self._published) > KEEP_DIGESTS:
            del self._published[next(iter(self._published))]
        return True
