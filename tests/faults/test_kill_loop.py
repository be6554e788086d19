"""Killed again and again, at any moment: nothing acknowledged is lost, and no bit differs.

``python -m tests.faults.test_kill_loop --kills 500`` is the long form, ``make soak``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.checker import (
    SPEC,
    Actors,
    Servers,
    bits,
    check_service,
    check_stored,
    copy,
    differing,
    newest_checkpoint,
    rebuild,
    told,
)
from tests.service.serving import gone, until

#: Two that repeat the same bytes, one that cuts anew.
ORACLES = ("one", "two", "cut")
#: So many acknowledged transitions of a loop at least, and so many for each kill.
LEAST, EACH = 50_000, 400
#: Seconds of work after which the learner writes a checkpoint: some kills meet one being written.
BUDGET = "0.3"


class Loop:
    """A service that is killed while oracles send.

    Args:
        path: of a new folder.
        kills: how many; half of them of the gateway's process alone.
        seed: of when and what.
    """

    def __init__(self, path: Path, kills: int, seed: int) -> None:
        self._path, self._rng = path, random.Random(seed)
        others = ["learner", "both"] * kills
        self._kinds = ["gateway"] * (kills - kills // 2) + others[: kills // 2]
        self._rng.shuffle(self._kinds)
        self._transitions = max(LEAST, EACH * kills)
        self._servers = Servers(path / "data", "--recovery-budget", BUDGET)
        self._folder = path / "data" / "models" / "m.1"
        self.done: Counter[str] = Counter()

    def run(self) -> int:
        """Kill and look; return how many transitions were acknowledged."""
        with self._servers:
            server = self._servers.start()
            with server.connect("m") as endpoint:
                endpoint.create(SPEC)
            with Actors(self._servers.data_dir, server.url, ORACLES) as actors:
                self._kill_all(actors)
                until(lambda: actors.acknowledged >= self._transitions, "enough of them")
                actors.tell_to_end()
                said = actors.finish()
            with self._servers.server.connect("m") as endpoint:
                info = check_service(endpoint, said, self._folder)
            assert info["quarantined"] == 0
            assert "rebuilt_differently" not in str(info["warnings"])
            assert self._servers.server.terminate() == 0
        check_stored(self._folder, said)
        assert differing(bits(rebuild(self._folder)), bits(newest_checkpoint(self._folder))) == []
        return len(said.acknowledged)

    def _kill_all(self, actors: Actors) -> None:
        goal, step = 0, self._transitions // len(self._kinds)
        for n, kind in enumerate(self._kinds, 1):
            goal += self._rng.randint(0, 2 * step)
            goal = min(goal, self._transitions)
            until(lambda goal=goal: actors.acknowledged >= goal, "receipts")
            time.sleep(self._rng.uniform(0, 0.05))  # anywhere between two receipts
            learner = self._learner(kind != "gateway")
            if kind != "gateway":
                with contextlib.suppress(ProcessLookupError):  # it ended of its own accord
                    os.kill(learner, signal.SIGKILL)
            if kind != "learner":
                self._servers.kill()
            self.done[kind] += 1
            if kind == "learner":
                continue
            if learner:
                until(lambda learner=learner: gone(learner), "the learner's end with its gateway")
            if n % max(1, len(self._kinds) // 4) == 0:
                before = told(actors.logs)  # first: what is sent meanwhile is not stored
                found = check_stored(
                    copy(self._folder, self._path / f"copy-{n}"), told(actors.logs)
                )
                assert before.acknowledged.keys() <= found.content.keys()
            if self._rng.random() < 0.3:
                self._servers.start_for(self._rng.uniform(0.1, 1.0))
                self.done["recovering"] += 1
            self._servers.start()

    def _learner(self, needed: bool) -> int:
        """Return the process id of the learner; 0 when there is none and none is needed."""
        with self._servers.server.connect("m") as endpoint:

            def look() -> int | None:
                found = endpoint.info()["learner"]
                # After a few ends without progress it would be given up: let it get on.
                well = found["ends"] < 3 or found["state"] in ("running", "idle")
                return found["pid"] if well else None

            if needed:
                return int(until(look, "a learner"))
            return endpoint.info()["learner"]["pid"] or 0


@pytest.mark.slow
def test_twenty_kills_at_any_moment(tmp_path: Path) -> None:
    """Half of the gateway's process alone, the others of its learner or both; a seed says when."""
    loop = Loop(tmp_path, kills=24, seed=4)

    acknowledged = loop.run()

    print(acknowledged, dict(loop.done))
    assert acknowledged >= LEAST
    assert loop.done["gateway"] >= 12
    assert loop.done["learner"] + loop.done["both"] >= 12


def main(arguments: Sequence[str]) -> int:
    """Run the loop from the command line; return 0 when nothing was lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args(arguments)
    path = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"{options.kills} kills, --seed {options.seed}, in {path}", flush=True)
    began = time.monotonic()
    loop = Loop(path, options.kills, options.seed)
    acknowledged = loop.run()
    seconds = time.monotonic() - began
    print(f"{acknowledged} acknowledged, none lost; {dict(loop.done)}; {seconds:.0f} s")
    shutil.rmtree(path)  # of a failure everything is left to be looked at
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
