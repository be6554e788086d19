"""``jormungandr demo``: the release note's experiment on OUSpread-v0, end to end.

Four training episodes, then one validation episode, over and over. The bookkeeping has exact
answers; the demo fails when they do not come out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jormungandr.cli.comparison import compare_on_ou, print_probe
from jormungandr.cli.evaluate import HELD_OUT_SEED
from jormungandr.cli.local import end, service
from jormungandr.client import RemoteLearner
from jormungandr.errors import InternalError, InvalidValue
from jormungandr.protocol import Endpoint
from jormungandr.spec import ModelSpec

__all__ = ["add_arguments", "run"]

HORIZON = 48
#: First seeds of the two kinds of episodes: the paths of one are never those of the other.
TRAIN_SEED, VALIDATION_SEED = 10_000, 510_000
MOST_EPISODES = 400_000
#: Observations per inference request.
CHUNK = 1_000


@dataclass(frozen=True)
class Episode:
    """One entry of the schedule."""

    split: str
    seed: int


class Stage(Protocol):
    """Where the schedule is played: actor processes beside a service, or this process."""

    endpoint: Any

    def play(self, schedule: list[Episode]) -> list[dict[str, Any]]:
        """Play the schedule and return each episode's figures, in its order."""
        ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--lockstep",
        action="store_true",
        help="two actor processes, each waiting for the learner; repeatable to the bit (default)",
    )
    how.add_argument("--free", action="store_true", help="let the two actor processes race")
    how.add_argument(
        "--in-process", action="store_true", help="no service: a Learner in this process"
    )
    parser.add_argument("--episodes", type=int, default=28, help="training episodes (default: 28)")
    parser.add_argument("--seed", type=int, default=0, help="of the model and the paths")
    parser.add_argument("--paths", type=int, default=1_000, help="held-out paths to compare on")
    parser.add_argument("--data-dir", type=Path, help="keep the service's data here")


def run(arguments: argparse.Namespace) -> int:
    """Run the experiment; return 1 if the bookkeeping is off."""
    if not 1 <= arguments.episodes <= MOST_EPISODES:
        raise InvalidValue("--episodes", f"1..{MOST_EPISODES}", arguments.episodes)
    if arguments.paths < 2:
        raise InvalidValue("--paths", ">= 2, for an interval", arguments.paths)
    spec = ModelSpec.preset("ou-note", seed=arguments.seed)
    schedule = make_schedule(arguments.episodes, arguments.seed)
    with _stage(arguments, spec) as stage:
        played = stage.play(schedule)
        info = stage.endpoint.wait(max(result["lsn"] for result in played))
        evaluations = _evaluations(stage.endpoint)
        right = report_bookkeeping(spec, schedule, played, info, len(evaluations))
        report_validation(schedule, played, evaluations)
        act = _greedy(stage.endpoint)
        print_probe(lambda x: (act(x), _values(stage.endpoint, x)))
        compare_on_ou(act, arguments.paths, HELD_OUT_SEED)
    return 0 if right else 1


def make_schedule(training: int, seed: int) -> list[Episode]:
    """Return four training episodes, then one validation episode, until `training` are reached."""
    offset = 1_000_000 * seed
    schedule = []
    for i in range(training):
        schedule.append(Episode("train", TRAIN_SEED + offset + i))
        if i % 4 == 3:
            schedule.append(Episode("validation", VALIDATION_SEED + offset + i // 4))
    return schedule


def report_bookkeeping(
    spec: ModelSpec,
    schedule: list[Episode],
    played: list[dict[str, Any]],
    info: dict[str, Any],
    evaluations: int,
) -> bool:
    """Print what was counted beside what must have been; return whether all of it agrees."""
    train = sum(episode.split == "train" for episode in schedule)
    held = len(schedule) - train
    updates = max(0, HORIZON * train - spec.pacing.learning_starts)
    every = spec.validation.evaluate_every
    wanted = {
        "training episodes": (train, _episodes(schedule, played, "train")),
        "validation episodes": (held, _episodes(schedule, played, "validation")),
        "training transitions": (HORIZON * train, info["transitions"]["train"]),
        "validation transitions": (HORIZON * held, info["transitions"]["validation"]),
        "normalizer count": (2 * HORIZON * train, info["normalizer"]["count"]),
        "updates": (updates, info["update_count"]),
        "evaluations": (updates // every if held else 0, evaluations),
        "policy version": (updates, info["policy_version"]),
    }
    print("\nbookkeeping:")
    for name, (expected, got) in wanted.items():
        verdict = "" if expected == got else f"   WRONG, expected {expected:,}"
        print(f"  {name:<24}{got:>7,}{verdict}")
    return all(expected == got for expected, got in wanted.values())


def _episodes(schedule: list[Episode], played: list[dict[str, Any]], split: str) -> int:
    """Return how many whole episodes of a split were played."""
    pairs = zip(schedule, played, strict=True)
    return sum(e.split == split and r["length"] == HORIZON for e, r in pairs)


def report_validation(
    schedule: list[Episode], played: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> None:
    """Print the two held-out quantities, and the auxiliary accuracy."""
    print("\nvalidation_return (deterministic, on paths of its own), beside the reference:")
    print("  episode  versions     return  reference")
    rows = [r for e, r in zip(schedule, played, strict=True) if e.split == "validation"]
    for i, row in enumerate(rows):
        versions = f"{row['first_version']}-{row['last_version']}"
        print(
            f"  {i:>7}  {versions:<9}{row['return']:>10.3f}{row['info']['reference_return']:>11.3f}"
        )
    if len(rows) > 1:
        ours = np.mean([row["return"] for row in rows])
        reference = np.mean([row["info"]["reference_return"] for row in rows])
        print(f"  mean{'':<14}{ours:>10.3f}{reference:>11.3f}   (too few paths to conclude from)")
    if not evaluations:
        return
    print("\nvalidation_loss (cross-entropy over the whole held-out store), by policy version:")
    cells = [f"{e['policy_version']:>4}: {e['validation_loss']:.4f}" for e in evaluations]
    for at in range(0, len(cells), 6):
        print("  " + "   ".join(cells[at : at + 6]))
    last = evaluations[-1]
    if last.get("auxiliary_accuracy") is not None:
        print(
            f"\nauxiliary accuracy: train {last['train_auxiliary_accuracy']:.3f},"
            f" validation {last['auxiliary_accuracy']:.3f}"
            " (the label is a threshold on the observed z: this checks the label path, no more)"
        )


def _greedy(endpoint: Endpoint) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Return the endpoint's newest policy as a function of observations (B, 4)."""

    def act(observations: NDArray[np.float32]) -> NDArray[np.int64]:
        parts = [
            endpoint.act(observations[at : at + CHUNK], deterministic=True).indices
            for at in range(0, len(observations), CHUNK)
        ]
        return np.concatenate(parts)

    return act


def _values(endpoint: Endpoint, observations: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.array(endpoint.act(observations, deterministic=True).expected_values)


def _evaluations(endpoint: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = endpoint.metrics()["evaluations"]
    return found


@contextlib.contextmanager
def _stage(arguments: argparse.Namespace, spec: ModelSpec) -> Iterator[Stage]:
    if arguments.in_process:
        yield InProcess(spec)
        return
    with contextlib.ExitStack() as stack:
        data_dir = arguments.data_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="jormungandr-demo-"))
        )
        url, token = stack.enter_context(service(data_dir))
        endpoint = stack.enter_context(RemoteLearner(url, "ou-note", token))
        created = endpoint.create(spec)
        if created["journal_lsn"]:
            raise InvalidValue("--data-dir", "one without an ou-note model", data_dir)
        kept = "" if arguments.data_dir else " (removed at the end; --data-dir keeps it)"
        print(f"service at {url}, data in {data_dir}{kept}")
        yield stack.enter_context(TwoActors(endpoint, url, token, lockstep=not arguments.free))


class InProcess:
    """A `Learner` in this process, and one actor for each split."""

    def __init__(self, spec: ModelSpec) -> None:
        import gymnasium

        from jormungandr.learner import Learner
        from jormungandr_wrappers import RemoteActor

        self.endpoint = Learner(spec)
        env = gymnasium.make("OUSpread-v0")
        self._actors = {
            split: RemoteActor(
                env,
                self.endpoint,
                actor_id="demo",
                split=split,
                label_key="drift_label",
                batch_size=1_000,
            )
            for split in ("train", "validation")
        }
        print("a learner in this process")

    def play(self, schedule: list[Episode]) -> list[dict[str, Any]]:
        """Play the schedule and return each episode's figures, in its order."""
        from jormungandr.cli.actor import figures

        return [
            figures(self._actors[episode.split].run(episodes=1, seed=episode.seed))
            for episode in schedule
        ]


class TwoActors:
    """Two actor processes that share the schedule: episode k is played by actor k mod 2.

    Args:
        endpoint: to wait for the learner with.
        url, token: of the service.
        lockstep: whether an episode begins only when the learner has applied the one before.
    """

    def __init__(self, endpoint: RemoteLearner, url: str, token: str, *, lockstep: bool) -> None:
        self.endpoint, self._url, self._token, self._lockstep = endpoint, url, token, lockstep
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> TwoActors:
        environment = {
            **os.environ,
            "JORMUNGANDR_URL": self._url,
            "JORMUNGANDR_TOKEN": self._token,
        }
        for i in range(2):
            command = [
                *(sys.executable, "-m", "jormungandr", "actor", "OUSpread-v0", "--follow"),
                *("--model", "ou-note", "--actor-id", f"actor-{i}", "--label-key", "drift_label"),
            ]
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        pids = ", ".join(str(process.pid) for process in self._processes)
        print(f"two actor processes ({pids}), {'lockstep' if self._lockstep else 'free-running'}")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with contextlib.suppress(BrokenPipeError):
                _pipe(process.stdin).close()
        for process in self._processes:
            end(process)

    def play(self, schedule: list[Episode]) -> list[dict[str, Any]]:
        """Play the schedule and return each episode's figures, in its order."""
        played = []
        if not self._lockstep:
            for k, episode in enumerate(schedule):
                self._order(k, episode)
        for k, episode in enumerate(schedule):
            if self._lockstep:
                self._order(k, episode)
            result = self._result(k)
            if self._lockstep:
                self.endpoint.wait(result["lsn"])
            played.append(result)
        return played

    def _order(self, k: int, episode: Episode) -> None:
        stream = _pipe(self._processes[k % 2].stdin)
        with contextlib.suppress(BrokenPipeError):  # `_result` says how the actor ended
            stream.write(json.dumps({"split": episode.split, "seed": episode.seed}) + "\n")
            stream.flush()

    def _result(self, k: int) -> dict[str, Any]:
        process = self._processes[k % 2]
        line = _pipe(process.stdout).readline()
        if not line:
            raise InternalError(f"actor-{k % 2}", "an episode's result", f"exit {process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # both ends were asked for
    return stream
