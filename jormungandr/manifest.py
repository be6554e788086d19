"""Folders that verify themselves: files, and a JSON manifest with the SHA-256 of each.

The manifest carries a digest of itself too: the SHA-256 of its own bytes with the 64 digits of its
last entry, ``sha256``, written as zeros. So any language can check a folder with two lines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from jormungandr.durable import sync_folder, write_synced
from jormungandr.errors import CheckpointError, InvalidValue

__all__ = ["PLAIN_NAME", "check_replaceable", "read_folder", "seal", "unseal", "write_folder"]

#: The grammar of a file's name in such a folder: it cannot lead out of it.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_ZEROS = b"0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")


def seal(content: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a manifest.

    Args:
        content: JSON-able entries; ``format`` names what the folder is.
        files: the folder's other files by name.
    """
    listed = {
        name: {"bytes": len(data), "sha256": sha256(data).hexdigest()}
        for name, data in sorted(files.items())
    }
    whole = {**content, "files": listed, "sha256": _ZEROS.decode()}
    blank = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    before, _, after = blank.rpartition(_ZEROS)
    return before + sha256(blank).hexdigest().encode() + after


def unseal(where: str, manifest: bytes, files: Mapping[str, bytes], kind: str) -> dict[str, Any]:
    """Return the entries of a manifest, after checking it and every file against its digests.

    Args:
        where: the manifest's path, for messages.
        manifest: its bytes.
        files: the folder's other files by name; ones that the manifest does not list are refused.
        kind: what its ``format`` must be.

    Raises:
        CheckpointError: naming the file that is missing, damaged, unlisted, or of another format.
    """
    content = _entries(where, manifest)
    if content.get("format") != kind:
        raise CheckpointError(f"{where}: format", kind, content.get("format", "nothing"))
    for name in files:
        if name not in content["files"]:
            raise CheckpointError(f"{where}: files", f"an entry for {name}", "none")
    for name, recorded in content["files"].items():
        if name not in files:
            raise CheckpointError(f"{where}: files", f"the file {name}", "nothing")
        _same(str(Path(where).with_name(name)), recorded["sha256"], files[name])
    return content


def read_folder(folder: Path, name: str, kind: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return (entries, files) of a folder whose digests verify; other files in it are not read.

    Args:
        folder: the folder.
        name: of its manifest.
        kind: what the manifest's ``format`` must be.

    Raises:
        CheckpointError: naming the file that is missing, damaged, or of another format.
    """
    path = folder / name
    manifest = _read(path, "a manifest")
    listed = _entries(str(path), manifest)["files"]
    files = {file: _read(folder / file, "a file") for file in listed}
    return unseal(str(path), manifest, files, kind), files


def write_folder(folder: Path, files: Mapping[str, bytes], manifests: Collection[str]) -> None:
    """Write a folder whole: under a temporary name, synced, then renamed.

    Args:
        folder: the folder; one that holds a manifest of ours is replaced.
        files: everything in it, by name.
        manifests: names of the manifests that mark a folder as one of ours.

    Raises:
        InvalidValue: something else is there, and would be lost.
    """
    folder = folder.absolute()
    check_replaceable(folder, manifests)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    aside = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for name, data in files.items():
            write_synced(temporary / name, data)
        sync_folder(temporary)
        if folder.exists():
            # A folder cannot be renamed over a full one: the old one steps aside first.
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
        temporary.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        raise


def check_replaceable(folder: Path, manifests: Collection[str]) -> None:
    """Refuse a place where writing would put something else than a folder of ours out of the way.

    Raises:
        InvalidValue: something else is there.
    """
    ours = any((folder / name).is_file() for name in manifests)
    if folder.exists() and not ours and (folder.is_file() or any(folder.iterdir())):
        raise InvalidValue("path", f"a new folder, or one with {' or '.join(manifests)}", folder)


def _entries(where: str, manifest: bytes) -> dict[str, Any]:
    """Return the entries of a manifest whose own digest verifies."""
    try:
        content = dict(json.loads(manifest))
        files = {str(name): dict(entry) for name, entry in content["files"].items()}
        digests = [content["sha256"], *(entry["sha256"] for entry in files.values())]
        if not all(_DIGEST.fullmatch(digest) for digest in digests):
            raise ValueError("a digest of another form")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(where, "a manifest", repr(error)) from None
    before, _, after = manifest.rpartition(content["sha256"].encode())
    _same(where, content["sha256"], before + _ZEROS + after)
    for name in files:
        if PLAIN_NAME.fullmatch(name) is None:
            raise CheckpointError(f"{where}: files", f"names like {PLAIN_NAME.pattern}", repr(name))
    return content


def _same(where: str, recorded: str, data: bytes) -> None:
    digest = sha256(data).hexdigest()
    if digest != recorded:
        expected, got = f"SHA-256 {recorded[:12]}…", f"{digest[:12]}…"
        raise CheckpointError(where, expected, got, "it is damaged")


def _read(path: Path, expected: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(str(path), expected, repr(error)) from None
