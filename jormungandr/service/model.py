"""`Model`: one model inside the gateway — admission, the policy it serves, what it says of itself.

Everything here runs on the event loop. What comes in goes through `Commits`, what goes out through
a `PolicyShelf`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from jormungandr.admission import Admission
from jormungandr.columns import Columns
from jormungandr.encoding import count
from jormungandr.errors import (
    Backlog,
    Draining,
    JormungandrError,
    ModelUnknown,
    PolicyNotReady,
    StorageFull,
)
from jormungandr.failpoints import reached
from jormungandr.ledger import Draft, Identity
from jormungandr.policy import PolicySnapshot, streams
from jormungandr.protocol import SPLITS, InferenceReply, LabelReceipt, Receipt
from jormungandr.rows import Row
from jormungandr.service.child.channel import Garbage
from jormungandr.service.child.messages import as_lineage, as_policy, as_state, longest, snapshot
from jormungandr.service.child.process import PARK_AFTER, LearnerProcess
from jormungandr.service.child.quarantine import Quarantine
from jormungandr.service.datadir import LEARNED
from jormungandr.service.journal.commits import Admit, Commits
from jormungandr.service.journal.database import Control, LineageRow, SkipRow, VersionRow
from jormungandr.service.journal.space import FreeSpace
from jormungandr.service.journal.writer import Journal
from jormungandr.service.retention import Keeping, Retention
from jormungandr.service.shelf import PolicyShelf

__all__ = ["Model"]

log = logging.getLogger("jormungandr")

#: Digests remembered, to compare with what a restarted learner makes again.
KEEP_DIGESTS = 10_000
#: Evaluations remembered.
KEEP_EVALUATIONS = 1_000
#: Observations above which a forward pass leaves the event loop.
LOOP_OBSERVATIONS = 64
#: Seconds an inference request waits for the first policy of a model.
FIRST_POLICY = 20.0


class Model:
    """One model of the service.

    Args:
        folder: of the model.
        journal: opened for writing.
        space: that must stay free.
        keeping: how much is kept.
        park_after: seconds of idleness after which the learner process ends.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        space: FreeSpace,
        keeping: Keeping = Keeping(),  # noqa: B008 - frozen
        *,
        park_after: float = PARK_AFTER,
    ) -> None:
        self.folder, self.journal = folder, journal
        self._space, self._park_after = space, park_after
        self._keeping = keeping
        self.retention = Retention(
            folder,
            journal,
            space,
            keeping.journal_max_bytes,
            learner=lambda: (self._process.pid, self._info.get("applied_lsn", 0)),
            release=self._release,
        )
        self.commits = Commits(
            journal,
            self.retention,
            self._rung,
            lambda: self.retention.step(self.commits.on_writer),
        )
        self.shelf = PolicyShelf(folder)
        created = journal.created
        self.spec, self.model_id, self.generation = (
            created.spec,
            created.model_id,
            created.generation,
        )
        self._admission = Admission(self.spec, self.generation)
        versions = journal.versions(KEEP_DIGESTS)
        self._published = {v.version: v.digest for v in versions}
        #: First version of the newest lineage: those before come out otherwise here.
        self._lineage = max((row.version for row in journal.lineages()), default=0)
        self._highest = max(self._published, default=created.first_version)
        self.policy: PolicySnapshot | None = self.shelf.newest(
            self._published, {v.version: v.file for v in versions}
        )
        seen = {v.version: v.applied_lsn for v in versions}
        #: Position of the last row that the policy served has seen.
        self._policy_lsn = seen.get(self.served_version, 0)
        _, _, self._acting = streams(self.spec.seed)
        self._quarantine = Quarantine(journal)
        self._process = self._new_process()
        self._checkpoint_error: str | None = None
        self._info: dict[str, Any] = {}  # the learner's last report
        self._metrics: dict[str, Any] = {}
        self._evaluations: dict[int, dict[str, Any]] = {}  # by policy version
        self._mismatched: int | None = (
            None  # a rebuilt version whose digest is not the recorded one
        )
        self._settled_lsn = 0  # applied, and the policy after it is served
        self._changed = asyncio.Event()
        self._closed: JormungandrError | None = None
        if journal.counters.data_lsn > 0:
            self._process.start()  # it may have rows to catch up with

    def _new_process(self) -> LearnerProcess:
        return LearnerProcess(
            self.folder,
            self.spec.threads,
            self._on_message,
            on_row=self._quarantined,
            park_after=self._park_after,
            longest=longest(self.spec),
            recovery_budget=self._keeping.recovery_budget,
        )

    def _rung(self) -> None:
        """Tell the learner of rows that were committed, also when nobody waits for an answer."""
        self._process.start()
        self._process.send("doorbell")

    def _release(self) -> None:
        """Have the learner write a checkpoint, so that older rows are no longer needed."""
        self._process.start()
        self._process.send("release")

    # -- data in --------------------------------------------------------------------------------

    async def add(self, columns: Columns) -> Receipt:
        """Admit transitions; return when they are durable."""
        self._check_backlog()

        def admit(draft: Draft) -> tuple[Receipt, Sequence[Row]]:
            return self._admission.transitions(
                columns, draft, served=self.served_version, published=self.published_version
            )

        receipt: Receipt = await self._submit(admit, items=len(columns))
        self._process.start()
        return receipt

    async def label(self, labels: Sequence[tuple[Identity, int]]) -> LabelReceipt:
        """Admit labels; return when they are durable."""
        receipt: LabelReceipt = await self._submit(
            lambda draft: self._admission.labels(labels, draft), items=len(labels)
        )
        self._process.start()  # a barrier on this receipt waits for it
        return receipt

    def _check_backlog(self) -> None:
        applied = self._info.get("transitions")
        if applied is None:
            return  # the learner has not reported yet; what is sent is kept meanwhile
        behind = self.journal.counters.train - self._quarantine.train - applied["train"]
        if behind > self.spec.pacing.max_backlog:
            limit = self.spec.pacing.max_backlog
            raise Backlog("model", f"a learner at most {limit} transitions behind", behind)

    async def _submit(self, admit: Admit, control: Control | None = None, items: int = 1) -> Any:
        if self._closed is not None:
            raise self._closed
        return await self.commits.submit(admit, control, items)

    # -- versions out ---------------------------------------------------------------------------

    @property
    def served_version(self) -> int:
        """The newest version served; the first one's number until it is."""
        if self.policy is not None:
            return self.policy.version
        return self.journal.created.first_version

    @property
    def published_version(self) -> int:
        """The highest version there is a journaled row of."""
        return self._highest

    async def newest_policy(self) -> PolicySnapshot:
        """Return the policy to act with, waiting for the first one of a new model.

        Raises:
            PolicyNotReady: it has not come in time.
        """
        if self.policy is None:
            self._process.start()
            await self._wait_until(lambda: self.policy is not None, FIRST_POLICY)
        if self.policy is None:
            expected = f"a policy within {FIRST_POLICY:g} s"
            raise PolicyNotReady("model", expected, f"learner {self._process.state}")
        return self.policy

    async def act(
        self,
        observations: Any,
        *,
        deterministic: bool,
        epsilon: float | None,
        action_masks: list[Any] | None,
        distribution: bool,
    ) -> InferenceReply:
        """Answer with the newest policy, waiting for the first one of a new model."""
        policy = await self.newest_policy()
        if epsilon is None:
            epsilon = self.spec.exploration.epsilon(self.journal.counters.train)

        def forward() -> InferenceReply:
            return policy.act(
                observations,
                self._acting,
                deterministic=deterministic,
                epsilon=epsilon,
                action_masks=action_masks,
                distribution=distribution,
            )

        o = self.spec.observation
        if not o.is_image and count(observations, o) <= LOOP_OBSERVATIONS:
            return forward()
        return await asyncio.get_running_loop().run_in_executor(None, forward)

    async def _on_message(self, message: dict[str, Any]) -> None:
        """Take a message of the learner process.

        Raises:
            Garbage: it is none that a learner sends.
        """
        try:
            await self._handle(message)
        except Garbage:
            raise
        except Exception:
            log.exception("%s: a message of the learner was not handled", self.model_id)
        # A busy learner reports before its newest policy is recorded: that one is waited for.
        if self._info and self.served_version >= self._info["policy_version"]:
            self._settled_lsn = max(self._settled_lsn, self._info["applied_lsn"])
        self._wake()

    async def _handle(self, message: dict[str, Any]) -> None:
        if message["type"] == "policy":
            await self._on_policy(message)
            self._process.send("published")
        elif message["type"] == "lineage":
            await self._on_lineage(message)
            self._process.send("lineage")
        elif message["type"] == "state":
            report = as_state(message)
            before, now = self._info.get("applied_lsn", -1), report.info["applied_lsn"]
            if now > before:
                self._process.progressed()
            if now >= before:  # a learner that was started again has to catch up first
                self._info = report.info
            self._checkpoint_error = report.checkpoint_error
            self._metrics = report.metrics
            for evaluation in report.evaluations:
                made = msgspec.to_builtins(evaluation)
                self._evaluations[evaluation.policy_version] = made
            for old in list(self._evaluations)[:-KEEP_EVALUATIONS]:
                del self._evaluations[old]
            if self.retention.pressing:
                self.commits.nudge()  # there may be a newer checkpoint
        else:
            raise Garbage(f"a message of type {message['type'][:50]!r}")

    async def _quarantined(self, lsn: int, reason: str) -> bool:
        """Set aside a row that has ended the learner again and again; return whether it is."""
        row = SkipRow(lsn, reason)
        while self._closed is None and self._quarantine.may(lsn):
            try:
                await self._submit(lambda _: (None, ()), row)
            except StorageFull as error:
                log.warning("%s: row %d not set aside yet: %s", self.model_id, lsn, error)
                await asyncio.sleep(1.0)
            except JormungandrError:  # the model is being closed
                return False
            else:
                self._quarantine.add(row)
                log.error("%s: row %d is set aside: %s", self.model_id, lsn, reason)
                self._wake()
                return True
        return False

    async def _on_lineage(self, given: dict[str, Any]) -> None:
        """Record that policies come from other numerics from here on, and under what number."""
        message = as_lineage(given)
        version = max(message.version, self._highest + 1)
        row = LineageRow(message.fingerprint, message.applied_lsn, version)
        while self._closed is None:
            try:
                await self._submit(lambda _: (None, ()), row)
            except StorageFull as error:
                log.warning("%s: lineage not recorded yet: %s", self.model_id, error)
                await asyncio.sleep(1.0)
            except JormungandrError:  # the model is being closed
                return
            else:
                reached("recovery.lineage")
                self._lineage = version
                log.warning("%s: a new lineage begins at policy %d", self.model_id, version)
                return

    def _wake(self) -> None:
        """Let everybody who waits for a change look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _on_policy(self, given: dict[str, Any]) -> None:
        """Record a policy, then serve it; one that was recorded before is only compared."""
        message = as_policy(given)
        version, digest = message.version, message.digest
        recorded = self._published.get(version)
        if recorded is not None and recorded != digest and version >= self._lineage:
            self._mismatched = version
            log.error("%s: policy %d is not the one recorded", self.model_id, version)
        known = bool(self._published) and version <= self._highest
        # One that was recorded is served again where its file was lost or damaged meanwhile.
        newer = self.policy is None or version > self.policy.version
        if known and not (recorded == digest and newer):
            return
        # Of a new lineage that still catches up: it has seen less than the one served.
        if self.policy is not None and message.applied_lsn < self._policy_lsn:
            return
        policy = await asyncio.get_running_loop().run_in_executor(
            None, snapshot, message, self.spec, self.generation
        )
        row = VersionRow(
            version,
            message.update_count,
            message.applied_lsn,
            digest,
            sha256(message.bytes).hexdigest(),
        )
        if await self._record(row, message.bytes):
            reached("publish.serving")
            self.policy, self._policy_lsn = policy, row.applied_lsn

    async def _record(self, row: VersionRow, data: bytes) -> bool:
        """Make a policy and its VERSION row durable; on a full disk, wait until it is not."""
        while self._closed is None:
            try:
                self._space.check()
                await asyncio.get_running_loop().run_in_executor(
                    None, self.shelf.write, row.version, data
                )
                reached("publish.file")
                if row.version not in self._published:
                    await self._submit(lambda _: (None, ()), row)
                    reached("publish.row")
                    self._published[row.version] = row.digest
                    self._highest = row.version
                    if len(self._published) > KEEP_DIGESTS:
                        del self._published[next(iter(self._published))]
            except (StorageFull, OSError) as error:
                log.warning("%s: policy %d not recorded: %s", self.model_id, row.version, error)
                await asyncio.sleep(1.0)
            except JormungandrError:  # the model is being closed
                return False
            else:
                return True
        return False

    # -- what it is -----------------------------------------------------------------------------

    def info(self) -> dict[str, Any]:
        """Return the model's specification and figures."""
        counters, spec = self.journal.counters, self.spec
        empty = {
            "update_count": 0,
            "transitions": {"train": 0, "validation": 0},
            "replay": {"size": 0, "capacity": spec.replay.capacity},
            "validation": {"size": 0, "capacity": spec.validation.capacity},
            "normalizer": {"count": 0},
            "updates": {"skipped": 0, "non_finite": 0, "rollbacks": 0},
            "unlabelled": 0,
            "lineages": 0,
            "quarantined": 0,
            "returns": {split: {"episodes": 0} for split in SPLITS},
            "diverged": False,
            "warnings": [],
        }
        learner = self._process.report()
        if self._info.get("diverged") and learner["state"] in ("running", "idle", "parked"):
            learner["state"] = "diverged"
        warnings = [*self._info.get("warnings", []), *counters.warnings()]
        warnings += self._quarantine.warnings()
        if self._checkpoint_error is not None:
            warnings.append(
                f"checkpoint_failed: {self._checkpoint_error}; what is journaled is safe, a restart"
                " takes longer"
            )
        shortage = self.retention.shortage()
        if shortage is not None:
            warnings.append(f"storage_full: {shortage}")
        if self._mismatched is not None:
            warnings.append(
                f"rebuilt_differently: policy {self._mismatched} came out with other bits than"
                " recorded; NumPy, torch or the processor may have changed"
            )
        return {
            **empty,
            **self._info,
            "model_id": self.model_id,
            "generation": self.generation,
            "spec": spec.to_dict(),
            "policy_version": self.served_version,
            "applied_lsn": self._settled_lsn,
            "journal_lsn": counters.data_lsn,
            "journal": self.retention.info(),
            "accepted": {"train": counters.train, "validation": counters.validation},
            "stale_dropped": counters.stale_dropped,
            "labels": {"pending": counters.pending, "expired": counters.pending_expired},
            "mixed_episodes": counters.mixed_episodes,
            "unversioned": counters.unversioned,
            "evaluation": next(reversed(self._evaluations.values()), None),
            "learner": learner,
            "warnings": warnings,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the last update's figures and the evaluations so far."""
        return {
            "update": self._metrics,
            "evaluations": list(self._evaluations.values()),
            "learner": {
                "ends": self._process.report()["ends"],
                "quarantined": self._quarantine.positions,
            },
        }

    async def wait(self, lsn: int, seconds: float) -> None:
        """Return when `lsn` is applied and the policy after it served, or the time is over."""
        if self._settled_lsn < min(lsn, self.journal.counters.data_lsn):
            self._process.start()
        await self._wait_until(lambda: self._settled_lsn >= lsn, seconds)

    async def _wait_until(self, holds: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds() and self._closed is None:
                    await self._changed.wait()

    # -- the end --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Answer what has come in, let the learner write its checkpoint, and close."""
        self._closed = Draining("service", "a service that is not shutting down", "draining")
        await self._process.stop()
        await self._finish()

    async def delete(self) -> None:
        """Answer what has come in, record the deletion, and drop everything but the record.

        Raises:
            StorageFull: there is no room for the record; the model goes on.
        """
        self._closed = ModelUnknown(self.model_id, "a model", "a deleted one")
        await self._process.stop(at_once=True)
        await self.commits.join()
        try:
            reached("delete.before")
            await self.commits.on_writer(self.journal.delete, self.published_version)
            reached("delete.recorded")
        except JormungandrError:
            self._closed = None
            self._process = self._new_process()
            self._process.start()
            raise
        await self._finish()
        for name in LEARNED:
            await asyncio.get_running_loop().run_in_executor(
                None, shutil.rmtree, self.folder / name, True
            )
        reached("delete.done")

    async def _finish(self) -> None:
        await self.commits.join()
        self._wake()
        await self.commits.close()
