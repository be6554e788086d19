"""The learner's side of the channel: what it sends, when, and what it goes on from."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
import torch

from jormungandr import Learner, PolicySnapshot
from jormungandr.admission import Admission
from jormungandr.columns import columns
from jormungandr.errors import DataDirError
from jormungandr.learner.core import Core
from jormungandr.ledger import Draft
from jormungandr.service.child import host as module
from jormungandr.service.child.channel import Channel, Closed
from jormungandr.service.child.heartbeat import Heartbeat
from jormungandr.service.child.host import Host
from jormungandr.service.journal.database import Created
from jormungandr.service.journal.writer import Journal
from jormungandr.spec import ModelSpec
from tests.service.serving import DEADLINE, SPEC, experience

ROWS = experience(8, 4)
MODEL = ModelSpec.from_dict(SPEC)
CREATED = Created("m", 1, 0, MODEL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a model without rows."""
    Journal(tmp_path / "journal.db", CREATED).close()
    return tmp_path


def write(folder: Path, rows: list[Any], batch: int = 4) -> int:
    """Put transitions into a model's journal, and return the position of the last row."""
    journal = Journal(folder / "journal.db")
    for at in range(0, len(rows), batch):
        draft = Draft(journal)
        part = columns(rows[at : at + batch], MODEL)
        _, new = Admission(MODEL).transitions(part, draft, served=0, published=99)
        journal.commit(draft, new, [])
        journal.merged(draft)
    lsn = journal.counters.data_lsn
    journal.close()
    return lsn


class Gateway:
    """A host that runs in a thread, and the gateway's end of its channel."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        self._sockets = (ours, theirs)
        self._channel = Channel(ours)
        self.heartbeat = Heartbeat.create()
        self.host = Host(folder, CREATED, Channel(theirs), self.heartbeat, **options)
        self.done: Future[None] = pool.submit(self._run, theirs)

    def _run(self, theirs: socket.socket) -> None:
        try:
            self.host.run()
        finally:
            theirs.shutdown(socket.SHUT_RDWR)

    def send(self, kind: str) -> None:
        """Tell the host something."""
        self._channel.send({"type": kind})

    def receive(self, kind: str) -> dict[str, Any]:
        """Return the next message, which must be of this kind."""
        message = self._channel.receive(DEADLINE)
        assert message is not None
        assert message["type"] == kind
        return message

    def policy(self) -> PolicySnapshot:
        """Take the next policy, past reports, and acknowledge it."""
        message = None
        while message is None or message["type"] != "policy":
            message = self._channel.receive(DEADLINE)
            assert message is not None
        self.send("published")
        return PolicySnapshot.from_bytes(message["bytes"])

    def report(self, lsn: int) -> dict[str, Any]:
        """Return the first report with everything up to a position applied."""
        while True:
            message = self._channel.receive(DEADLINE)
            assert message is not None
            if message["type"] == "policy":
                self.send("published")
            elif message["info"]["applied_lsn"] >= lsn:
                return message

    def read_on(self) -> None:
        """Take everything that comes, until nothing can come any more."""
        while (message := self._channel.receive(DEADLINE)) is not None:
            if message["type"] == "policy":
                self.send("published")

    def end(self) -> None:
        """Go away."""
        for side in self._sockets:
            side.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts hosts on the model's folder, one after the other."""
    started: list[Gateway] = []
    with ThreadPoolExecutor() as pool:

        def build(**options: Any) -> Gateway:
            started.append(Gateway(folder, pool, **options))
            return started[-1]

        yield build
        for gateway in started:
            if not gateway.done.done():
                gateway._sockets[0].shutdown(socket.SHUT_RDWR)
            gateway.done.exception(DEADLINE)
            gateway.end()
    torch.use_deterministic_algorithms(False)


def stop(gateway: Gateway) -> dict[str, Any]:
    """Tell a host to stop, and return its last report."""
    gateway.send("stop")
    last = {}
    while True:
        try:
            message = gateway._channel.receive(DEADLINE)
        except Closed:
            break
        assert message is not None
        last = message
    gateway.done.result(DEADLINE)
    return last


def reference(rows: list[Any] = ROWS) -> Learner:
    """Return a learner of the same rows."""
    learner = Learner(SPEC)
    learner.add(rows)
    return learner


def test_first_words(start: Any) -> None:
    """A new model's host reports, sends version 0, and reports again."""
    gateway = start()

    assert gateway.receive("state")["info"]["applied_lsn"] == 0
    assert gateway.receive("policy")["version"] == 0
    assert gateway.receive("state")["info"]["policy_version"] == 0


def test_newest_comes_when_all_is_read(start: Any, folder: Path) -> None:
    """Once it has read everything it sends the newest policy, the learner's own to the bit."""
    lsn = write(folder, ROWS)
    gateway = start()
    policies = [gateway.policy()]
    while policies[-1].version < reference().policy_version:
        policies.append(gateway.policy())

    assert [p.version for p in policies] == sorted({p.version for p in policies})
    assert policies[-1].digest() == reference().snapshot().digest()
    info = gateway.report(lsn)["info"]
    assert {k: v for k, v in reference().info().items() if k in info} == {
        **info,
        "applied_lsn": reference().info()["applied_lsn"],
    }


def test_one_policy_in_flight(start: Any, folder: Path) -> None:
    """The next policy is not sent before the last one is acknowledged; reports are."""
    lsn = write(folder, ROWS)
    gateway = start()
    gateway.receive("state")
    first = gateway.receive("policy")
    write(folder, experience(4, 4, actor_id="b"))
    gateway.send("doorbell")
    while (message := gateway._channel.receive(0.2)) is not None:
        assert message["type"] == "state"
    gateway.send("published")

    assert gateway.receive("policy")["version"] > first["version"]
    gateway.send("published")
    assert gateway.report(lsn + 1)["info"]["update_count"] > 0


def test_bell(start: Any, folder: Path) -> None:
    """Rows that come while it sleeps are read when the bell rings."""
    gateway = start()
    gateway.policy()
    gateway.report(0)
    lsn = write(folder, ROWS)
    gateway.send("doorbell")

    assert gateway.report(lsn)["info"]["transitions"] == {"train": 24, "validation": 8}


def test_evaluations_are_told_once(start: Any, folder: Path) -> None:
    """Every evaluation is in one report."""
    lsn = write(folder, ROWS)
    gateway = start()
    told = []
    for _ in range(2):
        while True:
            message = gateway._channel.receive(DEADLINE)
            assert message is not None
            if message["type"] == "policy":
                gateway.send("published")
                continue
            told += [e["policy_version"] for e in message["evaluations"]]
            if message["info"]["applied_lsn"] >= lsn:
                break
        lsn = write(folder, experience(9, 4, actor_id="b"))
        gateway.send("doorbell")

    made = reference()
    made.add(experience(9, 4, actor_id="b"))
    assert told == [e.policy_version for e in made.evaluations]


# -- checkpoints --------------------------------------------------------------------------------


def checkpoints(folder: Path) -> list[str]:
    """Return the names in the folder of checkpoints."""
    found = (folder / "checkpoints").glob("*")
    return sorted(path.name.lstrip("0") for path in found)


def test_stop_writes_a_checkpoint(start: Any, folder: Path) -> None:
    """A host that is told to stop writes its state, and the next one reads on from there."""
    lsn = write(folder, ROWS)
    gateway = start()
    gateway.report(lsn)
    last = stop(gateway)
    assert checkpoints(folder) == [str(lsn)]
    assert last["checkpoint_error"] is None

    again = start()
    assert again.receive("state")["info"]["applied_lsn"] == lsn
    assert again.policy().digest() == reference().snapshot().digest()
    more = experience(9, 4, actor_id="b")
    end = write(folder, more)
    again.send("doorbell")
    both = reference()
    both.add(more)
    assert again.report(end)["info"]["update_count"] == both.update_count
    assert again.host._core.snapshot().digest() == both.snapshot().digest()


def test_new_model_leaves_no_checkpoint(start: Any, folder: Path) -> None:
    """A model without rows has nothing to keep; one that is as it was is not written again."""
    gateway = start()
    gateway.policy()
    stop(gateway)

    assert checkpoints(folder) == []


def test_two_are_kept(start: Any, folder: Path) -> None:
    """Only the two newest checkpoints stay."""
    ends = []
    for n in range(4):
        ends.append(write(folder, experience(2, 4, actor_id=f"a{n}")))
        gateway = start()
        gateway.report(ends[-1])
        stop(gateway)

    assert checkpoints(folder) == [str(lsn) for lsn in ends[-2:]]


def test_checkpoint_when_redoing_would_take_long(start: Any, folder: Path) -> None:
    """A checkpoint is written at a row's end once there is enough work to lose."""
    lsn = write(folder, ROWS)
    gateway = start(recovery_budget=1e-9)
    gateway.report(lsn)

    assert checkpoints(folder)[-1] == str(lsn)


@pytest.mark.parametrize("file", ["manifest.json", "state.json", "tensors.safetensors"])
def test_damaged_checkpoint(
    start: Any, folder: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that does not verify is set aside, again and again, and the journal read."""
    lsn = write(folder, ROWS)
    gateway = start()
    gateway.report(lsn)
    stop(gateway)
    for _ in range(2):
        path = folder / "checkpoints" / f"{lsn:020d}" / file
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        again = start()
        assert again.receive("state")["info"]["applied_lsn"] == 0
        again.report(lsn)
        assert again.host._core.snapshot().digest() == reference().snapshot().digest()
        assert checkpoints(folder) == [f"{lsn}.corrupt"]
        stop(again)
        assert checkpoints(folder) == [f"{lsn}", f"{lsn}.corrupt"]
    assert "checkpoint set aside" in caplog.text


def test_older_checkpoint(start: Any, folder: Path) -> None:
    """When the newest does not verify, the one before it and the rows after it do as well."""
    ends = []
    for n in range(2):
        ends.append(write(folder, experience(4, 4, actor_id=f"a{n}")))
        gateway = start()
        gateway.report(ends[-1])
        stop(gateway)
    digest = gateway.host._core.snapshot().digest()
    (folder / "checkpoints" / f"{ends[1]:020d}" / "state.json").unlink()
    again = start()

    assert again.receive("state")["info"]["applied_lsn"] == ends[0]
    again.report(ends[1])
    assert again.host._core.snapshot().digest() == digest


def test_checkpoint_of_another_model(
    start: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that somebody put there from another model is not used."""
    other = Learner({**SPEC, "seed": 5})
    other.add(ROWS)
    other.save(folder / "checkpoints" / f"{other.progress.lsn:020d}")
    lsn = write(folder, ROWS)
    gateway = start()
    gateway.report(lsn)

    assert gateway.host._core.snapshot().digest() == reference().snapshot().digest()
    assert "is of another model" in caplog.text


def test_checkpoint_that_finds_no_room(
    start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that cannot be written is reported; the learner goes on, and tries again."""
    save, full = Core.save, [True]

    def no_room(core: Core, path: Path) -> None:
        if full[0]:
            raise OSError(28, "No space left on device")
        save(core, path)

    monkeypatch.setattr(Core, "save", no_room)
    lsn = write(folder, ROWS)
    gateway = start(recovery_budget=1e-9)
    assert "No space left" in gateway.report(lsn)["checkpoint_error"]
    assert checkpoints(folder) == []
    full[0] = False
    last = stop(gateway)

    assert last["checkpoint_error"] is None
    assert checkpoints(folder) == [str(lsn)]


def test_unfinished_checkpoint_is_swept(start: Any, folder: Path) -> None:
    """What a killed learner left of a checkpoint does not stay for ever."""
    unfinished = folder / "checkpoints" / f".{5:020d}.123.tmp"
    unfinished.mkdir(parents=True)
    (unfinished / "tensors.safetensors").write_bytes(b"half")
    start()

    assert not unfinished.exists()


# -- ends ---------------------------------------------------------------------------------------


def test_damaged_row(start: Any, folder: Path) -> None:
    """A row that is not what was written ends the learner, and names the row."""
    write(folder, ROWS)
    connection = apsw.Connection(str(folder / "journal.db"))
    connection.execute("UPDATE journal SET payload = zeroblob(100) WHERE lsn = 5")
    connection.close()
    gateway = start()

    with pytest.raises(DataDirError, match="row 5: expected its recorded SHA-256"):
        gateway.done.result(DEADLINE)


def test_gateway_that_is_gone(start: Any) -> None:
    """When the gateway's end of the channel closes, the host does not go on alone."""
    gateway = start()
    gateway.policy()
    gateway._sockets[0].shutdown(socket.SHUT_RDWR)

    with pytest.raises(Closed):
        gateway.done.result(DEADLINE)


def test_stop_in_the_middle(start: Any, folder: Path) -> None:
    """A host with much to read stops at the end of a row, and keeps what it has done."""
    for n in range(40):
        lsn = write(folder, experience(1, 4, actor_id=f"a{n}"))
    gateway = start()
    last = stop(gateway)

    applied = last["info"]["applied_lsn"]
    assert 0 <= applied <= lsn
    assert last["checkpoint_error"] is None
    again = start()
    assert again.receive("state")["info"]["applied_lsn"] == applied
    again.report(lsn)
    rows = [row for n in range(40) for row in experience(1, 4, actor_id=f"a{n}")]
    assert again.host._core.snapshot().digest() == reference(rows).snapshot().digest()


def test_folder_of_another_learner(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two learners never work on one folder: the second waits for the first, and not for ever."""
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.1)
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        assert module._take(first)
        assert not module._take(second)
        first.close()
        assert module._take(second)


def test_checkpoint_that_cannot_be_written(start: Any, folder: Path) -> None:
    """Without room for a checkpoint the learner goes on, and says so: the journal has it all."""
    (folder / "checkpoints").write_text("in the way")
    lsn = write(folder, ROWS)
    gateway = start()
    gateway.report(lsn)
    last = stop(gateway)

    assert last["info"]["applied_lsn"] == lsn
    assert "checkpoints" in last["checkpoint_error"]


# -- what the gateway watches -------------------------------------------------------------------


def test_signs_of_life(start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat says what it does and with which row, and goes on while it sleeps."""
    monkeypatch.setattr(module, "BEAT_INTERVAL", 0.01)
    phases: list[tuple[str | None, int | None]] = []
    beat = Heartbeat.beat

    def watched(self: Heartbeat, phase: str | None = None, lsn: int | None = None) -> None:
        beat(self, phase, lsn)
        if phase is not None and (not phases or phases[-1] != (phase, self.lsn)):
            phases.append((phase, self.lsn))

    monkeypatch.setattr(Heartbeat, "beat", watched)
    lsn = write(folder, ROWS, batch=len(ROWS))
    gateway = start()
    gateway.report(lsn)
    while gateway.heartbeat.phase != "idle":
        gateway._channel.receive(0.01)
        gateway.send("published")
    before = gateway.heartbeat.counter
    while gateway.heartbeat.counter < before + 3:
        gateway._channel.receive(0.01)
    stop(gateway)

    assert phases[0] == ("recovering", 0)
    assert {phase for phase, at in phases if at == lsn} >= {"applying", "updating", "evaluating"}
    assert {phase for phase, at in phases if at == 0} >= {"idle", "checkpointing", "publishing"}
    assert {at for _, at in phases} == {0, lsn}


def test_waiting_for_the_lock_is_a_sign_of_life(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's lock is waited for with beats, so that the watchdog has patience too."""
    monkeypatch.setattr(module, "LOCK_TIMEOUT", 0.1)
    beats: list[int] = []
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        assert module._take(first)
        assert not module._take(second, lambda: beats.append(1))

    assert beats


def test_parked_when_all_is_read(start: Any, folder: Path) -> None:
    """Told to park, it applies and publishes whatever there is, writes a checkpoint, and ends."""
    gateway = start()
    gateway.policy()
    gateway.report(0)
    lsn = write(folder, ROWS)
    gateway.send("park")
    last = gateway.report(lsn)
    with pytest.raises(Closed):
        gateway.read_on()

    assert last["info"]["applied_lsn"] == lsn
    assert gateway.host._sent_version == reference().policy_version
    assert checkpoints(folder) == [str(lsn)]
