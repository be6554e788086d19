"""Models deleted while everybody sends: each request is kept by one generation, or by none.

``python -m tests.faults.test_delete_race --deletions 1000`` is the long form: `make soak`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr import RemoteLearner
from jormungandr.errors import ModelConflict, ModelUnknown
from jormungandr.service.journal.database import connect, control_rows
from tests.faults.checker import Identity, Servers, stored
from tests.service.serving import SPEC, until

SENDERS = 3
BATCH = 4


class Sender(threading.Thread):
    """Sends transitions of its own, each once, and notes what it is told.

    A client stays with the generation that it has met, so each has one of its own.
    """

    def __init__(self, connect: Callable[[], RemoteLearner], name: str) -> None:
        super().__init__(daemon=True)
        self._connect, self._name = connect, name
        self._ending = threading.Event()
        self.kept: list[tuple[int, int, list[Identity]]] = []  # generation, position, which
        self.refused: list[Identity] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Send until told to end."""
        n, endpoint = 0, self._connect()
        try:
            while not self._ending.is_set():
                n += 1
                items = [self._item(f"e{n}", t) for t in range(BATCH)]
                names = [(i["actor_id"], i["episode_id"], i["timestep"]) for i in items]
                try:
                    receipt = endpoint.add(items)
                except (ModelUnknown, ModelConflict):
                    self.refused += names
                    endpoint.close()
                    endpoint = self._connect()
                else:
                    assert (receipt.accepted, receipt.duplicate) == (BATCH, 0)
                    self.kept.append((receipt.generation, receipt.lsn, names))
        except Exception as error:
            self.error = error
        endpoint.close()

    def _item(self, episode: str, timestep: int) -> dict[str, Any]:
        return {
            "actor_id": self._name,
            "episode_id": episode,
            "timestep": timestep,
            "split": "train",
            "policy_version": -1,
            "observation": [0.5, float(timestep)],
            "action": timestep % 3,
            "reward": 0.25,
            "next_observation": [0.5, timestep + 1.0],
            "terminated": timestep == BATCH - 1,
            "truncated": False,
        }

    def end(self) -> None:
        """Let it finish its request, and fail if it has."""
        self._ending.set()
        self.join(60)
        assert not self.is_alive()
        assert self.error is None, self.error


@pytest.mark.parametrize(
    ("deletions", "learning"),
    [
        pytest.param(8, 0, id="some"),
        pytest.param(40, 2, id="many", marks=pytest.mark.slow),
    ],
)
def test_deleted_while_it_is_used(tmp_path: Path, deletions: int, learning: int) -> None:
    """What is sent meanwhile is known to one generation or refused; the next one begins empty.

    The learner is starting at most deletions, and in the middle of its updates at some.
    """
    race(tmp_path, deletions, learning)


def race(data_dir: Path, deletions: int, learning: int) -> int:
    """Delete and create a model again and again; return how many transitions were acknowledged.

    Args:
        data_dir: made.
        deletions: how many.
        learning: of the first so many the learner is in the middle of its updates.
    """
    lowest = 0  # version that the next generation must begin at, or above
    with Servers(data_dir) as servers:
        server = servers.start()
        join = partial(server.connect, "m", patience=0)
        senders = [Sender(join, f"s{n}") for n in range(SENDERS)]
        with server.connect("m", patience=0) as endpoint:
            endpoint.create(SPEC)
            for sender in senders:
                sender.start()
            for generation in range(1, deletions + 1):
                created = endpoint.create(SPEC) if generation > 1 else endpoint.info()
                assert created["generation"] == generation
                assert created["policy_version"] >= lowest

                def known(generation: int = generation) -> bool:
                    return all(s.error is None for s in senders) and any(
                        g == generation for s in senders for g, *_ in s.kept[-2:]
                    )

                until(known, "a receipt")
                if generation <= learning:
                    until(lambda: endpoint.info()["update_count"] > 0, "an update")
                served = endpoint.info()["policy_version"]
                endpoint.delete()
                lowest = served + 1
                with pytest.raises(ModelUnknown):
                    endpoint.info()
            last = deletions + 1
            assert endpoint.create(SPEC)["generation"] == last
            until(lambda: any(g == last for s in senders for g, *_ in s.kept[-1:]), "a receipt")
            for sender in senders:
                sender.end()
        assert server.terminate() == 0

    kept = [told for sender in senders for told in sender.kept]
    positions: dict[int, list[int]] = {}
    for generation, lsn, _ in kept:
        positions.setdefault(generation, []).append(lsn)
    for generation in range(1, last):
        folder = data_dir / "models" / f"m.{generation}"
        found = stored(folder)
        assert not found.content
        assert not found.ledger
        # Whoever was told that his were kept was told so before the deletion.
        assert max(positions[generation]) < deleted_at(folder)
        assert not any((folder / name).exists() for name in ("policies", "checkpoints"))
    living = stored(data_dir / "models" / f"m.{last}")
    mine = {identity for g, _, names in kept if g == last for identity in names}
    assert living.content.keys() == living.ledger == mine
    assert mine.isdisjoint(identity for sender in senders for identity in sender.refused)
    return sum(len(names) for *_, names in kept)


def deleted_at(folder: Path) -> int:
    """Return the position of the record of a model's deletion."""
    path = folder / "journal.db"
    connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    ((lsn, _),) = control_rows(connection, path, "delete")
    connection.close()
    return lsn


def main(arguments: Sequence[str]) -> int:
    """Run the race from the command line; return 0 when nothing was lost or mixed up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deletions", type=int, default=1_000)
    options = parser.parse_args(arguments)
    path = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"{options.deletions} deletions, in {path}", flush=True)
    began = time.monotonic()
    acknowledged = race(path / "data", options.deletions, options.deletions // 20)
    seconds = time.monotonic() - began
    print(f"{acknowledged} acknowledged, each kept by its generation alone; {seconds:.0f} s")
    shutil.rmtree(path)  # of a failure everything is left to be looked at
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
