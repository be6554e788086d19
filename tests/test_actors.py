"""What is shown of actors: exact counts and lags, bounded memory, and two warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec
from jormungandr.actors import Actors
from jormungandr.errors import PolicyVersionStale
from jormungandr.lag import BOUNDS, SIZE, Histogram, Window, quantiles
from jormungandr.ledger import Counters
from jormungandr.tally import RECENT, Arrival, Overlay, Roll, Tally

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]


def came(
    actor: str,
    lag: list[int],
    *,
    version: int = 0,
    served: int = 0,
    dropped: int = 0,
    ends: int = 0,
) -> Arrival:
    """Return what a request of one actor brought; the first so many are dropped."""
    n = len(lag)
    return Arrival(
        actors=(actor,),
        counts=np.array([[n - dropped, 0, dropped, 0]]),
        ends=np.array([ends]),
        version=np.array([version]),
        actor=np.zeros(n, dtype=np.int32),
        lag=np.array(lag, dtype=np.int64),
        dropped=np.arange(n) < dropped,
        served=served,
        lsn=1,
    )


# -- windows and histograms -----------------------------------------------------------------------


@given(parts=st.lists(st.lists(st.integers(0, 10**6), max_size=300), max_size=8))
def test_a_window_holds_the_newest(parts: list[list[int]]) -> None:
    """However they come, a window has the figures of the newest lags alone."""
    window = Window()
    for part in parts:
        window.add(np.array(part, dtype=np.int64), np.array([lag % 2 for lag in part], dtype=bool))
    newest = [lag for part in parts for lag in part][-SIZE:]

    assert window.lags().tolist() == sorted(newest)
    if not newest:
        assert quantiles(window) == {
            "transitions": 0,
            **dict.fromkeys(("last", "mean", "p50", "p95", "max")),
        }
        return
    figures = quantiles(window)
    assert figures["last"] == newest[-1]
    assert figures["mean"] == pytest.approx(np.mean(newest))
    assert figures["max"] == max(newest)
    for name, q in (("p50", 0.5), ("p95", 0.95)):
        assert figures[name] == np.quantile(newest, q, method="inverted_cdf")
    assert window.dropped_share == pytest.approx(np.mean([lag % 2 for lag in newest]))


@given(lags=st.lists(st.integers(0, 2**40), max_size=50))
def test_a_histogram_counts_each_lag_once(lags: list[int]) -> None:
    """Each bucket has those up to its bound that none before it has."""
    histogram = Histogram()
    histogram.add(np.array(lags, dtype=np.int64))
    figures = histogram.figures()

    assert (figures["count"], figures["sum"]) == (len(lags), sum(lags))
    below = -1
    for bound, count in zip(figures["at_most"], figures["counts"], strict=True):
        assert count == sum(below < lag <= bound for lag in lags)
        below = bound
    assert sum(figures["counts"]) == len(lags)
    assert BOUNDS[:4] == [0, 1, 3, 7]


# -- tallies --------------------------------------------------------------------------------------


def test_a_roll_holds_the_most_recent() -> None:
    """Who has been silent for longest makes room; who comes again is the newest."""
    roll = Roll(limit=2)
    for place, actor in enumerate("abac"):
        roll.take({actor: Tally(place=place)})

    assert [actor for actor, _ in roll.recent()] == ["c", "a"]
    assert roll.get("b") is None
    assert (roll.whole, roll.offered) == (False, 3)
    assert [roll.active(since) for since in (0, 2, 3, 4)] == [2, 2, 1, 0]


def test_an_overlay_changes_nothing_below() -> None:
    """A draft's tallies are its own until they are taken over, and count each actor once."""
    roll = Roll()
    roll.take({"a": Tally(place=5), "b": Tally(place=7)})
    group = Overlay(roll)
    mine = Overlay(group)
    mine.take({"a": Tally(place=9, train=1)})
    mine.take({"c": Tally(place=10)})

    assert [tallies.active(8) for tallies in (roll, group, mine)] == [0, 0, 2]
    assert [tallies.active(6) for tallies in (roll, group, mine)] == [1, 1, 3]
    assert [tallies.offered for tallies in (roll, group, mine)] == [7, 7, 10]
    assert (roll.get("a"), mine.get("a")) == (Tally(place=5), Tally(place=9, train=1))
    group.take(mine.tallies)
    roll.take(group.tallies)
    assert [actor for actor, _ in roll.recent()] == ["c", "a", "b"]


# -- what a learner shows -------------------------------------------------------------------------


def test_figures_of_a_learner(small: Small, step: Step) -> None:
    """Each actor has its own counts and lags; what is sent again counts as that alone."""
    learner = Learner(small(staleness={"max_policy_lag": 1, "mode": "drop", "stale_share": 0}))
    learner.add([step(t, policy_version=-1) for t in range(30)])
    newest = learner.policy_version
    assert newest > 3
    batch = [
        step(0, actor_id="b", policy_version=newest),
        step(1, actor_id="b", policy_version=newest - 3),
        step(0, actor_id="c", policy_version=newest - 1),
        step(1, actor_id="c", policy_version=0, split="validation"),
    ]
    lsn = learner.add(batch).lsn
    learner.add(batch[:2])
    actors = learner.metrics()["actors"]
    found = {each["actor_id"]: each for each in actors["each"]}
    nothing = {"rejected": 0, "stale_dropped": 0, "duplicate": 0, "validation": 0}

    assert actors["each"][0]["actor_id"] == "b"
    assert found["b"] == {
        **nothing,
        "actor_id": "b",
        "train": 1,
        "stale_dropped": 1,
        "duplicate": 2,
        "last_lsn": lsn,
        "newest_version": newest,
        "lag": {"transitions": 2, "last": 3, "mean": 1.5, "p50": 0, "p95": 3, "max": 3},
    }
    one = {"transitions": 1, "last": 1, "mean": 1.0, "p50": 1, "p95": 1, "max": 1}
    assert found["c"] == {
        **nothing,
        "actor_id": "c",
        "train": 1,
        "validation": 1,
        "last_lsn": lsn,
        "newest_version": newest - 1,
        "lag": one,
    }
    assert found["a"]["lag"]["transitions"] == 0
    assert found["a"]["newest_version"] == -1
    assert actors["lag"] == {"count": 3, "sum": 4, "at_most": [0, 1, 3], "counts": [1, 1, 1]}
    assert actors["others"] == {"train": 0, "validation": 0, "stale_dropped": 0}
    lag = learner.info()["lag"]
    assert (lag["transitions"], lag["p50"], lag["p95"], lag["max"]) == (3, 1, 3, 3)
    assert lag["worst"][0] == {"actor_id": "b", "last": 3, "version": newest}


def test_refused_requests_are_counted(small: Small, step: Step) -> None:
    """In mode "reject" a refused request counts for whoever it is of, each time; others do not."""
    learner = Learner(small(staleness={"max_policy_lag": 0, "mode": "reject"}))
    learner.add([step(t, policy_version=-1) for t in range(30)])
    for _ in range(2):
        with pytest.raises(PolicyVersionStale):
            learner.add([step(t, actor_id="b", policy_version=0) for t in range(3)])
    (found,) = (a for a in learner.metrics()["actors"]["each"] if a["actor_id"] == "b")

    assert (found["rejected"], found["train"], found["lag"]["transitions"]) == (6, 0, 0)


def test_memory_is_bounded(small: Small, step: Step) -> None:
    """A thousand actors are told apart; what others sent is known in sum."""
    learner = Learner(small(pacing={"learning_starts": 10**6}))
    for n in range(RECENT + 20):
        learner.add([step(0, actor_id=f"a{n}")])
    actors = learner.metrics()["actors"]

    assert len(actors["each"]) == RECENT
    assert actors["others"] == {"train": 20, "validation": 0, "stale_dropped": 0}
    assert "a0" not in {each["actor_id"] for each in actors["each"]}


def test_saved_counts_go_on(small: Small, step: Step, tmp_path: Any) -> None:
    """What was accepted and dropped is known after a reload; lags are measured from then on."""
    learner = Learner(small())
    lsn = learner.add([step(t) for t in range(4)]).lsn
    learner.save(tmp_path / "saved")
    actors = Learner.load(tmp_path / "saved").metrics()["actors"]

    assert actors["since"] == lsn
    assert [(a["actor_id"], a["train"]) for a in actors["each"]] == [("a", 4)]
    assert actors["lag"]["count"] == 0


# -- warnings -------------------------------------------------------------------------------------


def names(actors: Actors) -> list[str]:
    """Return the kinds of its warnings."""
    return [warning.partition(":")[0] for warning in actors.warnings()]


def test_a_policy_that_is_never_replaced() -> None:
    """Ten episodes of one policy while ten newer ones were served is a reason to look."""
    actors = Actors(capacity=1_000)
    for n in range(11):
        assert names(actors) == []
        actors.note(came("a", [n], version=0, served=n, ends=1))
    (warning,) = actors.warnings()

    assert warning.startswith("lag_growing: the policy of 'a' (version 0, 10 behind) is never")
    actors.note(came("a", [0], version=10, served=10))
    assert actors.warnings() == []


@pytest.mark.parametrize(
    ("served", "ends", "steps"), [(9, 20, 20_000), (20, 9, 9_999)], ids=["kept up", "in an episode"]
)
def test_nothing_to_see_there(served: int, ends: int, steps: int) -> None:
    """Neither a learner that stands still nor one long episode is a fault of the actor's."""
    actors = Actors(capacity=100_000)
    actors.note(came("a", [5], version=0, served=0))
    actors.note(came("a", [served] * (steps - 1), version=0, served=served, ends=ends))

    assert actors.warnings() == []


def test_a_long_stretch_without_an_end() -> None:
    """Where episodes do not end, ten thousand transitions of one policy are enough."""
    actors = Actors(capacity=100_000)
    actors.note(came("a", [0], version=0, served=0))
    actors.note(came("a", [20] * 10_000, version=0, served=20))

    assert names(actors) == ["lag_growing"]


def test_an_actor_that_is_starved() -> None:
    """Most of 32 transitions dropped is a reason to look; half of them is not."""
    actors = Actors(capacity=1_000)
    actors.note(came("few", [9] * 31, dropped=31))
    actors.note(came("half", [9] * 32, dropped=16))
    assert actors.warnings() == []
    actors.note(came("most", [9] * 32, dropped=17))
    (warning,) = actors.warnings()

    assert warning.startswith("actor_starved: most of what 'most' (53%) sends is dropped as stale")


def test_warnings_name_the_worst_three() -> None:
    """A fleet of them makes one line."""
    actors = Actors(capacity=1_000)
    for n in range(6):
        actors.note(came(f"a{n}", [9] * 40, dropped=35 + n % 4))

    assert "'a3' (95%), 'a2' (92%), 'a5' (90%) and 3 more sends" in actors.warnings()[0]


def test_who_has_gone_is_not_warned_about() -> None:
    """After a whole replay without it, an actor is history; its counts stay."""
    actors = Actors(capacity=100)
    actors.note(came("gone", [9] * 40, dropped=40))
    actors.note(came("here", [0] * 100))
    assert names(actors) == ["actor_starved"]
    actors.note(came("here", [0]))

    assert names(actors) == []
    assert [w["actor_id"] for w in actors.summary()["worst"]] == ["here"]
    assert len(actors.figures(Roll(), Counters())["each"]) == 2
