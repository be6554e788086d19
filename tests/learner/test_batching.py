"""The state depends on the order of transitions and labels, and not on how they were batched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr import Learner, ModelSpec

Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]
#: A stream of ("add", transition) and ("label", label).
Stream: TypeAlias = list[tuple[str, dict[str, Any]]]


def stream(seed: int, length: int) -> Stream:
    """Return a stream of several actors and episodes, with held-out steps, gaps and labels.

    Labels come before, after, or inside their transitions; steps come late, twice, or never.
    """
    rng = np.random.default_rng(seed)
    events: Stream = []
    times = {(actor, split): 0 for actor in "abc" for split in ("train", "validation")}
    episodes = dict.fromkeys(times, 0)
    late: list[tuple[str, dict[str, Any]]] = []
    while len(events) < length:
        actor = "abc"[rng.integers(3)]
        split = "validation" if rng.random() < 0.25 else "train"
        key = (actor, split)
        t = times[key]
        identity = {"actor_id": actor, "episode_id": f"{split}-{episodes[key]}", "timestep": t}
        label = {**identity, "label": int(rng.integers(2))}
        ended = rng.random() < 0.1
        row = {
            **identity,
            "split": split,
            "policy_version": int(rng.integers(-1, 1)),
            "observation": rng.normal(size=2),
            "action": int(rng.integers(3)),
            "reward": float(rng.normal()),
            "next_observation": rng.normal(size=2),
            "terminated": bool(ended and rng.random() < 0.5),
            "truncated": False,
        }
        row["truncated"] = bool(ended and not row["terminated"])
        how = rng.integers(6)
        if how == 0:
            events.append(("label", label))
        if how == 1:
            row["label"] = label["label"]
        times[key], episodes[key] = (0, episodes[key] + 1) if ended else (t + 1, episodes[key])
        if rng.random() < 0.1 and not ended:
            late.append(("add", row))  # comes later, or never
        else:
            events.append(("add", row))
            if rng.random() < 0.1:
                events.append(("add", row))  # a retry
        if how == 2:
            late.append(("label", label))
        if late and rng.random() < 0.3:
            events.append(late.pop(int(rng.integers(len(late)))))
    return events


def feed(learner: Learner, events: Stream, sizes: Iterator[int]) -> Learner:
    """Send a stream in order, consecutive events of one kind together, in requests of `sizes`."""
    at = 0
    while at < len(events):
        kind, stop = events[at][0], at + next(sizes)
        part = []
        while at < min(stop, len(events)) and events[at][0] == kind:
            part.append(events[at][1])
            at += 1
        if kind == "add":
            learner.add(part)
        else:
            learner.label(part)  # type: ignore[arg-type]
    return learner


def ones() -> Iterator[int]:
    """Yield 1 for ever."""
    while True:
        yield 1


def random_sizes(seed: int) -> Iterator[int]:
    """Yield sizes from one transition to many, for ever."""
    rng = random.Random(seed)
    while True:
        yield rng.choice([1, 2, 3, 7, 20, 60])


@settings(max_examples=16)
@given(
    seed=st.integers(0, 2**32),
    n_step=st.sampled_from([1, 3]),
    double=st.booleans(),
    alpha=st.sampled_from([0.0, 0.6]),
    ratio=st.sampled_from([0.25, 1.5]),
    capacity=st.sampled_from([7, 40]),
    idle=st.sampled_from([6, 1000]),
    expiry=st.sampled_from([5, 1000]),
    normalizer=st.sampled_from(["batch", "buffer"]),
)
def test_rechunking_changes_no_bit(
    small: Small,
    state: State,
    seed: int,
    n_step: int,
    double: bool,
    alpha: float,
    ratio: float,
    capacity: int,
    idle: int,
    expiry: int,
    normalizer: str,
) -> None:
    """One by one or in requests of any size, a stream makes the same learner, bit for bit."""
    spec = small(
        c51={"n_step": n_step, "double": double, "batch_size": 6},
        replay={
            "capacity": capacity,
            "alpha": alpha,
            "window_idle": idle,
            "is_normalizer": normalizer,
        },
        pacing={"updates_per_transition": ratio, "learning_starts": 3},
        labels={"pending_expiry": expiry},
    )
    events = stream(seed, 120)
    one = state(feed(Learner(spec), events, ones()))
    other = state(feed(Learner(spec), events, random_sizes(seed)))
    del one["lsn"], other["lsn"]

    assert one["progress"]["updates"] > 10
    assert one == other


@pytest.mark.parametrize("n_step", [1, 3])
def test_whole_stream_at_once(small: Small, state: State, n_step: int) -> None:
    """One request may hold far more transitions than replay has room for."""
    spec = small(c51={"n_step": n_step}, replay={"capacity": 5}, validation={"capacity": 3})
    events = [event for event in stream(5, 300) if event[0] == "add"]
    one = state(feed(Learner(spec), events, ones()))
    other = state(feed(Learner(spec), events, iter([10_000])))
    del one["lsn"], other["lsn"]

    assert one == other


def test_columns_and_rows_make_the_same_learner(small: Small, state: State) -> None:
    """Arrays and rows are two forms of the same transitions."""
    from jormungandr.columns import columns

    spec = small()
    rows = [row for kind, row in stream(3, 60) if kind == "add"]
    one, two = Learner(spec), Learner(spec)
    one.add(rows)
    two.add(columns(rows, spec))

    assert state(one) == state(two)


def test_late_label_keeps_its_place(small: Small, step: Callable[..., dict[str, Any]]) -> None:
    """A duplicate's label comes before the transitions that follow it in the same request."""
    pacing = {"learning_starts": 4, "updates_per_transition": 2.0}
    spec = small(pacing=pacing, c51={"batch_size": 4}, auxiliary={"classes": ["no", "yes"]})
    known, new = [step(t) for t in range(4)], [step(t) for t in range(4, 8)]
    together, apart = Learner(spec), Learner(spec)
    for learner in (together, apart):
        learner.add(known)
    together.add([step(0, label=1), *new])
    apart.add([step(0, label=1)])
    for row in new:
        apart.add([row])

    assert together.snapshot().digest() == apart.snapshot().digest()
    assert together.update_count == 8
