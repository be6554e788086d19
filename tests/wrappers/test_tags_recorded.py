"""Tags of episodes: one contract over everything that records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from jormungandr import errors as e
from jormungandr_wrappers import (
    OverlappedRecorder,
    ParallelRecorder,
    RemoteActor,
    VecEnvRecorder,
    VectorRecorder,
)
from tests.fake_endpoint import FakeEndpoint

#: Steps that each recorder takes, of episodes of two.
STEPS = 12


class Story(gym.Env[Any, Any]):
    """Episodes of two steps; the info of a reset, and no other, names the chapter that begins."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self) -> None:
        self.chapter = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next chapter."""
        super().reset(seed=seed)
        self.chapter, self.time = self.chapter + 1, 0
        told = {"chapter": f"c{self.chapter}", "where": {"map": "dust"}}
        return np.array([float(self.chapter)], np.float32), told

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on; the end is told of in words of its own."""
        self.time += 1
        seen = np.array([self.chapter + self.time / 10], np.float32)
        return seen, 1.0, self.time == 2, False, {"chapter": "no reset's"}


class Stories(pettingzoo.ParallelEnv):  # type: ignore[type-arg,misc]
    """Two agents, with a story each."""

    metadata = {"name": "stories_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["x", "y"]
        self.told = {agent: Story() for agent in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Return the story's."""
        return Story.observation_space

    def action_space(self, agent: str) -> Any:
        """Return the story's."""
        return Story.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Begin the next chapter of each."""
        self.agents = list(self.possible_agents)
        found = {agent: story.reset() for agent, story in self.told.items()}
        return {a: seen for a, (seen, _) in found.items()}, {a: i for a, (_, i) in found.items()}

    def step(self, actions: Any) -> Any:
        """Go on in each."""
        found = {agent: self.told[agent].step(action) for agent, action in actions.items()}
        over = any(terminated for _, _, terminated, _, _ in found.values())
        self.agents = [] if over else self.agents
        return tuple({a: one[k] for a, one in found.items()} for k in range(5))


def actor(sent: Any, **fields: Any) -> None:
    """Play one environment."""
    RemoteActor(Story(), sent, actor_id="a", **fields).run(steps=STEPS)


def vector(mode: AutoresetMode) -> Callable[..., None]:
    """Return what plays two of a Gymnasium vector."""

    def play(sent: Any, **fields: Any) -> None:
        env = SyncVectorEnv([Story] * 2, autoreset_mode=mode)
        recorder = VectorRecorder(env, sent, actor_id="a", **fields)
        recorder.reset(seed=0)
        for _ in range(STEPS):
            recorder.step([0, 1])

    return play


def overlapped(sent: Any, **fields: Any) -> None:
    """Play two halves."""
    halves = [SyncVectorEnv([Story], autoreset_mode=AutoresetMode.SAME_STEP) for _ in range(2)]
    recorder = OverlappedRecorder(halves, sent, actor_id="a", **fields)
    recorder.reset(seed=0)
    recorder.play(STEPS)


def vec_env(sent: Any, **fields: Any) -> None:
    """Play two of a VecEnv of Stable-Baselines3."""
    recorder = VecEnvRecorder(DummyVecEnv([Story] * 2), sent, actor_id="a", **fields)
    recorder.reset()
    for _ in range(STEPS):
        recorder.step(np.array([0, 1]))


def parallel(sent: Any, **fields: Any) -> None:
    """Play two agents of a PettingZoo environment."""
    recorder = ParallelRecorder(Stories(), sent, actor_id="a", **fields)
    for _ in range(STEPS // 2):
        recorder.reset()
        while recorder.agents:
            recorder.step(dict.fromkeys(recorder.agents, 1))


RECORDERS: dict[str, Callable[..., None]] = {
    "RemoteActor": actor,
    **{f"VectorRecorder-{mode.name}": vector(mode) for mode in list(AutoresetMode)[:2]},
    "OverlappedRecorder": overlapped,
    "VecEnvRecorder": vec_env,
    "ParallelRecorder": parallel,
}
each = pytest.mark.parametrize("play", RECORDERS.values(), ids=RECORDERS)


def episodes(sent: Any) -> dict[tuple[str, str], list[Any]]:
    """Return what was sent by episode, each in order."""
    found = defaultdict(list)
    for row in sent.rows:
        found[row.actor_id, row.episode_id].append(row)
    return found


@each
def test_asked_of_each_episode(play: Callable[..., None]) -> None:
    """With the info of its reset and its number; the tags are on its first step alone."""
    sent = FakeEndpoint()
    play(sent, tags=lambda info, n: {"n": str(n), "chapter": info["chapter"], **info["where"]})
    found = episodes(sent)

    assert len(found) >= 4
    for (_, episode_id), rows in found.items():
        number, chapter = episode_id.rpartition("-")[2], int(rows[0].observation[0])
        tags = {"n": number, "chapter": f"c{chapter}", "map": "dust"}
        assert [row.tags for row in rows] == [tags] + [None] * (len(rows) - 1)


@each
def test_the_same_for_all(play: Callable[..., None]) -> None:
    """A mapping is every episode's; one that a callable has none for goes without."""
    sent, without = FakeEndpoint(), FakeEndpoint()
    play(sent, tags={"map": "dust"})
    play(without, tags=lambda info, n: {"first": "yes"} if n == 0 else None)

    assert {r.timestep == 0 for r in sent.rows if r.tags == {"map": "dust"}} == {True}
    assert all(rows[0].tags == {"map": "dust"} for rows in episodes(sent).values())
    for (_, episode_id), rows in episodes(without).items():
        assert (rows[0].tags == {"first": "yes"}) is episode_id.endswith("-0")
        assert rows[0].tags is None or episode_id.endswith("-0")


@each
@pytest.mark.parametrize(
    ("tags", "error"),
    [
        ("calm", e.InvalidType),
        ({"Map": "x"}, e.InvalidValue),
        (lambda info, n: {"map": n}, e.InvalidType),
    ],
)
def test_what_is_none(play: Callable[..., None], tags: Any, error: type[Exception]) -> None:
    """Is refused before anything is submitted."""
    sent = FakeEndpoint()
    with pytest.raises(error):
        play(sent, tags=tags)
    assert sent.rows == []
