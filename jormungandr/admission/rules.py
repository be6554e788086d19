"""`Admission`: the rules of one model, over a draft of its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jormungandr.admission.arrival import count, note
from jormungandr.admission.continuation import continued
from jormungandr.admission.identities import (
    extended,
    groups,
    known_states,
    repeated,
    write,
)
from jormungandr.admission.labels import Kept, LabelRules, labels_row
from jormungandr.admission.plain import plain_step, plain_steps
from jormungandr.admission.staleness import Allowance, in_stream, verdict
from jormungandr.columns import TRAIN, VALIDATION, Columns
from jormungandr.errors import Forbidden, PolicyVersionStale, PolicyVersionUnknown
from jormungandr.ledger import Draft, Identity
from jormungandr.protocol import SPLITS, LabelReceipt, Receipt, Split
from jormungandr.rows import (
    ACCEPTED,
    ATTACHED,
    PENDING,
    STALE_DROPPED,
    Row,
    TransitionsRow,
)
from jormungandr.spec import ModelSpec

__all__ = ["Admission"]


@dataclass(frozen=True)
class Admission:
    """The rules of one model.

    Args:
        spec: of the model.
        generation: of the model; part of every receipt.
    """

    spec: ModelSpec
    generation: int = 1

    def transitions(
        self, columns: Columns, draft: Draft, *, served: int, published: int
    ) -> tuple[Receipt, list[Row]]:
        """Admit a batch whole, or raise and leave `draft` to be thrown away.

        Args:
            columns: checked transitions.
            draft: read and written; its `arrival` is what the batch brought, by actor.
            served: newest policy version served; lag is measured from it.
            published: highest policy version there is; one above it is refused.

        Raises:
            Conflict: (one of its classes) naming an offending transition.
        """
        plain = self._plain(columns, draft, served, published)
        if plain is not None:
            return plain[0], [plain[1]]
        self._check_versions(columns, published)
        digests, stream = columns.digests(), in_stream(columns)
        outcome = self._outcome(columns, served)
        allowance = self._allowance(outcome, draft)
        continuation = continued(columns, draft) if allowance is None and len(columns) else None
        if continuation is not None:
            draft.episodes.update(continuation.episodes)
            if not draft.counters.pending and (outcome == ACCEPTED).all():
                row = plain_steps(columns, digests, stream, outcome, continuation, served, draft)
                return self._receipt(len(columns), 0, 0, served, draft), [row]
            before = np.zeros(len(columns), dtype=np.uint8)
        else:
            before = self._admit_identities(columns, digests, stream, outcome, allowance, draft)
        known = before != 0
        if self.spec.staleness.mode == "reject":
            self._reject_stale(columns, outcome, known, served)

        new, rules = ~known, LabelRules(self.spec)
        label = rules.joined(columns, new, outcome, draft)
        accepted = new & (outcome == ACCEPTED)
        ordinal = np.full(len(columns), -1, dtype=np.int64)
        now = draft.counters
        for split, total in ((TRAIN, now.train), (VALIDATION, now.validation)):
            mine = np.flatnonzero(accepted & (columns.split == split))
            ordinal[mine] = total + np.arange(len(mine))
        write(columns, new, digests, outcome, label, ordinal, draft, continuation)
        rows: list[Row] = []
        late: list[Kept] = []
        start = 0
        # A duplicate that brings a label it did not have is a label submission at its place.
        for stop in [*np.flatnonzero(known & (columns.label >= 0)).tolist(), len(columns)]:
            part = start + np.flatnonzero(new[start:stop])
            if late and (len(part) or stop == len(columns)):
                rows.append(labels_row(draft.next_lsn(), late))
                late = []
            if len(part):
                stored = columns.with_label(label).take(part)
                rows.append(TransitionsRow(draft.next_lsn(), stored, outcome[part]))
                count(stored, outcome[part], draft)
            if stop < len(columns):
                late += rules.late(columns, stop, draft)
            start = stop
        rules.expire(draft)
        note(columns, new, stream, outcome, served, allowance, draft)
        # A retry of a dropped transition hears the same answer again.
        dropped = np.where(known, before, outcome) == STALE_DROPPED
        receipt = self._receipt(
            int(np.count_nonzero(accepted)),
            int(np.count_nonzero(before == ACCEPTED)),
            int(np.count_nonzero(dropped)),
            served,
            draft,
        )
        return receipt, rows

    def _receipt(
        self, accepted: int, duplicate: int, stale_dropped: int, served: int, draft: Draft
    ) -> Receipt:
        return Receipt(
            accepted=accepted,
            duplicate=duplicate,
            stale_dropped=stale_dropped,
            lsn=draft.counters.data_lsn,
            policy_version=served,
            generation=self.generation,
        )

    def labels(
        self, labels: Sequence[tuple[Identity, int]], draft: Draft, only: Split | None = None
    ) -> tuple[LabelReceipt, list[Row]]:
        """Admit labels whole, or raise and leave `draft` to be thrown away.

        Args:
            labels: identities and classes.
            draft: of the ledger.
            only: of transitions of this split, which have to be there: a label that waits for its
                transition would not know the split; None is any.

        Raises:
            Forbidden: a label for a transition that is not there, or of another split than `only`.
            LabelConflict: the identity has another label.
            PendingLabelsFull: too many labels wait for their transitions.
        """
        counts = {"attached": 0, "pending": 0, "duplicate": 0, "target_evicted": 0}
        kept: list[Kept] = []
        rules = LabelRules(self.spec)
        for i, (identity, label) in enumerate(labels):
            outcome, split, ordinal = rules.admit(identity, label, draft, f"labels[{i}]")
            if only is not None and (outcome == "pending" or SPLITS[split] != only):
                expected = f"a transition that was sent before, of split {only!r}, with this token"
                raise Forbidden(f"labels[{i}]", expected, identity)
            counts[outcome] += 1
            if outcome in ("attached", "pending"):
                code = ATTACHED if outcome == "attached" else PENDING
                kept.append((identity, label, code, split, ordinal))
        rows: list[Row] = [labels_row(draft.next_lsn(), kept)] if kept else []
        return LabelReceipt(**counts, lsn=draft.counters.data_lsn), rows

    def _check_versions(self, columns: Columns, published: int) -> None:
        future = columns.policy_version > published
        if future.any():
            i = int(np.argmax(future))
            raise PolicyVersionUnknown(
                f"transitions[{i}].policy_version",
                f"-1..{published} (the newest there is)",
                columns.policy_version[i],
                "send the version that the inference reply gave, or -1 for another policy",
            )

    def _plain(
        self, columns: Columns, draft: Draft, served: int, published: int
    ) -> tuple[Receipt, TransitionsRow] | None:
        """Admit a single transition that nothing speaks against; None where there is more to it."""
        if len(columns) != 1:
            return None
        return plain_step(
            columns,
            draft,
            self.spec.staleness,
            served=served,
            published=published,
            generation=self.generation,
        )

    def _outcome(self, columns: Columns, served: int) -> NDArray[np.uint8]:
        """Return (B,) what each becomes if it is new and nothing stale is let pass."""
        return verdict(columns, in_stream(columns), self.spec.staleness, served)

    def _allowance(self, outcome: NDArray[np.uint8], draft: Draft) -> Allowance | None:
        """Return what decides which stale transitions are let pass; None where none is."""
        rule = self.spec.staleness
        if rule.mode != "drop" or not rule.stale_share or not (outcome == STALE_DROPPED).any():
            return None
        return Allowance(rule.stale_share, self.spec.replay.capacity, draft)

    def _admit_identities(
        self,
        columns: Columns,
        digests: NDArray[np.uint64],
        stream: NDArray[np.bool_],
        outcome: NDArray[np.uint8],
        allowance: Allowance | None,
        draft: Draft,
    ) -> NDArray[np.uint8]:
        """Return (B,) what became of known transitions, 0 for new ones.

        Episodes of new ones are recorded, and stale ones that are let pass enter in `outcome`.
        """
        before = np.zeros(len(columns), dtype=np.uint8)
        for group in groups(columns):
            known = known_states(group, columns, digests, draft)
            origin = repeated(group, columns, digests)
            new = known == 0
            if origin is not None:
                new &= origin == np.arange(len(new))
            if allowance is not None:
                mine = group.index[new]
                mine = mine[stream[mine]]
                stale = mine[outcome[mine] == STALE_DROPPED]
                allowance.came(group.key[0], len(mine))
                if len(stale) and allowance.covers(group.key[0], len(stale)):
                    outcome[stale] = ACCEPTED
            if origin is not None:
                again = ~new & (known == 0)
                known[again] = outcome[group.index[origin[again]]]
            before[group.index] = known
            if new.any():
                draft.episodes[group.key] = extended(group, new, columns, draft, self.spec)
        return before

    def _reject_stale(
        self,
        columns: Columns,
        outcome: NDArray[np.uint8],
        known: NDArray[np.bool_],
        served: int,
    ) -> None:
        stale = ~known & (outcome == STALE_DROPPED)
        if stale.any():
            i = int(np.argmax(stale))
            raise PolicyVersionStale(
                f"transitions[{i}].policy_version",
                f"at most {self.spec.staleness.max_policy_lag} behind {served}",
                columns.policy_version[i],
            )
