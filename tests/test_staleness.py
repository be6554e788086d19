"""Fair staleness: who is slow loses nothing, who is stuck floods nobody, and nobody is erased."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.admission import Admission
from jormungandr.columns import ARRAYS, Columns, columns
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.protocol import Receipt
from jormungandr.rows import ACCEPTED, Row, TransitionsRow
from jormungandr.spec import ModelSpec
from jormungandr.tally import Tally

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]

#: Transitions that an actor sends at once.
STRETCH = 8


class Fleet:
    """Actors of one model that drops lags above ten; version and time are set by hand."""

    def __init__(self, small: Small, step: Step, share: float = 0.25, capacity: int = 400) -> None:
        rule = {"max_policy_lag": 10, "mode": "drop", "stale_share": share}
        self.spec = small(staleness=rule, replay={"capacity": capacity})
        self.admission, self.store, self._step = Admission(self.spec), MemoryStore(), step
        self.served, self.sent = 0, 0
        self.rows: list[Row] = []

    def batch(self, actor: str, version: int, length: int = STRETCH) -> list[dict[str, Any]]:
        """Return an episode that an actor acted in with one version."""
        self.sent += 1
        who = {"actor_id": actor, "episode_id": f"e{self.sent}", "policy_version": version}
        return [self._step(t, **who) for t in range(length)]

    def add(self, batch: list[dict[str, Any]] | Columns) -> Receipt:
        """Admit a batch."""
        draft, checked = Draft(self.store), columns(batch, self.spec)
        receipt, rows = self.admission.transitions(
            checked, draft, served=self.served, published=self.served
        )
        self.store.apply(draft)
        self.rows += rows
        return receipt

    def send(self, actor: str, version: int, length: int = STRETCH) -> int:
        """Send such an episode, and return how much of it was dropped."""
        return self.add(self.batch(actor, version, length)).stale_dropped

    def tally(self, actor: str) -> Tally:
        """Return what became of everything of an actor."""
        return self.store.roll.get(actor) or Tally()


def run(fleet: Fleet, ticks: int, every: int) -> None:
    """Let eight fast actors send each tick, a slow one `every` so many, and one that is stuck.

    A policy is made each tick. The slow actor takes the newest policy when it begins a stretch.
    """
    taken = 0
    for fleet.served in range(ticks):
        for n in range(8):
            assert fleet.send(f"fast-{n}", max(0, fleet.served - 1)) == 0
        fleet.send("stuck", 0)
        if fleet.served % every == every - 1:
            fleet.send("slow", taken)
            taken = fleet.served


@pytest.mark.parametrize("every", [20, 100])
def test_a_slow_actor_loses_nothing(small: Small, step: Step, every: int) -> None:
    """An actor twenty or a hundred times as slow keeps all it sends, though all of it is stale."""
    fleet = Fleet(small, step)
    run(fleet, 300, every)

    assert fleet.tally("slow").train == 300 // every * STRETCH
    assert fleet.tally("slow").stale_dropped == 0


def test_without_a_share_it_is_erased(small: Small, step: Step) -> None:
    """What the share is there for: at 0, nothing of a slow actor is ever taken."""
    fleet = Fleet(small, step, share=0)
    run(fleet, 300, 100)

    assert fleet.tally("slow").train == 0
    assert fleet.tally("slow").stale_dropped == 3 * STRETCH


def test_a_stuck_actor_gets_its_part_and_no_more(small: Small, step: Step) -> None:
    """An actor as fast as the others whose policy is never replaced keeps the share of its data."""
    fleet = Fleet(small, step)
    run(fleet, 300, 100)
    tally = fleet.tally("stuck")
    stale = 300 * STRETCH - 11 * STRETCH  # of the first eleven ticks it was in time

    assert tally.train - 11 * STRETCH == pytest.approx(0.25 * stale, abs=3 * STRETCH)


def test_all_late_alike(small: Small, step: Step) -> None:
    """Where everybody is late, everybody keeps the same share, and data goes on coming in."""
    fleet = Fleet(small, step)
    fleet.served = 100
    for _ in range(50):
        for n in range(4):
            fleet.send(f"a{n}", 0)
    kept = [fleet.tally(f"a{n}").train for n in range(4)]

    assert max(kept) - min(kept) <= STRETCH
    assert sum(kept) == pytest.approx(0.25 * 50 * 4 * STRETCH, abs=4 * STRETCH)


def test_actors_that_come_once(small: Small, step: Step) -> None:
    """A name of its own for every episode is no way to be erased, nor to send any amount."""
    fleet = Fleet(small, step)
    fleet.served = 100
    for n in range(200):
        fleet.send("fast", 100)
        fleet.send(f"once-{n}", 0, length=2)
    kept = sum(fleet.tally(f"once-{n}").train for n in range(200))

    assert 0 < kept <= 0.25 * fleet.store.roll.offered


def test_a_stretch_is_taken_whole_or_not_at_all(small: Small, step: Step) -> None:
    """Of the stale part of one episode in one request either all is taken or nothing."""
    fleet = Fleet(small, step)
    run(fleet, 100, 20)
    for row in fleet.rows:
        assert isinstance(row, TransitionsRow)
        assert len(np.unique(row.outcome)) == 1


def test_a_stretch_longer_than_any_allowance(small: Small, step: Step) -> None:
    """It is taken when the allowance is full, and the next one waits until that is paid back."""
    fleet = Fleet(small, step, capacity=40)  # full: 5 transitions for each of two actors
    fleet.served = 100
    for _ in range(10):
        fleet.send("fast", 100)
    first = fleet.send("slow", 0, length=30)
    debt = fleet.tally("slow").allowance
    second = fleet.send("slow", 0, length=30)

    assert (first, second) == (0, 30)
    assert debt < 0
    for _ in range(40):
        fleet.send("fast", 100)
    assert fleet.send("slow", 0, length=30) == 0


def test_who_left_has_no_part(small: Small, step: Step) -> None:
    """Actors that sent nothing for a whole replay are not counted among those who share."""
    fleet = Fleet(small, step)
    fleet.served = 100
    for n in range(20):
        fleet.send(f"gone-{n}", 100)
    assert fleet.store.roll.active(fleet.store.roll.offered - 400) == 20
    for _ in range(60):
        fleet.send("here", 100)

    assert fleet.store.roll.active(fleet.store.roll.offered - 400) == 1


def test_the_rule_is_of_training_data_of_own_policies(small: Small, step: Step) -> None:
    """Held-out transitions and foreign actions neither cost nor earn an allowance."""
    fleet = Fleet(small, step)
    fleet.served = 100
    fleet.send("a", 100)
    before = fleet.store.roll.offered
    fleet.add([dict(row, split="validation") for row in fleet.batch("a", 0)])
    fleet.add([dict(row, policy_version=-1) for row in fleet.batch("a", 0)])

    assert fleet.store.roll.offered == before == STRETCH
    fleet.add([dict(row, policy_version=-1) for row in fleet.batch("b", 0)])
    assert fleet.store.roll.active(1) == 1


def test_what_is_known_costs_nothing(small: Small, step: Step) -> None:
    """Sending again changes no tally, and so nothing that is decided later."""
    fleet = Fleet(small, step)
    fleet.served = 100
    batches = [fleet.batch("a", 100), fleet.batch("b", 0), fleet.batch("b", 0)]
    for batch in batches:
        fleet.add(batch)
    before = list(fleet.store.roll.items())
    for batch in batches:
        assert fleet.add(batch).accepted == 0

    assert list(fleet.store.roll.items()) == before


def test_how_a_batch_is_encoded_decides_nothing(small: Small, step: Step) -> None:
    """The order of the ids in columns is the sender's affair."""
    outcomes = []
    for turned in (False, True):
        fleet = Fleet(small, step)
        fleet.served = 100
        for n in range(3):
            fleet.send(f"a{n}", 100, length=20)
        rows = [row for n in (2, 0, 1) for _ in range(3) for row in fleet.batch(f"a{n}", 0, 4)]
        given_columns = columns(rows, fleet.spec)
        if turned:
            arrays = {name: getattr(given_columns, name) for name in ARRAYS}
            for name in ("actor", "episode"):
                arrays[name] = arrays[name].max() - arrays[name]
            given_columns = Columns(
                actors=given_columns.actors[::-1], episodes=given_columns.episodes[::-1], **arrays
            )
        fleet.add(given_columns)
        last = fleet.rows[-1]
        assert isinstance(last, TransitionsRow)
        outcomes.append(last.outcome.tolist())

    assert outcomes[0] == outcomes[1]
    assert len(set(outcomes[0])) == 2


@settings(max_examples=60)
@given(
    share=st.sampled_from([0.05, 0.25, 0.5, 1.0]),
    requests=st.lists(
        st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 6)), min_size=1, max_size=60
    ),
)
def test_how_much_is_stale_is_bounded(
    small: Small, step: Step, share: float, requests: list[tuple[int, bool, int]]
) -> None:
    """Whoever sends what: stale data stays within its share of the stream and the first parts."""
    fleet = Fleet(small, step, share=share, capacity=50)
    fleet.served = 100
    for actor, late, length in requests:
        fleet.send(f"a{actor}", 0 if late else 100, length)
    kept = sum(
        int(np.count_nonzero((row.outcome == ACCEPTED) & (row.columns.policy_version == 0)))
        for row in fleet.rows
        if isinstance(row, TransitionsRow)
    )

    # Each of five actors may begin with a full allowance, and go into debt for one stretch.
    assert kept <= share * fleet.store.roll.offered + 5 * (share * 50 + 6)
