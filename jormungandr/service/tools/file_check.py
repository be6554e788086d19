"""The files beside a journal: checkpoints and policies against their digests, and strays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from jormungandr.errors import CheckpointError
from jormungandr.policy import PolicySnapshot
from jormungandr.service.child.recovery import checkpoints, position
from jormungandr.service.journal.database import VersionRow
from jormungandr.service.shelf import KEEP_POLICIES
from jormungandr.service.tools.findings import Finding, damage, gap, proven
from jormungandr.service.tools.journal_check import JournalCheck
from jormungandr.service.tools.stored import UNFINISHED

__all__ = ["check_checkpoint", "check_files", "check_top"]

#: What a server and its learner make in the folder of a model, besides checkpoints and policies.
OURS = {"journal.db", "journal.db-wal", "journal.db-shm", "learner.lock", "checkpoints", "policies"}
#: What a server makes at the top.
TOP = {"LOCK", "operator-token", "tokens.json", "models", "exports"}
CHUNK = 1 << 20
STRAY = "it does not belong here, and was not looked into"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in parts."""
    digest = sha256()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    return digest.hexdigest()


def check_checkpoint(path: Path) -> dict[str, Any]:
    """Check every file of a checkpoint folder against its manifest, which is returned.

    Raises:
        CheckpointError: naming the file that is missing, damaged, or one too many.
    """
    file = path / "manifest.json"
    try:
        written = file.read_bytes()
        manifest = dict(json.loads(written))
        digest = manifest.pop("sha256")
        own = sha256(json.dumps(manifest).encode()).hexdigest()
        whole = json.dumps({**manifest, "sha256": own}, indent=1).encode() == written
        listed = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(str(file), "a manifest", repr(error)) from None
    if digest != own or not whole:
        raise CheckpointError(str(file), "a manifest", "other bytes", "it is damaged")
    for name, recorded in listed.items():
        try:
            got = file_digest(path / name)
        except OSError as error:
            raise CheckpointError(str(path / name), "a file", repr(error)) from None
        if got != recorded:
            raise CheckpointError(str(path / name), "its recorded SHA-256", "another")
    extra = sorted({p.name for p in path.iterdir()} - set(listed) - {"manifest.json"})
    if extra:
        raise CheckpointError(str(path / extra[0]), "files of the manifest only", "one more")
    return manifest


def check_files(folder: Path, name: str, journal: JournalCheck) -> Iterator[Finding]:
    """Check the checkpoints and policies of a model, and look for what does not belong.

    Args:
        folder: of the model.
        name: of it in findings.
        journal: what is known of the journal.
    """
    for path in sorted(folder.iterdir()):
        if path.name not in OURS:
            yield gap(f"{name}/{path.name}", STRAY)
    yield from _checkpoints(folder, name, journal)
    yield from _policies(folder / "policies", f"{name}/policies", journal)


def check_top(data_dir: Path) -> Iterator[Finding]:
    """Look for what does not belong at the top of a data directory."""
    for path in sorted(data_dir.iterdir()):
        if path.name not in TOP:
            yield gap(path.name, STRAY)
    for path in sorted((data_dir / "models").iterdir()):
        if UNFINISHED.fullmatch(path.name):
            yield gap(
                f"models/{path.name}", "a creation that was cut short; the next start drops it"
            )
        elif path.name.startswith("."):
            yield gap(f"models/{path.name}", STRAY)
        elif not (path / "journal.db").is_file():
            yield damage(f"models/{path.name}", "it has no journal.db")


def _checkpoints(folder: Path, name: str, journal: JournalCheck) -> Iterator[Finding]:
    found = checkpoints(folder)
    for path in sorted((folder / "checkpoints").glob("*")):
        where = f"{name}/checkpoints/{path.name}"
        if path not in found:
            yield gap(where, _leftover(path))
            continue
        try:
            files = check_checkpoint(path)["files"]
        except CheckpointError as error:
            yield damage(where, str(error).replace(f"{path}/", ""))
            continue
        if journal.counters is not None and position(path) > journal.counters.data_lsn:
            last = journal.counters.data_lsn
            text = f"made from a journal newer than this one, which ends at row {last}"
            yield damage(where, text)
            continue
        yield proven(where, f"manifest, SHA-256 of {len(files)} files")


def _leftover(path: Path) -> str:
    if path.suffix in (".corrupt", ".foreign"):
        return "refused before and set aside"
    if path.suffix == ".tmp":
        return "left by a process that ended as it wrote"
    return STRAY


def _policies(folder: Path, name: str, journal: JournalCheck) -> Iterator[Finding]:
    recorded = {row.version: row for row in journal.versions}
    newest = max(recorded, default=-1)
    proved, unrecorded = [], []
    for path in sorted(folder.glob("*")):
        where = f"{name}/{path.name}"
        if path.suffix != ".safetensors" or not path.stem.isdigit():
            yield gap(where, _leftover(path))
        elif int(path.stem) in recorded:
            fault = _policy(path, recorded[int(path.stem)], journal)
            if fault is None:
                proved.append(int(path.stem))
            else:
                yield damage(where, fault)
        else:
            unrecorded.append(where)
            # A file comes before its row; a server that ends between them leaves one.
            if int(path.stem) > newest and len(unrecorded) == 1 and not journal.bad:
                yield gap(where, "its VERSION row was not written; it was served to nobody")
            else:
                yield damage(where, "no VERSION row is of it: the journal is another, or older")
    if proved:
        yield proven(name, f"{len(proved)} files, as their VERSION rows say")
    kept = [] if journal.deleted else sorted(recorded)[-KEEP_POLICIES:]
    for file in (f"{version:020d}.safetensors" for version in kept):
        if not (folder / file).exists():
            yield gap(f"{name}/{file}", "not here, and recorded")
    champion = None if journal.promotions is None else journal.promotions.standing.champion
    file = "" if champion is None else f"{champion.version:020d}.safetensors"
    if file and not (journal.deleted or (folder / file).exists()):
        yield damage(f"{name}/{file}", "not here, and champion: nothing is handed out")


def _policy(path: Path, row: VersionRow, journal: JournalCheck) -> str | None:
    """Return what is wrong with the file of a policy."""
    data = path.read_bytes()
    if sha256(data).hexdigest() != row.file:
        return "it is not what the SHA-256 in its VERSION row was taken of"
    try:
        policy = PolicySnapshot.from_bytes(data)
    except CheckpointError as error:
        return str(error)
    if (policy.version, policy.update_count, policy.digest()) != (
        row.version,
        row.update_count,
        row.digest,
    ):
        return "it is another policy than its VERSION row says"
    created = journal.created
    if created is not None and policy.generation != created.generation:
        return f"of generation {policy.generation}, and the model is {created.generation}"
    return None
