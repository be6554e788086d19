"""Held-out episodes: which ones count, and that batching and restarts change nothing of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest

from jormungandr import ModelSpec
from jormungandr import heldout as module
from jormungandr.columns import columns
from jormungandr.heldout import HeldOut, HeldOutEpisode, kept_episodes

SPEC = ModelSpec.from_dict({"observation": {"shape": [1]}, "actions": 2})


def step(episode: str, t: int, end: bool = False, **changes: Any) -> dict[str, Any]:
    """Return a held-out transition with a reward that tells which one it is."""
    return {
        "actor_id": "a",
        "episode_id": episode,
        "timestep": t,
        "split": "validation",
        "policy_version": 3,
        "observation": [0.0],
        "action": 0,
        "reward": float(t + 1),
        "next_observation": [0.0],
        "terminated": end,
        "truncated": False,
        **changes,
    }


def taken(*batches: list[dict[str, Any]], keep: int = 100) -> list[HeldOutEpisode]:
    """Return the episodes that end in rows 1, 2 and so on."""
    held_out = HeldOut(keep)
    for lsn, batch in enumerate(batches, 1):
        held_out.add(columns(batch, SPEC), lsn)
    return list(held_out.since(0))


def test_a_whole_episode() -> None:
    """Its return, its version, and the rows that it began and ended in."""
    assert taken([step("e", 0)], [step("f", 0)], [step("e", 1), step("e", 2, True)]) == [
        HeldOutEpisode(1, 3, 1, 3, 6.0)
    ]


def test_cut_off_is_an_end() -> None:
    """A truncated episode has ended too."""
    assert taken([step("e", 0, truncated=True)])[0].total == 1.0


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([step("e", 1), step("e", 2, True)], id="without its beginning"),
        pytest.param([step("e", 0), step("e", 2, True)], id="with a gap"),
        pytest.param([step("e", 1), step("e", 0), step("e", 2, True)], id="not in order"),
        pytest.param([step("e", 0), step("e", 1, True, policy_version=4)], id="of two versions"),
        pytest.param([step("e", 0, True, policy_version=-1)], id="of nobody's policy"),
        pytest.param([step("e", 0, True, split="train")], id="in training"),
        pytest.param([step("e", 0, split="train"), step("e", 1, True)], id="of both splits"),
        pytest.param([step("e", 0), step("e", 1)], id="without its end"),
        pytest.param(
            [step("e", t, t == 3, policy_version=[3, 4, 3, 3][t]) for t in range(4)],
            id="of another version in between",
        ),
    ],
)
def test_what_does_not_count(steps: list[dict[str, Any]]) -> None:
    """An episode that is not whole, held out and one version's is left out."""
    assert taken(steps) == taken(*([one] for one in steps)) == []


def test_the_tag_of_its_first_step() -> None:
    """The tag `pair` of the beginning is the episode's; others do not matter."""
    tags = {"pair": "seed-17", "regime": "calm"}
    rows = [step("e", 0, tags=tags), step("e", 1, True), step("f", 0, True, tags={"map": "x"})]

    assert [episode.pair for episode in taken(rows)] == ["seed-17", None]


def reference(batches: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """Say which episodes count, with all steps of an episode looked at together."""
    steps, found = defaultdict(list), []
    for lsn, batch in enumerate(batches, 1):
        for row in batch:
            steps[row["actor_id"], row["episode_id"]].append((lsn, row))
            if row["terminated"]:
                mine = steps[row["actor_id"], row["episode_id"]]
                whole = [r["timestep"] for _, r in mine] == list(range(len(mine)))
                versions = {r["policy_version"] for _, r in mine}
                held = {r["split"] for _, r in mine} == {"validation"}
                if whole and held and len(versions) == 1:
                    total = sum(r["reward"] for _, r in mine)
                    found.append((versions.pop(), mine[0][0], lsn, total))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_the_slow_way(seed: int) -> None:
    """Interleaved episodes with faults, cut into rows at random, and saved and restored between."""
    rng = np.random.default_rng(seed)
    ends, waiting = {}, []
    for n in range(30):
        length = int(rng.integers(1, 6))
        version, split = int(rng.integers(0, 3)), rng.choice(["validation", "train"], p=[0.8, 0.2])
        rows = [
            step(f"e{n}", t, t == length - 1, policy_version=version, split=str(split))
            for t in range(length)
        ]
        if length > 2 and rng.random() < 0.3:
            del rows[1]
        elif length > 1 and rng.random() < 0.2:
            rows[-1]["policy_version"] = 9
        ends[n] = rows
        waiting += [n] * len(rows)
    order = rng.permutation(waiting).tolist()
    stream = [ends[n].pop(0) for n in order]
    cuts = np.sort(rng.integers(0, len(stream), 8))
    batches = [list(part) for part in np.split(np.array(stream, dtype=object), cuts)]
    held_out = HeldOut(100)
    for lsn, batch in enumerate(batches, 1):
        held_out.add(columns(batch, SPEC), lsn)
        again = HeldOut(100)
        again.restore(msgspec.json.decode(msgspec.json.encode(held_out.state())))
        assert again.state() == held_out.state()
        held_out = again

    got = [(e.version, e.first, e.last, e.total) for e in held_out.since(0)]
    assert got == reference(batches)
    assert [e.number for e in held_out.since(0)] == list(range(1, len(got) + 1))


def test_what_is_new_and_what_is_remembered() -> None:
    """Episodes after a number; the oldest are forgotten, and not counted again."""
    held_out = HeldOut(3)
    held_out.add(columns([step(f"e{n}", 0, True) for n in range(5)], SPEC), 1)

    assert [e.number for e in held_out.since(0)] == [3, 4, 5]
    assert [e.number for e in held_out.since(4)] == [5]
    assert held_out.since(5) == []
    assert held_out.finished == 5


def test_open_ones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one in progress that was touched longest ago is forgotten."""
    monkeypatch.setattr(module, "OPEN", 2)
    begun = [step(name, 0) for name in "efg"]

    assert [e.total for e in taken(begun, [step(name, 1, True) for name in "efg"])] == [3.0, 3.0]


def test_as_many_as_a_row_can_end() -> None:
    """Two of the largest rows fit, so that none is missed between two reports."""
    assert kept_episodes(2) == 2 * 4_096
    assert kept_episodes(10_000) == 80_000
