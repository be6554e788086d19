"""Saving and loading: bit for bit in a fresh process, damage named, interruptions harmless."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.errors import CheckpointError, IdentityConflict, InvalidValue, LabelConflict
from jormungandr.learner import checkpoint

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

FILES = {
    "ledger.msgpack",
    "manifest.json",
    "policy.safetensors",
    "state.json",
    "tensors.safetensors",
}

#: What the fresh process runs: load, go on, save elsewhere, and print what it chose.
GO_ON = """
import json, sys
import torch
from jormungandr import Learner
torch.set_num_threads(1)
source, target, events = sys.argv[1], sys.argv[2], json.load(sys.stdin)
learner = Learner.load(source)
chosen = []
for kind, body in events:
    if kind == "add":
        learner.add(body)
    elif kind == "label":
        learner.label(body)
    else:
        reply = learner.act(body)
        chosen.append([reply.indices.tolist(), reply.expected_values, reply.policy_version])
learner.save(target)
metrics, info = learner.metrics(), learner.info()
del metrics["actors"], info["lag"]  # of a process
print(json.dumps([chosen, metrics, info]))
"""


def events(start: int, stop: int, seed: int) -> list[tuple[str, list[Any]]]:
    """Return a stream of plain requests: actors, episodes, splits, gaps, labels, and acting."""
    rng = np.random.default_rng(seed)
    requests: list[tuple[str, list[Any]]] = []
    for t in range(start, stop):
        rows, labels = [], []
        for actor in ("a", "b"):
            split = "validation" if actor == "b" and t % 2 else "train"
            episode = f"{split}-{t // 7}"
            identity = {"actor_id": actor, "episode_id": episode, "timestep": t}
            ahead = {**identity, "timestep": t + 3}
            labels.append({**(ahead if rng.random() < 0.5 else identity), "label": 1})
            rows.append(
                {
                    **identity,
                    "split": split,
                    "policy_version": -1,
                    "observation": rng.normal(size=2).tolist(),
                    "action": int(rng.integers(3)),
                    "reward": float(rng.normal()),
                    "next_observation": rng.normal(size=2).tolist(),
                    "terminated": t % 7 == 6 and actor == "a",
                    "truncated": t % 7 == 6 and actor == "b",
                }
            )
        if rng.random() < 0.8:  # else a gap
            requests.append(("add", rows))
        requests += [("label", labels), ("act", rng.normal(size=(3, 2)).tolist())]
    return requests


def go_on(learner: Learner, requests: list[tuple[str, list[Any]]]) -> list[Any]:
    """Do what `GO_ON` does, here."""
    chosen: list[Any] = []
    for kind, body in requests:
        if kind == "add":
            learner.add(body)
        elif kind == "label":
            learner.label(body)
        else:
            reply = learner.act(body)
            chosen.append([reply.indices.tolist(), reply.expected_values, reply.policy_version])
    return chosen


@pytest.mark.parametrize("n_step", [1, 3])
def test_goes_on_bit_for_bit_in_a_fresh_process(small: Small, tmp_path: Path, n_step: int) -> None:
    """Everything it does after a load in another process, down to each byte saved, is the same.

    Parameters, optimizer, priorities, moments, streams (acting too), counters, waiting labels, open
    windows and the ledger are all in the files compared at the end.
    """
    spec = small(
        c51={"n_step": n_step, "double": True},
        replay={"window_idle": 9},
        labels={"pending_expiry": 12},
        exploration={"end": 0.5},
    )
    first, second = events(0, 20, 1), events(20, 40, 2)
    learner = Learner(spec)
    go_on(learner, first)
    learner.save(tmp_path / "one")
    assert learner.info()["labels"]["pending"] > 0
    assert (len(learner.windows.state()[0]) > 0) == (n_step > 1)

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", GO_ON, str(tmp_path / "one"), str(tmp_path / "two")],
        input=json.dumps(second),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    chosen = go_on(learner, second)
    learner.save(tmp_path / "three")

    metrics, info = learner.metrics(), learner.info()
    del metrics["actors"], info["lag"]

    assert learner.update_count > 10
    assert json.loads(done.stdout) == json.loads(json.dumps([chosen, metrics, info]))
    assert {f.name for f in (tmp_path / "two").iterdir()} == FILES
    for name in sorted(FILES):
        two, three = ((tmp_path / folder / name).read_bytes() for folder in ("two", "three"))
        assert two == three, name


def saved(small: Small, step: Step, path: Path, steps: int = 12) -> Learner:
    """Save a learner that has updated; return it."""
    learner = Learner(small())
    learner.add([step(t) for t in range(steps)])
    learner.save(path)
    return learner


def test_a_policy_alone_is_no_state(small: Small, step: Step, tmp_path: Path) -> None:
    """Who loads the best policy of a training is told where the state is, and what reads it."""
    learner = saved(small, step, tmp_path / "latest")
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "policy.safetensors").write_bytes(learner.snapshot().to_bytes())
    with pytest.raises(CheckpointError) as caught:
        Learner.load(tmp_path / "best")

    beside = f"this folder has a policy alone: the state is in {tmp_path / 'latest'}, and"
    assert caught.value.remedy == f"{beside} PolicySnapshot.open('{tmp_path / 'best'}') reads it"


def test_loaded_state_is_the_saved_one(
    small: Small, step: Step, state: State, tmp_path: Path
) -> None:
    """A learner read back is the one that was saved, in every part of its state."""
    learner = saved(small, step, tmp_path / "saved", 30)

    assert state(Learner.load(tmp_path / "saved")) == state(learner)
    assert state(Learner.load(str(tmp_path / "saved"))) == state(learner)


def test_saving_changes_nothing(small: Small, step: Step, state: State, tmp_path: Path) -> None:
    """A save in the middle of a run changes nothing of what follows."""
    one, two = Learner(small()), Learner(small())
    for t in range(20):
        one.add([step(t)])
        one.save(tmp_path / "saved")
        two.add([step(t)])

    assert state(one) == state(two)


@pytest.mark.parametrize("steps", [3, 12, 13])
def test_loaded_learner_saves_the_same_bytes(
    small: Small, step: Step, tmp_path: Path, steps: int
) -> None:
    """Save, load, save again, and not a byte differs, whenever the policy was first asked for."""
    learner = Learner(small())
    for t in range(steps):
        learner.add([step(t)])
        if t == 1:
            learner.act([[0.0, 1.0]])
    learner.save(tmp_path / "one")
    Learner.load(tmp_path / "one").save(tmp_path / "two")

    for name in sorted(FILES):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two, name


def test_untrained_learner_survives(small: Small, state: State, tmp_path: Path) -> None:
    """A learner that has seen nothing can be saved too."""
    learner = Learner(small(), generation=4, first_version=9)
    learner.save(tmp_path / "deep" / "down" / "saved")
    back = Learner.load(tmp_path / "deep" / "down" / "saved")

    assert state(back) == state(learner)
    assert (back.generation, back.policy_version) == (4, 9)


def test_identities_and_labels_are_still_known(
    small: Small, step: Step, label: Step, tmp_path: Path
) -> None:
    """What was accepted before the save is a duplicate after the load; conflicts stay conflicts."""
    learner = saved(small, step, tmp_path / "unused")
    learner.label([label(3), label(50)])
    learner.save(tmp_path / "saved")
    back = Learner.load(tmp_path / "saved")

    assert back.add([step(t) for t in range(12)]).duplicate == 12
    assert back.label([label(3), label(50)]).duplicate == 2
    with pytest.raises(IdentityConflict):
        back.add([step(0, reward=9.0)])
    with pytest.raises(LabelConflict):
        back.label([label(50, 0)])


def test_no_pickle_and_no_surprise(small: Small, step: Step, tmp_path: Path) -> None:
    """A checkpoint is JSON, MessagePack and safetensors, and nothing is left beside it."""
    saved(small, step, tmp_path / "saved")
    content = b"".join((tmp_path / "saved" / name).read_bytes() for name in FILES)

    assert {f.name for f in (tmp_path / "saved").iterdir()} == FILES
    assert [f.name for f in tmp_path.iterdir()] == ["saved"]
    assert b"pickle" not in content
    json.loads((tmp_path / "saved" / "state.json").read_text())


def test_policy_of_a_checkpoint(small: Small, step: Step, tmp_path: Path) -> None:
    """The policy inside is the one that would be served, readable without torch."""
    learner = saved(small, step, tmp_path / "saved")
    policy = PolicySnapshot.open(tmp_path / "saved")

    assert policy.digest() == learner.snapshot().digest()
    assert policy.version == 4


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_flipped_byte_is_found(small: Small, step: Step, tmp_path: Path, name: str) -> None:
    """Any byte of any file changed, and the load is refused naming the file."""
    saved(small, step, tmp_path / "saved")
    file = tmp_path / "saved" / name
    good = file.read_bytes()
    rng = np.random.default_rng(0)
    places = range(len(good)) if name == "manifest.json" else rng.integers(len(good), size=40)
    for place in places:
        bad = bytearray(good)
        bad[place] ^= (0x01, 0x20, 0xFF)[place % 3]
        file.write_bytes(bad)
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            Learner.load(tmp_path / "saved")
    file.write_bytes(good)
    Learner.load(tmp_path / "saved")


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["missing", "empty", "shorter", "longer", "folder"])
def test_damaged_file_is_named(
    small: Small, step: Step, tmp_path: Path, name: str, damage: str
) -> None:
    """A file missing, cut, grown or replaced is refused by name."""
    saved(small, step, tmp_path / "saved")
    file = tmp_path / "saved" / name
    good = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage != "missing":
        content = {"empty": b"", "shorter": good[:-1], "longer": good + b" "}[damage]
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        Learner.load(tmp_path / "saved")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"files": 3}',
        b'{"files": {"state.json": {}}}',
        b"\xff",
        b"[" * 99,
    ],
)
def test_nonsense_manifest(small: Small, step: Step, tmp_path: Path, manifest: bytes) -> None:
    """A manifest that is none is refused by name."""
    saved(small, step, tmp_path / "saved")
    (tmp_path / "saved" / "manifest.json").write_bytes(manifest)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Learner.load(tmp_path / "saved")


def test_nothing_there(tmp_path: Path) -> None:
    """A folder that does not exist is no checkpoint."""
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Learner.load(tmp_path / "nowhere")


def test_format_of_another_version(small: Small, step: Step, tmp_path: Path) -> None:
    """A checkpoint of another format is refused as that."""
    content = checkpoint._manifest(
        {"format": "jormungandr-checkpoint-9", "version": "9", "files": {}}
    )
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected jormungandr-checkpoint-1, got"):
        Learner.load(tmp_path / "saved")


def test_something_else_is_not_replaced(small: Small, step: Step, tmp_path: Path) -> None:
    """Saving never deletes what is no checkpoint: a file, or a folder with other things in it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("folder", "file"):
        with pytest.raises(
            InvalidValue, match="path: expected a new folder, or one of a checkpoint"
        ):
            Learner(small()).save(tmp_path / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        with pytest.raises(InvalidValue):
            Learner(small()).save(".")

    assert (tmp_path / "folder" / "thesis.tex").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "folder"]


def test_empty_folder_may_be_taken(small: Small, tmp_path: Path) -> None:
    """An empty folder, such as a temporary one, is a place to save to."""
    Learner(small()).save(tmp_path)

    assert Learner.load(tmp_path).policy_version == 0


# -- interruptions --------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing that it does afterwards happens."""


class Disk:
    """File operations of a save of which one fails: once, or with all that follow it."""

    def __init__(self, patch: pytest.MonkeyPatch, after: int, error: type[BaseException]) -> None:
        self.calls, self.after, self.error = 0, after, error
        for owner, name in (
            (Path, "mkdir"),
            (Path, "rename"),
            (checkpoint, "write_synced"),
            (os, "fsync"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self.failing(getattr(owner, name)))

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return an operation that may fail."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.after or (self.error is Killed and self.calls > self.after):
                raise self.error("stop")
            return real(*args, **kwargs)

        return call


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, Killed])
@pytest.mark.parametrize("again", [False, True])
def test_interrupted_save_leaves_a_whole_checkpoint(
    small: Small, step: Step, state: State, tmp_path: Path, error: type[BaseException], again: bool
) -> None:
    """Whichever operation of a save fails, or is the last of the process, one checkpoint loads.

    It is the old one until the new one has its name. With `again`, an earlier save was killed
    between its two renames.
    """
    path = tmp_path / "saved"
    learner = saved(small, step, path)
    versions, after, calls = [], 0, 0
    while calls >= after:
        after += 1
        old = state(learner)
        if again and path.exists():
            path.rename(tmp_path / ".saved.old")
        learner.update()
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, after, error)
            with contextlib.suppress(error):
                learner.save(path)
        calls = disk.calls
        assert path.exists() or again or error is Killed
        found = Learner.load(path)
        versions.append(learner.policy_version - found.policy_version)
        assert state(found) == (old if versions[-1] else state(learner))
        learner.save(path)
        assert [f.name for f in tmp_path.iterdir() if f.name != f".saved.{os.getpid()}.tmp"] == [
            "saved"
        ]

    assert versions[0] == 1
    assert versions[-1] == 0
    assert versions == sorted(versions, reverse=True)
    assert len(versions) > 10
