"""``jormungandr fqe``: how good a policy is, from held-out steps that are stored already."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jormungandr.cli.opening import check_writable, open_policy, served_policy
from jormungandr.errors import DataDirError, InvalidValue, MissingField, PolicyNotReady
from jormungandr.held_steps import HeldOutSteps
from jormungandr.off_policy import OffPolicyReport, check_fits, evaluate_off_policy
from jormungandr.policy import PolicySnapshot
from jormungandr.spec import ModelSpec

if TYPE_CHECKING:
    from jormungandr.service.tools.stored import StoredModel

__all__ = ["add_arguments", "run"]

#: Newest episodes that are used unless another number is asked for.
EPISODES = 1_000
#: Steps that are read before older episodes are dropped; as many again as are kept, at least.
BLOCK = 65_536

EPILOG = """\
Fitted-Q evaluation (Le, Voloshin and Yue 2019), corrected by visits that are fitted with it, with
an interval over episodes. Nothing is played. What the policy would do must occur in the held-out
episodes: those of actors that explore say most. docs/evaluation.md says more.
"""


class _Data(NamedTuple):
    """Where the steps are from, how they were observed, and which policy is evaluated."""

    name: str
    spec: ModelSpec
    held: HeldOutSteps
    policy: PolicySnapshot
    which: str


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
        help="a checkpoint, a policy's file, a bundle, a model's folder, or what a service hands"
        " out: http://HOST:PORT/v1/models/ID (default: the champion of a model that serves one,"
        " else DATA's newest)",
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
    data = read(arguments.data, arguments.model, arguments.policy, arguments.episodes)
    report = evaluate_off_policy(
        data.policy,
        data.held,
        gamma=arguments.gamma,
        horizon=arguments.horizon,
        seed=arguments.seed,
        logged=data.spec,
    )
    _show(data, report)
    if arguments.json is not None:
        content = {"data": data.name, "policy": data.which, **report.to_dict()}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _open(given: str) -> PolicySnapshot:
    """Return a policy of this machine, or the one that a service hands out."""
    return served_policy(given, "--policy") if "://" in given else open_policy(given)


def _checkpoint(path: Path, model: str | None, policy: str | None, episodes: int) -> _Data:
    """Read the held-out transitions that a checkpoint keeps."""
    from jormungandr.learner.core import Core

    if model is not None:
        raise InvalidValue("MODEL", "none, for a checkpoint", repr(model))
    core = Core.load(path)
    return _Data(
        str(path),
        core.spec,
        HeldOutSteps.of_arrays(core.validation.in_order()).newest(episodes),
        core.snapshot() if policy is None else _open(policy),
        "the checkpoint's" if policy is None else policy,
    )


def _journal(path: Path, model: str | None, policy: str | None, episodes: int) -> _Data:
    """Read the held-out transitions of a journal, but those of rows that were set aside."""
    from jormungandr.service.tools.stored import StoredModel, find_model

    if not (path / "models").is_dir():
        raise DataDirError(str(path), "a data directory of a service, or a checkpoint", "neither")
    if model is None:
        ids = sorted(p.name.rpartition(".")[0] for p in (path / "models").glob("[!.]*.*"))
        raise MissingField("MODEL", f"one of {ids[:40]}", "none")
    with StoredModel(find_model(path, model)) as stored:
        which, place = _default(stored) if policy is None else (policy, policy)
        chosen = _open(place)
        check_fits(chosen.spec, stored.spec)  # before anything is read for it
        held, name = _newest(stored, episodes)
        return _Data(name, stored.spec, held, chosen, which)


def _default(stored: StoredModel) -> tuple[str, str]:
    """Return the policy that is evaluated unless another one is named: what it is, and its path.

    Raises:
        PolicyNotReady: there is none.
    """
    from jormungandr.service.journal.database import control_rows
    from jormungandr.service.journal.decisions import ChampionRow, RollbackRow

    if stored.spec.promotion.gated:
        kinds = (ChampionRow.kind, RollbackRow.kind)
        rows = [
            row
            for kind in kinds
            for row in control_rows(stored.connection, stored.path, kind, newest=1)
        ]
        if rows:
            _, champion = max(rows, key=lambda row: row[0])
            file = f"{champion['version']:020d}.safetensors"
            return "the champion", str(stored.folder / "policies" / file)
    if not any((stored.folder / "policies").glob("*.safetensors")):
        remedy = "name one with --policy, or wait for the model's own: import-data --wait does"
        raise PolicyNotReady(stored.folder.name, "a policy that was published", "none yet", remedy)
    return "the newest", str(stored.folder)


def _newest(stored: StoredModel, episodes: int) -> tuple[HeldOutSteps, str]:
    """Return the steps of the newest held-out episodes of a journal, and where they are from.

    Raises:
        DataDirError: there are none.
    """
    from jormungandr.columns import VALIDATION
    from jormungandr.rows import ACCEPTED, SkippedRow, TransitionsRow

    parts: list[HeldOutSteps] = []
    last = new = kept = aside = 0
    for row in stored.rows():
        last = row.lsn
        aside += isinstance(row, SkippedRow)
        if not isinstance(row, TransitionsRow):
            continue
        c = row.columns
        found = (c.split == VALIDATION) & (row.outcome == ACCEPTED)
        if found.any():
            parts.append(HeldOutSteps.of_columns(c.take(found)))
            new += len(parts[-1])
        if new >= max(kept, BLOCK):
            parts = [HeldOutSteps.joined(parts).newest(episodes)]
            new, kept = 0, len(parts[0])
    if not parts:
        remedy = 'actors submit them with split="validation"'
        raise DataDirError(str(stored.path), "held-out transitions", "none", remedy)
    name = f"{stored.created.model_id}.{stored.created.generation}, rows {stored.first} to {last}"
    if aside:
        name += f" without {aside} set aside"
    return HeldOutSteps.joined(parts).newest(episodes), name


def _show(data: _Data, report: OffPolicyReport) -> None:
    r = report.result
    limit = "" if report.horizon is None else f", at most {report.horizon} steps an episode"
    share = r.effective_steps / r.steps
    version = f"{report.policy_version} ({data.which})"
    print(f"policy version {version}, by held-out steps of {data.name}")
    print(f"  {r.episodes:,} episodes, {r.steps:,} steps, gamma {report.gamma:g}{limit}")
    print(f"  value      {r.value.estimate:.4g} [{r.value.low:.4g}, {r.value.high:.4g}] at 95 %")
    print(f"  fit alone  {r.fitted:.4g}")
    print(f"  agreement  {r.agreement:.1%} of the steps did what it would do")
    print(f"  evidence   as of {r.effective_steps:,.0f} steps of its own, {share:.0%}")
    for warning in report.warnings():
        print(f"warning: {warning}")
