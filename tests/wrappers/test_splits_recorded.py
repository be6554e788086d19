"""Split rules and tags in recorders: what is in the gap is counted and never submitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jormungandr import Learner
from jormungandr import errors as e
from jormungandr.splits import TimeSplit
from jormungandr_wrappers import OverlappedRecorder, RemoteActor, VectorRecorder
from jormungandr_wrappers.remote_actor import MOST_SKIPPED
from jormungandr_wrappers.rules import info_of

SPEC: dict[str, Any] = {
    "observation": {"shape": [1]},
    "actions": 2,
    "split_scope": "episode",
    "pacing": {"learning_starts": 1_000_000},
}
#: Episodes of 4 steps, one after the other: train on what ends before 20, hold out from 27 on.
SPLIT = TimeSplit(20, 7)
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


class History(gym.Env[Any, Any]):
    """Replays a series: each episode begins where the last one ended; what is seen is the time."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length, self.time, self.ends = length, 0, 0

    def _seen(self) -> Any:
        return np.array([self.time], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin where the last episode ended, or was to end; a seed rewinds."""
        super().reset(seed=seed)
        self.time = 0 if seed is not None else self.ends
        self.ends = self.time + self.length
        info = {"begin": self.time, "end": self.ends, "regime": "odd" if self.time % 8 else "even"}
        return self._seen(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on by one."""
        self.time += 1
        return self._seen(), float(self.time), False, self.time == self.ends, {"time": self.time}


class Sent(Learner):
    """A learner that remembers what it was sent, and how it was asked."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        self.rows: list[Any] = []
        self.asked: list[tuple[bool, list[float]]] = []

    def add(self, transitions: Any) -> Any:
        """Remember."""
        self.rows += transitions
        return super().add(transitions)

    def act(self, observations: Any, deterministic: bool = False, *args: Any, **more: Any) -> Any:
        """Remember."""
        self.asked.append((deterministic, np.asarray(observations)[:, 0].tolist()))
        return super().act(observations, deterministic, *args, **more)

    def times(self, split: str) -> list[int]:
        """Return the times that transitions of a split begin or end at, in order."""
        mine = [r for r in self.rows if r.split == split]
        return [int(o[0]) for r in mine for o in (r.observation, r.next_observation)]


def check_gap(sent: Sent) -> None:
    """Assert that nothing was sent of the gap, and all that lies whole on either side of it."""
    train, held_out = sent.times("train"), sent.times("validation")
    assert max(train) < 20
    assert min(held_out) >= 27
    assert sorted(set(train)) == list(range(17))  # 16…20 straddles the end
    assert sorted(set(held_out))[0] == 28  # 24…28 straddles the begin


def test_remote_actor() -> None:
    """Episodes in the gap are reset away and counted; held-out ones are acted greedily."""
    sent = Sent()
    actor = RemoteActor(
        History(),
        sent,
        actor_id="a",
        split=SPLIT.by("begin", "end"),
        tags=lambda info, n: {"regime": info["regime"], "n": str(n)},
    )
    one, two = actor.run(episodes=3, seed=0), actor.run(episodes=3)

    check_gap(sent)
    assert (one.skipped, two.skipped, actor.skipped) == (0, 3, 3)
    assert [x.split for x in (*one.episodes, *two.episodes)] == ["train"] * 4 + ["validation"] * 2
    assert {greedy for greedy, seen in sent.asked if seen[0] < 20} == {False}
    assert {greedy for greedy, seen in sent.asked if seen[0] >= 20} == {True}
    # Of the first step alone, and numbered as the ids are.
    tags = [(r.episode_id[-1], r.tags) for r in sent.rows if r.tags is not None]
    regimes = ["even", "odd", "even", "odd", "odd", "even"]
    assert tags == [(str(n), {"regime": r, "n": str(n)}) for n, r in enumerate(regimes)]


def test_a_seed_that_leads_into_the_gap() -> None:
    """It is spent on the episode that is skipped; the next one is another."""
    sent = Sent()
    actor = RemoteActor(
        History(), sent, actor_id="a", split=lambda info: "train" if info["begin"] else None
    )

    assert actor.run(episodes=1, seed=0).skipped == 1
    assert [int(row.observation[0]) for row in sent.rows] == [4, 5, 6, 7]


def test_no_episode_of_a_split() -> None:
    """Data that has run out is an error, not a loop without an end."""
    actor = RemoteActor(History(), Sent(), actor_id="a", split=lambda info: None)

    with pytest.raises(e.InvalidValue, match="an episode of a split among 10,000 resets"):
        actor.run(episodes=1)
    assert actor.skipped == MOST_SKIPPED


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [1, 7])
def test_vector_recorder(mode: AutoresetMode, batch_size: int) -> None:
    """The same in every mode: sub-environments go through the gap each at its own time."""
    sent = Sent()
    env = SyncVectorEnv([lambda n=n: History(n) for n in (4, 2)], autoreset_mode=mode)
    recorder = VectorRecorder(
        env,
        sent,
        actor_id="a",
        split=SPLIT.by("begin", "end"),
        tags=lambda info, n: {"at": str(info["begin"]), "n": str(n)},
        batch_size=batch_size,
    )
    observations, _ = recorder.reset(seed=0)
    for _ in range(60):
        observations, *_ = recorder.step(recorder.act(observations))
    recorder.flush()

    for i, length in enumerate((4, 2)):
        mine = [r for r in sent.rows if f"-{i}-" in r.episode_id]
        starts = [int(r.observation[0]) for r in mine if r.timestep == 0]
        due = [t for t in range(0, 100, length) if t + length < 20 or t >= 27][: len(starts)]
        assert starts == due
        assert [r.tags for r in mine if r.timestep == 0] == [
            {"at": str(t), "n": str(n)} for n, t in enumerate(due)
        ]
        assert all(r.tags is None for r in mine if r.timestep > 0)
        assert {r.split for r in mine if r.observation[0] >= 27} == {"validation"}
        assert {r.split for r in mine if r.observation[0] < 20} == {"train"}
    # 16, 20 and 24; and 18, 20, 22, 24 and 26.
    assert recorder.skipped == 8
    later = [greedy for greedy, seen in sent.asked if min(seen) > 28]  # 28 ends one in the gap
    assert set(later) == {True}


def test_overlapped_recorder() -> None:
    """Both halves have the rule and the tags."""
    sent = Sent()
    halves = [SyncVectorEnv([History], autoreset_mode=MODES[1]) for _ in range(2)]
    recorder = OverlappedRecorder(
        halves, sent, actor_id="a", split=SPLIT.by("begin", "end"), tags={"map": "dust"}
    )
    recorder.reset(seed=0)
    recorder.play(40)

    check_gap(sent)
    assert recorder.skipped == 6
    assert {tuple((r.tags or {}).items()) for r in sent.rows if r.timestep == 0} == {
        (("map", "dust"),)
    }


def test_plain_loop() -> None:
    """`episode(tags=…)` of an endpoint puts them on the first step."""
    sent = Sent()
    with sent.episode(tags={"map": "dust"}) as episode:
        for t in range(3):
            episode.acted([float(t)], 0)
            episode.record(0.0, [t + 1.0], terminated=t == 2)

    assert [r.tags for r in sent.rows] == [{"map": "dust"}, None, None]
    assert sent.metrics()["returns"]["train"]["by_tag"]["map"]["dust"]["episodes"] == 1


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"tags": "calm"}, e.InvalidType),
    ({"tags": {"Map": "x"}}, e.InvalidValue),
    ({"tags": lambda info, n: {"map": n}}, e.InvalidType),
    ({"split": lambda info: "test"}, e.UnknownSplit),
]


@pytest.mark.parametrize(("fields", "error"), REFUSED)
@pytest.mark.parametrize("recorder", ["actor", "vector"])
def test_refused(recorder: str, fields: dict[str, Any], error: type[Exception]) -> None:
    """Tags that are none, and a rule that names no split, before anything is submitted."""
    sent = Sent()

    def play() -> None:
        if recorder == "actor":
            RemoteActor(History(), sent, actor_id="a", **fields).run(episodes=1)
        else:
            VectorRecorder(SyncVectorEnv([History]), sent, actor_id="a", **fields).reset()

    with pytest.raises(error):
        play()
    assert sent.rows == []


def test_info_of_one() -> None:
    """Only what a sub-environment itself told, in mappings within mappings too."""
    there = np.array([True, False])
    infos = {
        "begin": np.array([3, 0]),
        "_begin": there,
        "inner": {"map": np.array(["dust", None], dtype=object), "_map": there},
        "all": np.array([1, 2]),
        "step": 7,
    }

    assert info_of(infos, 0) == {"begin": 3, "inner": {"map": "dust"}, "all": 1, "step": 7}
    assert info_of(infos, 1) == {"inner": {}, "all": 2, "step": 7}


def test_a_rule_and_resets_of_some(monkeypatch: Any) -> None:
    """Without autoreset, only the sub-environments that are reset are asked about."""
    asked: list[int] = []
    rule: Callable[[Any], Any] = lambda info: asked.append(info["begin"]) or "train"  # type: ignore[func-returns-value]  # noqa: E731
    env = SyncVectorEnv(
        [lambda n=n: History(n) for n in (2, 3)], autoreset_mode=AutoresetMode.DISABLED
    )
    recorder = VectorRecorder(env, Sent(), actor_id="a", split=rule)
    recorder.reset(seed=0)
    for _ in range(2):
        recorder.step([0, 0])
    recorder.reset(options={"reset_mask": np.array([True, False])})

    assert asked == [0, 0, 2]
