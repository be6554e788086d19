"""``jormungandr train``: policies for any environment with discrete actions, seed by seed.

In this process, or through a running service; resumed exactly where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from jormungandr.cli.contenders import SnapshotContender
from jormungandr.cli.evaluate import evaluate
from jormungandr.cli.making import make_env
from jormungandr.cli.new_spec import add_preset
from jormungandr.cli.opening import name_of
from jormungandr.cli.train_plan import EVALUATIONS, STEPS, Plan, plans_of
from jormungandr.errors import InvalidValue
from jormungandr.spec import MODEL_ID, preset_names

__all__ = ["add_arguments", "parse_settings", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("env", help="environment id, such as CartPole-v1 or package:Name-v0")
    parser.add_argument(
        "--steps",
        type=int,
        help="decisions, of action_repeat environment steps each (default: "
        f"{STEPS}, or with --resume as many as before); to go on past the end, more",
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument(
        "--seed", type=int, default=0, help="of the model and the environment (default: 0)"
    )
    seeds.add_argument("--seeds", type=int, metavar="N", help="train seeds 0 to N - 1")
    parser.add_argument(
        "--jobs", type=int, default=1, help="seeds to train at once (default: %(default)s)"
    )
    add_preset(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the specification, such as c51.lr=0.001, 'c51.support=[0,100]',"
        " action_masks=true or observation.frame_stack=4",
    )
    parser.add_argument("--label-key", help="info key of the auxiliary class")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for the latest state, the best policy and the evaluations; one in it for each"
        " of several seeds",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--overwrite", action="store_true", help="replace a training at --out")
    what.add_argument(
        "--resume",
        action="store_true",
        help="go on with the training at --out, bit for bit as if it had not been stopped"
        " (docs/environments.md says what is so through a service, or past the end)",
    )
    parser.add_argument(
        "--eval-every",
        type=int,
        metavar="N",
        help=f"steps between evaluations (default: --steps / {EVALUATIONS}; resumed, as before)",
    )
    parser.add_argument(
        "--eval-episodes",
        type=int,
        metavar="N",
        default=100,
        help="held-out episodes of an evaluation (default: %(default)s)",
    )
    parser.add_argument(
        "--service",
        metavar="URL",
        help="train through a running service, waiting for it at every step; the token is in"
        " JORMUNGANDR_TOKEN or JORMUNGANDR_TOKEN_FILE",
    )
    parser.add_argument(
        "--model",
        metavar="ID",
        help="of the model at the service; with --seeds what its ids begin with (default: made of"
        " environment and seed)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, keep what is asked for, evaluate; return 0, or 130 after Ctrl-C."""
    _check(arguments)
    if arguments.service is None:
        import jormungandr.learner  # noqa: F401 - says what is missing before anything is done

    # Here, and not at the top: what they need of the wrappers and processes, --help does not.
    from jormungandr.cli.train_jobs import train_all
    from jormungandr.cli.train_loop import tell, train
    from jormungandr.cli.train_stopped import stopped
    from jormungandr.cli.train_table import judged, print_outcomes

    with contextlib.closing(make_env(arguments.env)) as env:
        plans = plans_of(arguments, env, parse_settings(arguments.set))
        name = name_of(env)
        what = f"seed {plans[0].seed}" if arguments.seeds is None else f"{len(plans)} seeds"
        print(f"{arguments.env}: {plans[0].steps:,} steps, {what}")
        if arguments.preset is None and name in preset_names():
            print(f"hint: --preset {name} is made for it, and --preset auto finds it")
        try:
            if arguments.seeds is None:
                (plan,) = plans
                trained = train(plan, tell)
                _say_where(plan)
                contender = SnapshotContender("the trained policy", trained.policy)
                results, _ = evaluate({"A": (contender, env)}, episodes=plan.eval_episodes)
                returns = results["A"].played.returns
                outcomes = [judged(trained, plan.seed, plan.env_id, plan.eval_episodes, returns)]
            else:
                outcomes = train_all(plans, min(arguments.jobs, len(plans)), tell)
        except KeyboardInterrupt:  # files are replaced whole, so nothing is half done
            print(stopped(plans, arguments), file=sys.stderr)
            return 130
    title = f"{name}, {plans[0].steps:,} steps, {plans[0].eval_episodes} episodes of each policy"
    print_outcomes(title, outcomes)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together, before anything is made."""
    for option, least in (("steps", 1), ("seeds", 1), ("jobs", 1), ("eval_every", 1)):
        value = getattr(arguments, option)
        if value is not None and value < least:
            raise InvalidValue(f"--{option.replace('_', '-')}", f">= {least}", value)
    if arguments.eval_episodes < 2:
        raise InvalidValue("--eval-episodes", ">= 2, for an interval", arguments.eval_episodes)
    if arguments.jobs > 1 and arguments.seeds is None:
        raise InvalidValue("--jobs", "1, or --seeds", arguments.jobs)
    for option in ("resume", "overwrite"):
        if getattr(arguments, option) and arguments.out is None:
            raise InvalidValue(f"--{option}", "a folder, with --out", "none")
    if arguments.model is not None:
        if arguments.service is None:
            raise InvalidValue("--model", "a service, with --service", "none")
        if MODEL_ID.fullmatch(arguments.model) is None:
            raise InvalidValue("--model", f"an id like {MODEL_ID.pattern}", repr(arguments.model))


def _say_where(plan: Plan) -> None:
    if plan.out is not None:
        best = plan.out / "best"
        print(
            f"latest and best kept in {plan.out}"
            f" (jormungandr evaluate {plan.env_id} --policy {best})"
        )


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """Turn ``c51.lr=0.001`` into nested fields; values are JSON, or else strings.

    Raises:
        InvalidValue: a setting without ``=``, or a field of what is no group.
    """
    fields: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise InvalidValue("--set", "PATH=VALUE", repr(setting))
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        at = fields
        *groups, name = path.split(".")
        if [*groups, name][0] == "env":  # which functions that take the fields call the other thing
            raise InvalidValue("--set", "a field of the specification", repr(setting))
        for group in groups:
            at = at.setdefault(group, {})
            if not isinstance(at, dict):
                raise InvalidValue("--set", f"{group} to be a group", repr(setting))
        at[name] = value
    return fields
