"""``jormungandr train``: a policy for any environment with discrete actions, in this process."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium

from jormungandr.cli.contenders import SnapshotContender
from jormungandr.cli.evaluate import evaluate
from jormungandr.cli.opening import check_fits, check_writable
from jormungandr.errors import InvalidValue
from jormungandr.spec import ModelSpec, preset_names

__all__ = ["add_arguments", "parse_settings", "run"]

#: Environment steps between two lines of progress.
REPORT_EVERY = 2_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("env", help="environment id, such as CartPole-v1 or package:Name-v0")
    parser.add_argument(
        "--steps",
        type=int,
        default=20_000,
        help="decisions, of action_repeat environment steps each (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the model and the environment (default: %(default)s)",
    )
    parser.add_argument("--preset", choices=preset_names(), help="specification to start from")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the specification, such as c51.lr=0.001, 'c51.support=[0,100]',"
        " action_masks=true or observation.frame_stack=4",
    )
    parser.add_argument("--out", type=Path, help="folder to save the learner in")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint at --out")
    parser.add_argument(
        "--eval-episodes",
        type=int,
        default=100,
        help="held-out episodes, played after training (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, save if asked to, evaluate; return 0."""
    # Here, and not at the top: ``jormungandr train --help`` loads no torch.
    from jormungandr.learner import Learner
    from jormungandr.learner.checkpoint import check_replaceable
    from jormungandr_wrappers import RemoteActor, SpecifiedEnv

    if arguments.steps < 1:
        raise InvalidValue("--steps", ">= 1", arguments.steps)
    if arguments.eval_episodes < 2:
        raise InvalidValue("--eval-episodes", ">= 2, for an interval", arguments.eval_episodes)
    out: Path | None = arguments.out
    if out is not None:
        check_replaceable(out)
        if (out / "manifest.json").exists() and not arguments.overwrite:
            raise InvalidValue("--out", "a new folder, or --overwrite", f"a checkpoint in {out}")
        _check_out(out)
    env = gymnasium.make(arguments.env)
    settings = {"seed": arguments.seed, **parse_settings(arguments.set)}
    if arguments.preset is None:
        spec = ModelSpec.for_env(env, **settings)
    else:
        spec = ModelSpec.preset(arguments.preset, **settings)
        check_fits(spec, env, "--preset")
    learner = Learner(spec)
    # Sent step by step: an update that is due runs before the next action is chosen.
    actor = RemoteActor(
        SpecifiedEnv(env, spec),
        learner,
        actor_id="train",
        batch_size=1,
        mask_key="action_mask" if spec.action_masks else None,
    )
    print(f"{arguments.env}: {arguments.steps:,} steps, seed {arguments.seed}")
    began, done, seed = time.monotonic(), 0, arguments.seed
    while done < arguments.steps:
        result = actor.run(
            steps=min(REPORT_EVERY, arguments.steps - done), seed=None if done else seed
        )
        done += result.transitions
        recent = f"{result.returns.mean():9.2f}" if result.episodes else "        -"
        print(
            f"  step {done:>8,}  updates {learner.update_count:>7,}  episodes"
            f" {len(result.episodes):>4}  mean return {recent}  {time.monotonic() - began:6.1f} s",
            flush=True,
        )
    for warning in learner.warnings():
        print(f"warning: {warning}")
    if out is not None:
        try:
            learner.save(out)
        except OSError as error:  # a full disk, say
            raise InvalidValue("--out", "a folder that can be written", error) from None
        print(f"saved in {out} (jormungandr evaluate {arguments.env} --policy {out})")
    trained = SnapshotContender("the trained policy", learner.snapshot())
    evaluate({"A": (trained, env)}, episodes=arguments.eval_episodes)
    env.close()
    return 0


def _check_out(out: Path) -> None:
    """Make the folders around `out`, and refuse a place where nothing can be kept."""
    expected = "a folder that can be written"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValue("--out", expected, error) from None
    check_writable(out, "--out", expected)


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
        for group in groups:
            at = at.setdefault(group, {})
            if not isinstance(at, dict):
                raise InvalidValue("--set", f"{group} to be a group", repr(setting))
        at[name] = value
    return fields
