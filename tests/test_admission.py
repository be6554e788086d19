"""Admission: identities, episodes, staleness, labels; rules one by one, then an oracle."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.admission import Admission, check_labels
from jormungandr.columns import columns
from jormungandr.errors import (
    Conflict,
    EpisodeClosed,
    IdentityConflict,
    InvalidInput,
    InvalidType,
    InvalidValue,
    LabelConflict,
    LabelRange,
    MissingField,
    PendingLabelsFull,
    PolicyVersionStale,
    PolicyVersionUnknown,
    SplitConflict,
    UnknownField,
)
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.protocol import Label, LabelReceipt, Receipt
from jormungandr.rows import ACCEPTED, STALE_DROPPED, LabelsRow, Row, TransitionsRow
from jormungandr.spec import ModelSpec
from jormungandr.tally import Tally

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


class Gate:
    """One model's admission over a store; a refused request must leave the store as it was."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.admission, self.store = spec, Admission(spec, generation=3), MemoryStore()
        self.served = self.published = 0
        self.rows: list[Row] = []

    def add(self, *transitions: dict[str, Any]) -> Receipt:
        """Admit one request."""
        draft = Draft(self.store)
        receipt, rows = self._kept(
            lambda: self.admission.transitions(
                columns(transitions, self.spec),
                draft,
                served=self.served,
                published=self.published,
            ),
            draft,
        )
        self.rows += rows
        assert isinstance(receipt, Receipt)
        return receipt

    def label(self, *labels: Any) -> LabelReceipt:
        """Admit one request of labels."""
        draft = Draft(self.store)
        receipt, rows = self._kept(
            lambda: self.admission.labels(check_labels(labels, self.spec), draft), draft
        )
        self.rows += rows
        assert isinstance(receipt, LabelReceipt)
        return receipt

    def _kept(self, admit: Callable[[], Any], draft: Draft) -> Any:
        before = self.store.to_bytes()
        try:
            result = admit()
        finally:
            assert self.store.to_bytes() == before
        self.store.apply(draft)
        return result


@pytest.fixture
def gate(small: Small) -> Gate:
    """Return the small model's gate."""
    return Gate(small())


def counts(receipt: Receipt) -> tuple[int, int, int]:
    """Return (accepted, duplicate, stale_dropped)."""
    return receipt.accepted, receipt.duplicate, receipt.stale_dropped


def outcome(receipt: LabelReceipt) -> tuple[int, int, int, int]:
    """Return (attached, pending, duplicate, target_evicted)."""
    return receipt.attached, receipt.pending, receipt.duplicate, receipt.target_evicted


# -- identities -----------------------------------------------------------------------------------


def test_receipt_of_a_first_batch(gate: Gate, step: Step) -> None:
    """A receipt counts, and names the position, the served version and the generation."""
    gate.served, gate.published = 5, 7

    assert gate.add(step(0, policy_version=7), step(1, policy_version=-1)) == Receipt(
        accepted=2, duplicate=0, stale_dropped=0, lsn=1, policy_version=5, generation=3
    )
    assert gate.store.counters.unversioned == 1


def test_duplicate_is_a_success(gate: Gate, step: Step) -> None:
    """Sending the same again keeps one of each, and answers with the lsn that holds them."""
    gate.add(step(0), step(1))

    assert counts(gate.add(step(0), step(1))) == (0, 2, 0)
    assert counts(gate.add(step(1), step(2))) == (1, 1, 0)
    assert gate.add(step(0)).lsn == 2
    assert len(gate.rows) == 2


def test_duplicate_within_one_batch(gate: Gate, step: Step) -> None:
    """The same transition twice in a request is one transition."""
    assert counts(gate.add(step(0), step(1), step(0), step(0))) == (2, 2, 0)
    assert gate.store.counters.train == 2


def test_same_timestep_elsewhere_is_another_identity(gate: Gate, step: Step) -> None:
    """Actor, episode and timestep together are the identity."""
    batch = [step(0), step(0, actor_id="b"), step(0, episode_id="f"), step(1)]

    assert counts(gate.add(*batch)) == (4, 0, 0)
    assert counts(gate.add(*batch)) == (0, 4, 0)


def test_concatenated_ids_do_not_collide(gate: Gate, step: Step) -> None:
    """Actor "ab" with episode "c" is not actor "a" with episode "bc"."""
    first, second = step(0, actor_id="ab", episode_id="c"), step(0, actor_id="a", episode_id="bc")

    assert counts(gate.add(first, second)) == (2, 0, 0)
    assert counts(gate.add(second, first)) == (0, 2, 0)


@pytest.mark.parametrize("known", [True, False])
def test_identity_conflict(gate: Gate, step: Step, known: bool) -> None:
    """Other content under a known identity, or twice in a batch, is refused whole."""
    if known:
        gate.add(step(0))
    batch = [step(1), step(0, reward=0.75)] if known else [step(1), step(0), step(0, reward=0.75)]
    with pytest.raises(IdentityConflict) as caught:
        gate.add(*batch)

    assert caught.value.where == f"transitions[{len(batch) - 1}]"
    assert "actor 'a', episode 'e', timestep 0" in caught.value.got
    assert "{run}-{env}-{n}" in caught.value.remedy
    assert gate.store.counters.accepted == (1 if known else 0)


@pytest.mark.parametrize("scope", ["transition", "episode"])
@pytest.mark.parametrize("known", [True, False])
def test_split_conflict_of_one_identity(small: Small, step: Step, scope: str, known: bool) -> None:
    """One transition cannot be of both splits, whatever the scope."""
    gate = Gate(small(split_scope=scope))
    if known:
        gate.add(step(0))
    batch = [] if known else [step(0)]
    with pytest.raises(SplitConflict):
        gate.add(*batch, step(0, split="validation"))


def test_split_scope_transition_mixes_and_counts(gate: Gate, step: Step) -> None:
    """Under the default scope an episode may mix splits; it is counted once."""
    gate.add(step(0), step(1, split="validation"))
    gate.add(step(2), step(3, split="validation"))
    gate.add(step(0, episode_id="f"))
    gate.add(step(1, episode_id="f", split="validation"))

    assert gate.store.counters.mixed_episodes == 2
    assert (gate.store.counters.train, gate.store.counters.validation) == (3, 3)


@pytest.mark.parametrize("together", [True, False])
def test_split_scope_episode_keeps_the_first(small: Small, step: Step, together: bool) -> None:
    """Under scope "episode" an episode keeps the split it was first sent with."""
    gate = Gate(small(split_scope="episode"))
    first = [step(0, split="validation")]
    if not together:
        gate.add(*first)
    with pytest.raises(SplitConflict, match="validation, the episode's first split") as caught:
        gate.add(*(first if together else []), step(1))

    assert caught.value.where == f"transitions[{1 if together else 0}]"
    assert counts(gate.add(step(0, split="validation"), step(0, episode_id="f")))[0] >= 1


def test_first_split_of_a_retried_episode(small: Small, step: Step) -> None:
    """The first split survives: retries and later steps of it go on being accepted."""
    gate = Gate(small(split_scope="episode"))
    gate.add(step(5, split="validation"))

    assert counts(gate.add(step(5, split="validation"), step(3, split="validation"))) == (1, 1, 0)
    with pytest.raises(SplitConflict):
        gate.add(step(4))


# -- episodes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("together", [True, False])
def test_step_after_the_end(gate: Gate, step: Step, end: str, together: bool) -> None:
    """A later step than the end closes nothing: it is refused, and named."""
    first = [step(0), step(1, **{end: True})]
    if not together:
        gate.add(*first)
    with pytest.raises(EpisodeClosed) as caught:
        gate.add(*(first if together else []), step(2))

    assert caught.value.where == f"transitions[{2 if together else 0}]"
    assert "after its end at timestep 1" in caught.value.expected


@pytest.mark.parametrize("together", [True, False])
def test_end_before_a_known_later_step(gate: Gate, step: Step, together: bool) -> None:
    """An end cannot come before a step that is known already; the end or the step is named."""
    first = [step(5)]
    if not together:
        gate.add(*first)
    with pytest.raises(EpisodeClosed) as caught:
        gate.add(*(first if together else []), step(3, terminated=True))

    assert caught.value.where == "transitions[0]"
    assert "after its end at timestep 3" in caught.value.expected


def test_second_end(gate: Gate, step: Step) -> None:
    """An episode ends once: another end is a step after the end, or before a known step."""
    gate.add(step(4, terminated=True))
    for late in (step(5, truncated=True), step(3, terminated=True)):
        with pytest.raises(EpisodeClosed):
            gate.add(late)


def test_gaps_are_filled_in_any_order(gate: Gate, step: Step) -> None:
    """Steps may come in any order and after the end, as long as they are before it."""
    order = [7, 2, 5, 9, 0, 1, 8]
    for t in order:
        assert counts(gate.add(step(t, terminated=t == 9))) == (1, 0, 0)

    assert counts(gate.add(*[step(t, terminated=t == 9) for t in range(10)])) == (3, 7, 0)
    assert gate.store.episodes["a", "e"].end == 9


def test_retry_of_a_whole_closed_episode(gate: Gate, step: Step) -> None:
    """Sending a finished episode again is a success."""
    episode = [step(t, terminated=t == 4) for t in range(5)]
    gate.add(*episode)

    assert counts(gate.add(*episode)) == (0, 5, 0)


def test_ends_of_different_episodes_in_one_batch(gate: Gate, step: Step) -> None:
    """An end closes its own episode, not the one beside it in the batch."""
    batch = [
        step(0, terminated=True),
        step(0, actor_id="b"),
        step(1, actor_id="b", truncated=True),
        step(0, actor_id="c", split="validation"),
        step(1, actor_id="c", split="validation"),
    ]

    assert counts(gate.add(*batch)) == (5, 0, 0)


def test_block_boundaries(gate: Gate, step: Step) -> None:
    """Timesteps on both sides of a block of 256 are told apart, together and one by one."""
    times = [0, 15, 16, 255, 256, 257, 511, 512, 2**53 - 1]
    gate.add(*[step(t, reward=float(i)) for i, t in enumerate(times)])

    assert counts(gate.add(*[step(t, reward=float(i)) for i, t in enumerate(times)])) == (0, 9, 0)
    for i, t in enumerate(times):
        assert counts(gate.add(step(t, reward=float(i)))) == (0, 1, 0)
        with pytest.raises(IdentityConflict):
            gate.add(step(t, reward=float(i) + 0.5))
    assert counts(gate.add(step(1), step(254), step(513))) == (3, 0, 0)
    assert len(gate.store.blocks) == 4


# -- staleness ------------------------------------------------------------------------------------


def test_future_version_is_refused(gate: Gate, step: Step) -> None:
    """A version that was never made cannot have acted."""
    gate.served, gate.published = 3, 5
    gate.add(step(0, policy_version=5))
    with pytest.raises(PolicyVersionUnknown, match=r"transitions\[1\]\.policy_version"):
        gate.add(step(1), step(2, policy_version=6))


def stale(small: Small, mode: str) -> Gate:
    """Return a gate that takes lags up to two, at served version 5."""
    gate = Gate(small(staleness={"max_policy_lag": 2, "mode": mode}))
    gate.served = gate.published = 5
    return gate


def test_stale_drop(small: Small, step: Step) -> None:
    """A training transition too old is dropped, counted, and known."""
    gate = stale(small, "drop")
    batch = [step(0, policy_version=2), step(1, policy_version=3), step(2, policy_version=-1)]

    assert counts(gate.add(*batch)) == (2, 0, 1)
    assert gate.store.counters.stale_dropped == 1
    assert gate.store.counters.train == 2
    with pytest.raises(IdentityConflict):
        gate.add(step(0, policy_version=5))


def test_stale_drop_is_answered_again(small: Small, step: Step) -> None:
    """A retry hears what the first attempt heard, though the version has moved on."""
    gate = stale(small, "drop")
    batch = [step(0, policy_version=2), step(1, policy_version=3)]
    first = counts(gate.add(*batch))
    gate.served = gate.published = 50

    assert first == (1, 0, 1)
    assert counts(gate.add(*batch)) == (0, 1, 1)
    assert counts(gate.add(*batch, *batch)) == (0, 2, 2)
    assert gate.store.counters.stale_dropped == 1


def test_stale_twice_in_one_batch(small: Small, step: Step) -> None:
    """Within one request, too, the second copy hears what the first heard."""
    gate = stale(small, "drop")

    assert counts(gate.add(step(0, policy_version=0), step(0, policy_version=0))) == (0, 0, 2)
    assert gate.store.counters.stale_dropped == 1


def test_stale_reject(small: Small, step: Step) -> None:
    """In mode "reject" one stale transition refuses the batch; a retry is refused again."""
    gate = stale(small, "reject")
    for _ in range(2):
        with pytest.raises(PolicyVersionStale) as caught:
            gate.add(step(0, policy_version=5), step(1, policy_version=2))
        assert caught.value.where == "transitions[1].policy_version"
        assert caught.value.expected == "at most 2 behind 5"
    assert gate.store.counters.accepted == 0


def test_reject_does_not_touch_what_was_accepted(small: Small, step: Step) -> None:
    """What was accepted in time is a duplicate later, however old it has become."""
    gate = stale(small, "reject")
    gate.add(step(0, policy_version=3))
    gate.served = gate.published = 50

    assert counts(gate.add(step(0, policy_version=3))) == (0, 1, 0)


@pytest.mark.parametrize("mode", ["drop", "reject"])
def test_validation_and_foreign_actions_are_never_stale(
    small: Small, step: Step, mode: str
) -> None:
    """Lag rules are for training data of this model's own policies."""
    gate = stale(small, mode)
    batch = [step(0, policy_version=-1), step(0, actor_id="v", split="validation")]

    assert counts(gate.add(*batch)) == (2, 0, 0)


def test_stale_accept(small: Small, step: Step) -> None:
    """In mode "accept" the lag is allowed."""
    assert counts(stale(small, "accept").add(step(0, policy_version=0))) == (1, 0, 0)


# -- labels ---------------------------------------------------------------------------------------


def row_labels(gate: Gate) -> list[int]:
    """Return the labels stored with transitions, in journal order."""
    return [
        int(x) for row in gate.rows if isinstance(row, TransitionsRow) for x in row.columns.label
    ]


def test_label_after_its_transition(gate: Gate, step: Step, label: Step) -> None:
    """A label of a known transition is attached, by split and ordinal."""
    gate.add(step(0, split="validation"), step(1), step(2))
    assert outcome(gate.label(label(2, "UP"), label(0, 0))) == (2, 0, 0, 0)
    row = gate.rows[-1]

    assert isinstance(row, LabelsRow)
    assert row.split.tolist() == [0, 1]
    assert row.ordinal.tolist() == [1, 0]
    assert row.label.tolist() == [1, 0]


def test_label_before_its_transition(gate: Gate, step: Step, label: Step) -> None:
    """A label that comes first waits, and is joined into its transition's row."""
    assert outcome(gate.label(label(1))) == (0, 1, 0, 0)
    gate.add(step(0), step(1))

    assert row_labels(gate) == [-1, 1]
    assert gate.store.counters.pending == 0
    assert outcome(gate.label(label(1))) == (0, 0, 1, 0)


def test_inline_label(gate: Gate, step: Step, label: Step) -> None:
    """A label inside its transition needs no request of its own."""
    gate.add(step(0, label="UP"))

    assert row_labels(gate) == [1]
    assert outcome(gate.label(label(0, 1))) == (0, 0, 1, 0)
    with pytest.raises(LabelConflict, match=r"labels\[0\]\.label: expected 1, the label first"):
        gate.label(label(0, 0))


@pytest.mark.parametrize("where", ["pending", "attached", "inline", "same request"])
def test_label_twice(gate: Gate, step: Step, label: Step, where: str) -> None:
    """The same label again is a duplicate, another one a conflict that keeps nothing."""
    if where == "attached":
        gate.add(step(0))
    if where == "inline":
        gate.add(step(0, label=1))
    elif where == "same request":
        assert outcome(gate.label(label(0), label(0))) == (0, 1, 1, 0)
    else:
        gate.label(label(0))

    assert outcome(gate.label(label(0))) == (0, 0, 1, 0)
    with pytest.raises(LabelConflict) as caught:
        gate.label(label(9), label(0, 0))
    assert caught.value.where == "labels[1].label"
    assert outcome(gate.label(label(9))) == (0, 1, 0, 0)


def test_conflicting_labels_in_one_request(gate: Gate, label: Step) -> None:
    """Two labels for one identity in one request keep neither."""
    with pytest.raises(LabelConflict):
        gate.label(label(0, 0), label(0, 1))

    assert gate.store.counters.pending == 0


def test_inline_label_against_a_waiting_one(gate: Gate, step: Step, label: Step) -> None:
    """An inline label that contradicts the waiting one refuses the batch; an equal one joins it."""
    gate.label(label(0, 1))
    with pytest.raises(LabelConflict) as caught:
        gate.add(step(1), step(0, label=0))

    assert caught.value.where == "transitions[1].label"
    assert counts(gate.add(step(1), step(0, label=1))) == (2, 0, 0)
    assert gate.store.counters.pending == 0


def test_late_inline_label_on_a_duplicate(gate: Gate, step: Step) -> None:
    """A duplicate that brings a label it did not have is a label submission."""
    gate.add(step(0), step(1))
    assert counts(gate.add(step(2), step(0, label=1), step(3))) == (2, 1, 0)
    row = gate.rows[-2]

    assert isinstance(row, LabelsRow)
    assert (row.identities, row.label.tolist()) == ((("a", "e", 0),), [1])
    assert [r.lsn for r in gate.rows] == [1, 2, 3, 4]  # its place is between the two new ones
    assert gate.add(step(0, label=1)).lsn == 4
    with pytest.raises(LabelConflict) as caught:
        gate.add(step(4), step(0, label=0))
    assert caught.value.where == "transitions[1].label"


def test_late_inline_label_within_one_batch(gate: Gate, step: Step) -> None:
    """A transition sent twice in one request, the second time with a label, is labelled."""
    assert counts(gate.add(step(0), step(0, label=1))) == (1, 1, 0)
    row = gate.rows[-1]

    assert isinstance(row, LabelsRow)
    assert row.ordinal.tolist() == [0]


def test_label_of_an_evicted_transition(gate: Gate, step: Step, label: Step) -> None:
    """Eviction is decided by ordinal: accepted in that split less the capacity, for each split."""
    gate.add(
        *[step(t) for t in range(16)],
        *[step(t, split="validation", actor_id="v") for t in range(8)],
    )
    assert outcome(gate.label(label(0), label(0, actor_id="v"))) == (2, 0, 0, 0)
    gate.add(step(16))

    assert outcome(gate.label(label(0), label(1))) == (1, 0, 1, 0)
    gate.add(step(17), step(18))
    assert outcome(gate.label(label(2, 0), label(3, 0))) == (1, 0, 0, 1)
    assert outcome(gate.label(label(7, 0, actor_id="v"), label(1, 0, actor_id="v"))) == (2, 0, 0, 0)


def test_label_of_a_dropped_transition(small: Small, step: Step, label: Step) -> None:
    """A transition dropped as stale is known and gone: its label has no target."""
    gate = stale(small, "drop")
    gate.label(label(1))
    gate.add(step(0, policy_version=0), step(1, policy_version=0))

    assert outcome(gate.label(label(0))) == (0, 0, 0, 1)
    assert gate.store.counters.pending == 0


def test_pending_labels_expire_by_accepted_transitions(
    small: Small, step: Step, label: Step
) -> None:
    """A waiting label expires after so many accepted transitions of any split, not before."""
    gate = Gate(small(labels={"pending_expiry": 3}))
    gate.label(label(5))
    gate.add(step(0), step(0), step(1, split="validation"))
    assert gate.store.counters.pending == 1
    gate.add(step(2))

    assert (gate.store.counters.pending, gate.store.counters.pending_expired) == (0, 1)
    gate.add(step(5))
    assert row_labels(gate)[-1] == -1
    assert outcome(gate.label(label(5))) == (1, 0, 0, 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
@pytest.mark.parametrize(("timestep", "joined"), [(2, 1), (3, -1), (5, -1)])
def test_expiry_does_not_depend_on_batching(
    small: Small, step: Step, label: Step, chunk: int, timestep: int, joined: int
) -> None:
    """Whether a label was still waiting depends on the transitions before it, in whatever batch."""
    gate = Gate(small(labels={"pending_expiry": 3}))
    gate.label(label(timestep))
    for at in range(0, 6, chunk):
        gate.add(*[step(t) for t in range(at, at + chunk)])

    assert row_labels(gate)[timestep] == joined
    assert gate.store.counters.pending == 0
    assert gate.store.counters.pending_expired == (1 if joined < 0 else 0)


def test_expired_label_conflicts_with_nothing(small: Small, step: Step, label: Step) -> None:
    """A label whose wait was over when its transition came does not contradict an inline one."""
    gate = Gate(small(labels={"pending_expiry": 2}))
    gate.label(label(2, 1))
    gate.add(step(0), step(1), step(2, label=0))

    assert row_labels(gate) == [-1, -1, 0]


def test_pending_labels_full(small: Small, step: Step, label: Step) -> None:
    """Beyond the capacity a request is refused whole; what is known already still gets through."""
    gate = Gate(small(labels={"pending_capacity": 2}))
    gate.label(label(0))
    with pytest.raises(PendingLabelsFull) as caught:
        gate.label(label(1), label(2))

    assert (caught.value.status, caught.value.where) == (429, "labels[1]")
    assert gate.store.counters.pending == 1
    gate.label(label(1))
    assert outcome(gate.label(label(0), label(1))) == (0, 0, 2, 0)
    gate.add(step(0))
    assert outcome(gate.label(label(2))) == (0, 1, 0, 0)


def test_no_labels(gate: Gate) -> None:
    """No labels are a valid request that takes no position in the journal."""
    assert gate.label() == LabelReceipt(attached=0, pending=0, duplicate=0, target_evicted=0, lsn=0)
    assert gate.rows == []


HUGE = 10**5000

BAD_LABELS: list[tuple[Any, type[InvalidInput], str]] = [
    *[({"actor_id": v}, InvalidType, "actor_id") for v in (1, b"a", HUGE)],
    *[({"actor_id": v}, InvalidValue, "actor_id") for v in ("", "x" * 129, "\n", "\ud800")],
    *[({"episode_id": v}, InvalidValue, "episode_id") for v in ("", "é" * 65, "\x9f")],
    *[
        ({"timestep": v}, InvalidType, "timestep")
        for v in (True, 1.0, "1", np.array(1), np.timedelta64(1))
    ],
    *[({"timestep": v}, InvalidValue, "timestep") for v in (-1, 2**53, HUGE)],
    *[
        ({"label": v}, LabelRange, "label")
        for v in (2, -1, "LEFT", 1.0, True, np.array([0, 1]), np.timedelta64(1), HUGE)
    ],
    *[({name: None}, MissingField, name) for name in ("actor_id", "episode_id", "timestep")],
    ({"label": None}, MissingField, "label"),
    ({"split": "train"}, UnknownField, "split"),
    ({1: 2}, UnknownField, "1"),
]


@pytest.mark.parametrize(("change", "error", "where"), BAD_LABELS, ids=range(len(BAD_LABELS)))
def test_bad_label(
    gate: Gate, label: Step, change: dict[Any, Any], error: type[InvalidInput], where: str
) -> None:
    """A fault in the last of several labels refuses the request whole, by name."""
    with pytest.raises(error) as caught:
        gate.label(label(0), label(1), {**label(2), **change})

    assert type(caught.value) is error
    assert caught.value.where == f"labels[2].{where}"
    assert gate.store.counters.pending == 0


@pytest.mark.parametrize(
    "labels", [None, 5, "x", b"x", {}, set(), object(), np.array(3), [None], [[]], [5], ["x"]]
)
def test_not_a_list_of_labels(small: Small, labels: Any) -> None:
    """Something that is no list of labels is refused as that."""
    with pytest.raises(InvalidType, match=r"labels(\[0\])?: expected an? (list|object)"):
        check_labels(labels, small())


def test_label_forms(small: Small) -> None:
    """A label is a struct or a mapping, from any iterable, with its class as index or name."""
    identity = {"actor_id": "a", "episode_id": "e", "timestep": np.int64(3)}
    forms = (Label(**identity, label="UP"), {**identity, "label": np.int8(1)})  # type: ignore[arg-type]

    assert check_labels((x for x in forms), small()) == [(("a", "e", 3), 1)] * 2  # type: ignore[arg-type]


def test_labels_without_auxiliary_head(small: Small, label: Step) -> None:
    """A model without an auxiliary head takes no labels."""
    with pytest.raises(LabelRange, match="no auxiliary head"):
        check_labels([label(0)], small(auxiliary=None))


# -- against an oracle ----------------------------------------------------------------------------


@dataclass
class Known:
    """What the oracle remembers of one identity."""

    content: tuple[Any, ...]
    split: str
    dropped: bool
    ordinal: int
    label: int | None
    end: bool


@dataclass
class Oracle:
    """Admission by plain dictionaries, one transition after the other.

    `add` and `label` return what a receipt counts, or the set of conflicts that would justify a
    refusal; they work on a copy, so that a refusal keeps nothing.
    """

    spec: ModelSpec
    known: dict[tuple[str, str, int], Known] = field(default_factory=dict)
    split: dict[tuple[str, str], str] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=lambda: {"train": 0, "validation": 0})
    waiting: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    expired: int = 0
    stream: int = 0
    place: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, tuple[int, Fraction]] = field(default_factory=dict)

    def add(self, batch: list[dict[str, Any]], version: int) -> tuple[int, int, int] | set[str]:
        """Admit transitions."""
        conflicts, new = set(), []
        done = {"accepted": 0, "duplicate": 0, "stale_dropped": 0}
        passed = self._let_pass(batch, version)
        for row in batch:
            identity = (row["actor_id"], row["episode_id"], row["timestep"])
            content = tuple(row[k] for k in ("reward", "terminated", "truncated", "policy_version"))
            if row["policy_version"] > version:
                conflicts.add("policy_version_unknown")
            known = self.known.get(identity)
            if known is not None:
                if known.content != content:
                    conflicts.add("identity_conflict")
                if known.split != row["split"]:
                    conflicts.add("split_conflict")
                done["stale_dropped" if known.dropped else "duplicate"] += 1
                label = row["label"]
                if label is not None and self._label(identity, label) == "label_conflict":
                    conflicts.add("label_conflict")
                continue
            new.append((identity, row["split"]))
            stale = self._stale(row, version) and identity not in passed
            conflicts |= self._place(identity, row, content, stale)
            done["stale_dropped" if self.known[identity].dropped else "accepted"] += 1
        conflicts |= self._episodes(new)
        self._expire()
        return conflicts or (done["accepted"], done["duplicate"], done["stale_dropped"])

    def _stale(self, row: dict[str, Any], version: int) -> bool:
        rule = self.spec.staleness
        return (
            rule.mode != "accept"
            and rule.max_policy_lag is not None
            and row["split"] == "train"
            and row["policy_version"] >= 0
            and version - row["policy_version"] > rule.max_policy_lag
        )

    def _let_pass(self, batch: list[dict[str, Any]], version: int) -> set[tuple[str, str, int]]:
        """Return which stale ones are taken all the same: tokens as fractions, one by one."""
        rule, capacity = self.spec.staleness, self.spec.replay.capacity
        share, since = Fraction(rule.stale_share), self.stream - capacity
        active = {a for a, place in self.place.items() if place >= max(1, since)}
        groups: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for row in batch:
            group = groups.setdefault((row["actor_id"], row["episode_id"]), {})
            if (row["actor_id"], row["episode_id"], row["timestep"]) not in self.known:
                group.setdefault(row["timestep"], row)
        passed, came = set(), set()
        for (actor, episode), steps in groups.items():
            mine = [r for r in steps.values() if r["split"] == "train" and r["policy_version"] >= 0]
            self.stream += len(mine)
            if mine:
                active.add(actor)
                came.add(actor)
            late = [r["timestep"] for r in mine if self._stale(r, version)]
            if not late or rule.mode != "drop" or not share:
                continue
            start = share * min(capacity, self.stream) / len(active)
            full = max(Fraction(1), share * capacity / len(active))
            tokens = start
            if actor in self.buckets:
                filled, tokens = self.buckets[actor]
                tokens = min(full, tokens + share * (self.stream - filled) / len(active))
            if tokens >= min(Fraction(len(late)), full):
                tokens -= len(late)
                passed |= {(actor, episode, t) for t in late}
            self.buckets[actor] = (self.stream, tokens)
        self.place |= dict.fromkeys(came, self.stream)
        return passed

    def _place(
        self, identity: tuple[str, str, int], row: dict[str, Any], content: Any, stale: bool
    ) -> set[str]:
        conflicts: set[str] = set()
        if stale and self.spec.staleness.mode == "reject":
            conflicts.add("policy_version_stale")
        label = row["label"]
        self._expire()
        if identity in self.waiting:
            waiting, _ = self.waiting.pop(identity)
            if label not in (None, waiting):
                conflicts.add("label_conflict")
            label = waiting
        ordinal = -1
        if not stale:
            ordinal = self.accepted[row["split"]]
            self.accepted[row["split"]] += 1
        end = row["terminated"] or row["truncated"]
        self.known[identity] = Known(content, row["split"], stale, ordinal, label, end)
        return conflicts

    def _episodes(self, new: list[tuple[tuple[str, str, int], str]]) -> set[str]:
        conflicts: set[str] = set()
        for (actor, episode, _), split in new:
            first = self.split.setdefault((actor, episode), split)
            if self.spec.split_scope == "episode" and split != first:
                conflicts.add("split_conflict")
            steps = {t: k for (a, e, t), k in self.known.items() if (a, e) == (actor, episode)}
            if any(k.end and t < max(steps) for t, k in steps.items()):
                conflicts.add("episode_closed")
        return conflicts

    def label(self, labels: list[tuple[tuple[str, str, int], int]]) -> dict[str, int] | set[str]:
        """Admit labels."""
        done = {"attached": 0, "pending": 0, "duplicate": 0, "target_evicted": 0}
        for identity, label in labels:
            result = self._label(identity, label)
            if result not in done:
                return {result}
            done[result] += 1
        return done

    def _label(self, identity: tuple[str, str, int], label: int) -> str:
        known = self.known.get(identity)
        if known is None:
            if identity in self.waiting:
                return "duplicate" if self.waiting[identity][0] == label else "label_conflict"
            if len(self.waiting) >= self.spec.labels.pending_capacity:
                return "pending_labels_full"
            self.waiting[identity] = (label, sum(self.accepted.values()))
            return "pending"
        if known.label is not None:
            return "duplicate" if known.label == label else "label_conflict"
        capacity = {
            "train": self.spec.replay.capacity,
            "validation": self.spec.validation.capacity,
        }[known.split]
        if known.dropped or known.ordinal < self.accepted[known.split] - capacity:
            return "target_evicted"
        known.label = label
        return "attached"

    def _expire(self) -> None:
        now = sum(self.accepted.values())
        over = [
            identity
            for identity, (_, since) in self.waiting.items()
            if now - since >= self.spec.labels.pending_expiry
        ]
        for identity in over:
            del self.waiting[identity]
            self.expired += 1


TIMES = [0, 1, 2, 3, 254, 255, 256, 257]


def transition(rng: random.Random) -> dict[str, Any]:
    """Return a transition of a small world, mostly consistent with every other one."""
    episode, timestep = rng.choice("efg"), rng.choice(TIMES)
    split = "validation" if episode == "g" else "train"
    odd = rng.randrange(80)  # now and then something that contradicts the rest
    return {
        "actor_id": rng.choice("ab"),
        "episode_id": episode,
        "timestep": timestep,
        "split": {"train": "validation", "validation": "train"}[split] if odd == 0 else split,
        "policy_version": 99 if odd == 1 else timestep % 4 - 1,
        "observation": [0.0, 1.0],
        "action": 0,
        "reward": 0.5 if odd == 2 else float(timestep),
        "next_observation": [1.0, 1.0],
        "terminated": (timestep == 257) != (odd == 3),
        "truncated": odd == 4,
        "label": rng.choice([None, None, None, timestep % 2, (timestep + (odd < 10)) % 2]),
    }


def one_label(rng: random.Random) -> tuple[tuple[str, str, int], int]:
    """Return a label, mostly the one that the transition would carry."""
    timestep = rng.choice(TIMES)
    odd = rng.randrange(20) == 0
    return (rng.choice("ab"), rng.choice("efg"), timestep), (timestep + odd) % 2


@settings(max_examples=120)
@given(
    seed=st.integers(0, 2**32),
    scope=st.sampled_from(["transition", "episode"]),
    lag=st.sampled_from([None, 0, 1]),
    mode=st.sampled_from(["accept", "drop", "reject"]),
    capacities=st.sampled_from([(2, 1), (5, 8), (16, 8)]),
    pending=st.sampled_from([(0, 50), (2, 50), (50, 1), (50, 4), (50, 50)]),
    share=st.sampled_from([0.0, 0.25, 0.75, 1.0]),
)
def test_against_a_slow_oracle(
    small: Small,
    seed: int,
    scope: str,
    lag: int | None,
    mode: str,
    capacities: tuple[int, int],
    pending: tuple[int, int],
    share: float,
) -> None:
    """Any requests, re-sent and overlapping and in groups that may fail, do what dictionaries do.

    Each request is a draft over its group's draft, as in the service; a refused request leaves the
    group as it was, and a group whose commit fails leaves the store as it was.
    """
    spec = small(
        split_scope=scope,
        staleness={"max_policy_lag": lag, "mode": mode, "stale_share": share},
        replay={"capacity": capacities[0]},
        validation={"capacity": capacities[1]},
        labels={"pending_capacity": pending[0], "pending_expiry": pending[1]},
    )
    rng = random.Random(seed)
    admission, store = Admission(spec), MemoryStore()
    group, group_rows, oracle, version = Draft(store), list[Row](), Oracle(spec), 2
    committed, rows = copy.deepcopy(oracle), list[Row]()
    sent: list[list[dict[str, Any]]] = [[]]
    for _ in range(25):
        kind = rng.choice(["add", "add", "add", "again", "label", "label", "serve", "commit"])
        if kind == "serve":
            version += rng.randrange(2)
        elif kind == "commit":
            if rng.random() < 0.7:
                store.apply(group)
                committed, rows = copy.deepcopy(oracle), rows + group_rows
            else:
                oracle = copy.deepcopy(committed)
            group, group_rows = Draft(store), []
            check(group, oracle, rows)
        else:
            body: Any = [one_label(rng) for _ in range(rng.randrange(4))]
            if kind != "label":
                body = [transition(rng) for _ in range(rng.randrange(7))]
                sent.append(body)
                if kind == "again":
                    old = rng.choice(sent)
                    body = rng.sample(old, len(old)) + body[:2]
            draft, trial, before = Draft(group), copy.deepcopy(oracle), frozen(group)
            expected = trial.label(body) if kind == "label" else trial.add(body, version)
            if isinstance(expected, set):
                with pytest.raises((Conflict, PendingLabelsFull)) as caught:
                    admit(admission, kind, body, draft, version)
                assert caught.value.code in expected
                assert frozen(group) == before
            else:
                done, made = admit(admission, kind, body, draft, version)
                assert done == expected
                assert frozen(group) == before
                group.merge(draft)
                group_rows, oracle = group_rows + made, trial
                check(group, oracle, rows + group_rows)


def admit(
    admission: Admission, kind: str, body: Any, draft: Draft, version: int
) -> tuple[Any, list[Row]]:
    """Admit a request; return what its receipt counts, and its rows."""
    if kind == "label":
        receipt, rows = admission.labels(body, draft)
        names = ("attached", "pending", "duplicate", "target_evicted")
        return {name: receipt[name] for name in names}, rows
    checked = columns(body, admission.spec)
    done, rows = admission.transitions(checked, draft, served=version, published=version)
    return counts(done), rows


def frozen(draft: Draft) -> Any:
    """Return what a draft holds, by value."""
    blocks = {key: block.tobytes() for key, block in draft.blocks.items()}
    tallies = list(draft.roll.tallies.items())
    return dict(draft.episodes), blocks, list(draft.pendings.items()), tallies, draft.counters


def check(ledger: Draft, oracle: Oracle, rows: list[Row]) -> None:
    """Compare the ledger and the rows with the oracle, identity by identity."""
    for (actor, episode, t), known in oracle.known.items():
        block = ledger.block((actor, episode), t // 256)
        assert block is not None
        slot = block[t % 256]
        assert slot["state"] == (STALE_DROPPED if known.dropped else ACCEPTED)
        assert slot["ordinal"] == known.ordinal
        assert slot["label"] == (-1 if known.label is None else known.label)
    assert dict(ledger.pending_oldest()).keys() == oracle.waiting.keys()
    counters = ledger.counters
    assert counters.pending == len(oracle.waiting)
    assert counters.pending_expired == oracle.expired
    assert {"train": counters.train, "validation": counters.validation} == oracle.accepted
    assert ledger.roll.offered == oracle.stream
    for name in "ab":
        of = [known for (actor, *_), known in oracle.known.items() if actor == name]
        tally = ledger.roll.get(name) or Tally()
        kept = [known.split for known in of if not known.dropped]
        assert (tally.train, tally.validation) == (kept.count("train"), kept.count("validation"))
        assert tally.stale_dropped == len(of) - len(kept)
        assert tally.place == oracle.place.get(name, 0)

    # Every acknowledged identity is stored once, every position is taken once, and a reader of the
    # rows alone knows every label that is attached.
    identities = [
        row.columns.identity(i)
        for row in rows
        if isinstance(row, TransitionsRow)
        for i in range(len(row.columns))
    ]
    assert len(identities) == len(set(identities))
    assert set(identities) == oracle.known.keys()
    assert [row.lsn for row in rows] == list(range(1, len(rows) + 1))
    assert counters.data_lsn == len(rows)
    seen: dict[tuple[str, str, int], int] = {}
    for row in rows:
        if isinstance(row, TransitionsRow):
            for i, label in enumerate(row.columns.label.tolist()):
                seen[row.columns.identity(i)] = label
        else:
            for identity, label, code in zip(row.identities, row.label, row.outcome, strict=True):
                if code == 2:
                    seen[identity] = int(label)
    assert seen == {i: -1 if k.label is None else k.label for i, k in oracle.known.items()}
