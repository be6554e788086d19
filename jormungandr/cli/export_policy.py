"""``jormungandr export-policy``: a policy as a folder for others to act with."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jormungandr.bundle import FORMATS, MANIFESTS, open_bundle, write_bundle
from jormungandr.cli.making import make_env
from jormungandr.cli.opening import check_fits, open_policy, served_model
from jormungandr.errors import InvalidValue
from jormungandr.manifest import check_replaceable
from jormungandr.policy import PolicySnapshot

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a checkpoint folder, a policy's file, a bundle, a model's folder of a service,"
        " or http://HOST:PORT/v1/models/ID",
    )
    parser.add_argument("--format", choices=FORMATS, default="bundle", help="default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--env", help="id of its environment, to be named in the description")
    parser.add_argument(
        "--features",
        metavar="A,B,…",
        help="refuse a policy whose features are not these, in this order",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an export at --out")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, say what is in it; return 0."""
    out: Path = arguments.out
    check_replaceable(out, MANIFESTS)
    if out.exists() and any(out.iterdir()) and not arguments.overwrite:
        raise InvalidValue("--out", "a new folder, or --overwrite", f"an export in {out}")
    features = None if arguments.features is None else arguments.features.split(",")
    policy = _open(arguments.source, features)
    env = None if arguments.env is None else _specification(arguments.env, policy)
    try:
        if arguments.format == "bundle":
            write_bundle(out, policy, env)
        else:
            # Here, and not at the top: a bundle is written without torch.
            from jormungandr.learner.export import export_policy

            export_policy(policy, out, arguments.format, env)
    except OSError as error:
        raise InvalidValue("--out", "a folder that can be written", error) from None
    print(f"policy version {policy.version}, after {policy.update_count} updates, in {out}")
    for file in sorted(out.iterdir()):
        print(f"  {file.stat().st_size:>12,} bytes  {file.name}")
    return 0


def _open(source: str, features: list[str] | None) -> PolicySnapshot:
    """Return a policy of this machine, or a service's newest one."""
    if "://" not in source:
        return open_policy(source, features)
    url, model_id = served_model(source, "SOURCE")
    from jormungandr.client import RemoteLearner

    with (
        tempfile.TemporaryDirectory() as folder,
        RemoteLearner(url, model_id) as endpoint,
    ):
        endpoint.export(Path(folder) / "bundle")
        return open_bundle(Path(folder) / "bundle", features)


def _specification(env_id: str, policy: PolicySnapshot) -> EnvSpec | None:
    """Return what makes the environment again, if the policy fits it."""
    env = make_env(env_id)
    check_fits(policy.spec, env, "SOURCE")
    env.close()
    return env.spec
