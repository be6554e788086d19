"""Journal rows: their bytes, and that a learner reading them becomes what the writer was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.admission import Admission, check_labels
from jormungandr.columns import ARRAYS, columns
from jormungandr.errors import DataDirError
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.rows import LabelsRow, Row, TransitionsRow, decode_row, encode_row, row_digest

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


@pytest.fixture
def rows(small: Small, step: Step, label: Step) -> list[Row]:
    """Rows of every kind: transitions, some dropped, labels attached and waiting."""
    spec = small(staleness={"max_policy_lag": 1, "mode": "drop", "stale_share": 0})
    admission, store, rows = Admission(spec), MemoryStore(), []

    def admit(items: list[dict[str, Any]], served: int) -> None:
        draft = Draft(store)
        _, made = admission.transitions(columns(items, spec), draft, served=served, published=9)
        store.apply(draft)
        rows.extend(made)

    def labels(items: list[dict[str, Any]]) -> None:
        draft = Draft(store)
        _, made = admission.labels(check_labels(items, spec), draft)
        store.apply(draft)
        rows.extend(made)

    admit([step(t, behavior_prob=0.5 if t else None) for t in range(6)], served=0)
    labels([label(1), label(0, episode_id="later")])
    stale = step(7, policy_version=1)
    held_out = step(0, split="validation", actor_id="ψ")
    admit([step(6, policy_version=2), stale, held_out], served=3)
    admit([step(0, episode_id="later", policy_version=-1)], served=3)
    admit([step(0, label=0), *[step(t, episode_id="f") for t in range(5)]], served=0)
    return rows


def same(a: Row, b: Row) -> bool:
    """Whether two rows are equal bit for bit."""
    return (type(a), a.lsn, encode_row(a)) == (type(b), b.lsn, encode_row(b))


def test_round_trip(rows: list[Row]) -> None:
    """A row comes back from its bytes with the same values and dtypes."""
    assert [row.kind for row in rows] == [
        "transitions",
        "labels",
        "transitions",
        "transitions",
        "labels",
        "transitions",
    ]
    for row in rows:
        back = decode_row(row.lsn, row.kind, encode_row(row))
        assert same(back, row)
        if isinstance(row, TransitionsRow):
            assert isinstance(back, TransitionsRow)
            assert back.columns.actors == row.columns.actors
            for name, dtype in ARRAYS.items():
                mine, other = getattr(row.columns, name), getattr(back.columns, name)
                assert other.dtype == dtype
                assert np.array_equal(mine, other, equal_nan=mine.dtype.kind == "f")
        else:
            assert isinstance(back, LabelsRow)
            assert back.identities == row.identities


def test_row_holds_the_outcomes(rows: list[Row]) -> None:
    """A row says what became of each transition and label, so that nothing is decided again."""
    assert [row.outcome.tolist() for row in rows] == [
        [1, 1, 1, 1, 1, 1],
        [2, 1],
        [1, 2, 1],
        [1],
        [2],
        [1, 1, 1, 1, 1],
    ]
    assert [row.lsn for row in rows] == [1, 2, 3, 4, 5, 6]


def test_reading_rows_makes_the_same_learner(
    rows: list[Row], small: Small, step: Step, label: Step
) -> None:
    """A core that reads decoded rows has the bits of one that was given them."""
    spec = small(staleness={"max_policy_lag": 1, "mode": "drop", "stale_share": 0})
    given, reading = Core(spec), Core(spec)
    for row in rows:
        given.apply(row)
        reading.apply(decode_row(row.lsn, row.kind, encode_row(row)))

    assert given.update_count == 4
    assert given.progress == reading.progress
    assert given.snapshot().digest() == reading.snapshot().digest()
    for name, array in given.replay.state().items():
        assert np.array_equal(array, reading.replay.state()[name]), name


def test_unknown_format_and_kind_are_refused(rows: list[Row]) -> None:
    """A row of a newer version, or of another kind, is not guessed at."""
    payload = msgspec.msgpack.decode(encode_row(rows[0]))
    newer = msgspec.msgpack.encode({**payload, "format": 4})

    with pytest.raises(DataDirError, match=r"journal row 7: expected format 2, or 3 .*, got 4"):
        decode_row(7, "transitions", newer)
    with pytest.raises(DataDirError, match="journal row 7: expected a data row, got control"):
        decode_row(7, "control", encode_row(rows[0]))


def test_digest_covers_position_kind_and_payload() -> None:
    """A row moved, relabelled or changed does not verify."""
    digests = {
        row_digest(1, "labels", b"x"),
        row_digest(2, "labels", b"x"),
        row_digest(1, "transitions", b"x"),
        row_digest(1, "labels", b"y"),
    }

    assert len(digests) == 4
    assert {len(digest) for digest in digests} == {32}


def test_learner_is_admission_and_application(small: Small, step: Step) -> None:
    """`Learner.add` leaves the ledger's position where the applied position is."""
    learner = Learner(small())
    receipt = learner.add([step(t) for t in range(3)])

    assert receipt.lsn == learner.info()["applied_lsn"] == learner.info()["journal_lsn"] == 1
