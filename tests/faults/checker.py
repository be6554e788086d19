"""The checker: what oracles were told, held against what is on the disk and what a service says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from jormungandr import RemoteLearner
from jormungandr.columns import TRAIN, Columns
from jormungandr.failpoints import VARIABLE
from jormungandr.learner.core import Core
from jormungandr.ledger import BLOCK, block_from_bytes
from jormungandr.protocol import SPLITS
from jormungandr.rows import ACCEPTED, LabelsRow, SkippedRow, TransitionsRow
from jormungandr.service.child.lineage import enter
from jormungandr.service.child.recovery import checkpoints
from jormungandr.service.journal.database import connect, control_rows
from jormungandr.service.journal.reader import JournalReader
from tests.faults.oracle import content, label_of
from tests.service.serving import DEADLINE, Server

ROOT = Path(__file__).parents[2]
Identity = tuple[str, str, int]

#: A model that learns now and then: most of the time goes into what comes in.
SPEC: dict[str, Any] = {
    "observation": {"features": ["x", "y"]},
    "actions": 3,
    "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1},
    "split_scope": "episode",
    "c51": {
        "atoms": 11,
        "support": [-2, 2],
        "hidden": 8,
        "batch_size": 4,
        "target_interval": 5,
        "n_step": 3,
    },
    "replay": {"capacity": 512, "beta_updates": 500},
    "validation": {"capacity": 64, "evaluate_every": 50},
    "pacing": {"learning_starts": 16, "updates_per_transition": 0.02},
    "exploration": {"start": 1.0, "end": 0.25, "transitions": 40},
}


# -- oracles -------------------------------------------------------------------------------------


class Actors:
    """Oracles in processes of their own, and their logs.

    Args:
        data_dir: of the service; the logs lie beside it.
        url: of the service, or of a proxy before it.
        names: of them; those that begin with ``cut`` cut what they send anew for each try.
        options: further arguments of each oracle.
    """

    def __init__(self, data_dir: Path, url: str, names: Iterable[str], *options: str) -> None:
        self.logs: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for name in names:
            log = data_dir.parent / f"{len(list(data_dir.parent.glob('*.log')))}-{name}.log"
            log.touch(exist_ok=False)
            command = [
                *(sys.executable, "-m", "tests.faults.oracle", "--url", url, "--name", name),
                *("--token-file", str(data_dir / "operator-token"), "--log", str(log), *options),
            ]
            if name.startswith("cut"):
                command.append("--rebatch")
            environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
            with log.with_suffix(".errors").open("w") as errors:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stderr=errors, cwd=ROOT, env=environment
                )
            self.logs.append(log)
            self._processes.append(process)
        self._read = [0] * len(self.logs)
        self._acknowledged = 0

    @property
    def acknowledged(self) -> int:
        """Transitions acknowledged so far; fails when an oracle has."""
        self._check()
        for i, log in enumerate(self.logs):
            with log.open("rb") as file:
                file.seek(self._read[i])
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[i] += len(whole)
            for line in whole.splitlines():
                if line.startswith(b'{"kind": "ack"'):
                    self._acknowledged += json.loads(line)["accepted"]
        return self._acknowledged

    def _check(self) -> None:
        for process, log in zip(self._processes, self.logs, strict=True):
            status = process.poll()
            assert status in (None, 0), f"{log}: {log.with_suffix('.errors').read_text()}"

    def tell_to_end(self) -> None:
        """Close their input: they end when all that they have sent is acknowledged."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()

    def finish(self) -> Told:
        """Wait for their end, and return what they were told."""
        for process in self._processes:
            process.wait(2 * DEADLINE)
        self._check()
        self.kill()
        return told(self.logs)

    def kill(self) -> None:
        """End those that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Told:
    """What oracles sent, and what they were told of it."""

    sent: dict[Identity, str] = field(default_factory=dict, repr=False)
    acknowledged: dict[Identity, str] = field(default_factory=dict, repr=False)
    labels: set[Identity] = field(default_factory=set, repr=False)
    labelled: set[Identity] = field(default_factory=set, repr=False)
    accepted: int = 0
    duplicate: int = 0
    lsn: int = 0
    version: int = -1  # the highest that a receipt named
    answers: dict[int, set[str]] = field(default_factory=dict)  # by version, of the probe


def told(logs: Sequence[Path]) -> Told:
    """Read logs; a line that was cut short is of an oracle that was killed, and counts for none."""
    found = Told()
    for path in logs:
        waiting: dict[int, list[Any]] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            kind = entry["kind"]
            if kind == "send":
                waiting[entry["n"]] = entry["items"]
                for actor, episode, timestep, digest in entry["items"]:
                    before = found.sent.setdefault((actor, episode, timestep), digest)
                    assert before == digest, "the oracle itself changed what it sends"
            elif kind == "ack":
                for actor, episode, timestep, digest in waiting.pop(entry["n"]):
                    found.acknowledged[actor, episode, timestep] = digest
                found.accepted += entry["accepted"]
                found.duplicate += entry["duplicate"]
                found.lsn = max(found.lsn, entry["lsn"])
                found.version = max(found.version, entry["version"])
            elif kind == "label":
                waiting[entry["n"]] = entry["items"]
                found.labels |= {(a, e, t) for a, e, t in entry["items"]}
            elif kind == "labelled":
                if not entry["evicted"]:
                    found.labelled |= {(a, e, t) for a, e, t in waiting.pop(entry["n"])}
            elif kind == "act":
                answers = found.answers.setdefault(entry["version"], set())
                answers.add(json.dumps(entry["values"]))
    return found


# -- the disk ------------------------------------------------------------------------------------


@dataclass
class Stored:
    """What a journal holds."""

    content: dict[Identity, str] = field(default_factory=dict)
    ledger: set[Identity] = field(default_factory=set)
    labels: dict[Identity, int] = field(default_factory=dict)
    train: int = 0
    versions: list[dict[str, Any]] = field(default_factory=list)


def copy(folder: Path, to: Path) -> Path:
    """Copy a journal that nobody has open, so that a check leaves it as its owner left it."""
    to.mkdir()
    for path in folder.glob("journal.db*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, to)
    return to


def dicts(columns: Columns) -> list[dict[str, Any]]:
    """Return transitions as an actor sends them."""
    return [
        {
            "actor_id": columns.actors[columns.actor[i]],
            "episode_id": columns.episodes[columns.episode[i]],
            "timestep": int(columns.timestep[i]),
            "split": SPLITS[columns.split[i]],
            "policy_version": int(columns.policy_version[i]),
            "observation": columns.observation[i].tolist(),
            "action": int(columns.action[i]),
            "reward": float(columns.reward[i]),
            "next_observation": columns.next_observation[i].tolist(),
            "terminated": bool(columns.terminated[i]),
            "truncated": bool(columns.truncated[i]),
        }
        for i in range(len(columns))
    ]


def rows(folder: Path) -> list[TransitionsRow | LabelsRow | SkippedRow]:
    """Return every data row of a model, each checked by its digest."""
    reader = JournalReader(folder / "journal.db")
    found: list[Any] = []
    while more := reader.rows(found[-1].lsn if found else 0, 256):
        found += more
    reader.close()
    return found


def stored(folder: Path) -> Stored:
    """Read a journal and its ledger; every identity is there once."""
    found = Stored()
    for row in rows(folder):
        if isinstance(row, TransitionsRow):
            for item in dicts(row.columns):
                identity = item["actor_id"], item["episode_id"], item["timestep"]
                assert identity not in found.content, f"{identity} is stored twice"
                found.content[identity] = content(item)
            found.train += int(
                np.count_nonzero((row.outcome == ACCEPTED) & (row.columns.split == TRAIN))
            )
    path = folder / "journal.db"
    connection = connect(path, apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for actor, episode, number, slots, *_ in connection.execute("SELECT * FROM ledger"):
        block = block_from_bytes(slots)
        for i in np.flatnonzero(block["state"] != 0).tolist():
            identity = actor, episode, number * BLOCK + i
            found.ledger.add(identity)
            if block["label"][i] >= 0:
                found.labels[identity] = int(block["label"][i])
    for actor, episode, timestep, label, *_ in connection.execute("SELECT * FROM pending_label"):
        found.labels[actor, episode, timestep] = label
    found.versions = [body for _, body in control_rows(connection, path, "version")]
    connection.close()
    return found


def check_stored(folder: Path, said: Told, *, whole: bool = True) -> Stored:
    """Check that a model holds all that was acknowledged, once and unchanged, and nothing else.

    Args:
        folder: of the model.
        said: what its oracles were told.
        whole: every row is kept; else rows have gone, and the ledger alone says what was.
    """
    found = stored(folder)
    lost = said.acknowledged.keys() - found.ledger
    assert not lost, f"{len(lost)} acknowledged and lost, such as {min(lost)}"
    invented = found.ledger - said.sent.keys()
    assert not invented, f"{len(invented)} never sent, such as {min(invented)}"
    if whole:
        assert found.ledger == found.content.keys(), "journal and ledger tell different stories"
    for identity, digest in found.content.items():
        assert said.sent[identity] == digest, f"{identity} is not what was sent"
    unlabelled = said.labelled - found.labels.keys()
    assert not unlabelled, f"{len(unlabelled)} labels lost, such as {min(unlabelled)}"
    for identity, label in found.labels.items():
        inline = identity in said.sent and identity[2] % 3 == 0
        assert identity in said.labels or inline, f"{identity} was never labelled"
        assert label == label_of(*identity), f"{identity} has another label"
    numbers = [v["version"] for v in found.versions]
    assert numbers == sorted(set(numbers)), "a version was published twice"
    assert all(len(values) == 1 for values in said.answers.values()), "a version answers two ways"
    unrecorded = said.answers.keys() - set(numbers)
    assert not unrecorded, f"served and not recorded: {sorted(unrecorded)}"
    assert said.version <= max(numbers, default=0), f"{said.version} was named, and not recorded"
    return found


def check_service(endpoint: RemoteLearner, said: Told, folder: Path) -> dict[str, Any]:
    """Check what a service that is up says: its figures, and that it knows all it acknowledged.

    Returns:
        Its figures after the barrier.
    """
    info = endpoint.wait(endpoint.info()["journal_lsn"], timeout=DEADLINE)
    assert info["normalizer"]["count"] == 2 * info["transitions"]["train"]
    assert info["transitions"]["train"] == info["accepted"]["train"]
    assert sum(info["accepted"].values()) == len(said.sent) == len(said.acknowledged)
    again: list[dict[str, Any]] = []
    for row in rows(folder):  # beside the service, as its own learner reads
        if isinstance(row, TransitionsRow):
            again += dicts(row.columns)
    size = min(2_000, 60_000 // len(again[0]["observation"])) if again else 1
    for start in range(0, len(again), size):
        part = again[start : start + size]
        receipt = endpoint.add(part)
        assert (receipt.accepted, receipt.duplicate) == (0, len(part)), receipt
    assert endpoint.info()["journal_lsn"] == info["journal_lsn"], "a duplicate was journaled"
    return info


# -- the learner ---------------------------------------------------------------------------------


def rebuild(folder: Path) -> Core:
    """Learn a model's rows once more, here, and check every recorded version on the way.

    Those of earlier lineages are of other machines, and their numbers are not met again.
    """
    reader = JournalReader(folder / "journal.db")
    created, lineages = reader.created(), reader.lineages()
    reader.close()
    connection = connect(folder / "journal.db", apsw.SQLITE_OPEN_READONLY)
    recorded = control_rows(connection, folder / "journal.db", "version")
    connection.close()
    first = max((row.version for row in lineages), default=0)
    wanted = {b["version"]: b["digest"] for _, b in recorded if b["version"] >= first}
    core = Core(created.spec, generation=created.generation, first_version=created.first_version)
    met: dict[int, str] = {}

    def look() -> None:
        if core.served_version in wanted and core.served_version not in met:
            met[core.served_version] = core.snapshot().digest()

    enter(core, lineages)
    look()
    for row in rows(folder):
        core.apply(row, look)
        enter(core, lineages)
        look()
    assert met == wanted, "a recorded version comes out otherwise, or not at all"
    return core


def newest_checkpoint(folder: Path) -> Core:
    """Return the state that a service wrote last."""
    return Core.load(checkpoints(folder)[-1])


def bits(core: Core, *, batching: bool = True) -> dict[str, Any]:
    """Return everything that decides the future of a state machine, comparable bit for bit.

    Args:
        core: looked at.
        batching: include what depends on how transitions were cut into rows, and on the policy
            versions in them, which whoever cuts anew cannot say.
    """
    progress, returns = dict(vars(core.progress)), core.returns.state()
    if not batching:
        del progress["lsn"]
        returns["open"] = [[*row[:5], *row[7:]] for row in returns["open"]]
    windows, steps = core.windows.state()
    good, moments = core._good
    snapshot = core.snapshot()
    return {
        "progress": progress,
        "pacing": [core.pacing.transitions, core.pacing.paid],
        "streams": [g.bit_generator.state for g in (core._sampling, core._acting)],
        "windows": [windows, _bits(steps)],
        "returns": returns,
        "evaluations": msgspec.to_builtins(list(core.evaluations)),
        "snapshot": [snapshot.version, snapshot.update_count, snapshot.digest()],
        "algorithm": _bits(core.algorithm.state()),  # networks and optimizer
        "good": _bits(good),
        "moments": [a.tobytes() for a in (*moments, *core._latched)],
        "replay": _bits(core.replay.state()),  # priorities too
        "validation": _bits(core.validation.state()),
        "normalizer": _bits(core.normalizer.state()),
    }


def _bits(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in sorted(arrays.items())}


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts in which two states differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


# -- servers -------------------------------------------------------------------------------------


class Servers:
    """Servers on one directory and one port, one after the other.

    Args:
        data_dir: of all of them.
        arguments: of ``serve``.
    """

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir, self._arguments = data_dir, arguments
        self.port = "0"
        self.current: Server | None = None

    @property
    def server(self) -> Server:
        """The one that is up."""
        assert self.current is not None
        return self.current

    def start(self, failpoints: str = "", **environment: str) -> Server:
        """Start one, which ends at one of the places named."""
        changed = {VARIABLE: failpoints, **environment}
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            self.current = Server(self.data_dir, "--port", self.port, *self._arguments)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        self.port = self.current.url.rpartition(":")[2]
        return self.current

    def start_to_end(self, failpoints: str) -> None:
        """Start one that ends before it listens."""
        try:
            server = self.start(failpoints)
        except AssertionError:  # it said nothing
            return
        server.kill()
        raise AssertionError(f"{failpoints}: it listens all the same")

    def start_for(self, seconds: float) -> None:
        """Start one, and end it by SIGKILL after a moment, wherever it is by then."""
        command = [sys.executable, "-m", "jormungandr", "serve", "--data-dir", str(self.data_dir)]
        with (self.data_dir / "stderr").open("a") as errors:
            process = subprocess.Popen(
                [*command, "--port", self.port, *self._arguments],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        assert process.wait() == -signal.SIGKILL, (self.data_dir / "stderr").read_text()

    def kill(self) -> None:
        """End the running one's gateway, and it alone, by SIGKILL."""
        if self.current is not None:
            self.current.kill()
            self.current = None

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
