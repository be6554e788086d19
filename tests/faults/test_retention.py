"""Real servers with little room: disk use, what is left after it, and deletion while learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest

from jormungandr import Learner
from jormungandr.service.child.recovery import checkpoints
from tests.service.serving import QUIET, SPEC, Server, experience, served, until

BUDGET = 256 << 10
WIDTH = 128
#: A model that updates little, and whose rows are large beside their ledger.
WIDE: dict[str, Any] = {
    **QUIET,
    "observation": {"shape": [WIDTH]},
    "pacing": {"learning_starts": 16, "updates_per_transition": 0.02},
}
#: Bytes of one request: what a group may add, as they are sent one after the other.
REQUEST = 24 << 10


def rows(n: int, count: int = 16) -> list[dict[str, Any]]:
    """Return one request of about 16 KiB of rows."""
    rng = np.random.default_rng(n)
    return [
        {
            **row,
            "observation": rng.normal(size=WIDTH).astype(np.float32).tolist(),
            "next_observation": rng.normal(size=WIDTH).astype(np.float32).tolist(),
        }
        for row in experience(1, count, actor_id=f"a{n}", seed=n)
    ]


@pytest.mark.slow
def test_disk_use(tmp_path: Path) -> None:
    """Ten times the budget goes through, and the database stays within it and one request.

    The learner hardly updates, so that nothing but the budget makes it write checkpoints. After a
    kill it comes back to the bits of one that saw it all, and old rows are still known.
    """
    path = tmp_path / "models" / "m.1" / "journal.db"
    reference = Learner(WIDE)
    arguments = ("--journal-max-bytes", str(BUDGET))
    server = Server(tmp_path, *arguments)
    endpoint = server.connect("m")
    endpoint.create(WIDE)
    largest = 0
    for n in range(160):
        endpoint.add(rows(n))  # waits and sends again where it hears 503
        reference.add(rows(n))
        largest = max(largest, path.stat().st_size)
        assert endpoint.info()["journal"]["bytes"] <= BUDGET + REQUEST
    lsn = endpoint.add(rows(160)).lsn
    reference.add(rows(160))
    info = endpoint.wait(lsn)
    assert info["journal"]["first_lsn"] > 100
    assert info["journal"]["max_bytes"] == BUDGET
    assert info["normalizer"]["count"] == reference.info()["normalizer"]["count"]
    server.kill()
    endpoint.close()

    server = Server(tmp_path, *arguments)
    endpoint = server.connect("m")
    assert endpoint.add(rows(0)).duplicate == 16
    largest = max(largest, path.stat().st_size)
    assert largest <= BUDGET + REQUEST
    lsn = endpoint.add(rows(161)).lsn
    reference.add(rows(161))
    info = endpoint.wait(lsn)
    assert info["policy_version"] == reference.policy_version > 40
    assert served(tmp_path, "m.1").digest() == reference.snapshot().digest()
    assert server.terminate() == 0
    assert len(checkpoints(path.parent)) == 2  # while it runs, there may be one that makes room
    endpoint.close()


@pytest.mark.slow
def test_deleted_while_it_learns(tmp_path: Path) -> None:
    """Nothing is left but its record; the id begins anew, with the numbers that follow."""
    many = experience(80, 9)
    with Server(tmp_path, "--recovery-budget", "0.01") as server:
        endpoint = server.connect("m")
        endpoint.create(SPEC)
        endpoint.add(many)
        folder = tmp_path / "models" / "m.1"
        until(lambda: checkpoints(folder) or endpoint.info()["update_count"] > 20, "updates")
        highest = endpoint.info()["policy_version"]
        assert endpoint.delete() is None
        assert kinds(folder) <= {"create", "version", "delete"}
        assert tables(folder) == {"episode": 0, "ledger": 0, "pending_label": 0}
        assert not (folder / "policies").exists()
        assert not (folder / "checkpoints").exists()
        assert (folder / "journal.db").stat().st_size < 100_000

        endpoint.create({**SPEC, "seed": 3})
        info = endpoint.wait(endpoint.add(many[:45]).lsn)
        first = info["policy_version"] - info["update_count"]
        assert info["generation"] == 2
        assert first > highest
        endpoint.close()
    fresh = Learner({**SPEC, "seed": 3})
    fresh.add(many[:45])
    policy, expected = served(tmp_path, "m.2"), fresh.snapshot()
    assert (policy.version - first, policy.update_count) == (expected.version, fresh.update_count)
    for name, array in expected.weights.items():
        assert np.array_equal(policy.weights[name], array)
    assert np.array_equal(policy.mean, expected.mean)
    assert np.array_equal(policy.var, expected.var)


def kinds(folder: Path) -> set[str]:
    """Return the kinds of rows in a journal."""
    connection = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found = {str(kind) for (kind,) in connection.execute("SELECT DISTINCT kind FROM journal")}
    connection.close()
    return found


def tables(folder: Path) -> dict[str, int]:
    """Return how many rows the other tables have."""
    connection = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found = {}
    for name in ("episode", "ledger", "pending_label"):
        for (count,) in connection.execute(f"SELECT count(*) FROM {name}"):
            found[name] = int(str(count))
    connection.close()
    return found
