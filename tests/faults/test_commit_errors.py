"""Syncs that fail on a real server, and a real volume that is full."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jormungandr.errors import StorageFull, Unavailable
from jormungandr.service import learning as learning_module
from jormungandr.service.journal.database import Created
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.faults.strace import Strace, needs_strace
from tests.faults.volumes import Volume
from tests.service.conftest import NoProcess
from tests.service.serving import QUIET, SPEC, Server, connect, experience, memory, until

BATCH = 4


def batch(n: int) -> list[Any]:
    """Return the n-th request."""
    return experience(1, BATCH, actor_id=f"a{n}")


def send(server: Server, batches: int) -> tuple[int, Exception | None]:
    """Send so many requests; return how many had a receipt, and what ended it before its time."""
    with contextlib.closing(server.connect("m", patience=0)) as endpoint:
        for n in range(batches):
            try:
                endpoint.add(batch(n))
            except Unavailable as error:
                return n, error
    return batches, None


def started(data_dir: Path) -> Server:
    """Return a server with a model ``m`` that has taken one request, and whose learner runs."""
    server = Server(data_dir)
    endpoint = server.connect("m")
    endpoint.create(QUIET)
    endpoint.add(experience(1, BATCH, actor_id="first"))
    until(lambda: endpoint.info()["learner"]["state"] in ("running", "idle"), "a learner")
    endpoint.act([[0, 0]])
    endpoint.close()
    return server


# -- syncs --------------------------------------------------------------------------------------


@needs_strace
@pytest.mark.slow
def test_failed_sync_of_a_commit(tmp_path: Path) -> None:
    """EIO on the n-th sync ends the server with 74; what was acknowledged is there once after."""
    n = 4
    fault = f"inject=fdatasync:error=EIO:when={n}"
    with (
        started(tmp_path / "data") as server,
        Strace(server.process.pid, tmp_path, "trace=fdatasync", fault),
    ):
        acknowledged, error = send(server, 20)
        assert server.process.wait(60) == 74
    # One of the syncs may have been that of something else than a request of ours.
    assert 1 <= acknowledged < n
    assert error is not None
    assert "exiting" in (tmp_path / "data" / "stderr").read_text()

    with Server(tmp_path / "data") as server:
        endpoint = server.connect("m")
        for k in range(acknowledged):
            receipt = endpoint.add(batch(k))
            assert (receipt.accepted, receipt.duplicate) == (0, BATCH)
        # Whether the one without a receipt was kept is not said, but it is kept whole or not.
        receipt = endpoint.add(batch(acknowledged))
        assert (receipt.accepted, receipt.duplicate) in {(BATCH, 0), (0, BATCH)}
        info = endpoint.wait(endpoint.add(batch(acknowledged + 1)).lsn)
        assert sum(info["accepted"].values()) == BATCH * (acknowledged + 3)
        assert info["transitions"] == info["accepted"]
        endpoint.close()


#: Commits control rows for ever, and says which were acknowledged; its WAL is moved early.
COMMITTER = """
import sys
from pathlib import Path
from jormungandr.ledger import Draft
from jormungandr.service.journal import mover
from jormungandr.service.journal.database import SkipRow
from jormungandr.service.journal.writer import Journal

mover.WAL_PAGES = 20
journal = Journal(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while True:
    draft = Draft(journal)
    journal.commit(draft, [], [SkipRow(0, "-" * 1000)])
    journal.merged(draft)
    print(journal.counters.lsn, flush=True)
"""


@needs_strace
def test_failed_move_of_the_wal(tmp_path: Path) -> None:
    """EIO as the WAL is moved to the database file ends the process with 74 too; all is there."""
    path = tmp_path / "journal.db"
    Journal(path, Created("m", 1, 0, ModelSpec.from_dict(QUIET))).close()
    # In its normal course the database file itself is synced by nothing else than that.
    fault = "inject=fdatasync:error=EIO"
    with subprocess.Popen(
        [sys.executable, "-c", COMMITTER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with Strace(process.pid, tmp_path, "trace=fdatasync", fault, only=path):
            out, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 74, errors
    assert "exiting" in errors

    acknowledged = int(out.split()[-1])
    assert acknowledged >= 1  # it is moved beside the commits: how many is a matter of luck
    journal = Journal(path)
    assert acknowledged <= journal.counters.lsn <= acknowledged + 1
    journal.close()


@needs_strace
@pytest.mark.slow
def test_failed_checkpoint_of_the_learner(tmp_path: Path) -> None:
    """EIO under a checkpoint costs that one: the older is kept, and nothing is lost."""
    data = tmp_path / "data"
    checkpoints = data / "models" / "m.1" / "checkpoints"
    with Server(data) as server:
        endpoint = server.connect("m")
        endpoint.create(SPEC)
        endpoint.wait(endpoint.add(experience(4, 9)).lsn)
        endpoint.close()
    (kept,) = checkpoints.iterdir()

    with Server(data) as server, contextlib.closing(server.connect("m")) as endpoint:
        receipt = endpoint.add(experience(4, 9, actor_id="b"))
        before = endpoint.wait(receipt.lsn)
        fault = "inject=fsync:error=EIO:when=2+"
        with Strace(before["learner"]["pid"], tmp_path, "trace=fsync", fault):
            assert server.terminate() == 0
    assert list(checkpoints.iterdir()) == [kept]
    assert "checkpoint not written: [Errno 5]" in (data / "stderr").read_text()

    with Server(data) as server:
        endpoint = server.connect("m")
        after = endpoint.wait(receipt.lsn)
        assert endpoint.add(experience(4, 9, actor_id="b")).duplicate == 36
        endpoint.close()
    for name in ("transitions", "accepted", "update_count", "policy_version", "normalizer"):
        assert after[name] == before[name], name
    assert after["warnings"] == before["warnings"]


# -- a full volume ------------------------------------------------------------------------------


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """A volume of 32 MiB."""
    mounted = Volume(tmp_path / "volume", 32)
    yield mounted
    mounted.unmount()


def test_full_volume(volume: Volume) -> None:
    """Without room a group is 503 and leaves nothing; with room again it is taken, unrestarted."""
    with Server(volume.path / "data", "--free-space-floor", "0") as server:
        endpoint = server.connect("m", patience=0)
        endpoint.create(QUIET)
        endpoint.label([{"actor_id": "b0", "episode_id": "e0", "timestep": 1, "label": 1}])
        endpoint.add(batch(0))
        endpoint.act([[0, 0]])
        ballast = volume.path / "ballast"
        # What is left is less than one request's rows and ledger need.
        ballast.write_bytes(b"\0" * (shutil.disk_usage(volume.path).free - (96 << 10)))
        large = experience(30, 100, actor_id="b")
        before = endpoint.info()
        lsn = before["journal_lsn"]
        with pytest.raises(StorageFull):
            endpoint.add(large)
        for kept in range(1, 1_000):
            try:
                lsn = endpoint.add(batch(kept)).lsn
            except StorageFull:
                break
        else:
            pytest.fail("the volume was never full")
        full = endpoint.info()
        assert full["accepted"]["train"] + full["accepted"]["validation"] == BATCH * kept
        assert full["labels"] == before["labels"] == {"pending": 1, "expired": 0}
        assert full["journal_lsn"] == lsn
        assert endpoint.act([[0, 0]]).policy_version == 0
        assert [endpoint.add(batch(n)).duplicate for n in range(kept)] == [BATCH] * kept
        with pytest.raises(StorageFull):
            endpoint.add(large)

        ballast.unlink()
        receipt = endpoint.add(large)
        assert (receipt.accepted, receipt.duplicate) == (len(large), 0)
        assert endpoint.add(batch(kept)).accepted == BATCH
        assert endpoint.info()["learner"]["state"] != "failed"
        endpoint.close()
        assert server.process.poll() is None


def test_no_room_for_a_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its creation finds none it is 503, leaves nothing, and can be asked for again."""
    monkeypatch.setattr(learning_module, "LearnerProcess", NoProcess)
    small = Volume(tmp_path / "volume", 1)
    ballast, created = small.path / "ballast", False
    try:
        with memory(small.path / "data", free_space_floor=0) as http:
            endpoint = connect(http, "m", patience=0)
            for free in range(0, 512, 4):
                ballast.unlink(missing_ok=True)
                left = shutil.disk_usage(small.path).free - (free << 10)
                ballast.write_bytes(bytes(left))
                try:
                    endpoint.create(QUIET)
                    created = True
                    break
                except StorageFull:
                    assert list((small.path / "data" / "models").iterdir()) == []
            assert created
            assert free > 8
            ballast.unlink()
            assert endpoint.add(batch(0)).accepted == BATCH
            endpoint.close()
    finally:
        small.unmount()


def test_free_space_floor(volume: Volume) -> None:
    """Below the floor data is refused before anything is written, and all else goes on."""
    floor = 8 << 20
    with Server(volume.path / "data", "--free-space-floor", str(floor)) as server:
        endpoint = server.connect("m", patience=0)
        endpoint.create(QUIET)
        endpoint.add(batch(0))
        endpoint.act([[0, 0]])
        ballast = volume.path / "ballast"
        ballast.write_bytes(b"\0" * (shutil.disk_usage(volume.path).free - floor + 4096))
        before, journal = endpoint.info(), server.data_dir / "models" / "m.1" / "journal.db-wal"
        size = journal.stat().st_size
        with pytest.raises(StorageFull, match="at least 8388608 bytes free"):
            endpoint.add(batch(1))
        with pytest.raises(StorageFull):
            endpoint.label([{"actor_id": "b0", "episode_id": "e0", "timestep": 1, "label": 1}])
        with (
            contextlib.closing(server.connect("other", patience=0)) as other,
            pytest.raises(StorageFull),
        ):
            other.create(QUIET)
        assert journal.stat().st_size == size
        assert endpoint.add(batch(0)).duplicate == BATCH
        assert endpoint.act([[0, 0]]).policy_version == 0
        after = endpoint.info()
        assert any(w.startswith("storage_full: ") for w in after["warnings"])
        for name in ("accepted", "journal_lsn", "labels"):
            assert after[name] == before[name]

        ballast.unlink()
        assert endpoint.add(batch(1)).accepted == BATCH
        assert endpoint.info()["warnings"] == []
        ballast.write_bytes(b"\0" * (shutil.disk_usage(volume.path).free - floor + 4096))
        endpoint.delete()
        endpoint.close()
        assert server.process.poll() is None
