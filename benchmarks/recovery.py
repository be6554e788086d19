"""What recovery and checkpoints cost: loading, re-applying, and writing beside ingestion.

Run from the repository: ``python benchmarks/recovery.py [FOLDER]``. Makes a model with a million
resident transitions of four numbers under FOLDER (default: a temporary one; name one on the disk
that counts), and prints

* seconds to load its checkpoint,
* transitions per second that rows of 4,096 without updates are read and re-applied at, from a
  single actor and from 64 that take turns,
* the latency of ``experience/add`` over HTTP, 16 transitions a request, while a checkpoint is
  written after every row, and while none is,
* seconds from the start of a service until its learner has caught up, after the whole of it was
  killed shortly before a checkpoint was due, with the default recovery budget.

Rates are given by the clock and by this process's own time, which other work on the machine does
not change.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from jormungandr.columns import Columns
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft
from jormungandr.rows import ACCEPTED, TransitionsRow
from jormungandr.service.child.recovery import checkpoints, recover
from jormungandr.service.datadir import DataDir
from jormungandr.service.journal.reader import JournalReader
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.service.serving import Server

SPEC: dict[str, Any] = {
    "observation": {"shape": [4]},
    "actions": 3,
    "replay": {"capacity": 1_000_000},
    "pacing": {"updates_per_transition": 0},
}
ROW = 4_096
RESIDENT = 1_000_000
REQUESTS, SIZE = 3_000, 16
BUSY: dict[str, Any] = {
    **SPEC,
    "replay": {"capacity": 100_000},
    "pacing": {"updates_per_transition": 1.0},
}
#: Seconds of work since the last checkpoint at which the service is killed; a little more, and the
#: next checkpoint is due: 20 less what the process needs to start.
WORKED = 17.0


def rows(count: int, actors: int, name: str) -> Iterator[Columns]:
    """Yield so many rows of actors that take turns."""
    rng = np.random.default_rng(0)
    steps = ROW // actors
    for n in range(count):
        o = rng.standard_normal((ROW, 4)).astype(np.float32)
        yield Columns(
            actors=tuple(f"{name}{a}" for a in range(actors)),
            episodes=("e",),
            actor=np.tile(np.arange(actors, dtype=np.int32), steps),
            episode=np.zeros(ROW, dtype=np.int32),
            timestep=np.repeat(np.arange(n * steps, (n + 1) * steps), actors),
            split=np.zeros(ROW, dtype=np.uint8),
            policy_version=np.full(ROW, -1, dtype=np.int64),
            observation=o,
            action=rng.integers(0, 3, ROW),
            reward=rng.standard_normal(ROW).astype(np.float32),
            next_observation=o[::-1],
            terminated=np.zeros(ROW, dtype=np.bool_),
            truncated=np.zeros(ROW, dtype=np.bool_),
            behavior_prob=np.full(ROW, np.nan, dtype=np.float32),
            label=np.full(ROW, -1, dtype=np.int32),
            next_action_mask=np.zeros((ROW, 0), dtype=np.bool_),
        )


def fill(journal: Journal, count: int, actors: int) -> None:
    """Journal rows; their ledger, which a learner does not read, is left out."""
    for columns in rows(count, actors, f"{actors}-"):
        draft = Draft(journal)
        row = TransitionsRow(draft.next_lsn(), columns, np.full(ROW, ACCEPTED, dtype=np.uint8))
        draft.count(train=ROW)
        journal.commit(draft, [row], [])
        journal.merged(draft)


def reapply(folder: Path) -> Core:
    """Return a learner that has recovered and read on, and print how fast it read."""
    reader = JournalReader(folder / "journal.db")
    core: Core = recover(folder, reader)
    before, began, own = core.pacing.transitions, time.perf_counter(), time.process_time()
    while found := reader.rows(core.progress.lsn, 64):
        for row in found:
            core.apply(row)
    took, own = time.perf_counter() - began, time.process_time() - own
    reader.close()
    count = (core.pacing.transitions - before) / 1e6
    print(f"  re-applied {count / took:.2f} M transitions/s, {count / own:.2f} M per own second")
    return core


def steps(rng: np.random.Generator, actor_id: str, n: int, size: int) -> list[dict[str, Any]]:
    """Return the n-th request of so many transitions of one long episode."""
    return [
        {
            "actor_id": actor_id,
            "episode_id": "e",
            "timestep": n * size + t,
            "split": "train",
            "policy_version": -1,
            "observation": rng.random(4).tolist(),
            "action": 0,
            "reward": 0.0,
            "next_observation": rng.random(4).tolist(),
            "terminated": False,
            "truncated": False,
        }
        for t in range(size)
    ]


def latency(data_dir: Path, name: str, *arguments: str) -> None:
    """Print percentiles of ingestion."""
    with Server(data_dir, *arguments) as server:
        endpoint = server.connect("m")
        known = endpoint.info()["journal_lsn"]
        endpoint.wait(known)
        rng = np.random.default_rng(1)
        taken, seen = [], set()
        for n in range(REQUESTS):
            body = steps(rng, name, n, SIZE)
            began = time.perf_counter()
            endpoint.add(body)
            taken.append(1e3 * (time.perf_counter() - began))
            seen |= set(checkpoints(data_dir / "models" / "m.1"))
        endpoint.close()
    p50, p99, worst = np.percentile(taken, [50, 99, 100])
    text = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {worst:.1f} ms"
    print(f"ingestion, {name}: {text}; {len(seen)} checkpoints seen")


def catch_up(data_dir: Path) -> None:
    """Print how long a restarted service needs to be where it was when it was killed."""
    folder, rng, n = data_dir / "models" / "m.1", np.random.default_rng(2), 0
    with Server(data_dir) as server, server.connect("m") as endpoint:
        endpoint.create(BUSY)
        worked, known = 0.0, [""]
        while worked < WORKED:
            body = steps(rng, "a", n, 64)
            began = time.perf_counter()
            endpoint.wait(endpoint.add(body).lsn)
            worked, n = worked + time.perf_counter() - began, n + 1
            if (found := [str(path) for path in checkpoints(folder)]) != known:
                worked, known = 0.0, found
        before = endpoint.info()
        server.kill()
    began = time.perf_counter()
    with Server(data_dir) as server, server.connect("m") as endpoint:
        # A request for the policy starts the learner; its journal has nothing new for it.
        info = endpoint.wait(before["journal_lsn"], timeout=120)
        took = time.perf_counter() - began
    assert info["update_count"] == before["update_count"]
    done = f"{before['update_count']} updates in all"
    print(f"killed after {worked:.1f} s of work ({done}): caught up {took:.1f} s after the start")


def main(data_dir: Path) -> None:
    """Measure and print."""
    directory = DataDir(data_dir)
    directory.journals()
    folder, journal = directory.create("m", 1, 0, ModelSpec.from_dict(SPEC))
    for actors in (1, 64):
        fill(journal, RESIDENT // ROW // 2, actors)
        print(f"rows of {ROW}, {actors} actors:")
        core = reapply(folder)
        core.save(folder / "checkpoints" / f"{core.progress.lsn:020d}")
    fill(journal, RESIDENT // ROW // 2, 16)
    core = reapply(folder)
    began = time.perf_counter()
    core.save(folder / "checkpoints" / f"{core.progress.lsn:020d}")
    print(f"{len(core.replay)} resident: checkpoint written in {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    Core.load(checkpoints(folder)[-1])
    print(f"{len(core.replay)} resident: checkpoint loaded in {time.perf_counter() - began:.2f} s")
    journal.close()
    directory.close()
    latency(data_dir, "no checkpoint")
    latency(data_dir, "a checkpoint after every row", "--recovery-budget", "0.000001")
    catch_up(data_dir / "catch-up")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir()
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
