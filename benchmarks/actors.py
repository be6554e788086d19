"""What acting costs: steps per second of one actor, by placement, halves and spool.

Run from the repository: ``python benchmarks/actors.py``. Starts a service on this machine and plays
an environment whose step takes a given time of this process (default: 250 µs for each of 8
sub-environments), for a few seconds each. Prints the median of the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

sys.path.insert(0, str(Path(__file__).parents[1]))

from jormungandr.client import Guard, Spool
from jormungandr_wrappers import OverlappedRecorder, VectorRecorder
from tests.service.serving import Server

SPEC: dict[str, Any] = {"preset": "ou-note", "pacing": {"updates_per_transition": 0}}


class Costly(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose step takes so many seconds, as a simulator's outside of Python does."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        """Take the time, and step."""
        if self._seconds:
            time.sleep(self._seconds)
        return self.env.step(action)


def envs(count: int, seconds: float) -> SyncVectorEnv:
    """Return vectorised environments."""
    return SyncVectorEnv([lambda: Costly(gym.make("OUSpread-v0"), seconds)] * count)


def rate(play: Callable[[int], object], count: int, steps: int, repeats: int) -> float:
    """Return environment steps per second."""
    play(steps // 10 + 1)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        play(steps)
        rates.append(steps * count / (time.perf_counter() - start))
    return statistics.median(rates)


def main() -> None:
    """Print one line per way to act."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--step-us", type=float, default=250.0, help="of one sub-environment")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    count, seconds = given.num_envs, given.step_us * 1e-6
    with tempfile.TemporaryDirectory() as name, Server(Path(name) / "data") as server:
        folder = Path(name)
        with server.connect("m") as endpoint:
            endpoint.create(SPEC)
            endpoint.act(np.zeros((1, 4), dtype=np.float32))  # there is a policy
        for placement, overlap, spooled, guarded in (
            ("remote", False, False, False),
            ("remote", True, False, False),
            ("remote", False, True, False),
            ("remote", True, True, False),
            ("local", False, True, False),
            ("local", False, True, True),
        ):
            label = f"{placement}-{overlap}-{spooled}-{guarded}"
            spool = Spool(folder / label) if spooled else None
            guard = Guard(1, deadline_ms=1_000) if guarded else None
            endpoint = server.connect("m", placement=placement, spool=spool, guard=guard)
            if overlap:
                halves = [envs(count // 2, seconds), envs(count - count // 2, seconds)]
                both = OverlappedRecorder(halves, endpoint, actor_id=label, batch_size=256)
                both.reset(seed=0)
                found = rate(both.play, count, given.steps, given.repeats)
                both.close()
            else:
                one = VectorRecorder(envs(count, seconds), endpoint, actor_id=label, batch_size=256)
                seen = [one.reset(seed=0)[0]]

                def play(steps: int, one: Any = one, seen: list[Any] = seen) -> None:
                    for _ in range(steps):
                        seen[0] = one.step(one.act(seen[0]))[0]

                found = rate(play, count, given.steps, given.repeats)
                one.close()
            endpoint.close()
            words = [placement, "two halves" if overlap else "in lockstep"]
            words += ["spool"] * spooled + ["deadline"] * guarded
            print(f"{', '.join(words):<36}{found:10,.0f} steps/s", flush=True)


if __name__ == "__main__":
    main()
