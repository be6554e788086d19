"""Plain transitions take a shorter way, which must come to what the general one comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from jormungandr import encoding
from jormungandr.admission import Admission, rules
from jormungandr.columns import ARRAYS, Columns, columns, door
from jormungandr.encoding import observations
from jormungandr.errors import IdentityConflict, JormungandrError
from jormungandr.ledger import Draft, MemoryStore
from jormungandr.protocol import Transition
from jormungandr.rows import encode_row
from jormungandr.spec import ModelSpec

SPEC = ModelSpec.from_dict(
    {
        "observation": {"shape": [2, 2]},
        "actions": 3,
        "auxiliary": {"classes": ["down", "up"]},
        "labels": {"pending_capacity": 10},
    }
)
MASKED = ModelSpec.from_dict({"observation": {"shape": [4]}, "actions": 2, "action_masks": True})
IMAGES = ModelSpec.from_dict({"observation": {"shape": [36, 36], "dtype": "uint8"}, "actions": 2})
DISCRETE = ModelSpec.from_dict(
    {"observation": {"space": {"type": "discrete", "n": 4}}, "actions": 2}
)


def transition(**changes: Any) -> Transition:
    """Return a plain transition, but for some fields."""
    given: dict[str, Any] = {
        "actor_id": "a",
        "episode_id": "e",
        "timestep": 0,
        "split": "train",
        "policy_version": 0,
        "observation": np.array([0.5, -0.0, 1e30, 3.0], dtype=np.float32).reshape(2, 2),
        "action": 1,
        "reward": -0.25,
        "next_observation": np.array([1.0, 2.0, 3.0, 4.0]),
        "terminated": False,
        "truncated": False,
        "behavior_prob": 0.5,
    }
    return Transition(**{**given, **changes})


@contextmanager
def general(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the shorter ways away."""
    with monkeypatch.context() as patch:
        for module, name in (
            (door, "plain_row"),
            (door, "plain_rows"),
            (rules, "plain_step"),
            (rules, "continued"),
        ):
            patch.setattr(module, name, lambda *_args, **_kwargs: None)
        yield


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the error that it raises."""
    try:
        return call()
    except JormungandrError as error:
        return type(error), str(error)


def content(found: Any) -> Any:
    """Return columns as values that compare; other things as they are."""
    if not isinstance(found, Columns):
        return found
    arrays = {name: getattr(found, name) for name in ARRAYS}
    rest = {f.name: getattr(found, f.name) for f in fields(Columns) if f.name not in arrays}
    tag = rest.pop("tag")
    return (
        {n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()},
        rest,
        None if tag is None else tag.tolist(),
        found.digests().tolist(),
    )


F4, TOO_LARGE = np.float32, np.array([1.0, 2.0, 1e39, 4.0])
CHANGES: list[dict[str, Any]] = [
    {},
    {"actor_id": "é", "episode_id": "x" * 128},
    {"actor_id": ""},
    {"episode_id": "x" * 129},
    {"episode_id": "é" * 65},
    {"actor_id": "a\n"},
    {"actor_id": "a\x7f"},
    {"actor_id": "\ud800"},
    {"actor_id": 3},
    {"timestep": 2**53 - 1},
    {"timestep": 2**53},
    {"timestep": -1},
    {"timestep": True},
    {"timestep": np.int64(4)},
    {"timestep": 1.0},
    {"split": "validation"},
    {"split": "test"},
    {"split": np.str_("train")},
    {"policy_version": -1},
    {"policy_version": -2},
    {"policy_version": 2**70},
    {"action": 2},
    {"action": 3},
    {"action": -1},
    {"action": np.int32(1)},
    {"reward": 3.4028234663852886e38},
    {"reward": 3.4028235e38},
    {"reward": 1e39},
    {"reward": float("nan")},
    {"reward": -0.0},
    {"reward": 2},
    {"reward": "1"},
    {"observation": np.zeros(4, F4)},
    {"observation": np.zeros((2, 2), ">f4")},
    {"observation": np.zeros(5, F4)},
    {"observation": np.zeros((1, 2, 2), F4)},
    {"observation": np.zeros((2, 2), int)},
    {"observation": [[0.0, 1.0], [2.0, 3.0]]},
    {"observation": np.full((2, 2), np.nan, F4)},
    {"observation": np.full((2, 2), 1e38, F4)},
    {"observation": np.full((2, 2), np.inf)},
    {"observation": np.full((2, 2), -np.inf, F4)},
    {"observation": np.full((2, 2), 1e-60)},
    {"observation": np.zeros((4, 4), F4)[::2, ::2]},
    {"next_observation": TOO_LARGE},
    {"next_observation": None},
    {"terminated": True},
    {"truncated": True},
    {"terminated": 1},
    {"terminated": np.True_},
    {"behavior_prob": None},
    {"behavior_prob": 1.0},
    {"behavior_prob": 1},
    {"behavior_prob": 0.0},
    {"behavior_prob": 1e-50},
    {"behavior_prob": 1e-38},
    {"behavior_prob": float("nan")},
    {"behavior_prob": 1.1},
    {"label": 0},
    {"label": 1},
    {"label": "up"},
    {"label": 2},
    {"label": True},
    {"label": np.int64(1)},
    {"next_action_mask": [True] * 3},
    {"tags": {"map": "dust"}},
    {"tags": {}},
]


@pytest.mark.parametrize("before", [(), (0,), (0, 1)], ids=["alone", "second", "third"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_columns(
    changes: dict[str, Any], before: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same columns and digests, or the same error, alone and after plain ones."""
    plain = [transition(episode_id=f"p{n}", label=n, behavior_prob=None) for n in before]
    rows = [*plain, transition(**changes)]
    mine = content(outcome(lambda: columns(rows, SPEC)))
    with general(monkeypatch):
        expected = content(outcome(lambda: columns(rows, SPEC)))

    assert mine == expected


@pytest.mark.parametrize("spec", [MASKED, IMAGES, DISCRETE], ids=["masked", "images", "discrete"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mask", [None, [1, 0], np.array([True, False]), np.array([False, False])])
@pytest.mark.parametrize("terminated", [False, True])
def test_columns_of_other_models(
    spec: ModelSpec, count: int, mask: Any, terminated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks, images and integers come to the same too, where they are wrong as well."""
    o = spec.observation
    seen: Any = 3 if spec is DISCRETE else np.ones(o.stored_shape, o.stored_dtype)
    rows = [
        transition(
            timestep=n,
            observation=seen,
            next_observation=seen,
            next_action_mask=mask,
            terminated=terminated,
        )
        for n in range(count)
    ]
    mine = content(outcome(lambda: columns(rows, spec)))
    with general(monkeypatch):
        expected = content(outcome(lambda: columns(rows, spec)))

    assert mine == expected


def test_digest_of_one() -> None:
    """Alone a transition has the digest that it has in a batch; the sign of a zero is none."""
    rows = [transition(timestep=n, reward=-0.0, behavior_prob=p) for n, p in enumerate([0.5, None])]
    rows.append(transition(timestep=2, observation=np.abs(transition().observation), reward=0.0))
    together = columns(rows, SPEC).digests().tolist()

    assert together[0] == together[2] != together[1]
    assert [columns([row], SPEC).digests().tolist() for row in rows] == [[d] for d in together]


def test_columns_are_copies() -> None:
    """What an environment writes into its arrays later changes nothing of what was taken."""
    row = transition()
    for rows in ([row], [row, transition(timestep=1)]):
        taken = columns(rows, SPEC)
        before = content(taken)
        row.observation[:] = 9
        assert content(taken) == before


@pytest.mark.parametrize("values", [c["observation"] for c in CHANGES if "observation" in c])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_observations(values: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked about is the same, or the same error, one observation or a batch."""
    given = np.stack([np.asarray(values)] * count) if count else values
    mine = outcome(lambda: observations(given, SPEC))
    monkeypatch.setattr(encoding, "plain_batch", lambda *_: None)
    expected = outcome(lambda: observations(given, SPEC))

    if isinstance(expected, tuple):
        assert mine == expected
    else:
        assert (mine.dtype, mine.shape) == (expected.dtype, expected.shape)
        assert mine.tobytes() == expected.tobytes()
        assert not np.shares_memory(mine, given)


@pytest.mark.parametrize("t", [0, 1, 15, 256])
def test_a_lone_retry_of_the_newest_step(t: int) -> None:
    """Sent again alone, the newest step is a duplicate that is journaled and counted nowhere."""
    admission, store = Admission(SPEC), MemoryStore()
    for n in range(t + 1):
        taken = columns([transition(timestep=n)], SPEC)
        admitted(admission, store, taken, [])
    before = store.to_bytes()
    for _ in range(2):
        receipt, rows, _, _ = admitted(admission, store, taken, [])
        counts = [receipt[name] for name in ("accepted", "duplicate", "stale_dropped", "lsn")]
        assert (counts, rows) == ([0, 1, 0, t + 1], [])
        assert store.to_bytes() == before
    with pytest.raises(IdentityConflict):
        admitted(admission, store, columns([transition(timestep=t, reward=1.0)], SPEC), [])

    assert store.counters.train == t + 1


def stream(rng: np.random.Generator, count: int) -> list[Transition]:
    """Return transitions of a few episodes: mostly the next ones, some repeated, late or wrong."""
    clock: dict[tuple[str, str], int] = {}
    found: list[Transition] = []
    for _ in range(count):
        kind = rng.random()
        actor, episode = f"a{rng.integers(2)}", f"e{rng.integers(3)}"
        t = clock.get((actor, episode), -1) + 1 + 200 * int(rng.random() < 0.05)
        if kind < 0.08 and found:  # an older one, or the newest
            found.append(found[rng.integers(len(found)) if kind < 0.04 else -1])
            continue
        if kind > 0.95:
            t = int(rng.integers(t + 1))
        clock[actor, episode] = max(t, clock.get((actor, episode), -1))
        found.append(
            transition(
                actor_id=actor,
                episode_id=episode,
                timestep=t,
                split="validation" if rng.random() < 0.05 else "train",
                policy_version=int(rng.integers(-1, 7)),
                reward=float(rng.integers(3)),
                truncated=bool(rng.random() < 0.02),
                label=None if rng.random() < 0.7 else int(rng.integers(2)),
            )
        )
    return found


STALENESS: list[dict[str, Any]] = [
    {},
    {"max_policy_lag": 3, "mode": "reject"},
    {"max_policy_lag": 3, "mode": "drop", "stale_share": 0.2},
    {"max_policy_lag": 3, "mode": "drop", "stale_share": 0.0},
]


@pytest.mark.parametrize("scope", ["transition", "episode"])
@pytest.mark.parametrize("staleness", STALENESS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_admission(
    seed: int, staleness: dict[str, Any], scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receipts, errors, rows, tallies and the ledger are the same, request by request."""
    rng = np.random.default_rng(seed)
    given = SPEC.to_dict() | {"staleness": staleness, "split_scope": scope}
    admission = Admission(ModelSpec.from_dict(given))
    mine, expected = MemoryStore(), MemoryStore()
    plain, rest = 0, stream(rng, 300)
    while rest:
        size = int(rng.choice([1, 1, 1, 2, 5, 12]))
        batch, rest = rest[:size], rest[size:]
        labels = []
        if rng.random() < 0.2:  # of one that is there, or about to come
            one = (batch + rest[:8])[rng.integers(len(batch + rest[:8]))]
            labels = [((one.actor_id, one.episode_id, one.timestep), int(rng.integers(2)))]
        taken = columns(batch, SPEC)
        got = outcome(lambda t=taken, n=labels: admitted(admission, mine, t, n))
        with general(monkeypatch):
            want = outcome(lambda t=taken, n=labels: admitted(admission, expected, t, n))
        assert got == want
        assert mine.to_bytes() == expected.to_bytes()
        plain += not isinstance(got[0], type)

    assert plain > 20  # requests that were taken


def admitted(
    admission: Admission, store: MemoryStore, taken: Columns, labels: list[Any]
) -> tuple[Any, ...]:
    """Admit labels and a batch, and return all that came of it."""
    draft = Draft(store)
    if labels:
        admission.labels(labels, draft)
        store.apply(draft)
        draft = Draft(store)
    receipt, rows = admission.transitions(taken, draft, served=5, published=6)
    store.apply(draft)
    assert draft.arrival is not None
    came = [a.tolist() if isinstance(a, np.ndarray) else a for a in draft.arrival]
    kinds = [a.dtype for a in draft.arrival if isinstance(a, np.ndarray)]
    journaled = [(row.lsn, row.kind, encode_row(row)) for row in rows]
    return msgspec.to_builtins(receipt), journaled, came, kinds
