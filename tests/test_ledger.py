"""The ledger's storage: blocks, drafts over stores and over drafts, and its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from jormungandr.ledger import (
    BLOCK,
    Counters,
    Draft,
    Episode,
    MemoryStore,
    Pending,
    block_from_bytes,
    new_block,
)

KEY = ("a", "e")


@pytest.mark.parametrize(
    ("length", "slots"), [(1, 16), (16, 16), (17, 32), (240, 240), (255, 256), (256, 256)]
)
def test_new_block_grows_in_sixteens(length: int, slots: int) -> None:
    """A short episode does not pay for a whole block, and no block is longer than 256."""
    block = new_block(length)

    assert len(block) == slots
    assert set(block["state"]) == {0}
    assert set(block["label"]) == {-1}


def test_new_block_keeps_the_old_one() -> None:
    """Growing keeps what is there, never shrinks, and does not write to the old block."""
    old = new_block(16)
    old["digest"][3], old["state"][3], old["label"][3] = 7, 1, 2
    grown, same = new_block(20, old), new_block(1, old)
    grown["state"][3] = 2

    assert (len(grown), len(same)) == (32, 16)
    assert (grown["digest"][3], grown["label"][3], grown["label"][20]) == (7, 2, -1)
    assert old["state"][3] == 1


def test_block_bytes_round_trip() -> None:
    """A block is its bytes."""
    block = new_block(16)
    block["ordinal"] = np.arange(16)

    assert block_from_bytes(block.tobytes()).tolist() == block.tolist()


def filled() -> MemoryStore:
    """Return a store with one of everything."""
    store = MemoryStore()
    draft = Draft(store)
    draft.episodes[KEY] = Episode(split=0, splits=1, end=-1, last=3)
    draft.writable(KEY, 0, 4)["state"][:4] = 1
    draft.put_pending(("a", "e", 9), Pending(1, 4))
    draft.put_pending(("a", "f", 0), Pending(0, 5))
    draft.next_lsn()
    draft.count(train=4)
    store.apply(draft)
    return store


def test_draft_leaves_its_base_alone() -> None:
    """A draft that is thrown away has changed nothing: a refusal leaves no trace."""
    store = filled()
    before = store.to_bytes()
    draft = Draft(store)
    draft.episodes[KEY] = Episode(1, 3, 5, 5)
    draft.writable(KEY, 0, 4)["state"][:] = 2
    draft.writable(KEY, 1, 1)["state"][:] = 2
    draft.drop_pending(("a", "e", 9))
    draft.put_pending(("a", "g", 0), Pending(1, 4))
    draft.next_lsn()
    draft.count(validation=3)

    assert store.to_bytes() == before


def test_draft_reads_its_changes_over_the_base() -> None:
    """What a draft changed is read back from it, and what it did not from its base."""
    draft = Draft(filled())
    draft.episodes["a", "f"] = Episode(0, 1, -1, 0)
    draft.drop_pending(("a", "e", 9))
    draft.count(train=1)

    assert draft.episode(KEY) == Episode(0, 1, -1, 3)
    assert draft.episode(("a", "f")) == Episode(0, 1, -1, 0)
    assert draft.episode(("b", "e")) is None
    assert draft.block(KEY, 0) is not None
    assert draft.block(KEY, 1) is None
    assert draft.pending(("a", "e", 9)) is None
    assert draft.pending(("a", "f", 0)) == Pending(0, 5)
    assert draft.counters == Counters(lsn=1, data_lsn=1, train=5, pending=1)


def test_draft_over_a_draft() -> None:
    """A request's draft over its group's draft is merged when it is admitted, and only then."""
    store = filled()
    group = Draft(store)
    refused, admitted = Draft(group), Draft(group)
    refused.writable(KEY, 0, 4)["state"][0] = 9
    refused.drop_pending(("a", "e", 9))
    refused.count(train=100)
    admitted.writable(KEY, 0, 4)["state"][1] = 2
    admitted.put_pending(("a", "g", 0), Pending(1, 6))
    group.merge(admitted)

    block = group.block(KEY, 0)
    assert block is not None
    assert block["state"][:4].tolist() == [1, 2, 1, 1]
    assert [identity for identity, _ in group.pending_oldest()] == [
        ("a", "e", 9),
        ("a", "f", 0),
        ("a", "g", 0),
    ]
    assert group.counters.train == 4
    store.apply(group)
    assert store.counters.pending == 3


def test_pending_labels_stay_in_the_order_in_which_they_came() -> None:
    """A label that waits again after it was taken off waits at the end, through merge and apply."""
    store = filled()
    group = Draft(store)
    first, second = Draft(group), Draft(group)
    first.drop_pending(("a", "e", 9))
    first.put_pending(("a", "h", 0), Pending(0, 7))
    group.merge(first)
    second.put_pending(("a", "e", 9), Pending(1, 8))
    group.merge(second)
    expected = [
        (("a", "f", 0), Pending(0, 5)),
        (("a", "h", 0), Pending(0, 7)),
        (("a", "e", 9), Pending(1, 8)),
    ]

    assert list(group.pending_oldest()) == expected
    store.apply(group)
    assert list(store.pending_oldest()) == expected


def test_bytes_round_trip() -> None:
    """Everything survives, in order, and a restored block may be written through a draft."""
    store = filled()
    back = MemoryStore.from_bytes(store.to_bytes())

    assert back.to_bytes() == store.to_bytes()
    assert back.counters == store.counters == Counters(lsn=1, data_lsn=1, train=4, pending=2)
    assert list(back.pendings.items()) == list(store.pendings.items())
    draft = Draft(back)
    draft.writable(KEY, 0, 4)["state"][0] = 2
    back.apply(draft)
    block = back.block(KEY, 0)
    assert block is not None
    assert block["state"][:2].tolist() == [2, 1]


def test_accepted_counts_both_splits() -> None:
    """Accepted transitions are those of train and validation."""
    assert Counters(train=3, validation=4).accepted == 7
    assert BLOCK == 256
