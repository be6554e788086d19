"""``jormungandr evaluate``: how good a policy is, alone or against another on the same seeds."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium

from jormungandr.cli.comparison import as_json, print_on_ou, print_paired, print_table
from jormungandr.cli.contenders import Contender
from jormungandr.cli.film import Film, make_filmed
from jormungandr.cli.making import make_env
from jormungandr.cli.matches import Paired, Result, pair, play, summarize
from jormungandr.cli.opening import check_writable, name_of, open_contender
from jormungandr.errors import InvalidValue

__all__ = ["HELD_OUT_SEED", "add_arguments", "evaluate", "run"]

Env = gymnasium.Env[Any, Any]
Entry = tuple[Contender, Env]

#: First seed of held-out episodes: far from any that training draws.
HELD_OUT_SEED = 1_000_000_000
#: Steps after which an episode is cut, for environments that end none themselves.
MAX_STEPS = 100_000

CONTENDERS = """\
a policy is one of:
  PATH                            a checkpoint, a policy's safetensors file, a bundle, or a model's
                                  folder of a service
  http://HOST:PORT/v1/models/ID   a model of a running service, or http://HOST:PORT/ID; the token
                                  is in JORMUNGANDR_TOKEN or JORMUNGANDR_TOKEN_FILE
  dqn:FILE.zip                    a model of Stable-Baselines3; also ppo:, a2c:, and c51: for
                                  jormungandr.sb3.C51; without a prefix where the file tells.
                                  Loading one runs code in it: only open files that you trust
  random                          uniform over the allowed actions
  reference                       the environment's own, where it brings one (OUSpread-v0, or a
                                  method reference_action(observation))

Both play the same seeds, and act deterministically where they can. Intervals are 95 % bootstrap
intervals over episodes, Wilson's for P(A > B), in which a tie counts half.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = CONTENDERS
    parser.add_argument("env", help="environment id, such as CartPole-v1 or package:Name-v0")
    parser.add_argument("--policy", required=True, metavar="A", help="what is evaluated")
    parser.add_argument("--against", metavar="B", help="what it is compared with")
    parser.add_argument("--episodes", type=int, help="of each (default: 100; OUSpread-v0: 1000)")
    parser.add_argument(
        "--seed",
        type=int,
        default=HELD_OUT_SEED,
        help="of the first episode; the others count on from it (default: %(default)s)",
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=MAX_STEPS,
        help="at which an episode is truncated (default: %(default)s)",
    )
    parser.add_argument(
        "--gif",
        type=Path,
        metavar="FILE",
        help="film the first episode of A (its first 1,000 steps)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures and every episode here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Play, print, and write what was asked for; return 0."""
    _check(arguments)
    film: Film | None = None
    with contextlib.ExitStack() as stack:
        entries: dict[str, Entry] = {}
        for letter, option in (("A", "policy"), ("B", "against")):
            given = getattr(arguments, option)
            if given is None:
                continue
            filmed = letter == "A" and arguments.gif is not None
            make = make_filmed if filmed else make_env
            env = stack.enter_context(contextlib.closing(make(arguments.env)))
            if filmed:
                film = Film(arguments.gif, env)
            contender = open_contender(given, env, f"--{option}")
            stack.callback(contender.close)
            entries[letter] = contender, env
        episodes = arguments.episodes or (1_000 if _is_ou(entries["A"][1]) else 100)
        results, paired = evaluate(
            entries,
            episodes=episodes,
            seed=arguments.seed,
            max_steps=arguments.max_steps,
            paths=episodes,
            watch=None if film is None else film.look,
        )
        if film is not None:
            what = f"{film.write()} frames of A's episode with seed {arguments.seed}"
            print(f"\nwrote {arguments.gif}: {what}")
        if arguments.json is not None:
            head = {
                "environment": arguments.env,
                "episodes": episodes,
                "seed": arguments.seed,
                "max_steps": arguments.max_steps,
            }
            report = as_json(head, results, paired)
            arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def evaluate(
    entries: Mapping[str, Entry],
    *,
    episodes: int,
    seed: int = HELD_OUT_SEED,
    max_steps: int = MAX_STEPS,
    paths: int = 1_000,
    watch: Callable[[], None] | None = None,
) -> tuple[dict[str, Result], Paired | None]:
    """Play one or two contenders on the same seeds, print the comparison, and return it.

    Args:
        entries: a contender and the environment it plays in, as ``A``, and as ``B`` if there is
            another.
        episodes: of each, at least 2.
        seed: of the first one.
        max_steps: at which an episode is cut.
        paths: for OUSpread-v0, those that A is compared with reference and optimum on.
        watch: as for `play`, in A's environment.
    """
    results = {}
    for letter, (contender, env) in entries.items():
        played = play(
            contender,
            env,
            episodes=episodes,
            seed=seed,
            max_steps=max_steps,
            watch=watch if letter == "A" else None,
        )
        results[letter] = Result(contender, played, summarize(played, seed))
    contender, env = entries["A"]
    print_table(f"{name_of(env)}, {episodes} episodes, seeds from {seed}", results, max_steps)
    paired = None
    if "B" in results:
        paired = pair(results["A"].played, results["B"].played, seed)
        print_paired(paired)
    if _is_ou(env):
        print_on_ou(contender, paths, seed)
    return results, paired


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what would only be found out after the episodes were played."""
    if arguments.episodes is not None and arguments.episodes < 2:
        raise InvalidValue("--episodes", ">= 2, for an interval", arguments.episodes)
    if arguments.seed < 0:
        raise InvalidValue("--seed", ">= 0", arguments.seed)
    if arguments.max_steps < 1:
        raise InvalidValue("--max-steps", ">= 1", arguments.max_steps)
    if arguments.gif is not None and arguments.gif.suffix != ".gif":
        raise InvalidValue("--gif", "a name that ends with .gif", arguments.gif)
    for name in ("gif", "json"):
        file = getattr(arguments, name)
        if file is None:
            continue
        if not file.parent.is_dir() or file.is_dir():
            raise InvalidValue(f"--{name}", "a file in a folder that exists", file)
        check_writable(file, f"--{name}", "a file that can be written")


def _is_ou(env: Env) -> bool:
    return env.spec is not None and env.spec.id == "OUSpread-v0"
