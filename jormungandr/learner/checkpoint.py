"""Checkpoint folders: a JSON manifest with SHA-256 digests, and tensors; no pickle, in or out.

Written under a temporary name, synced, renamed, and the parent folder synced: a folder under its
own name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from jormungandr.durable import sync_folder, write_synced
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.failpoints import reached
from jormungandr.policy_file import POLICY_FILE
from jormungandr.version import __version__

__all__ = ["check_replaceable", "read_checkpoint", "write_checkpoint"]

FORMAT = "jormungandr-checkpoint-1"


def write_checkpoint(
    path: Path, state: dict[str, Any], tensors: dict[str, NDArray[Any]], files: dict[str, bytes]
) -> None:
    """Write a checkpoint folder, replacing one of the same name.

    Args:
        path: the folder.
        state: JSON-able values.
        tensors: arrays by name.
        files: further files by name.

    Raises:
        InvalidValue: something else than a checkpoint is there, and would be lost.
    """
    path = path.absolute()
    check_replaceable(path)
    contents = {
        **files,
        "state.json": json.dumps(state, sort_keys=True).encode(),
        "tensors.safetensors": save({k: np.asarray(v, order="C") for k, v in tensors.items()}),
    }
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "files": {
            name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
            for name, data in contents.items()
        },
    }
    temporary, aside = path.with_name(f".{path.name}.{os.getpid()}.tmp"), _aside(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for name, data in contents.items():
            write_synced(temporary / name, data)
            reached("checkpoint.file")
        write_synced(temporary / "manifest.json", _manifest(manifest))
        reached("checkpoint.manifest")
        sync_folder(temporary)
        reached("checkpoint.rename")
        if path.exists():
            # A folder cannot be renamed over a full one; the old one steps aside first, to where
            # it is found should this process end before the next line.
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        temporary.rename(path)
        sync_folder(path.parent)
        reached("checkpoint.renamed")
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise


def read_checkpoint(
    path: Path,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, bytes]]:
    """Return (state, tensors, files) of a checkpoint folder whose digests verify.

    Raises:
        CheckpointError: naming the file that is missing, damaged, or of another format.
    """
    if not path.exists() and _aside(path).exists():
        path = _aside(path)
    file = path / "manifest.json"
    try:
        written = file.read_bytes()
        manifest = dict(json.loads(written))
        manifest.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(str(file), "a manifest", repr(error), _instead(path)) from None
    if written != _manifest(manifest):
        raise CheckpointError(str(file), "a manifest", "other bytes", "it is damaged")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{file}: format", FORMAT, manifest["format"])
    files = {}
    for name, recorded in manifest["files"].items():
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            raise CheckpointError(str(path / name), "a file", repr(error)) from None
        digest = sha256(data).hexdigest()
        if digest != recorded["sha256"]:
            raise CheckpointError(
                str(path / name),
                f"SHA-256 {recorded['sha256'][:12]}…",
                f"{digest[:12]}…",
                "it is damaged",
            )
        files[name] = data
    try:
        tensors: dict[str, NDArray[Any]] = load(files.pop("tensors.safetensors"))
    except (SafetensorError, KeyError) as error:
        raise CheckpointError(str(path), "tensors", repr(error)) from None
    try:
        state = json.loads(files.pop("state.json"))
    except (ValueError, KeyError) as error:
        raise CheckpointError(str(path), "state.json", repr(error)) from None
    return state, tensors, files


def check_replaceable(path: Path) -> None:
    """Refuse a place where saving would put something else than a checkpoint out of the way.

    Raises:
        InvalidValue: something else is there.
    """
    held = path / "manifest.json"
    if path.exists() and not held.is_file() and (path.is_file() or any(path.iterdir())):
        raise InvalidValue("path", "a new folder, or one of a checkpoint", path)


def _instead(path: Path) -> str:
    """Return what to load instead of a folder of ours that is no checkpoint; "" of any other."""
    inside = sorted(p for at in ("latest", "*/latest") for p in path.glob(at))
    if inside:
        return f"this folder is a training's: the state is in {inside[0]}"
    if not (path / POLICY_FILE).is_file():
        return ""
    latest, remedy = path.parent / "latest", "this folder has a policy alone:"
    if (latest / "manifest.json").is_file():  # beside the best one of a training
        remedy += f" the state is in {latest}, and"
    return f"{remedy} PolicySnapshot.open({str(path)!r}) reads it"


def _manifest(content: dict[str, Any]) -> bytes:
    """Return a manifest's bytes, with a digest of the rest so that damage to itself shows."""
    digest = sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}, indent=1).encode()


def _aside(path: Path) -> Path:
    """Return where a checkpoint steps aside while another takes its name."""
    return path.with_name(f".{path.name}.old")
