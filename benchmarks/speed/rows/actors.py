"""Actors: act, step, add, end to end; all that was played is durable before the clock stops."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv

from benchmarks.speed.kit import Kit
from benchmarks.speed.service import Service
from benchmarks.speed.timing import Case, Contender, looped, timed
from jormungandr import RemoteLearner
from jormungandr.client import Guard, Spool
from jormungandr_wrappers import OverlappedRecorder, RemoteActor, VectorRecorder

__all__ = ["actors"]

SPEC: dict[str, Any] = {"preset": "ou-note", "pacing": {"updates_per_transition": 0}}
SPEC["pacing"]["max_backlog"] = 10_000_000
BATCH, EPISODE = 256, 48
#: Of a step of one sub-environment, where an environment costs something.
COST = 250e-6


class Costly(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes a while, as a simulator's outside of Python does."""

    def step(self, action: Any) -> Any:
        """Take the time, and step."""
        time.sleep(COST)
        return self.env.step(action)


def actors(kit: Kit) -> Iterator[Case]:
    """Yield one environment, 64, and eight that cost something."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(Service(kit.room("actors")))
        with service.connect("m") as learner:
            learner.create(SPEC)
            learner.act([[0.0, 0.0, 0.0, 0.0]])
        links = {
            "ours, remote": service.connect("m"),
            "ours, local": service.connect("m", placement="local", spool=Spool(kit.room("a"))),
        }
        for link in links.values():
            stack.callback(link.close)
        yield Case(
            "actor-1",
            "OUSpread-v0, one environment, actor to journal",
            "steps/s",
            [_one(kit, name, link) for name, link in links.items()],
        )
        yield Case(
            "actor-64",
            "OUSpread-v0, 64 environments, actor to journal",
            "steps/s",
            [_many(kit, name, link) for name, link in links.items()],
        )
        yield _costly(kit, service, stack)


def _one(kit: Kit, name: str, link: RemoteLearner) -> Contender:
    actor = RemoteActor(
        gym.make("OUSpread-v0"),
        link,
        actor_id=f"one {name}",
        batch_size=BATCH,
        flush_at_end=False,
    )

    def play(episodes: int) -> None:
        actor.run(episodes=episodes)
        actor.flush()

    about = f"`RemoteActor`, {BATCH} a request; " + _where(link)
    return _contender(kit, name, play, EPISODE, about)


def _many(kit: Kit, name: str, link: RemoteLearner) -> Contender:
    envs = gym.make_vec("OUSpread-v0", num_envs=64)
    recorder = VectorRecorder(envs, link, actor_id=f"many {name}", batch_size=4 * BATCH)
    about = f"`VectorRecorder`, {4 * BATCH} a request; " + _where(link)
    return _contender(kit, name, _lockstep(recorder), 64, about)


def _where(link: RemoteLearner) -> str:
    if link.placement == "remote":
        return "the service chooses, and answers after its sync"
    return "it chooses itself; a spool on disk sends, and has all answered at the end"


def _lockstep(recorder: VectorRecorder) -> Callable[[int], object]:
    seen = [recorder.reset(seed=0)[0]]

    def play(steps: int) -> None:
        for _ in range(steps):
            seen[0] = recorder.step(recorder.act(seen[0]))[0]
        recorder.outbox.flush()

    return play


def _costly(kit: Kit, service: Service, stack: contextlib.ExitStack) -> Case:
    """Return eight environments whose steps cost something, by where and how they are acted for."""
    found = []
    for placement, halves, spooled, guarded in (
        ("remote", False, False, False),
        ("remote", True, False, False),
        ("remote", False, True, False),
        ("remote", True, True, False),
        ("local", False, True, False),
        ("local", False, True, True),
    ):
        words = [placement, *["two halves"] * halves, *["spool"] * spooled]
        name = ", ".join([*words, *["deadline"] * guarded])
        link = service.connect(
            "m",
            placement=placement,
            spool=Spool(_file(kit, name)) if spooled else None,
            guard=Guard(1, deadline_ms=1_000) if guarded else None,
        )
        stack.callback(link.close)
        if halves:
            both = OverlappedRecorder([_envs(4), _envs(4)], link, actor_id=name, batch_size=BATCH)
            both.reset(seed=0)

            def play(steps: int, both: OverlappedRecorder = both) -> None:
                both.play(steps)
                both.outbox.flush()

        else:
            envs = VectorRecorder(_envs(8), link, actor_id=name, batch_size=BATCH)
            play = _lockstep(envs)
        found.append(_contender(kit, name, play, 8, ""))
    title = f"OUSpread-v0, 8 environments of {1e6 * COST:.0f} µs a step, actor to journal"
    return Case("actor-costly", title, "steps/s", found)


def _envs(count: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Costly(gym.make("OUSpread-v0"))] * count)


def _file(kit: Kit, name: str) -> Path:
    return kit.room(name.replace(", ", "-").replace(" ", "-"))


def _contender(
    kit: Kit, name: str, play: Callable[[int], object], each: int, about: str
) -> Contender:
    run = timed(play, time.perf_counter)
    return looped(name, "ours", "steps/s", run, kit.long / 8, about, each=each)
