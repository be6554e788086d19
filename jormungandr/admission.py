"""Admission: what becomes of each transition and label, decided once, before anything is kept.

The learner in process and the service use the same `Admission`; it reads and writes a `Draft`, and
returns the rows to journal. It lives here rather than in the service because ``Learner.add`` is
admission followed by application.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jormungandr.checks import listed
from jormungandr.columns import (
    TRAIN,
    VALIDATION,
    Columns,
    check_id,
    check_timestep,
    class_index,
)
from jormungandr.errors import (
    EpisodeClosed,
    IdentityConflict,
    InvalidType,
    LabelConflict,
    MissingField,
    PendingLabelsFull,
    PolicyVersionStale,
    PolicyVersionUnknown,
    SplitConflict,
    UnknownField,
    shown,
)
from jormungandr.ledger import BLOCK, Draft, Episode, Identity, Key, Pending
from jormungandr.protocol import SPLITS, Label, LabelReceipt, Receipt
from jormungandr.rows import (
    ACCEPTED,
    ATTACHED,
    PENDING,
    STALE_DROPPED,
    LabelsRow,
    Row,
    TransitionsRow,
)
from jormungandr.spec import ModelSpec

__all__ = ["Admission", "check_labels"]

_RERUN = "episode ids must differ between runs; the wrappers make {run}-{env}-{n} for that"
_LABEL_FIELDS = ("actor_id", "episode_id", "timestep", "label")


@dataclass(frozen=True)
class _Group:
    """The transitions of one episode in a batch: their positions and timesteps, (G,) each."""

    key: Key
    index: NDArray[np.int64]
    timestep: NDArray[np.int64]


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
            draft: read and written.
            served: newest policy version served; lag is measured from it.
            published: highest policy version there is; one above it is refused.

        Raises:
            Conflict: (one of its classes) naming an offending transition.
        """
        self._check_versions(columns, published)
        digests = columns.digests()
        outcome = self._outcome(columns, served)
        before = np.zeros(len(columns), dtype=np.uint8)
        for group in _groups(columns):
            before[group.index] = self._admit_group(group, columns, digests, outcome, draft)
        known = before != 0
        if self.spec.staleness.mode == "reject":
            self._reject_stale(columns, outcome, known, served)

        new = ~known
        label = self._inline_labels(columns, new, outcome, draft)
        accepted = new & (outcome == ACCEPTED)
        ordinal = np.full(len(columns), -1, dtype=np.int64)
        now = draft.counters
        for split, total in ((TRAIN, now.train), (VALIDATION, now.validation)):
            mine = np.flatnonzero(accepted & (columns.split == split))
            ordinal[mine] = total + np.arange(len(mine))
        self._write(columns, new, digests, outcome, label, ordinal, draft)
        rows: list[Row] = []
        late: list[tuple[Identity, int, int, int, int]] = []
        start = 0
        # A duplicate that brings a label it did not have is a label submission at its place.
        for stop in [*np.flatnonzero(known & (columns.label >= 0)).tolist(), len(columns)]:
            part = start + np.flatnonzero(new[start:stop])
            if late and (len(part) or stop == len(columns)):
                rows.append(_labels_row(draft.next_lsn(), late))
                late = []
            if len(part):
                stored = columns.with_label(label).take(part)
                rows.append(TransitionsRow(draft.next_lsn(), stored, outcome[part]))
                _count(stored, outcome[part], draft)
            if stop < len(columns):
                late += self._late_inline_label(columns, stop, draft)
            start = stop
        self._expire(draft)
        dropped = np.where(known, before, outcome) == STALE_DROPPED
        receipt = Receipt(
            accepted=int(np.count_nonzero(accepted)),
            duplicate=int(np.count_nonzero(before == ACCEPTED)),
            # A retry of a dropped transition hears the same answer again.
            stale_dropped=int(np.count_nonzero(dropped)),
            lsn=draft.counters.data_lsn,
            policy_version=served,
            generation=self.generation,
        )
        return receipt, rows

    def labels(
        self, labels: Sequence[tuple[Identity, int]], draft: Draft
    ) -> tuple[LabelReceipt, list[Row]]:
        """Admit labels whole, or raise and leave `draft` to be thrown away.

        Raises:
            LabelConflict: the identity has another label.
            PendingLabelsFull: too many labels wait for their transitions.
        """
        counts = {"attached": 0, "pending": 0, "duplicate": 0, "target_evicted": 0}
        kept: list[tuple[Identity, int, int, int, int]] = []
        for i, (identity, label) in enumerate(labels):
            outcome, split, ordinal = self._admit_label(identity, label, draft, f"labels[{i}]")
            counts[outcome] += 1
            if outcome in ("attached", "pending"):
                code = ATTACHED if outcome == "attached" else PENDING
                kept.append((identity, label, code, split, ordinal))
        rows: list[Row] = [_labels_row(draft.next_lsn(), kept)] if kept else []
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

    def _outcome(self, columns: Columns, served: int) -> NDArray[np.uint8]:
        """Return (B,) what each becomes if it is new."""
        outcome = np.full(len(columns), ACCEPTED, dtype=np.uint8)
        allowed = self.spec.staleness.max_policy_lag
        if allowed is not None and self.spec.staleness.mode != "accept":
            versioned = (columns.policy_version >= 0) & (columns.split == TRAIN)
            outcome[versioned & (served - columns.policy_version > allowed)] = STALE_DROPPED
        return outcome

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

    def _admit_group(
        self,
        group: _Group,
        columns: Columns,
        digests: NDArray[np.uint64],
        outcome: NDArray[np.uint8],
        draft: Draft,
    ) -> NDArray[np.uint8]:
        """Return (G,) what became of known transitions, 0 for new ones, which are recorded."""
        t, index = group.timestep, group.index
        digest, split = digests[index], columns.split[index]
        episode = draft.episode(group.key)
        known = np.zeros(len(t), dtype=np.uint8)
        if episode is not None and len(t) and t.min() <= episode.last:
            for number in np.unique(t // BLOCK):
                block = draft.block(group.key, int(number))
                if block is None:
                    continue
                here = np.flatnonzero((t // BLOCK == number) & (t % BLOCK < len(block)))
                slot = block[t[here] % BLOCK]
                seen = slot["state"] != 0
                known[here] = slot["state"]
                same = ~seen | (slot["digest"] == digest[here])
                _conflict(same, index[here], columns, IdentityConflict, "the content first sent")
                same = ~seen | (slot["split"] == split[here])
                _conflict(same, index[here], columns, SplitConflict, "the split first sent")
        if len(np.unique(t)) < len(t):
            _, first, inverse = np.unique(t, return_index=True, return_inverse=True)
            same = digest[first[inverse]] == digest
            _conflict(same, index, columns, IdentityConflict, "one content per identity")
            same = split[first[inverse]] == split
            _conflict(same, index, columns, SplitConflict, "one split per identity")
            again = (first[inverse] != np.arange(len(t))) & (known == 0)
            known[again] = outcome[index[first[inverse[again]]]]
        if not known.all():
            new = known == 0
            draft.episodes[group.key] = self._extend(
                group.key, episode, columns, index[new], t[new], draft
            )
        return known

    def _extend(
        self,
        key: Key,
        episode: Episode | None,
        columns: Columns,
        index: NDArray[np.int64],
        t: NDArray[np.int64],
        draft: Draft,
    ) -> Episode:
        """Return the episode with new transitions in it, if they fit."""
        splits = columns.split[index]
        if episode is None:
            episode = Episode(split=int(splits[0]), splits=0, end=-1, last=-1)
        if self.spec.split_scope == "episode":
            expected = f"{SPLITS[episode.split]}, the episode's first split"
            _conflict(splits == episode.split, index, columns, SplitConflict, expected)
        mask = episode.splits | int(np.bitwise_or.reduce(1 << splits.astype(np.int64)))
        if mask == 3 and episode.splits != 3:
            draft.count(mixed_episodes=1)
        ends = t[(columns.terminated | columns.truncated)[index]]
        end = episode.end if not len(ends) else int(ends.min())
        if episode.end >= 0:
            end = min(end, episode.end)
        last = max(episode.last, int(t.max()))
        if 0 <= end < last:
            # Either a step after the end, or an end before a step that is known: name the newcomer.
            late = t > end
            if not late.any():
                late = t == end
            i = int(index[np.argmax(late)])
            raise EpisodeClosed(
                f"transitions[{i}]",
                f"no step of episode {key[1]!r}, actor {key[0]!r}, after its end at timestep {end}",
                f"timestep {last}" if last != columns.timestep[i] else columns.timestep[i],
                _RERUN,
            )
        return Episode(episode.split, mask, end, last)

    def _inline_labels(
        self,
        columns: Columns,
        new: NDArray[np.bool_],
        outcome: NDArray[np.uint8],
        draft: Draft,
    ) -> NDArray[np.int32]:
        """Return (B,) labels with those that were waiting joined in."""
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
                raise _label_conflict(f"transitions[{i}].label", waiting.label, int(label[i]))
            label[i] = waiting.label
            draft.drop_pending(identity)
        return label

    def _late_inline_label(
        self, columns: Columns, i: int, draft: Draft
    ) -> list[tuple[Identity, int, int, int, int]]:
        """Admit the label that duplicate i brings, and return what to keep of it."""
        identity, label = columns.identity(i), int(columns.label[i])
        outcome, split, ordinal = self._admit_label(identity, label, draft, f"transitions[{i}]")
        if outcome != "attached":
            return []
        return [(identity, label, ATTACHED, split, ordinal)]

    def _write(
        self,
        columns: Columns,
        new: NDArray[np.bool_],
        digests: NDArray[np.uint64],
        outcome: NDArray[np.uint8],
        label: NDArray[np.int32],
        ordinal: NDArray[np.int64],
        draft: Draft,
    ) -> None:
        """Record new transitions in the blocks of their episodes."""
        for group in _groups(columns, np.flatnonzero(new)):
            for number in np.unique(group.timestep // BLOCK):
                here = group.timestep // BLOCK == number
                index, slot = group.index[here], group.timestep[here] % BLOCK
                block = draft.writable(group.key, int(number), int(slot.max()) + 1)
                block["digest"][slot] = digests[index]
                block["ordinal"][slot] = ordinal[index]
                block["label"][slot] = label[index]
                block["state"][slot] = outcome[index]
                block["split"][slot] = columns.split[index]

    def _admit_label(
        self, identity: Identity, label: int, draft: Draft, where: str
    ) -> tuple[str, int, int]:
        """Return (outcome, split, ordinal) of one label, recorded in `draft`."""
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
            raise _label_conflict(f"{where}.label", old, label)
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

    def _let_wait(self, identity: Identity, label: int, draft: Draft, where: str) -> str:
        waiting = draft.pending(identity)
        if waiting is not None:
            if waiting.label != label:
                raise _label_conflict(f"{where}.label", waiting.label, label)
            return "duplicate"
        now = draft.counters
        if now.pending >= self.spec.labels.pending_capacity:
            raise PendingLabelsFull(
                where,
                f"at most {self.spec.labels.pending_capacity} labels waiting for transitions",
                now.pending,
                "send the transitions first, or raise labels.pending_capacity",
            )
        draft.put_pending(identity, Pending(label, now.accepted))
        return "pending"

    def _expire(self, draft: Draft) -> None:
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
            row: Mapping[str, Any] = {name: getattr(given, name) for name in _LABEL_FIELDS}
        elif isinstance(given, Mapping):
            row = given
        else:
            raise InvalidType(f"labels[{i}]", "an object", type(given).__name__)
        for name in _LABEL_FIELDS:
            if row.get(name) is None:
                got = "null" if name in row else "nothing"
                raise MissingField(f"labels[{i}].{name}", "a value", got)
        for name in row:
            if name not in _LABEL_FIELDS:
                where = f"labels[{i}].{shown(name, str)}"
                raise UnknownField(where, f"only {list(_LABEL_FIELDS)}", "an unknown field")
        check_id(row["actor_id"], f"labels[{i}].actor_id")
        check_id(row["episode_id"], f"labels[{i}].episode_id")
        check_timestep(row["timestep"], f"labels[{i}].timestep")
        identity = (str(row["actor_id"]), str(row["episode_id"]), int(row["timestep"]))
        checked.append((identity, class_index(row["label"], spec, f"labels[{i}].label")))
    return checked


def _groups(columns: Columns, index: NDArray[np.int64] | None = None) -> Iterator[_Group]:
    """Yield the transitions of each episode, in the order in which they came."""
    if index is None:
        index = np.arange(len(columns))
    if not len(index):
        return
    code = columns.actor[index].astype(np.int64) * len(columns.episodes) + columns.episode[index]
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    for part in np.split(index[order], cuts):
        i = int(part[0])
        key = (columns.actors[columns.actor[i]], columns.episodes[columns.episode[i]])
        yield _Group(key, part, columns.timestep[part])


def _conflict(
    fine: NDArray[np.bool_],
    index: NDArray[np.int64],
    columns: Columns,
    error: type[IdentityConflict | SplitConflict],
    expected: str,
) -> None:
    if not fine.all():
        i = int(index[np.argmin(fine)])
        actor, episode, t = columns.identity(i)
        got = f"another for actor {actor!r}, episode {episode!r}, timestep {t}"
        raise error(f"transitions[{i}]", expected, got, _RERUN)


def _count(stored: Columns, outcome: NDArray[np.uint8], draft: Draft) -> None:
    """Add new transitions to the totals."""
    accepted = outcome == ACCEPTED
    draft.count(
        train=int(np.count_nonzero(accepted & (stored.split == TRAIN))),
        validation=int(np.count_nonzero(accepted & (stored.split == VALIDATION))),
        stale_dropped=int(np.count_nonzero(~accepted)),
        unversioned=int(np.count_nonzero(accepted & (stored.policy_version < 0))),
    )


def _label_conflict(where: str, old: int, new: int) -> LabelConflict:
    return LabelConflict(where, f"{old}, the label first sent", new)


def _labels_row(lsn: int, kept: Sequence[tuple[Identity, int, int, int, int]]) -> LabelsRow:
    return LabelsRow(
        lsn=lsn,
        identities=tuple(k[0] for k in kept),
        label=np.array([k[1] for k in kept], dtype=np.int32),
        outcome=np.array([k[2] for k in kept], dtype=np.uint8),
        split=np.array([k[3] for k in kept], dtype=np.uint8),
        ordinal=np.array([k[4] for k in kept], dtype=np.int64),
    )
