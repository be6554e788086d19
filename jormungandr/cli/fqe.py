"""``jormungandr fqe``: how good a policy is, from held-out steps that are stored already."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from jormungandr.cli.opening import check_writable, open_policy
from jormungandr.errors import DataDirError, InvalidValue, MissingField
from jormungandr.off_policy import HeldOutSteps, OffPolicyReport, evaluate_off_policy
from jormungandr.policy import PolicySnapshot
from jormungandr.spec import ModelSpec

__all__ = ["add_arguments", "run"]

#: Newest episodes that are used unless another number is asked for.
EPISODES = 1_000

EPILOG = """\
Fitted-Q evaluation (Le, Voloshin and Yue 2019), corrected by visits that are fitted with it, with
an interval over episodes. Nothing is played. What the policy would do must occur in the held-out
episodes: those of actors that explore say most. docs/evaluation.md says more.
"""


class _Data(NamedTuple):
    """Where the steps are from, how they were observed, and the policy that comes with them."""

    name: str
    spec: ModelSpec
    held: HeldOutSteps
    policy: PolicySnapshot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument(
        "data",
        metavar="DATA",
        type=Path,
        help="a service's data directory, it may be running; or a checkpoint",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="of a data directory: a model's id, or ID.GENERATION",
    )
    parser.add_argument(
        "--policy",
        metavar="A",
        help="a checkpoint, a policy's file, a bundle or a model's folder (default: DATA's newest)",
    )
    parser.add_argument("--gamma", type=float, help="discount (default: the policy's own)")
    parser.add_argument(
        "--horizon",
        type=int,
        metavar="STEPS",
        help="that an episode has at most (default: no limit; with --gamma 1 the longest held)",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=EPISODES,
        metavar="N",
        help="use the newest N held-out ones (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random features")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate with what it rests on; return 0."""
    if arguments.episodes < 2:
        raise InvalidValue("--episodes", ">= 2, for an interval", arguments.episodes)
    if arguments.seed < 0:
        raise InvalidValue("--seed", ">= 0", arguments.seed)
    if arguments.json is not None:
        check_writable(arguments.json, "--json", "a file that can be written")
    of_checkpoint = (arguments.data / "manifest.json").is_file()
    read = _checkpoint if of_checkpoint else _journal
    data = read(arguments.data, arguments.model, arguments.policy)
    _check_fits(data)
    report = evaluate_off_policy(
        data.policy,
        data.held.newest(arguments.episodes),
        gamma=arguments.gamma,
        horizon=arguments.horizon,
        seed=arguments.seed,
    )
    _show(data.name, report)
    if arguments.json is not None:
        content = {"data": data.name, **report.to_dict()}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _checkpoint(path: Path, model: str | None, policy: str | None) -> _Data:
    """Read the held-out transitions that a checkpoint keeps."""
    from jormungandr.learner.core import Core

    if model is not None:
        raise InvalidValue("MODEL", "none, for a checkpoint", repr(model))
    core = Core.load(path)
    return _Data(
        str(path),
        core.spec,
        HeldOutSteps.of_arrays(core.validation.in_order()),
        core.snapshot() if policy is None else open_policy(policy),
    )


def _journal(path: Path, model: str | None, policy: str | None) -> _Data:
    """Read the held-out transitions of a journal."""
    from jormungandr.columns import VALIDATION
    from jormungandr.rows import ACCEPTED, TransitionsRow
    from jormungandr.service.tools.stored import StoredModel, find_model

    if not (path / "models").is_dir():
        raise DataDirError(str(path), "a data directory of a service, or a checkpoint", "neither")
    if model is None:
        ids = sorted(p.name.rpartition(".")[0] for p in (path / "models").glob("[!.]*.*"))
        raise MissingField("MODEL", f"one of {ids[:40]}", "none")
    with StoredModel(find_model(path, model)) as stored:
        parts, last = [], 0
        for row in stored.rows():
            last = row.lsn
            if isinstance(row, TransitionsRow):
                c = row.columns
                held = (c.split == VALIDATION) & (row.outcome == ACCEPTED)
                if held.any():
                    parts.append(c.take(held))
        created = stored.created
        name = f"{created.model_id}.{created.generation}, rows {stored.first} to {last}"
        if not parts:
            remedy = 'actors submit them with split="validation"'
            raise DataDirError(str(stored.path), "held-out transitions", "none", remedy)
        return _Data(
            name,
            stored.spec,
            HeldOutSteps.of_columns(parts),
            open_policy(str(stored.folder) if policy is None else policy),
        )


def _check_fits(data: _Data) -> None:
    """Refuse a policy that does not see what the steps show, or acts otherwise.

    Raises:
        InvalidValue: naming what differs.
    """
    mine, other = data.policy.spec, data.spec
    for what, own, theirs in (
        ("observations", mine.observation.described, other.observation.described),
        ("features", mine.observation.features, other.observation.features),
        ("frame_stack", mine.observation.frame_stack, other.observation.frame_stack),
        ("actions", [a.value for a in mine.action_set], [a.value for a in other.action_set]),
        ("action_repeat", mine.action_repeat, other.action_repeat),
    ):
        if own != theirs and not (what == "features" and None in (own, theirs)):
            raise InvalidValue("--policy", f"the {what} of the steps, {theirs}", own)


def _show(name: str, report: OffPolicyReport) -> None:
    r = report.result
    limit = "" if report.horizon is None else f", at most {report.horizon} steps an episode"
    share = r.effective_steps / r.steps
    print(f"policy version {report.policy_version}, by held-out steps of {name}")
    print(f"  {r.episodes:,} episodes, {r.steps:,} steps, gamma {report.gamma:g}{limit}")
    print(f"  value      {r.value.estimate:.4g} [{r.value.low:.4g}, {r.value.high:.4g}] at 95 %")
    print(f"  fit alone  {r.fitted:.4g}")
    print(f"  agreement  {r.agreement:.1%} of the steps did what it would do")
    print(f"  evidence   as of {r.effective_steps:,.0f} steps of its own, {share:.0%}")
    for warning in report.warnings():
        print(f"warning: {warning}")
