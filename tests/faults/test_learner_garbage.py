"""Learners that send what no learner sends: never served, never a fault of the gateway."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jormungandr import Learner, PolicySnapshot
from jormungandr.service.child import process
from jormungandr.service.child.messages import longest
from jormungandr.service.child.process import RESTARTS
from jormungandr.spec import ModelSpec
from tests.faults.learners import put, service
from tests.service.serving import SPEC, experience, policy_message, state_message, until

MODEL = ModelSpec.from_dict(SPEC)
#: Sends a file and then does nothing but to stay.
SENDS = (
    "import socket, sys, time; s = socket.socket(fileno=int(sys.argv[1]));"
    ' s.sendall(open(sys.argv[2], "rb").read()); time.sleep(600)'
)


def framed(*messages: Any) -> bytes:
    """Return messages as they go over the channel."""
    bodies = [m if isinstance(m, bytes) else msgspec.msgpack.encode(m) for m in messages]
    return b"".join(struct.pack("<I", len(body)) + body for body in bodies)


def learned(spec: Any = SPEC, **options: Any) -> Learner:
    """Return a learner that has made a few policies."""
    learner = Learner(spec, **options)
    learner.add(experience(4, 4))
    return learner


def broken(**fields: Any) -> dict[str, Any]:
    """Return the message with a good policy, fields of it overridden."""
    return {**policy_message(learned().snapshot()), **fields}


def weights(change: Callable[[np.ndarray[Any, Any]], Any]) -> dict[str, Any]:
    """Return a message whose policy has one array changed, and says its digest of it."""
    policy = learned().snapshot()
    array = policy.weights["value.weight"].copy()
    policy.weights["value.weight"] = np.asarray(change(array))
    return policy_message(policy)


def nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array with a NaN in it."""
    array[0, 0] = np.nan
    return array


GOOD = broken()["bytes"]
STATE = state_message(learned())
GARBAGE: dict[str, tuple[bytes, str]] = {
    "no snapshot": (framed(broken(bytes=b"x" * 1_000)), "safetensors of a policy"),
    "cut snapshot": (framed(broken(bytes=GOOD[:-9])), "safetensors of a policy"),
    "empty snapshot": (framed(broken(bytes=b"")), "safetensors of a policy"),
    "huge header": (framed(broken(bytes=b"\xff" * 8 + GOOD[8:])), "safetensors of a policy"),
    "another spec": (
        framed(policy_message(learned({**SPEC, "seed": 5}).snapshot())),
        "another spec",
    ),
    "another shape": (framed(weights(lambda a: a[:, :-1].copy())), "policy.value.weight"),
    "NaN": (framed(weights(nan)), "finite numbers"),
    "another digest": (framed(broken(digest="0" * 64)), "another digest"),
    "another version": (framed(broken(version=77)), "another version"),
    "another generation": (
        framed(policy_message(learned(generation=2).snapshot())),
        "another generation",
    ),
    "a text for bytes": (framed(broken(bytes=1)), "a policy message"),
    "a negative version": (framed(broken(version=-1)), "a policy message"),
    "a huge version": (framed(broken(version=1 << 60)), "a policy message"),
    "no digest": (framed({**broken(), "digest": "../../x"}), "a policy message"),
    "no fields": (framed({"type": "policy"}), "a policy message"),
    "a report without figures": (framed({**STATE, "info": {}}), "a report"),
    "figures of another kind": (
        framed({**STATE, "info": {**STATE["info"], "transitions": {"train": "x"}}}),
        "a report",
    ),
    "figures that are no JSON": (
        framed({**STATE, "metrics": {"x": msgspec.msgpack.Ext(5, b"x")}}),
        "a report",
    ),
    "evaluations of another kind": (framed({**STATE, "evaluations": [5]}), "a report"),
    "unknown type": (framed({"type": "shutdown", "now": True}), "of type 'shutdown'"),
    "no type": (framed({"version": 3}), "without a type"),
    "a list": (framed([1, 2]), "without a type"),
    "no MessagePack": (framed(b"\xc1" * 100), "no MessagePack"),
    "deep": (framed(b"\x91" * 100_000), "no MessagePack"),
    "a huge frame": (struct.pack("<I", longest(MODEL) + 1), "of which"),
    "noise": (np.random.default_rng(0).bytes(10_000), ""),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_never_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Garbage ends its sender, five times in all; the policy before it is served throughout."""
    data, reason = GARBAGE[name]
    restarts = RESTARTS if name == "no snapshot" else 2  # one of them takes all its time
    monkeypatch.setattr(process, "RESTARTS", restarts)
    monkeypatch.setattr(process, "BACKOFF", 0.0)
    first = Learner(SPEC)
    sent = framed(policy_message(first.snapshot()), state_message(first)) + data
    (tmp_path / "sent").write_bytes(sent)
    put(
        monkeypatch,
        tmp_path,
        f"echo once >> {tmp_path}/starts; exec {sys.executable} -IS -c '{SENDS}' $5"
        f" {tmp_path}/sent",
    )
    with service(tmp_path / "data", monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        assert endpoint.add(experience(1, 4)).accepted == 4
        found = running.reached("failed")
        info = endpoint.info()

        assert found["ends"] == restarts
        assert found["error"].startswith(f"the learner ended {restarts} times in a row, last: ")
        assert "killed for sending garbage: " in found["error"]
        assert reason in found["last_end"]
        assert (tmp_path / "starts").read_text() == "once\n" * restarts
        assert endpoint.act([[1, 1]], deterministic=True) == first.act([[1, 1]], deterministic=True)
        assert (info["policy_version"], info["applied_lsn"]) == (0, 0)
        assert [row.version for row in running.model().journal.versions()] == [0]
        assert endpoint.add(experience(1, 4, actor_id="b")).accepted == 4
        running.model().learning.process._retry_at = 0.0  # the pause is over
        assert endpoint.add(experience(1, 4, actor_id="c")).accepted == 4
        running.reached("starting", "running")


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        # A row that is not there, of a phase that is none.
        "exec PYTHON -IS -c 'import mmap, struct, sys; mmap.mmap(int(sys.argv[1]), 24)[:] ="
        ' struct.pack("qqq", 5, 99, 10**12)\' $6',
        # A part of a message, and the end.
        "exec PYTHON -IS -c 'import socket, sys; socket.socket(fileno=int(sys.argv[1]))"
        ".sendall(bytes([255, 0, 0, 0, 1]))' $5",
    ],
    ids=["nothing", "a wild heartbeat", "a part of a message"],
)
def test_ends_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Ends that blame a row that does not exist, or leave half a message, set nothing aside."""
    monkeypatch.setattr(process, "BACKOFF", 0.0)
    put(monkeypatch, tmp_path, script.replace("PYTHON", sys.executable))
    with service(tmp_path / "data", monkeypatch) as running:
        endpoint = running.connect()
        endpoint.create(SPEC)
        assert endpoint.add(experience(1, 4)).accepted == 4
        assert running.reached("failed")["last_end"] == "exit status 0"
        assert endpoint.info()["warnings"] == []
        assert endpoint.metrics()["learner"] == {"ends": RESTARTS, "quarantined": []}


@pytest.mark.slow
def test_a_real_one_puts_it_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After garbage a learner that works catches up, and its policies are served."""
    with monkeypatch.context() as patch:
        (tmp_path / "sent").write_bytes(framed({"type": "?"}))
        put(patch, tmp_path, f"exec {sys.executable} -IS -c '{SENDS}' $5 {tmp_path}/sent")
        with service(tmp_path / "data", patch) as running:
            endpoint = running.connect()
            endpoint.create(SPEC)
            lsn = endpoint.add(experience(8, 4)).lsn
            until(lambda: running.learner()["ends"] > 0, "an end")
            patch.undo()
            reference = Learner(SPEC)
            reference.add(experience(8, 4))
            assert endpoint.wait(lsn)["policy_version"] == reference.policy_version
            policy: PolicySnapshot | None = running.model().policy
            assert policy is not None
            assert policy.digest() == reference.snapshot().digest()
