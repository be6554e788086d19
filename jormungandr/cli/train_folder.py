"""`TrainingFolder`: what a training keeps — the latest state, the best policy, the evaluations.

```
OUT/training.json       what is trained
    evaluations.jsonl   one line for each evaluation, in order of steps
    latest/             the learner at an episode's end, or after the last step, to go on from;
                        through a service its policy
    best/               the policy with the highest mean return in an evaluation
    .best.old           the one before it, until the latest state knows of its successor
```

Each is replaced whole, so the process may end at any time.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jormungandr.cli.opening import check_writable
from jormungandr.cli.train_files import WRITABLE, replace_file, writable
from jormungandr.durable import make_folder
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.policy import PolicySnapshot
from jormungandr.policy_file import POLICY_FILE
from jormungandr.spec import ModelSpec

__all__ = ["TrainingFolder", "check_out", "keep_policy", "kept_step", "read_facts", "seed_folders"]

FORMAT = "jormungandr-training-1"
#: The file that makes a folder one of a training, and who works in it.
FACTS, LOCK = "training.json", "LOCK"
#: Fields that an error names with their values, and characters of one value.
SHOWN, WIDTH = 4, 24


class TrainingFolder:
    """The folder of one training, held alone for as long as it is open.

    Args:
        path: of the folder; made if it is not there.

    Raises:
        InvalidValue: another process trains in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writable():
            make_folder(path)
            self._lock = (path / LOCK).open("a")
        if not _alone(self._lock.fileno()):
            self._lock.close()
            raise InvalidValue("--out", "a folder that no process trains in", path)

    def __enter__(self) -> TrainingFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def latest(self) -> Path:
        """Where the latest state is."""
        return self.path / "latest"

    @property
    def evaluations(self) -> Path:
        """Where the evaluations are."""
        return self.path / "evaluations.jsonl"

    @property
    def best(self) -> Path:
        """Where the best policy is."""
        return self.path / "best"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down what is trained, in place of whatever was trained here before."""
        with writable():
            for name in ("latest", ".latest.old", "best"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for file in (self.evaluations, self._best_before):
                file.unlink(missing_ok=True)
            replace_file(self.path / FACTS, _written({"format": FORMAT, **facts}))

    def check_same(self, facts: Mapping[str, Any]) -> bool:
        """Return whether something was trained here before; refuse it if it was something else.

        Raises:
            InvalidValue: naming what is different.
        """
        found = read_facts(self.path)
        if found is None:
            return False
        new, old = facts, found
        different = [name for name in facts if name != "spec" and facts[name] != found.get(name)]
        if not different:
            new, old = facts["spec"], ModelSpec.from_dict(found["spec"]).to_dict()
            different = ModelSpec.from_dict(old).mismatches(new)
        if different:
            expected = f"the arguments that {self.path} was begun with"
            remedy = f"it has {_values(old, different)}: give these, or another --out"
            got = f"others: {_values(new, different)}"
            raise InvalidValue("--resume", expected, got, remedy)
        return True

    def keep_steps(self, steps: int) -> None:
        """Note how many steps the training now has in all, for whoever goes on without saying."""
        found = read_facts(self.path)
        if found is not None and found.get("steps") != steps:
            with writable():
                replace_file(self.path / FACTS, _written({**found, "steps": steps}))

    def has_latest(self) -> bool:
        """Whether there is a state to go on from; one may have stepped aside for its successor."""
        for folder in self.path.glob(".latest.*.tmp"):  # of a process that was killed
            shutil.rmtree(folder, ignore_errors=True)
        return self.latest.exists() or (self.path / ".latest.old").exists()

    def keep_latest(self, save: Callable[[Path], None]) -> None:
        """Have the latest state written."""
        with writable():
            save(self.latest)
            self._best_before.unlink(missing_ok=True)

    def keep_best(self, policy: PolicySnapshot) -> None:
        """Put a policy in the place of the best one.

        Whoever goes on from the latest state may never come to this one: the best policy of that
        state's time stays beside it until the next state is kept.
        """
        with writable():
            best = self.best / POLICY_FILE
            if best.exists() and not self._best_before.exists():
                replace_file(self._best_before, best.read_bytes())
            keep_policy(self.best, policy)

    def settle_best(self, digest: str | None) -> None:
        """Put the best policy before the last one back where it is the one of a digest.

        Args:
            digest: of the policy that did best as far as the evaluations go; None before any.
        """
        before = self._best_before
        with writable():
            if digest is not None and before.exists():
                policy = PolicySnapshot.from_bytes(before.read_bytes())
                if policy.digest() == digest:
                    keep_policy(self.best, policy)
            before.unlink(missing_ok=True)

    @property
    def _best_before(self) -> Path:
        return self.path / ".best.old"


def _written(facts: Mapping[str, Any]) -> bytes:
    return (json.dumps(facts, indent=1) + "\n").encode()


def _values(fields: Mapping[str, Any], paths: Sequence[str]) -> str:
    """Return a few fields as `--set` takes them, each shortened, and how many more there are."""
    said = []
    for path in paths[:SHOWN]:
        value: Any = fields
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        text = json.dumps(value)
        said.append(f"{path}={text if len(text) <= WIDTH else text[: WIDTH - 1] + '…'}")
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return ", ".join(said) + more


def keep_policy(folder: Path, policy: PolicySnapshot) -> None:
    """Write a policy as a folder that `PolicySnapshot.open` takes."""
    make_folder(folder)
    replace_file(folder / POLICY_FILE, policy.to_bytes())


def check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a place where something else would be lost, and one that cannot be written.

    Raises:
        InvalidValue: saying what is there.
    """
    found = read_facts(out)
    if found is None:
        taken = out.exists() and (not out.is_dir() or any(p.name != LOCK for p in out.iterdir()))
        if taken:
            seeds = sorted(p.parent.name for p in out.glob(f"seed-*/{FACTS}"))
            got, remedy = str(out), ""
            if seeds:
                got = f"{out}, which holds {', '.join(seeds[:SHOWN])}"
                got += ", …" if len(seeds) > SHOWN else ""
                remedy = f"it was made with --seeds: give it too, {len(seeds)} or as many as then"
            raise InvalidValue("--out", "a new folder, or one of an earlier training", got, remedy)
    elif not (resume or overwrite):
        raise InvalidValue("--out", "a new folder, --resume or --overwrite", f"a training in {out}")
    with writable():
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
    check_writable(out, "--out", WRITABLE)


def seed_folders(out: Path, seeds: int) -> list[Path]:
    """Return a folder for each seed; refuse a place that is more than that.

    Raises:
        InvalidValue: saying so.
    """
    strange = out.exists() and (
        not out.is_dir() or any(not p.name.startswith("seed-") for p in out.iterdir())
    )
    if strange:
        expected = "a new folder, or one of an earlier training with --seeds"
        raise InvalidValue("--out", expected, out)
    return [out / f"seed-{seed}" for seed in range(seeds)]


def read_facts(out: Path) -> dict[str, Any] | None:
    """Return what was trained in a folder; None if nothing was.

    Raises:
        CheckpointError: that cannot be read.
    """
    file = out / FACTS
    try:
        found = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), "what a training was begun with", error) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or "spec" not in found:
        raise CheckpointError(str(file), f"format {FORMAT}", "another")
    return found


def kept_step(out: Path) -> int | None:
    """Return after how many steps the state was kept that a training goes on from; None without."""
    for folder in ("latest", ".latest.old"):
        try:
            state = json.loads((out / folder / "state.json").read_bytes())
        except OSError:
            continue
        return int(state["pacing"]["transitions"])
    return None


def _alone(handle: int) -> bool:
    """Take a file's lock, which the kernel frees however the process ends."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
