"""``jormungandr actor``: a process of one or several environments beside a service.

With ``--follow`` it plays the episodes it is told to on standard input, one JSON object a line
(``{"split": "train", "seed": 7}``), and answers each with a line; the demo drives its actors so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from jormungandr.cli.making import make_env
from jormungandr.cli.new_spec import add_preset, preset_of, spec_for
from jormungandr.cli.opening import check_fits
from jormungandr.cli.train import parse_settings
from jormungandr.client import Guard, RemoteLearner, Spool
from jormungandr.errors import Forbidden, InvalidValue, ModelUnknown
from jormungandr.protocol import SPLITS
from jormungandr.spec import ModelSpec
from jormungandr_wrappers import OverlappedRecorder, RemoteActor, SpecifiedEnv
from jormungandr_wrappers.overlapped import StepResult
from jormungandr_wrappers.remote_actor import RunResult

__all__ = ["add_arguments", "figures", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("env", help="environment id, such as OUSpread-v0 or package:Name-v0")
    parser.add_argument("--model", required=True, help="model id; created if it does not exist")
    parser.add_argument("--url", help="of the service (default: JORMUNGANDR_URL)")
    parser.add_argument("--actor-id", required=True, help="who acts")
    parser.add_argument("--split", choices=SPLITS, default="train", help="of all transitions")
    parser.add_argument(
        "--episodes", type=int, default=10, help="episodes to play (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of the environment; of the n-th one, n more")
    parser.add_argument(
        "--num-envs",
        type=int,
        default=1,
        help="environments to play at once; one half steps while the service chooses for the other",
    )
    parser.add_argument(
        "--placement",
        choices=("remote", "local"),
        default="remote",
        help="where actions are chosen: at the service, or here with its newest policy, also while"
        " it is away (default: %(default)s)",
    )
    parser.add_argument(
        "--spool",
        metavar="FILE",
        help="where transitions wait while the service is away; what an earlier actor left there"
        " is sent first",
    )
    parser.add_argument("--deadline-ms", type=float, help="milliseconds for one decision")
    parser.add_argument(
        "--max-policy-age",
        type=float,
        metavar="SECONDS",
        help="with --placement local: since the service last said that the policy is its newest",
    )
    parser.add_argument(
        "--fallback",
        type=int,
        metavar="ACTION",
        help="index of the action that is taken where these two do not hold",
    )
    parser.add_argument("--label-key", help="info key of the auxiliary class")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the specification, such as action_masks=true or"
        " observation.frame_stack=4; of a model that exists it must be the same",
    )
    add_preset(parser)
    parser.add_argument("--follow", action="store_true", help="play what standard input says")


def run(arguments: argparse.Namespace) -> int:
    """Act until done; return 0."""
    if arguments.episodes < 1:
        raise InvalidValue("--episodes", ">= 1", arguments.episodes)
    if arguments.num_envs < 1:
        raise InvalidValue("--num-envs", ">= 1", arguments.num_envs)
    if arguments.num_envs > 1 and arguments.follow:
        raise InvalidValue("--num-envs", "1 with --follow", arguments.num_envs)
    settings, guard = parse_settings(arguments.set), _guard(arguments)
    spool = None if arguments.spool is None else Spool(arguments.spool)
    with (
        contextlib.closing(make_env(arguments.env)) as env,
        RemoteLearner(
            arguments.url,
            arguments.model,
            placement=arguments.placement,
            spool=spool,
            guard=guard,
        ) as endpoint,
    ):
        if guard is not None:  # now, and not on the day that it has to act
            guard.check(ModelSpec.for_env(env), "--fallback")
        try:
            found = endpoint.info()
        except ModelUnknown:
            spec = spec_for(env, arguments.preset, settings)
            _check_label_key(arguments.label_key, spec)  # before there is a model without labels
            try:
                endpoint.create(spec)
            except Forbidden as error:
                raise _not_created(error, arguments.model) from None
        else:
            if arguments.preset is not None:
                settings = {"preset": preset_of(arguments.preset, env), **settings}
            if settings:
                endpoint.create(settings)  # which refuses others than the model's
            spec = ModelSpec.from_dict(found["spec"])
            check_fits(spec, env, "--model")
            _check_label_key(arguments.label_key, spec)
        if arguments.num_envs > 1:
            _act_together(arguments, spec, endpoint)
        else:
            _act(arguments, SpecifiedEnv(env, spec), endpoint, masked=spec.action_masks)
    return 0


def _guard(arguments: argparse.Namespace) -> Guard | None:
    """Return the guard that the arguments describe."""
    limits = (arguments.deadline_ms, arguments.max_policy_age)
    if (arguments.fallback is None) != (limits == (None, None)):
        expected = "together with --deadline-ms or --max-policy-age"
        raise InvalidValue("--fallback", expected, arguments.fallback)
    if arguments.max_policy_age is not None and arguments.placement != "local":
        # Where the service acts no policy is ever too old, and the bound would bound nothing.
        remedy = "a service acts with its newest policy; --deadline-ms bounds one decision"
        raise InvalidValue("--max-policy-age", "--placement local", arguments.placement, remedy)
    return None if arguments.fallback is None else Guard(arguments.fallback, *limits)


def _not_created(error: Forbidden, model: str) -> Forbidden:
    """Return a refusal to create a model, saying what a token for actors cannot find out."""
    if error.where != "token":  # as many models as the service takes, say
        return error
    remedy = f"model {model!r} does not exist yet, and an operator has to create it first: this"
    remedy += " command with the operator's token does"
    return Forbidden(error.where, error.expected, error.got, remedy)


def _check_label_key(label_key: str | None, spec: ModelSpec) -> None:
    """Refuse labels that the model has no head for, before an episode is played."""
    if label_key is not None and spec.auxiliary is None:
        remedy = """--set 'auxiliary={"classes": ["A", "B"]}' makes one with two classes"""
        raise InvalidValue("--label-key", "a model with an auxiliary head", "none", remedy)


def _act(
    arguments: argparse.Namespace,
    env: gymnasium.Env[Any, Any],
    endpoint: RemoteLearner,
    *,
    masked: bool,
) -> None:
    actors = {
        split: RemoteActor(
            env,
            endpoint,
            actor_id=arguments.actor_id,
            split=split,
            label_key=arguments.label_key,
            mask_key="action_mask" if masked else None,
            batch_size=1_000,
        )
        for split in SPLITS
    }
    if arguments.follow:
        for line in sys.stdin:
            order = json.loads(line)
            result = actors[order["split"]].run(episodes=1, seed=order["seed"])
            print(json.dumps(figures(result)), flush=True)
        return
    for i in range(arguments.episodes):
        seed = arguments.seed if i == 0 else None
        result = actors[arguments.split].run(episodes=1, seed=seed)
        print(json.dumps(figures(result)), flush=True)


def _act_together(arguments: argparse.Namespace, spec: ModelSpec, endpoint: RemoteLearner) -> None:
    """Play several environments at once until so many episodes have ended."""
    count = arguments.num_envs

    def make() -> gymnasium.Env[Any, Any]:
        return SpecifiedEnv(make_env(arguments.env), spec)

    halves = [SyncVectorEnv([make] * n) for n in (count // 2, count - count // 2)]
    recorder = OverlappedRecorder(
        halves,
        endpoint,
        actor_id=arguments.actor_id,
        split=arguments.split,
        label_key=arguments.label_key,
        mask_key="action_mask" if spec.action_masks else None,
        batch_size=256,
    )
    returns, lengths, left = np.zeros(count), np.zeros(count, dtype=int), arguments.episodes
    over = np.zeros(count, dtype=np.bool_)  # the next row of such a one only reports a reset

    def told(first: int, result: StepResult) -> None:
        nonlocal left
        _, rewards, terminated, truncated, _ = result
        rows = slice(first, first + len(rewards))
        returns[rows] = np.where(over[rows], 0.0, returns[rows] + rewards)
        lengths[rows] = np.where(over[rows], 0, lengths[rows] + 1)
        over[rows] = terminated | truncated
        for i in (first + np.flatnonzero(over[rows])).tolist():
            if left > 0:
                line = {"env": i, "return": float(returns[i]), "length": int(lengths[i])}
                print(json.dumps(line), flush=True)
            left -= 1
        if left <= 0:
            raise _Enough

    with contextlib.closing(recorder), contextlib.suppress(_Enough):
        recorder.reset(seed=arguments.seed)
        while True:
            recorder.play(10_000, on_step=told)


class _Enough(Exception):
    """As many episodes as wanted have ended."""


def figures(result: RunResult) -> dict[str, Any]:
    """Return the result of a run of one episode as JSON-able values."""
    (episode,) = result.episodes
    numbers = {
        key: float(value)
        for key, value in episode.info.items()
        if isinstance(value, int | float | np.number)
    }
    return {
        "return": episode.total_reward,
        "length": episode.length,
        "first_version": episode.first_version,
        "last_version": episode.last_version,
        "info": numbers,
        "lsn": result.lsn,
    }
