"""What a training that was stopped with Ctrl-C leaves, and the command that goes on with it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from jormungandr.cli.train_folder import kept_step
from jormungandr.cli.train_plan import Plan

__all__ = ["resuming", "stopped"]


def stopped(plans: Sequence[Plan], arguments: argparse.Namespace) -> str:
    """Return the line that says what is kept of trainings and how to go on.

    Args:
        plans: the trainings, each as far as it came.
        arguments: of the command.
    """
    if arguments.out is None:
        if arguments.service is None:
            return "stopped; nothing is kept without --out"
        return "stopped; the service keeps its models, and nothing else is kept without --out"
    if arguments.service is not None:
        kept = "the service keeps every step that it has, and the folder the evaluations"
    else:
        kept = f"kept in {arguments.out}: {_states(plans)}"
    return f"stopped; {kept}; to go on: {resuming(plans, arguments)}"


def _states(plans: Sequence[Plan]) -> str:
    found = [(plan, kept_step(plan.out)) for plan in plans if plan.out is not None]
    # Of several seeds, the plans have names.
    said = [f"{plan.name.strip()} up to step {step:,}" for plan, step in found if step is not None]
    if said:
        return ", ".join(text.strip() for text in said)
    first = min(plans[0].eval_every, plans[0].steps)  # an evaluation; all seeds have them together
    return f"no state yet, the first is kept at the end of the episode that step {first:,} is in"


def resuming(plans: Sequence[Plan], arguments: argparse.Namespace) -> str:
    """Return the command that goes on with what these arguments began."""
    plan = plans[0]
    words = ["jormungandr", "train", arguments.env, "--steps", str(plan.steps)]
    if arguments.seeds is not None:
        words += ["--seeds", str(arguments.seeds)]
    elif arguments.seed:
        words += ["--seed", str(arguments.seed)]
    if arguments.jobs > 1:
        words += ["--jobs", str(arguments.jobs)]
    if arguments.preset is not None:
        words += ["--preset", arguments.preset]
    for setting in arguments.set:
        words += ["--set", setting]
    for option in ("label_key", "eval_every", "service", "model"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    words += ["--eval-episodes", str(plan.eval_episodes)]
    words += ["--out", str(arguments.out), "--resume"]
    return shlex.join(words)
