"""The heartbeat in shared memory, and the judge of it."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jormungandr.service.child import watchdog as module
from jormungandr.service.child.heartbeat import PHASES, Heartbeat
from jormungandr.service.child.watchdog import DEADLINES, Watchdog


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def heartbeat() -> Iterator[Heartbeat]:
    """A new heartbeat."""
    made = Heartbeat.create()
    yield made
    made.close()


def look(dog: Watchdog, clock: Clock, seconds: float) -> str | None:
    """Let time pass with a look every half second; return the last verdict."""
    found = None
    for _ in range(int(2 * seconds)):
        clock.now += 0.5
        found = dog.verdict()
    return found


def test_another_process_beats(heartbeat: Heartbeat) -> None:
    """What one process writes the other reads, also when the writer has ended."""
    code = (
        "import sys; from jormungandr.service.child.heartbeat import Heartbeat\n"
        "h = Heartbeat(int(sys.argv[1])); h.beat('applying', 7); h.beat('updating'); h.beat()"
    )
    assert (heartbeat.counter, heartbeat.phase, heartbeat.lsn) == (0, "importing", 0)
    subprocess.run(
        [sys.executable, "-c", code, str(heartbeat.fd)], pass_fds=[heartbeat.fd], check=True
    )

    assert (heartbeat.counter, heartbeat.phase, heartbeat.lsn) == (3, "updating", 7)


@pytest.mark.skipif(sys.platform != "linux", reason="files elsewhere cannot be sealed")
def test_memory_cannot_be_cut(heartbeat: Heartbeat) -> None:
    """A learner cannot take the memory away under the gateway, which would die of reading it."""
    with pytest.raises(PermissionError):
        os.ftruncate(heartbeat.fd, 0)

    assert heartbeat.counter == 0


def test_nonsense_in_memory(heartbeat: Heartbeat) -> None:
    """A phase that is none has a name and a deadline too."""
    with mmap.mmap(heartbeat.fd, 24) as memory:
        memory[:] = struct.pack("qqq", -1, 99, -5)

    assert (heartbeat.counter, heartbeat.phase, heartbeat.lsn) == (-1, "unknown", -5)
    assert Watchdog(heartbeat).verdict() is None


def test_every_phase_has_a_deadline() -> None:
    """A phase without one would be a fault in the gateway."""
    assert set(DEADLINES) == {*PHASES, "unknown"}


@pytest.mark.parametrize("phase", PHASES)
def test_silence(heartbeat: Heartbeat, phase: str) -> None:
    """Each phase has its own deadline: silent for so long is well, for longer is hung."""
    clock = Clock()
    heartbeat.beat(phase, 3)
    dog = Watchdog(heartbeat, clock)

    assert look(dog, clock, DEADLINES[phase]) is None
    assert look(dog, clock, 0.5) == (
        f"hung: no sign of life for {DEADLINES[phase]:g} s while {phase}"
    )


def test_beats_keep_it_well(heartbeat: Heartbeat) -> None:
    """Every beat starts the silence anew, in the same phase as well."""
    clock = Clock()
    dog = Watchdog(heartbeat, clock)
    for _ in range(100):
        heartbeat.beat("idle")
        assert look(dog, clock, DEADLINES["idle"] - 1) is None

    assert dog.silence() == DEADLINES["idle"] - 1 - 0.5
    heartbeat.beat()
    assert dog.silence() == 0.0


def test_a_gateway_that_was_stopped_accuses_nobody(heartbeat: Heartbeat) -> None:
    """A pause of the gateway's own is no silence of the learner."""
    clock = Clock()
    heartbeat.beat("idle")
    dog = Watchdog(heartbeat, clock)
    for _ in range(5):
        clock.now += 3_600.0
        assert dog.verdict() is None

    assert dog.silence() == 5 * 2 * dog.period


def test_short_deadlines_are_looked_at_often(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks several times within the shortest deadline."""
    assert Watchdog(heartbeat).period == 1.0
    monkeypatch.setitem(module.DEADLINES, "idle", 0.2)

    assert Watchdog(heartbeat).period == 0.05
