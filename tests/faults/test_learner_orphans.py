"""Learners whose gateway is killed: gone with it, whatever they were doing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.failpoints import VARIABLE
from jormungandr.service.child.heartbeat import Heartbeat
from tests.service.serving import DEADLINE, SPEC, Server, experience, gone, served, until

ROWS = experience(24, 9)
#: A model for which one request means a long batch of updates.
LONG: dict[str, Any] = {
    **SPEC,
    "c51": {**SPEC["c51"], "hidden": 256, "batch_size": 256},
    "replay": {"capacity": 1024},
    "validation": {"capacity": 16, "evaluate_every": 1000},
    "pacing": {"learning_starts": 8, "updates_per_transition": 20.0},
}


def killed(server: Server, pid: int) -> None:
    """Kill a server, and it alone; return when its learner is gone too."""
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.process.wait(DEADLINE) == -signal.SIGKILL
    assert server.process.stdout is not None
    server.process.stdout.close()
    until(lambda: gone(pid), "the end of its learner")


def learner(endpoint: Any) -> dict[str, Any]:
    """Return what a model says of its learner."""
    found: dict[str, Any] = endpoint.info()["learner"]
    return found


def goes_on(data_dir: Path, lsn: int, spec: dict[str, Any] = SPEC) -> None:
    """Check that the next server starts cleanly, and comes to what it should."""
    reference = Learner(spec)
    reference.add(ROWS)
    with Server(data_dir) as server:
        endpoint = server.connect("m")
        info = endpoint.wait(lsn)
        assert info["policy_version"] == reference.policy_version
        assert (info["warnings"], info["learner"]["ends"]) == (reference.warnings(), 0)
        endpoint.close()
    assert served(data_dir, "m.1").digest() == reference.snapshot().digest()
    assert list((data_dir / "models" / "m.1" / "checkpoints").glob(".*")) == []


@pytest.mark.slow
def test_starting_and_idle(tmp_path: Path) -> None:
    """A learner that was only just made, and one that waits for rows."""
    server = Server(tmp_path)
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    lsn = endpoint.add(ROWS).lsn
    pid = until(lambda: learner(endpoint)["pid"], "a learner")
    endpoint.close()
    killed(server, pid)
    server = Server(tmp_path)
    endpoint = server.connect("m")
    endpoint.wait(lsn)
    pid = until(lambda: learner(endpoint)["state"] == "idle" and learner(endpoint)["pid"], "rest")
    endpoint.close()
    killed(server, pid)
    goes_on(tmp_path, lsn)


@pytest.mark.slow
def test_in_the_middle_of_a_long_batch(tmp_path: Path) -> None:
    """A learner with minutes of updates before it."""
    server = Server(tmp_path)
    endpoint = server.connect("m")
    endpoint.create(LONG)
    rows = [{**row, "split": "train", "actor_id": str(n)} for n in range(4) for row in ROWS]
    lsn = endpoint.add(rows).lsn
    until(lambda: learner(endpoint)["phase"] == "updating", "an update")
    pid = learner(endpoint)["pid"]
    info = endpoint.info()
    assert info["applied_lsn"] < lsn
    endpoint.close()
    killed(server, pid)
    with Server(tmp_path) as again:  # and stops in the middle of that row, where it can
        endpoint = again.connect("m")
        assert endpoint.add(rows).duplicate == len(rows)
        until(lambda: learner(endpoint)["phase"] == "updating", "an update")
        pid = learner(endpoint)["pid"]
        endpoint.close()
        killed(again, pid)


@pytest.mark.slow
def test_in_the_middle_of_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that writes, even one that is stopped as it does."""
    monkeypatch.setenv(VARIABLE, "checkpoint.file!:2")
    server = Server(tmp_path, "--park-after", "0.2")
    endpoint = server.connect("m")
    endpoint.create(SPEC)
    lsn = endpoint.add(ROWS).lsn
    until(lambda: learner(endpoint)["phase"] == "checkpointing", "a checkpoint")
    pid = learner(endpoint)["pid"]
    until(lambda: "State:\tT" in Path(f"/proc/{pid}/status").read_text(), "its halt")
    folder = tmp_path / "models" / "m.1" / "checkpoints"
    assert [path.name[0] for path in folder.iterdir()] == ["."]
    endpoint.close()
    killed(server, pid)
    monkeypatch.delenv(VARIABLE)
    goes_on(tmp_path, lsn)


def test_gateway_that_ended_before_it_was_asked(tmp_path: Path) -> None:
    """A learner whose parent is not its gateway any more ends before it touches anything."""
    ours, theirs = socket.socketpair()
    heartbeat = Heartbeat.create()
    with ours, theirs:
        command = [sys.executable, "-m", "jormungandr.service.child.host", str(tmp_path)]
        done = subprocess.run(
            [*command, str(theirs.fileno()), str(heartbeat.fd), "1", "20"],
            pass_fds=[theirs.fileno(), heartbeat.fd],
            check=False,
            timeout=DEADLINE,
        )
    counter = heartbeat.counter
    heartbeat.close()

    assert (done.returncode, counter, list(tmp_path.iterdir())) == (0, 0, [])


def test_end_of_the_channel_ends_whatever_goes_on() -> None:
    """Where no signal tells of a gateway's end, its channel does, also a learner that is busy."""
    ours, theirs = socket.socketpair()
    code = (
        "import socket, sys, threading; from jormungandr.service.child.host import _end_with;"
        "s = socket.socket(fileno=int(sys.argv[1]));"
        "threading.Thread(target=_end_with, args=(s,), daemon=True).start();"
        "s.send(b'x')\nwhile True: pass"
    )
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as child:
        theirs.close()
        assert ours.recv(1) == b"x"
        assert child.poll() is None
        ours.close()
        assert child.wait(DEADLINE) == 0
