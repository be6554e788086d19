"""A policy is served when its VERSION row is durable, and not a moment earlier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from jormungandr.service.journal.database import connect, control_rows
from tests.faults.checker import Servers
from tests.service.serving import SPEC, experience, until

#: Some seconds of work follow one request.
SLOW: dict[str, Any] = {
    **SPEC,
    "pacing": {"learning_starts": 8, "updates_per_transition": 100.0},
    "validation": {"evaluate_every": 1_000_000},
}


def recorded(path: Path) -> set[int]:
    """Return the versions that a journal records."""
    connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    found = control_rows(connection, path, "version")
    connection.close()
    return {body["version"] for _, body in found}


def test_not_before_its_row(tmp_path: Path) -> None:
    """While rows cannot be written, policies come in and are not served; after a kill neither.

    Somebody else holds the database, so that the row of a policy whose file is there has to wait.
    """
    folder = tmp_path / "models" / "m.1"
    with Servers(tmp_path) as servers:
        server = servers.start()
        with server.connect("m") as endpoint:
            endpoint.create(SLOW)
            endpoint.act([[0.0, 0.0]])  # the learner is there
            endpoint.add(experience(4, 10))
            other = apsw.Connection(str(folder / "journal.db"))
            other.set_busy_timeout(10_000)
            other.execute("BEGIN IMMEDIATE")
            known = recorded(folder / "journal.db")

            def waiting() -> bool:
                files = {int(p.stem) for p in (folder / "policies").glob("*.safetensors")}
                return bool(files - known)

            until(waiting, "a policy whose row is not there")
            seen = {endpoint.act([[0.0, 0.0]]).policy_version for _ in range(50)}
            seen.add(endpoint.info()["policy_version"])
        servers.kill()
        other.execute("ROLLBACK")
        other.close()

        assert seen <= known
        server = servers.start()
        with server.connect("m") as endpoint:
            first = endpoint.act([[0.0, 0.0]]).policy_version
            assert first >= max(known)
            assert first in recorded(folder / "journal.db")
        assert server.terminate() == 0
