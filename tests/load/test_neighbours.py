"""What happens to one model changes no byte of another."""

from __future__ import annotations

import os
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

from jormungandr import Learner, RemoteLearner
from tests.service.serving import SPEC, Server, experience, served, until

#: It diverges within a few updates.
WILD: dict[str, Any] = {**SPEC, "c51": {**SPEC["c51"], "lr": 1e30}}


def content(folder: Path) -> str:
    """Return the digest of all that a model's journal holds, and of its policies."""
    found = sha256()
    connection = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
    for table in ("journal", "episode", "ledger", "pending_label"):
        for row in connection.execute(f"SELECT * FROM {table}"):
            found.update(repr(row).encode())
    connection.close()
    for path in sorted((folder / "policies").glob("*.safetensors")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def feed(client: RemoteLearner, rows: list[Any], first: int, last: int) -> None:
    """Send whole episodes of eight, one after another, and wait for each."""
    for n in range(first, last):
        client.wait(client.add(rows[8 * n : 8 * n + 8]).lsn, 60)


@pytest.mark.slow
def test_killed_diverged_and_deleted(tmp_path: Path) -> None:
    """One is killed, one diverges, one is deleted; who learns on does so bit for bit."""
    rows = experience(12, 8)
    alone = Learner(SPEC)
    for n in range(12):
        alone.add(rows[8 * n : 8 * n + 8])
    with Server(tmp_path) as server:
        clients = {name: server.connect(name) for name in ("quiet", "busy", "killed", "wild")}
        for name, client in clients.items():
            client.create(WILD if name == "wild" else SPEC)
        feed(clients["quiet"], rows, 0, 6)
        feed(clients["busy"], rows, 0, 6)
        feed(clients["killed"], rows, 0, 3)
        before = content(tmp_path / "models" / "quiet.1")

        os.kill(clients["killed"].info()["learner"]["pid"], signal.SIGKILL)
        clients["wild"].add(rows)
        feed(clients["busy"], rows, 6, 9)
        until(lambda: clients["wild"].info()["updates"]["non_finite"] > 0, "a divergence")
        clients["killed"].delete()
        feed(clients["busy"], rows, 9, 12)

        assert content(tmp_path / "models" / "quiet.1") == before
        assert served(tmp_path, "busy.1").digest() == alone.snapshot().digest()
        for client in clients.values():
            client.close()
