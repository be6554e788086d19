"""A service that is gone for a while: actors go on, and in the end what was sent is stored."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from jormungandr import RemoteLearner
from jormungandr.client import Spool
from jormungandr_wrappers import OverlappedRecorder, RemoteActor, VectorRecorder
from tests.service.serving import Server, until

pytestmark = pytest.mark.slow

#: It begins to learn early, and learns little: what is waited for here is the network.
SPEC = {"preset": "ou-note", "pacing": {"learning_starts": 100, "updates_per_transition": 0.02}}


def create(server: Server) -> None:
    """Create the model."""
    with server.connect("m") as endpoint:
        endpoint.create(SPEC)


def again(server: Server) -> Server:
    """Return a new server on the directory and the port of one that was killed."""
    return Server(server.data_dir, "--port", server.url.rpartition(":")[2])


def stored(endpoint: RemoteLearner) -> int:
    """Return how many transitions of both splits are in the journal."""
    accepted: dict[str, int] = endpoint.info()["accepted"]
    return sum(accepted.values())


def outage(folder: Path, away: float) -> dict[str, Any]:
    """Play, kill the server, play on for so many seconds, start it again; return what came of it.

    Nothing here sleeps: the actor is what takes the time.
    """
    with Server(folder / "data") as server:
        create(server)
        endpoint = server.connect("m", placement="local", spool=Spool(folder / "spool"))
        actor = RemoteActor(gym.make("OUSpread-v0"), endpoint, actor_id="a", batch_size=16)
        steps = actor.run(episodes=3, seed=0).transitions
        version = endpoint.version
        server.kill()
        end, during = time.monotonic() + away, 0
        while during == 0 or time.monotonic() < end:
            during += actor.run(episodes=1).transitions
        waited = endpoint.spool.rows if endpoint.spool is not None else 0
        with again(server):
            receipt = actor.flush()
            steps += during + actor.run(episodes=2).transitions
            receipt = actor.flush()
            endpoint.wait(receipt.lsn)
            until(lambda: endpoint.version > version, "a newer policy")
            found = stored(endpoint)
            endpoint.close()
    return {
        "sent": steps,
        "stored": found,
        "known": receipt.accepted + receipt.duplicate,
        "during": during,
        "waited": waited,
        "version": endpoint.version,
    }


def test_gone_and_back(tmp_path: Path) -> None:
    """A local actor steps on while the service is gone; afterwards sent = stored, to the row."""
    found = outage(tmp_path, away=1.0)

    assert found["sent"] == found["stored"] == found["known"]
    assert found["during"] >= 48
    assert found["waited"] > 0


@pytest.mark.parametrize("overlapped", [True, False])
def test_vector_recorders_step_on(tmp_path: Path, overlapped: bool) -> None:
    """Recorders of many environments do so too, and close without waiting."""
    with Server(tmp_path / "data") as server:
        create(server)
        endpoint = server.connect("m", placement="local", spool=Spool(tmp_path / "spool"))
        envs = [gym.make_vec("OUSpread-v0", num_envs=2) for _ in range(2)]
        recorder: Any = VectorRecorder(envs[0], endpoint, actor_id="a")
        if overlapped:
            recorder = OverlappedRecorder(envs, endpoint, actor_id="a")
        seen = recorder.reset(seed=0)
        for step in range(60):
            if step == 20:
                recorder.flush()
                server.kill()
            if overlapped:
                recorder.play(1)
            else:
                seen = recorder.step(recorder.act(seen[0]))
        recorder.close()
        with again(server):
            receipt = endpoint.flush()
            rows = 60 * recorder.num_envs - recorder.num_envs  # less the rows that report a reset
            assert receipt.accepted + receipt.duplicate == stored(endpoint) == rows
            endpoint.close()


def actor_process(server: Server, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start ``jormungandr actor`` with a spool."""
    environment = {**os.environ, "JORMUNGANDR_URL": server.url, "JORMUNGANDR_TOKEN": server.token}
    command = [sys.executable, "-m", "jormungandr", "actor", "OUSpread-v0", "--model", "m"]
    spool = ["--actor-id", "a", "--placement", "local", "--spool", str(folder / "spool")]
    return subprocess.Popen(
        [*command, *spool, *more], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_actor_killed_while_the_service_is_gone(tmp_path: Path) -> None:
    """What an actor that was killed had in its spool, the next one sends: each row once."""
    with Server(tmp_path / "data") as server:
        create(server)
        actor = actor_process(server, tmp_path, "--episodes", "1000000")
        assert actor.stdout is not None
        lines = [actor.stdout.readline() for _ in range(3)]
        server.kill()
        lines += [actor.stdout.readline() for _ in range(20)]
        actor.send_signal(signal.SIGKILL)
        actor.wait()
        # Each line is an episode of 48 steps, handed over before the line was printed.
        lines += actor.stdout.readlines()
        played = sum(line.endswith("\n") for line in lines)
        actor.stdout.close()
        with again(server) as second:
            following = actor_process(second, tmp_path, "--episodes", "2")
            out, _ = following.communicate()
            assert following.returncode == 0
            played += len(out.splitlines())
            with second.connect("m") as endpoint:
                found = stored(endpoint)

    assert all("return" in json.loads(line) for line in lines if line.endswith("\n"))
    assert 48 * played <= found <= 48 * (played + 2)


MEASURE = """
import sys
from jormungandr.cli import main
status = main(sys.argv[1:])
heavy = {"torch", "stable_baselines3", "scipy", "pandas", "matplotlib", "sqlite3", "apsw"}
print("loaded", sorted(heavy & set(sys.modules)))
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(status)
"""
#: Most memory that an actor process takes, in MiB.
ACTOR_MIB = 60


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux")
@pytest.mark.parametrize("placement", ["remote", "local"])
def test_memory_of_an_actor(tmp_path: Path, placement: str) -> None:
    """An actor process loads neither torch nor Stable-Baselines3, and takes at most 60 MiB."""
    with Server(tmp_path / "data") as server:
        create(server)
        environment = {
            **os.environ,
            "JORMUNGANDR_URL": server.url,
            "JORMUNGANDR_TOKEN": server.token,
        }
        command = ["actor", "OUSpread-v0", "--model", "m", "--actor-id", "a", "--num-envs", "4"]
        more = ["--placement", placement, "--spool", str(tmp_path / "spool"), "--episodes", "50"]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *command, *more],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    *lines, loaded, most, _ = done.stdout.splitlines()
    mib = int(most.split()[1]) / 1024
    print(f"{placement}: {mib:.1f} MiB")

    assert len(lines) == 50
    assert loaded == "loaded []"
    assert mib <= ACTOR_MIB


def main() -> None:
    """Run the outage for longer: ``python -m tests.faults.test_outage --seconds 60``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    with tempfile.TemporaryDirectory() as folder:
        found = outage(Path(folder), parser.parse_args().seconds)
    print(json.dumps(found))
    if found["sent"] != found["stored"]:
        sys.exit("what was sent is not what is stored")


if __name__ == "__main__":
    main()
