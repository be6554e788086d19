"""Labels: which are attached, which wait for their transition, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import listed
from jormungandr.columns import TRAIN, Columns, check_id, check_timestep, class_index
from jormungandr.errors import (
    InvalidType,
    LabelConflict,
    MissingField,
    PendingLabelsFull,
    UnknownField,
    shown,
)
from jormungandr.ledger import BLOCK, Draft, Identity, Pending
from jormungandr.protocol import Label
from jormungandr.rows import ACCEPTED, ATTACHED, LabelsRow
from jormungandr.spec import ModelSpec

__all__ = ["Kept", "LabelRules", "check_labels", "labels_row"]

#: A label to journal: identity, class, outcome, split and ordinal of its transition.
Kept = tuple[Identity, int, int, int, int]

_FIELDS = ("actor_id", "episode_id", "timestep", "label")


@dataclass(frozen=True)
class LabelRules:
    """What becomes of labels, in one model."""

    spec: ModelSpec

    def admit(
        self, identity: Identity, label: int, draft: Draft, where: str
    ) -> tuple[str, int, int]:
        """Return (outcome, split, ordinal) of one label, recorded in `draft`.

        Raises:
            LabelConflict: the identity has another label.
            PendingLabelsFull: too many labels wait for their transitions.
        """
        actor, episode, t = identity
        key, slot = (actor, episode), t % BLOCK
        block = draft.block(key, t // BLOCK)
        if block is None or slot >= len(block) or block["state"][slot] == 0:
            return self._let_wait(identity, label, draft, where), 0, -1
        split, ordinal = int(block["split"][slot]), int(block["ordinal"][slot])
        old = int(block["label"][slot])
        if old == label:
            return "duplicate", split, ordinal
        if old >= 0:
            raise _conflict(f"{where}.label", old, label)
        now = draft.counters
        capacity, accepted = (
            (self.spec.replay.capacity, now.train)
            if split == TRAIN
            else (self.spec.validation.capacity, now.validation)
        )
        if block["state"][slot] != ACCEPTED or ordinal < accepted - capacity:
            return "target_evicted", split, ordinal
        draft.writable(key, t // BLOCK, slot + 1)["label"][slot] = label
        return "attached", split, ordinal

    def joined(
        self, columns: Columns, new: NDArray[np.bool_], outcome: NDArray[np.uint8], draft: Draft
    ) -> NDArray[np.int32]:
        """Return (B,) labels of transitions with those that were waiting joined in."""
        label, now = columns.label.copy(), draft.counters
        if now.pending == 0:
            return label
        accepted = new & (outcome == ACCEPTED)
        earlier = now.accepted + np.cumsum(accepted) - accepted  # (B,) accepted before each
        for i in np.flatnonzero(new):
            identity = columns.identity(int(i))
            waiting = draft.pending(identity)
            if waiting is None or self._expired(waiting, int(earlier[i])):
                continue
            if label[i] not in (-1, waiting.label):
                raise _conflict(f"transitions[{i}].label", waiting.label, int(label[i]))
            label[i] = waiting.label
            draft.drop_pending(identity)
        return label

    def late(self, columns: Columns, i: int, draft: Draft) -> list[Kept]:
        """Admit the label that duplicate i brings, and return what to keep of it."""
        identity, label = columns.identity(i), int(columns.label[i])
        outcome, split, ordinal = self.admit(identity, label, draft, f"transitions[{i}]")
        return [(identity, label, ATTACHED, split, ordinal)] if outcome == "attached" else []

    def expire(self, draft: Draft) -> None:
        """Take labels that have waited for too long off the list."""
        now = draft.counters
        if now.pending == 0:
            return
        expired = []
        for identity, waiting in draft.pending_oldest():
            if not self._expired(waiting, now.accepted):
                break
            expired.append(identity)
        for identity in expired:
            draft.drop_pending(identity)
            draft.count(pending_expired=1)

    def _let_wait(self, identity: Identity, label: int, draft: Draft, where: str) -> str:
        waiting = draft.pending(identity)
        if waiting is not None:
            if waiting.label != label:
                raise _conflict(f"{where}.label", waiting.label, label)
            return "duplicate"
        now, capacity = draft.counters, self.spec.labels.pending_capacity
        if now.pending >= capacity:
            raise PendingLabelsFull(
                where,
                f"at most {capacity} labels waiting for transitions",
                now.pending,
                "send the transitions first, or raise labels.pending_capacity",
            )
        draft.put_pending(identity, Pending(label, now.accepted))
        return "pending"

    def _expired(self, waiting: Pending, accepted: int) -> bool:
        """Whether a label's wait is over, once so many transitions have been accepted."""
        return accepted - waiting.since >= self.spec.labels.pending_expiry


def check_labels(
    labels: Sequence[Label | Mapping[str, Any]], spec: ModelSpec
) -> list[tuple[Identity, int]]:
    """Return labels as checked (identity, class index) pairs.

    Raises:
        InvalidInput: (one of its classes) for the first fault found.
    """
    checked = []
    for i, given in enumerate(listed(labels, "labels", "a list of labels")):
        if isinstance(given, Label):
            row: Mapping[str, Any] = {name: getattr(given, name) for name in _FIELDS}
        elif isinstance(given, Mapping):
            row = given
        else:
            raise InvalidType(f"labels[{i}]", "an object", type(given).__name__)
        for name in _FIELDS:
            if row.get(name) is None:
                got = "null" if name in row else "nothing"
                raise MissingField(f"labels[{i}].{name}", "a value", got)
        for name in row:
            if name not in _FIELDS:
                where = f"labels[{i}].{shown(name, str)}"
                raise UnknownField(where, f"only {list(_FIELDS)}", "an unknown field")
        check_id(row["actor_id"], f"labels[{i}].actor_id")
        check_id(row["episode_id"], f"labels[{i}].episode_id")
        check_timestep(row["timestep"], f"labels[{i}].timestep")
        identity = (str(row["actor_id"]), str(row["episode_id"]), int(row["timestep"]))
        checked.append((identity, class_index(row["label"], spec, f"labels[{i}].label")))
    return checked


def labels_row(lsn: int, kept: Sequence[Kept]) -> LabelsRow:
    """Return the row that journals labels."""
    return LabelsRow(
        lsn=lsn,
        identities=tuple(k[0] for k in kept),
        label=np.array([k[1] for k in kept], dtype=np.int32),
        outcome=np.array([k[2] for k in kept], dtype=np.uint8),
        split=np.array([k[3] for k in kept], dtype=np.uint8),
        ordinal=np.array([k[4] for k in kept], dtype=np.int64),
    )


def _conflict(where: str, old: int, new: int) -> LabelConflict:
    return LabelConflict(where, f"{old}, the label first sent", new)
