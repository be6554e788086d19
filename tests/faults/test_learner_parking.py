"""Learners with nothing to do: their process ends, and begins again when a row comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from jormungandr import Learner
from jormungandr.cli import main
from tests.faults.learners import service
from tests.service.serving import SPEC, experience, gone, served

ROWS = experience(24, 9)
HALF = 100


@pytest.mark.slow
def test_parked_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle learner writes its checkpoint and ends; a row starts it, and nothing is different."""
    with service(tmp_path, monkeypatch, park_after=0.3) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        lsn = endpoint.add(ROWS[:HALF]).lsn
        before = running.reached("running", "idle")["pid"]
        parked = running.reached("parked")
        assert parked == {
            "state": "parked",
            "phase": None,
            "progress_age": None,
            "pid": None,
            "error": None,
            "ends": 0,
            "last_end": None,
        }
        assert gone(before)
        checkpoints = tmp_path / "models" / "m.1" / "checkpoints"
        assert [int(path.name) for path in checkpoints.iterdir()] == [lsn]
        half = Learner(SPEC)
        half.add(ROWS[:HALF])
        assert endpoint.wait(lsn)["learner"]["state"] == "parked"  # a barrier that is reached
        assert endpoint.act([[1, 1]], deterministic=True) == half.act([[1, 1]], deterministic=True)
        assert running.learner()["state"] == "parked"

        lsn = endpoint.add(ROWS[HALF:]).lsn
        half.add(ROWS[HALF:])
        assert endpoint.wait(lsn)["policy_version"] == half.policy_version
        assert served(tmp_path, "m.1").digest() == half.snapshot().digest()
        assert running.reached("parked")["ends"] == 0


@pytest.mark.slow
def test_rows_that_come_as_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are applied whenever they come: before, while and after a learner is parked."""
    with service(tmp_path, monkeypatch, park_after=0.01) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        reference = Learner(SPEC)
        for at in range(0, len(ROWS), 72):
            running.reached("idle", "parked", "diverged")
            endpoint.wait(endpoint.add(ROWS[at : at + 72]).lsn)
            reference.add(ROWS[at : at + 72])
        info = endpoint.info()

        assert info["policy_version"] == reference.policy_version
        assert info["learner"]["ends"] == 0
        assert served(tmp_path, "m.1").digest() == reference.snapshot().digest()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_parking_at_once_is_refused(
    tmp_path: Path, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pause that is none is no pause."""
    assert main(["serve", "--data-dir", str(tmp_path), "--park-after", seconds]) != 0
    assert "--park-after: expected more than 0 seconds" in capsys.readouterr().err
