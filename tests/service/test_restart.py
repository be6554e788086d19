"""Ends of every kind: what was acknowledged is there, and learning comes out the same."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from jormungandr import Learner, RemoteLearner
from jormungandr.learner.checkpoint import read_checkpoint
from jormungandr.service.child.recovery import checkpoints
from tests.service.serving import SPEC, Server, experience, gone, served, until

#: 135 training transitions in 15 episodes, and 45 held out in 5: 127 updates.
ROWS = experience(20, 9)
UPDATES = 127
BATCH = 5


@pytest.fixture(scope="module")
def reference() -> Learner:
    """The same rows, learned in this process and without interruption."""
    learner = Learner(SPEC)
    learner.add(ROWS)
    return learner


class Sender(threading.Thread):
    """Sends `ROWS` in order, in small requests, whatever happens to the service meanwhile."""

    def __init__(self, endpoint: RemoteLearner) -> None:
        super().__init__()
        self._endpoint = endpoint
        self.receipts: list[Any] = []
        self.error: Exception | None = None

    @property
    def acknowledged(self) -> int:
        """Transitions that have a receipt."""
        return BATCH * len(self.receipts)

    def run(self) -> None:
        """Send all."""
        try:
            for at in range(0, len(ROWS), BATCH):
                self.receipts.append(self._endpoint.add(ROWS[at : at + BATCH]))
        except Exception as error:
            self.error = error

    def finish(self) -> int:
        """Return the position of the last receipt when all have come."""
        self.join(120)
        assert not self.is_alive()
        assert self.error is None, self.error
        self._endpoint.close()
        return int(self.receipts[-1].lsn)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    """``servers()``: a server on the test's directory, always on the same port."""
    running: list[Server] = []

    def start(*arguments: str) -> Server:
        port = running[0].url.rpartition(":")[2] if running else "0"
        running.append(Server(tmp_path, "--port", port, *arguments))
        return running[-1]

    yield start
    for server in running:
        server.kill()


def recorded(data_dir: Path) -> dict[int, str]:
    """Return the digests of the policies that the journal of a server that has ended records."""
    path = data_dir / "models" / "m.1" / "journal.db"
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = connection.execute("SELECT payload FROM journal WHERE kind = 'version'").fetchall()
    connection.close()
    versions = [msgspec.json.decode(payload) for (payload,) in rows]
    return {version["version"]: version["digest"] for version in versions}


def saved(folder: Path) -> dict[str, bytes]:
    """Return everything in a checkpoint that is numbers: what a learner is, bit for bit."""
    _, tensors, files = read_checkpoint(folder)
    arrays = {name: array.tobytes() for name, array in tensors.items()}
    return {**arrays, "policy": files["policy.safetensors"]}


def check(endpoint: RemoteLearner, lsn: int, data_dir: Path, reference: Learner) -> None:
    """Check that a service has become what an uninterrupted learner is."""
    info = endpoint.wait(lsn)

    assert info["transitions"] == {"train": 135, "validation": 45}
    assert info["accepted"] == {"train": 135, "validation": 45}
    assert info["normalizer"]["count"] == 270
    assert info["update_count"] == info["policy_version"] == UPDATES
    assert info["warnings"] == reference.warnings()
    assert served(data_dir, "m.1").digest() == reference.snapshot().digest()
    evaluations = endpoint.metrics()["evaluations"]
    assert evaluations == [msgspec.to_builtins(e) for e in reference.evaluations]


def test_sigterm(servers: Any, tmp_path: Path, reference: Learner) -> None:
    """A clean shutdown under load: status 0, a checkpoint, and the next one goes on from there."""
    server = servers()
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    sender = Sender(server.connect("m"))
    sender.start()
    until(lambda: sender.acknowledged >= 60, "sixty receipts")
    endpoint.wait(sender.receipts[11].lsn)
    until(lambda: endpoint.info()["policy_version"] > 0, "a policy")
    learner = endpoint.info()["learner"]["pid"]
    assert server.terminate() == 0
    assert gone(learner)
    written = tmp_path / "models" / "m.1" / "checkpoints"
    assert [(path / "manifest.json").is_file() for path in written.iterdir()] == [True]
    last = max(recorded(tmp_path))

    server = servers()
    assert endpoint.act([[0.5, -1.0]]).policy_version >= last > 0
    lsn = sender.finish()
    check(endpoint, lsn, tmp_path, reference)
    assert sum(r.accepted + r.duplicate for r in sender.receipts) == len(ROWS)
    endpoint.close()
    assert server.terminate() == 0
    assert (tmp_path / "stderr").read_text() == ""


def test_kill_of_the_server(servers: Any, tmp_path: Path, reference: Learner) -> None:
    """After kill -9 under load whatever had a receipt is known, and no learner is left over."""
    server = servers()
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    sender = Sender(server.connect("m"))
    sender.start()
    until(lambda: endpoint.info()["update_count"] > 0, "an update")
    learner = endpoint.info()["learner"]["pid"]
    assert server.kill() == -signal.SIGKILL
    acknowledged = sender.acknowledged
    until(lambda: gone(learner), "the learner's end")

    server = servers()
    known = endpoint.add(ROWS[:acknowledged])
    assert (known.accepted, known.duplicate) == (0, acknowledged)
    check(endpoint, sender.finish(), tmp_path, reference)
    assert endpoint.add(ROWS).duplicate == len(ROWS)
    endpoint.close()


def test_kill_of_the_learner(servers: Any, tmp_path: Path, reference: Learner) -> None:
    """After kill -9 of a learner nothing else stops, and another one comes out the same."""
    server = servers()
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    half = len(ROWS) // 2
    endpoint.wait(endpoint.add(ROWS[:half]).lsn)
    before = endpoint.act([[0.5, -1.0]], deterministic=True)
    learner = endpoint.info()["learner"]["pid"]
    os.kill(learner, signal.SIGKILL)
    until(lambda: gone(learner), "its end")

    assert endpoint.act([[0.5, -1.0]], deterministic=True) == before
    receipt = endpoint.add(ROWS[half:])
    assert receipt.accepted == len(ROWS) - half
    check(endpoint, receipt.lsn, tmp_path, reference)
    info = endpoint.info()["learner"]
    assert info["state"] in ("running", "idle")
    assert info["pid"] not in (None, learner)
    endpoint.close()


@pytest.mark.slow
def test_killed_again_and_again(servers: Any, tmp_path: Path, reference: Learner) -> None:
    """Ten ends of the server and of its learner, wherever they fall, change nothing either.

    With so small a budget a checkpoint follows nearly every row: most ends fall close to one. At
    the end parameters, optimizer, priorities, moments and every policy served are the same bits.
    """
    arguments = ("--recovery-budget", "0.01")
    server = servers(*arguments)
    endpoint = server.connect("m", patience=120)
    endpoint.create(SPEC)
    sender = Sender(server.connect("m", patience=120))
    sender.start()
    for round_ in range(10):
        goal = min(len(ROWS), 15 * (round_ + 1))
        until(lambda goal=goal: sender.acknowledged >= goal, "receipts")
        pid = endpoint.info()["learner"]["pid"]
        if round_ % 2 and pid is not None:
            os.kill(pid, signal.SIGKILL)
        else:
            server.kill()
            server = servers(*arguments)
    check(endpoint, sender.finish(), tmp_path, reference)
    endpoint.close()
    assert server.terminate() == 0
    newest = checkpoints(tmp_path / "models" / "m.1")[-1]
    reference.save(tmp_path / "reference")
    assert saved(newest) == saved(tmp_path / "reference")
    one = Learner(SPEC)
    digests = {0: one.snapshot().digest()}
    for row in ROWS:  # with one update at most
        one.add([row])
        digests[one.policy_version] = one.snapshot().digest()
    found = recorded(tmp_path)
    assert len(found) > 3  # which versions are published is a matter of time
    assert found == {version: digests[version] for version in found}
