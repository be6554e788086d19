"""Killed, cut anew, or created again: from the same rows the same is learned, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr import Learner
from jormungandr.rows import TransitionsRow
from jormungandr.service.journal.database import connect, control_rows
from tests.faults.checker import (
    SPEC,
    Actors,
    Servers,
    bits,
    check_stored,
    dicts,
    differing,
    newest_checkpoint,
    rebuild,
    rows,
)
from tests.service.serving import SPEC as QUICK
from tests.service.serving import Server, experience, gone, until

#: Busier than that of the other tests, so that kills fall between updates and within them.
BUSY: dict[str, Any] = {
    **SPEC,
    "pacing": {"learning_starts": 16, "updates_per_transition": 0.5},
    "divergence": {"copy_every": 7},
}
SEED = 11
KILLS = 5
TRANSITIONS = 1_200


def relearned(folder: Path, spec: dict[str, Any], seed: int, **options: Any) -> Learner:
    """Learn a model's rows in this process, cut anew at random, and return the learner."""
    rng, learner = random.Random(seed), Learner(spec, **options)
    waiting: list[dict[str, Any]] = []

    def send(all_of_it: bool) -> None:
        while len(waiting) > 200 or (all_of_it and waiting):
            size = rng.randint(1, 300)
            learner.add(waiting[:size])
            del waiting[:size]

    for row in rows(folder):
        if isinstance(row, TransitionsRow):
            for item, label in zip(dicts(row.columns), row.columns.label.tolist(), strict=True):
                # Of a policy that this learner may make only in the middle of the request.
                item["policy_version"] = -1
                waiting.append({**item, "label": label} if label >= 0 else item)
            send(False)
        else:
            send(True)
            names = ("actor_id", "episode_id", "timestep")
            for identity, label in zip(row.identities, row.label.tolist(), strict=True):
                learner.label([{**dict(zip(names, identity, strict=True)), "label": label}])
    send(True)
    return learner


def at_work(server: Server, updates: int) -> int:
    """Return the process id of the learner, when it has made so many updates more, if it can."""
    with server.connect("m") as endpoint:
        goal = endpoint.info()["update_count"] + updates

        def look() -> int | None:
            found = endpoint.info()
            more = found["applied_lsn"] < found["journal_lsn"] and found["update_count"] < goal
            return None if updates and more else found["learner"]["pid"]

        return int(until(look, "a learner at work"))


@pytest.mark.slow
def test_killed_and_recovered(tmp_path: Path) -> None:
    """Parameters, optimizer, priorities, moments, validation and every version come out the same.

    The same as an undisturbed run over the same rows, and as one that had them in other requests.
    """
    rng = random.Random(SEED)
    data_dir = tmp_path / "data"
    folder = data_dir / "models" / "m.1"
    ends = []
    with Servers(data_dir, "--recovery-budget", "0.2") as servers:
        server = servers.start()
        with server.connect("m") as endpoint:
            endpoint.create(BUSY)
        options = ("--batch", "50", "--transitions", str(TRANSITIONS))
        with Actors(data_dir, server.url, ["one", "cut"], *options) as actors:
            for kill in range(KILLS):
                goal = kill * 2 * TRANSITIONS // KILLS + rng.randrange(TRANSITIONS // KILLS)
                until(lambda goal=goal: actors.acknowledged >= goal, "receipts")
                learner = at_work(servers.server, rng.randrange(1, 60) * (kill % 3 > 0))
                if kill % 2:
                    os.kill(learner, signal.SIGKILL)
                    ends.append("learner")
                else:
                    servers.kill()
                    ends.append("gateway")
                until(lambda learner=learner: gone(learner), "the learner's end")
                if not kill % 2:
                    servers.start()
            said = actors.finish()
        print(SEED, ends)
        with servers.server.connect("m") as endpoint:
            info = endpoint.wait(said.lsn)
        assert servers.server.terminate() == 0
    check_stored(folder, said)
    became = newest_checkpoint(folder)
    assert became.update_count == info["update_count"] > 0.4 * TRANSITIONS
    assert differing(bits(rebuild(folder)), bits(became)) == []
    cut_anew = relearned(folder, BUSY, SEED)
    assert differing(bits(cut_anew, batching=False), bits(became, batching=False)) == []


ROWS = experience(24, 9)


def learned(data_dir: Path, batches: dict[str, list[Any]], size: int) -> None:
    """Create a model for each list of rows, and send them in requests of some size."""
    with Servers(data_dir) as servers:
        server = servers.start()
        for model, sent in batches.items():
            with server.connect(model) as endpoint:
                endpoint.create(QUICK)
                for at in range(0, len(sent), size):
                    receipt = endpoint.add(sent[at : at + size])
                endpoint.wait(receipt.lsn)
        assert server.terminate() == 0


@pytest.mark.slow
def test_what_is_held_out_teaches_nothing(tmp_path: Path) -> None:
    """Other held-out transitions: another validation loss, and the same bits of all that learns."""
    other = [
        {**row, "observation": [9.0, -9.0], "reward": 1.5, "action": 0}
        if row["split"] == "validation"
        else row
        for row in ROWS
    ]
    learned(tmp_path, {"one": ROWS, "other": other}, 7)

    one, another = (
        bits(newest_checkpoint(tmp_path / "models" / f"{name}.1")) for name in ("one", "other")
    )
    assert one["progress"]["updates"] > 0
    assert differing(one, another) == ["evaluations", "returns", "validation"]
    assert one["algorithm"] == another["algorithm"]


@pytest.mark.slow
def test_created_deleted_and_created_again(tmp_path: Path) -> None:
    """The second model of an id goes on with its numbers, and shares nothing else with the first.

    The gateway is killed between the two.
    """
    with Servers(tmp_path) as servers:
        server = servers.start()
        with server.connect("m") as endpoint:
            endpoint.create(QUICK)
            before = endpoint.wait(endpoint.add(ROWS).lsn)
            endpoint.delete()
        servers.kill()
        server = servers.start()
        with server.connect("m") as endpoint:
            created = endpoint.create(QUICK)
            assert created["policy_version"] == before["policy_version"] + 1
            assert created["generation"] == 2
            assert created["journal_lsn"] == 0
            receipt = endpoint.add(ROWS)
            assert (receipt.accepted, receipt.generation) == (len(ROWS), 2)
            endpoint.wait(receipt.lsn)
        assert server.terminate() == 0

    first, second = tmp_path / "models" / "m.1", tmp_path / "models" / "m.2"
    # Its first one need not be served: a newer one may be there by then.
    assert versions(first)[-1] == before["policy_version"] < versions(second)[0]
    assert rows(first) == []
    fresh = Learner(QUICK, generation=2, first_version=before["policy_version"] + 1)
    fresh.add(ROWS)
    became = newest_checkpoint(second)
    assert differing(bits(fresh, batching=False), bits(became, batching=False)) == []


def versions(folder: Path) -> list[int]:
    """Return the versions that a journal records, in order."""
    connection = connect(folder / "journal.db", apsw.SQLITE_OPEN_READONLY)
    found = control_rows(connection, folder / "journal.db", "version")
    connection.close()
    return [body["version"] for _, body in found]
