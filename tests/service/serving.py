"""What tests of the service share: the app in memory, a real server, experience to send them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from starlette.testclient import TestClient

from jormungandr import Learner, PolicySnapshot, RemoteLearner
from jormungandr.service.app import create_app
from jormungandr.transport import Response

TOKEN = "the-operator's-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
#: Longest wait for anything, in seconds: a test that reaches it has failed.
DEADLINE = 60.0

#: A model that updates after every training transition from the eighth on, and evaluates each time.
SPEC: dict[str, Any] = {
    "observation": {"features": ["x", "y"]},
    "actions": [
        {"label": "SHORT", "value": -1},
        {"label": "FLAT", "value": 0},
        {"label": "LONG", "value": 1},
    ],
    "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1},
    "split_scope": "episode",
    "c51": {"atoms": 11, "support": [-2, 2], "hidden": 8, "batch_size": 4, "target_interval": 5},
    "replay": {"capacity": 64, "beta_updates": 50},
    "validation": {"capacity": 16, "evaluate_every": 1},
    "pacing": {"learning_starts": 8, "updates_per_transition": 1.0},
    "exploration": {"start": 1.0, "end": 0.25, "transitions": 40},
}
#: The same, but it never updates: what it stores is all that it does.
QUIET: dict[str, Any] = {
    **SPEC,
    "split_scope": "transition",
    "replay": {"capacity": 4},
    "pacing": {"learning_starts": 1_000_000},
}


def experience(episodes: int, length: int, *, actor_id: str = "a", seed: int = 0) -> list[Any]:
    """Return transitions of whole episodes; 1, 5, 9 … are held out, half of all have a label."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(episodes):
        path = rng.standard_normal((length + 1, 2)).astype(np.float32).tolist()
        for t in range(length):
            row = {
                "actor_id": actor_id,
                "episode_id": f"e{n}",
                "timestep": t,
                "split": "validation" if n % 4 == 1 else "train",
                "policy_version": -1,
                "observation": path[t],
                "action": int(rng.integers(3)),
                "reward": float(rng.normal()),
                "next_observation": path[t + 1],
                "terminated": t == length - 1,
                "truncated": False,
            }
            rows.append({**row, "label": int(path[t][0] > 0)} if t % 2 else row)
    return rows


def identity(actor_id: str, episode_id: str, timestep: int) -> dict[str, Any]:
    """Return the fields that name a transition."""
    return {"actor_id": actor_id, "episode_id": episode_id, "timestep": timestep}


#: Of few identities, so that they meet: over the edge of a block of 256, in both splits.
IDENTITIES = st.builds(
    identity, st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from([0, 1, 2, 255, 256])
)
_TRANSITIONS = st.builds(
    lambda who, split, reward, end, label: {
        **who,
        "split": split,
        "policy_version": -1,
        "observation": [0.0, 1.0],
        "action": 1,
        "reward": reward,
        "next_observation": [1.0, 0.0],
        "terminated": end,
        "truncated": False,
        **({} if label is None else {"label": label}),
    },
    IDENTITIES,
    st.sampled_from(["train"] * 5 + ["validation"]),
    st.sampled_from([0.5] * 9 + [1.0]),
    st.sampled_from([False] * 9 + [True]),
    st.sampled_from([None, None, None, 0, 1]),
)
_LABELS = st.builds(lambda who, cls: {**who, "label": cls}, IDENTITIES, st.sampled_from([0, 0, 1]))
#: One thing that may happen to a ledger: transitions or labels come, or it is opened again.
LEDGER = st.one_of(
    st.tuples(st.just("add"), st.lists(_TRANSITIONS, max_size=5)),
    st.tuples(st.just("label"), st.lists(_LABELS, max_size=3)),
    st.tuples(st.just("restart"), st.none()),
)


class InMemory:
    """A `Transport` into an application in this process."""

    def __init__(self, http: TestClient) -> None:
        self._http = http

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Hand the request to the application."""
        got = self._http.request(method, path, content=body, headers=headers)
        return Response(got.status_code, dict(got.headers), got.content)

    def close(self) -> None:
        """Nothing to close: the application belongs to the test."""


@contextlib.contextmanager
def memory(data_dir: Path, **options: Any) -> Iterator[TestClient]:
    """Run the application on a data directory, in this process."""
    with TestClient(create_app(data_dir, token=TOKEN, **options)) as http:
        yield http


def connect(http: TestClient, model_id: str, **options: Any) -> RemoteLearner:
    """Return the client of a model of an application in this process."""
    return RemoteLearner(None, model_id, TOKEN, transport=InMemory(http), **options)


class Server:
    """``jormungandr serve`` on a free port of this machine, in a session of its own."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "jormungandr", "serve", "--data-dir", str(data_dir)]
        with (data_dir / "stderr").open("a") as errors:
            self.process = subprocess.Popen(
                [*command, "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.removeprefix("listening on ").strip()
        if not line.startswith("listening on "):
            self.kill()
            raise AssertionError((data_dir / "stderr").read_text())
        self.token = (data_dir / "operator-token").read_text().strip()

    def connect(self, model_id: str, **options: Any) -> RemoteLearner:
        """Return the client of a model."""
        return RemoteLearner(self.url, model_id, self.token, **options)

    def terminate(self) -> int:
        """Send SIGTERM, unless the server has ended, and return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self._end()

    def kill(self) -> int:
        """Send SIGKILL to the server's process group and return its exit status."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        return self._end()

    def _end(self) -> int:
        try:
            return self.process.wait(DEADLINE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()


def until(holds: Callable[[], Any], what: str) -> Any:
    """Return what `holds` returns once it is true; fail after the deadline."""
    end = time.monotonic() + DEADLINE
    while not (found := holds()):
        assert time.monotonic() < end, f"{what}: not within {DEADLINE:g} s"
        time.sleep(0.01)
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        os.kill(pid, 0)
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # it ended meanwhile, or this is a system without /proc
        return Path("/proc/self").exists()


def served(data_dir: Path, folder: str) -> PolicySnapshot:
    """Return the newest policy that a service keeps of a model, such as ``m.1``."""
    policies = data_dir / "models" / folder / "policies"
    return PolicySnapshot.open(max(policies.glob("*.safetensors")))


def policy_message(snapshot: PolicySnapshot, lsn: int = 0) -> dict[str, Any]:
    """Return the message with which a learner process delivers a policy."""
    return {
        "type": "policy",
        "version": snapshot.version,
        "update_count": snapshot.update_count,
        "applied_lsn": lsn,
        "digest": snapshot.digest(),
        "bytes": snapshot.to_bytes(),
    }


def state_message(learner: Learner, lsn: int = 0) -> dict[str, Any]:
    """Return the message with which a learner process reports."""
    return {
        "type": "state",
        "info": {**learner.info(), "applied_lsn": lsn},
        "metrics": learner.metrics(),
        "evaluations": [],
        "checkpoint_error": None,
    }
