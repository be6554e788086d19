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

from jormungandr.errors import CheckpointError
from jormungandr.version import __version__

__all__ = ["read_checkpoint", "write_checkpoint"]

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
    """
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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for name, data in contents.items():
            _write(temporary / name, data)
        _write(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
        _sync_folder(temporary)
        old = None
        if path.exists():
            # A folder cannot be renamed over a full one; the old one steps aside first.
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
        _sync_folder(path.parent)
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_checkpoint(
    path: Path,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, bytes]]:
    """Return (state, tensors, files) of a checkpoint folder whose digests verify.

    Raises:
        CheckpointError: naming the file that is missing, damaged, or of another format.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        names = dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(str(path / "manifest.json"), "a manifest", repr(error)) from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format", FORMAT, manifest.get("format"))
    files = {}
    for name, recorded in names.items():
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


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there, and renames are journaled
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
