"""The channel's framing, and the supervision of a learner process."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jormungandr.service.child import channel, watchdog
from jormungandr.service.child import process as module
from jormungandr.service.child.channel import LIMIT, AsyncChannel, Channel, Closed, Garbage
from jormungandr.service.child.process import RESTARTS, LearnerProcess
from tests.service.serving import DEADLINE

MESSAGES: list[dict[str, Any]] = [
    {"type": "state", "info": {"a": [1, 2.5, None, "é"]}},
    {"type": "policy", "bytes": bytes(range(256)) * 1_000},
    {"type": ""},
]


@pytest.fixture
def pair() -> Any:
    """Two connected sockets."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_go_through(pair: Any) -> None:
    """Messages arrive whole and in order, both ways, also when they come together."""
    ours, theirs = pair

    async def talk() -> list[dict[str, Any]]:
        gateway, learner = await AsyncChannel.over(ours), Channel(theirs)
        received = []
        for message in MESSAGES:
            gateway.send(message)
        for _ in MESSAGES:
            received.append(await asyncio.to_thread(learner.receive, DEADLINE))
        for message in MESSAGES:
            await asyncio.to_thread(learner.send, message)
            received.append(await gateway.receive())
        gateway.close()
        return received

    assert asyncio.run(talk()) == MESSAGES * 2


def test_message_in_pieces(pair: Any) -> None:
    """A message that comes byte by byte is a message when the last byte has come."""
    ours, theirs = pair
    learner = Channel(theirs)
    Channel(ours).send({"type": "stop"})
    data = theirs.recv(1_000)
    for byte in data[:-1]:
        ours.sendall(bytes([byte]))
        assert learner.receive(0) is None
    ours.sendall(data[-1:])

    assert learner.receive(DEADLINE) == {"type": "stop"}


def test_no_message_in_time(pair: Any) -> None:
    """Without a message there is none."""
    assert Channel(pair[1]).receive(0) is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Closed),
        (b"\x05\x00\x00\x00abc", Closed),
        (b"\x01\x00\x00\x00\xc1", Garbage),
        (b"\x02\x00\x00\x00\xa1\xff", Garbage),
        (struct.pack("<I", 100_000) + b"\x91" * 100_000, Garbage),
        (b"\x01\x00\x00\x00\x90", Garbage),
        (b"\x01\x00\x00\x00\x80", Garbage),
        (b"\x07\x00\x00\x00\x81\xa4type\x01", Garbage),
        (struct.pack("<I", LIMIT + 1), Garbage),
    ],
    ids=["end", "cut", "no MessagePack", "no text", "deep", "list", "no type", "type 1", "huge"],
)
def test_nonsense(pair: Any, data: bytes, error: type[Exception]) -> None:
    """Whatever is no message is told from the end of the channel, on the gateway's side."""
    ours, theirs = pair

    async def listen() -> None:
        gateway = await AsyncChannel.over(ours)
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_RDWR)
        try:
            await asyncio.wait_for(gateway.receive(), DEADLINE)
        finally:
            gateway.close()

    with pytest.raises(error):
        asyncio.run(listen())


def test_a_message_that_is_not_finished(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that stops in the middle of a message is not waited for without end."""
    monkeypatch.setattr(channel, "REST_TIMEOUT", 0.05)
    ours, theirs = pair

    async def listen() -> None:
        gateway = await AsyncChannel.over(ours)
        theirs.sendall(struct.pack("<I", 100) + b"abc")
        try:
            await asyncio.wait_for(gateway.receive(), DEADLINE)
        finally:
            gateway.close()

    with pytest.raises(Garbage, match="a part of 100 bytes, and not the rest"):
        asyncio.run(listen())


def test_no_room_to_send_in(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner whose gateway does not read for a while waits for it, and says that it does."""
    monkeypatch.setattr(channel, "ROOM_WAIT", 0.01)
    ours, theirs = pair
    waited: list[int] = []
    full = threading.Event()

    def waiting() -> None:
        waited.append(1)
        if len(waited) == 3:
            full.set()

    message = {"type": "state", "padding": "x" * 3_000_000}
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(Channel(theirs, waiting).send, message)
        assert full.wait(DEADLINE)
        assert Channel(ours).receive(DEADLINE) == message
        sent.result(DEADLINE)


def test_other_side_gone(pair: Any) -> None:
    """A learner whose gateway is gone hears it, whether it speaks or listens."""
    ours, theirs = pair
    learner = Channel(theirs)
    ours.close()

    with pytest.raises(Closed):
        learner.receive(DEADLINE)
    with pytest.raises(Closed):
        learner.send({"type": "state", "padding": "x" * 10_000_000})


# -- supervision --------------------------------------------------------------------------------


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of the learner process, and lets no time pass between."""
    monkeypatch.setattr(module, "BACKOFF", 0.0)

    def put(script: str) -> None:
        path = tmp_path / "child"
        path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setattr(module, "sys", SimpleNamespace(executable=str(path)))

    return put


async def ignore(message: dict[str, Any]) -> None:
    """Do nothing with a message."""


async def no_row(lsn: int, reason: str) -> bool:
    """Set no row aside."""
    return False


def learner(folder: Path, threads: int = 1, **options: Any) -> LearnerProcess:
    """Return the process of a model without rows."""
    return LearnerProcess(folder, threads, ignore, **{"on_row": no_row, **options})


async def reached(process: LearnerProcess, state: str) -> None:
    """Wait until a process is in a state."""
    async with asyncio.timeout(DEADLINE):
        while process.state != state:
            await asyncio.to_thread(time.sleep, 0.01)


def test_child_that_cannot_live(child: Any, tmp_path: Path) -> None:
    """A learner that ends again and again without progress is given up, with a reason."""
    child(f"echo once >> {tmp_path}/starts; exit 3")

    async def watch() -> LearnerProcess:
        process = learner(tmp_path)
        assert (process.state, process.pid) == ("idle", None)
        process.start()
        process.start()
        await reached(process, "failed")
        await process.stop()
        return process

    process = asyncio.run(watch())
    assert process.report()["last_end"] == "exit status 3"
    assert (tmp_path / "starts").read_text() == "once\n" * RESTARTS
    assert (process.pid, process.report()["ends"]) == (None, RESTARTS)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 0", "exit status 0"),
        ("exit 3", "exit status 3"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("kill -KILL $$", "killed by SIGKILL, perhaps out of memory"),
    ],
)
def test_reason_of_the_end(child: Any, tmp_path: Path, script: str, reason: str) -> None:
    """A learner that is given up says what its last end was."""
    child(script)

    async def watch() -> str | None:
        process = learner(tmp_path)
        process.start()
        await reached(process, "failed")
        return process.error

    assert asyncio.run(watch()) == (
        f"the learner ended {RESTARTS} times in a row, last: {reason};"
        " it is tried again when a row comes after 300 s"
    )


def test_another_try(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that was given up is tried again when a row comes, after a pause and not before."""
    child(f"echo once >> {tmp_path}/starts; exit 3")

    async def watch() -> None:
        process = learner(tmp_path)
        process.start()
        await reached(process, "failed")
        process.start()
        await asyncio.sleep(0)
        assert process.state == "failed"
        monkeypatch.setattr(process, "_retry_at", 0.0)
        process.start()
        await asyncio.sleep(0)
        assert process.state == "starting"
        await reached(process, "failed")

    asyncio.run(watch())
    assert (tmp_path / "starts").read_text() == "once\n" * 2 * RESTARTS


def test_silent_child(child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that never shows a sign of life is killed, again and again, and given up."""
    monkeypatch.setitem(watchdog.DEADLINES, "importing", 0.1)
    monkeypatch.setattr(module, "RESTARTS", 2)
    child(f"echo once >> {tmp_path}/starts; exec sleep 600")

    async def watch() -> tuple[str | None, str | None]:
        process = learner(tmp_path)
        process.start()
        seen: set[str] = set()
        async with asyncio.timeout(DEADLINE):
            while process.state != "failed":
                seen.add(process.state)
                await asyncio.sleep(0)
        assert seen == {"starting", "hung", "restarting"}
        return process.error, process.report()["last_end"]

    error, last = asyncio.run(watch())
    assert last == "hung: no sign of life for 0.1 s while importing"
    assert error is not None
    assert last in error
    assert (tmp_path / "starts").read_text() == "once\n" * 2


def test_child_that_closes_the_channel_and_stays(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that cannot be talked to any more does not go on alone."""
    monkeypatch.setattr(module, "EXIT_TIMEOUT", 0.05)
    monkeypatch.setattr(module, "RESTARTS", 1)
    child('eval "exec $5>&-"; exec sleep 600')

    async def watch() -> None:
        process = learner(tmp_path)
        process.start()
        await reached(process, "failed")

    asyncio.run(watch())


def test_child_gets_its_threads(child: Any, tmp_path: Path) -> None:
    """The numeric libraries' thread counts are set before the child imports anything."""
    child(
        f"echo $OMP_NUM_THREADS $OPENBLAS_NUM_THREADS $MKL_NUM_THREADS > {tmp_path}/threads; exit"
    )

    async def watch() -> None:
        process = learner(tmp_path, 3)
        process.start()
        await reached(process, "failed")
        await process.stop()

    asyncio.run(watch())
    assert (tmp_path / "threads").read_text() == "3 3 3\n"


def test_stop_of_a_child_that_does_not_listen(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that does not stop in its time is killed."""
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.1)
    child("exec sleep 600")

    async def watch() -> LearnerProcess:
        process = learner(tmp_path)
        process.start()
        await asyncio.sleep(0)
        pid = process.pid
        assert pid is not None
        await process.stop()
        return process

    process = asyncio.run(watch())
    assert (process.state, process.pid) == ("stopped", None)


def test_stop_before_the_start(tmp_path: Path) -> None:
    """A model that is stopped before it ever started a learner starts none after."""

    async def watch() -> LearnerProcess:
        process = learner(tmp_path)
        await process.stop()
        process.start()
        await asyncio.sleep(0)
        return process

    assert asyncio.run(watch()).pid is None


def test_stop_while_the_channel_is_made(
    child: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A learner that is told to stop before it can be talked to hears it as soon as it can."""
    hears = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"
    child(f"exec {sys.executable} -c '{hears}' $5")  # ends when it has heard something
    over = AsyncChannel.over

    async def watch() -> None:
        process = learner(tmp_path)
        entered, leave = asyncio.Event(), asyncio.Event()

        class Late(AsyncChannel):
            @classmethod
            async def over(cls, sock: socket.socket, limit: int = LIMIT) -> AsyncChannel:
                entered.set()
                await leave.wait()
                return await over(sock, limit)

        monkeypatch.setattr(module, "AsyncChannel", Late)
        process.start()
        await entered.wait()
        stopping = asyncio.create_task(process.stop())
        await asyncio.sleep(0)
        leave.set()
        await stopping

    asyncio.run(watch())
    assert "did not stop" not in caplog.text


def test_child_that_cannot_be_made(
    child: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a process or descriptor to be had, it is tried again, and then given up."""
    child("exit 0")
    tried = []

    def fork(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(module.subprocess, "Popen", fork)

    async def watch() -> LearnerProcess:
        process = learner(tmp_path)
        process.start()
        await reached(process, "failed")
        await process.stop()
        return process

    process = asyncio.run(watch())
    assert len(tried) == RESTARTS
    assert process.report()["last_end"] == "not to be started: no more processes"


def test_modules_do_not_come_from_the_folder_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that happens to lie where the server was started is not run by its learners."""
    (tmp_path / "jormungandr").mkdir()
    (tmp_path / "jormungandr" / "__init__.py").write_text("open('poisoned', 'w')")
    monkeypatch.chdir(tmp_path)

    async def watch() -> None:
        folder = tmp_path / "m.1"
        folder.mkdir()
        process = learner(folder)
        monkeypatch.setattr(module, "RESTARTS", 1)  # there is no journal in that folder
        process.start()
        await reached(process, "failed")
        await process.stop()

    asyncio.run(watch())
    assert not (tmp_path / "poisoned").exists()


def test_high_descriptors() -> None:
    """A channel works on a descriptor above 1,023, which select() does not know."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            high = fcntl.fcntl(theirs, fcntl.F_DUPFD, 1_500)
        except OSError:
            pytest.skip("so many descriptors are not to be had here")
        with socket.socket(fileno=high) as end:
            Channel(ours).send({"type": "stop"})
            assert Channel(end).receive(DEADLINE) == {"type": "stop"}
