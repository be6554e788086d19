"""``jormungandr actor``: one environment process beside a service.

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

from jormungandr.cli.opening import check_fits
from jormungandr.cli.train import parse_settings
from jormungandr.client import RemoteLearner
from jormungandr.errors import InvalidValue, ModelUnknown
from jormungandr.protocol import SPLITS
from jormungandr.spec import ModelSpec
from jormungandr_wrappers import RemoteActor, SpecifiedEnv
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
    parser.add_argument("--seed", type=int, help="of the environment")
    parser.add_argument("--label-key", help="info key of the auxiliary class")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field of the specification, such as action_masks=true or"
        " observation.frame_stack=4; of a model that exists it must be the same",
    )
    parser.add_argument("--follow", action="store_true", help="play what standard input says")


def run(arguments: argparse.Namespace) -> int:
    """Act until done; return 0."""
    if arguments.episodes < 1:
        raise InvalidValue("--episodes", ">= 1", arguments.episodes)
    settings = parse_settings(arguments.set)
    with (
        contextlib.closing(gymnasium.make(arguments.env)) as env,
        RemoteLearner(arguments.url, arguments.model) as endpoint,
    ):
        try:
            found = endpoint.info()
        except ModelUnknown:
            spec = ModelSpec.for_env(env, **settings)
            _check_label_key(arguments.label_key, spec)  # before there is a model without labels
            endpoint.create(spec)
        else:
            if settings:
                endpoint.create(settings)  # which refuses others than the model's
            spec = ModelSpec.from_dict(found["spec"])
            check_fits(spec, env, "--model")
            _check_label_key(arguments.label_key, spec)
        _act(arguments, SpecifiedEnv(env, spec), endpoint, masked=spec.action_masks)
    return 0


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
