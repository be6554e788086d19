"""Exports of policies that need torch, each checked against the policy before it is written.

An artefact is made and read back in memory, compared with the policy's own forward pass, and
written as a folder with ``export.json`` only if it computes the same. ``python -m
jormungandr.learner.export POLICY FORMAT FOLDER SECONDS`` does so in a process of its own, for the
service, which reads no artefact and imports no torch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jormungandr.bundle import (
    EXPORT_FILE,
    EXPORT_FORMAT,
    MANIFESTS,
    check_format,
    describe,
    write_bundle,
)
from jormungandr.errors import ExportError, JormungandrError, PackageMissing
from jormungandr.learner.artefacts import ARTEFACTS
from jormungandr.learner.exported import signature
from jormungandr.learner.network import numeric_threads
from jormungandr.learner.parity import check_parity
from jormungandr.manifest import check_replaceable, seal, write_folder
from jormungandr.policy import PolicySnapshot

if TYPE_CHECKING:
    from jormungandr.bundle import Environment

__all__ = ["export_policy"]


def export_policy(
    snapshot: PolicySnapshot, path: str | Path, name: str, env: Environment | None = None
) -> None:
    """Write a policy in a format, as a folder; nothing is left behind when that fails.

    Args:
        snapshot: the policy.
        path: the folder; an earlier export there is replaced.
        name: one of `jormungandr.bundle.FORMATS`.
        env: an environment or its `EnvSpec`, to be named in the description.

    Raises:
        InvalidValue: no such format, something else at `path`, or a policy the format cannot hold.
        PackageMissing: the format needs a package that is not installed.
        ExportError: the artefact could not be made, or computes something else than the policy.
    """
    folder = Path(path)
    check_replaceable(folder, MANIFESTS)
    if check_format(name) == "bundle":
        write_bundle(folder, snapshot, env)
        return
    kind = ARTEFACTS[name]
    for package in kind.packages:
        if importlib.util.find_spec(package) is None:
            remedy = f'pip install "jormungandr-rl[{kind.extra}]"'
            raise PackageMissing(f"format {name!r}", f"the package {package}", "none", remedy)
    description = describe(snapshot, env)
    inputs, outputs = signature(snapshot.spec)
    if kind.as_shown:
        inputs = [
            {"name": entry["name"], "form": "as the environment shows it"} for entry in inputs
        ]
    outputs = [entry for entry in outputs if entry["name"] not in kind.without]
    try:
        with numeric_threads(snapshot.spec.threads):
            data = kind.make(snapshot, json.dumps(description))
            run = kind.load(snapshot, data)
            parity = check_parity(snapshot, run, [e["name"] for e in outputs], kind.file)
    except JormungandrError:
        raise
    except Exception as error:  # whatever an exporter raises
        raise ExportError(f"format {name!r}", "an artefact", repr(error)) from error
    entries = {
        "format": EXPORT_FORMAT,
        "artefact": kind.file,
        "artefact_format": name,
        "is_code": kind.is_code,
        "inputs": inputs,
        "outputs": outputs,
        "parity": parity,
        # Torch says which build it is; what pip noted of a wheel need not.
        "made_with": {
            "torch": str(torch.__version__),
            **{package: version(package) for package in kind.packages},
        },
        **description,
    }
    files = {kind.file: data}
    write_folder(folder, {**files, EXPORT_FILE: seal(entries, files)}, MANIFESTS)


def main(arguments: list[str]) -> int:
    """Export a policy's file and return 0, or print an error as JSON and return 1."""
    policy, name, folder, seconds = arguments
    signal.alarm(int(seconds))  # a service that was killed does not end this process
    os.nice(10)
    try:
        export_policy(PolicySnapshot.open(policy), folder, name)
    except JormungandrError as error:
        print(json.dumps(error.to_dict()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
