"""Learners that are killed or stopped: nothing else stops, and what comes after is the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jormungandr import Learner
from jormungandr.failpoints import VARIABLE
from tests.faults.learners import impatient, service
from tests.service.serving import SPEC, experience, gone, served, until

ROWS = experience(24, 9)
HALF = 60


def check(endpoint: Any, lsn: int, data_dir: Path, sent: int) -> None:
    """Check that the service has become what an uninterrupted learner of the same rows is."""
    reference = Learner(SPEC)
    reference.add(ROWS[:sent])
    info = endpoint.wait(lsn)

    assert info["transitions"] == reference.info()["transitions"]
    assert info["policy_version"] == reference.policy_version
    assert served(data_dir, "m.1").digest() == reference.snapshot().digest()
    assert info["warnings"] == reference.warnings()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGSTOP, "hung: no sign of life for 3 s while idle"),
        (signal.SIGKILL, "killed by SIGKILL, perhaps out of memory"),
    ],
)
def test_data_and_inference_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """While a learner is stopped or dead every request is answered; afterwards all is applied."""
    impatient(monkeypatch)
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        endpoint.wait(endpoint.add(ROWS[:HALF]).lsn)
        first = running.reached("idle")
        policy = endpoint.act([[0.5, -1.0]], deterministic=True)
        os.kill(first["pid"], number)
        sent, states = HALF, []

        def restarted() -> bool:
            nonlocal sent
            if sent < len(ROWS) - 1:
                assert endpoint.add(ROWS[sent : sent + 1]).accepted == 1
                sent += 1
            states.append(running.learner())
            assert endpoint.act([[0.5, -1.0]], deterministic=True) == policy
            return states[-1]["pid"] not in (None, first["pid"])

        until(restarted, "another learner")
        assert states[-1]["state"] in ("starting", "restarting")
        waiting = "hung" if number == signal.SIGSTOP else "restarting"
        assert waiting in {state["state"] for state in states}
        assert {state["error"] for state in states if state["state"] == waiting} >= {reason}
        receipt = endpoint.add(ROWS[sent:])
        check(endpoint, receipt.lsn, tmp_path, len(ROWS))
        last = running.reached("idle")
        assert (last["error"], last["last_end"], last["ends"]) == (None, reason, 1)
        assert endpoint.metrics()["learner"] == {"ends": 1, "quarantined": []}
        assert gone(first["pid"])


@pytest.mark.slow
def test_stop_in_the_middle_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that comes to a halt between two updates is ended, and the next one gets past."""
    impatient(monkeypatch)
    monkeypatch.setenv(VARIABLE, "apply.update!:20")
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        lsn = endpoint.add(ROWS).lsn

        def silent() -> bool:
            found = running.learner()  # an update counts when it has been evaluated
            return found["phase"] == "evaluating" and found["progress_age"] > 1

        until(silent, "silence")
        monkeypatch.delenv(VARIABLE)
        stuck = endpoint.info()
        assert (stuck["applied_lsn"], stuck["journal_lsn"]) == (0, lsn)
        check(endpoint, lsn, tmp_path, len(ROWS))
        last = running.learner()["last_end"]
        assert last == "hung: no sign of life for 3 s while evaluating"


@pytest.mark.slow
def test_deletion_does_not_wait_for_a_stopped_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose learner is stopped can be deleted at once, and its process goes with it."""
    with service(tmp_path, monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        endpoint.wait(endpoint.add(ROWS[:HALF]).lsn)
        pid = running.reached("idle")["pid"]
        os.kill(pid, signal.SIGSTOP)
        endpoint.delete()

        assert gone(pid)
