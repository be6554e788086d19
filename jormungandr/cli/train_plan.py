"""`Plan`: one training, of one seed — all that decides what comes of it, and where it is kept."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from jormungandr.cli.new_spec import spec_for
from jormungandr.cli.opening import name_of
from jormungandr.cli.train_folder import check_out, read_facts, seed_folders
from jormungandr.errors import InvalidValue
from jormungandr.spec import ModelSpec

__all__ = [
    "EVALUATIONS",
    "EVALUATION_SEED",
    "STEPS",
    "Plan",
    "default_model",
    "plans_of",
    "reset_seed",
]

#: Decisions of a training, unless it is said how many.
STEPS = 20_000
#: Evaluations during a training, unless it is said how often.
EVALUATIONS = 10
#: First seed of the evaluations during training, which choose the best policy. The table at the end
#: is played on others (`evaluate.HELD_OUT_SEED`): a choice looks better where it was made.
EVALUATION_SEED = 900_000_000
#: Training episodes have seeds below this.
TRAINING_SEEDS = 1 << 29


@dataclass(frozen=True)
class Plan:
    """One training.

    Args:
        env_id: of the environment, as Gymnasium takes it.
        spec: of the model.
        seed: of the environment.
        steps: decisions in all, those of an earlier part too.
        eval_every: steps between two evaluations.
        eval_episodes: of each.
        label_key: the info's key of the auxiliary class; None records no labels.
        out: folder of this training; None keeps nothing.
        resume: go on with what is there.
        overwrite: replace what is there.
        service: address of the one to train through; None trains in this process.
        model_id: at the service.
        name: what lines of progress begin with.
    """

    env_id: str
    spec: ModelSpec
    seed: int
    steps: int
    eval_every: int
    eval_episodes: int
    label_key: str | None = None
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    service: str | None = None
    model_id: str = ""
    name: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what a training that is resumed must have in common with its beginning."""
        return {
            "environment": self.env_id,
            "seed": self.seed,
            "eval_every": self.eval_every,
            "eval_episodes": self.eval_episodes,
            "label_key": self.label_key,
            "model": None if self.service is None else self.model_id,
            "spec": self.spec.to_dict(),
        }


def plans_of(
    arguments: argparse.Namespace, env: gymnasium.Env[Any, Any], settings: dict[str, Any]
) -> list[Plan]:
    """Return what is to be trained, after looking at where it is to be kept.

    Args:
        arguments: of the command.
        env: the environment, to read its spaces.
        settings: fields of the specification.

    Raises:
        InvalidInput: (one of its classes) arguments that do not fit the environment, or each other.
    """
    out, many = arguments.out, arguments.seeds is not None
    if "seed" in settings:  # the environment's too, and what the folder and the table say
        remedy = "--seed says it for model and environment"
        raise InvalidValue("--set", "no seed", settings["seed"], remedy)
    seeds: Sequence[int] = range(arguments.seeds) if many else [arguments.seed]
    folders: Sequence[Path | None] = [out] * len(seeds)
    if many and out is not None:
        folders = seed_folders(out, arguments.seeds)
    specs = [spec_for(env, arguments.preset, {"seed": seed, **settings}) for seed in seeds]
    if arguments.label_key is not None and specs[0].auxiliary is None:
        remedy = """--set 'auxiliary={"classes": ["A", "B"]}' makes one with two classes"""
        raise InvalidValue("--label-key", "a model with an auxiliary head", "none", remedy)
    for folder in folders:
        if folder is not None:
            check_out(folder, resume=arguments.resume, overwrite=arguments.overwrite)
    begun = [read_facts(f) if f is not None and arguments.resume else None for f in folders]
    steps, every = _course(arguments, [facts for facts in begun if facts is not None])
    plans = []
    for seed, spec, folder in zip(seeds, specs, folders, strict=True):
        model = default_model(name_of(env), seed)
        if arguments.model is not None:
            model = f"{arguments.model}-{seed}" if many else arguments.model
        plans.append(
            Plan(
                env_id=arguments.env,
                spec=spec,
                seed=seed,
                steps=steps,
                eval_every=every,
                eval_episodes=arguments.eval_episodes,
                label_key=arguments.label_key,
                out=folder,
                resume=arguments.resume,
                overwrite=arguments.overwrite,
                service=arguments.service,
                model_id=model,
                name=f"  seed {seed}" if many else "",
            )
        )
    return plans


def _course(arguments: argparse.Namespace, begun: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return how many steps to train, and how many there are between two evaluations.

    What is resumed keeps its own where the arguments do not say: with more `--steps` the
    evaluations come no further apart than they did, also those of seeds that have not begun.

    Args:
        arguments: of the command.
        begun: facts of the trainings that are gone on with.
    """
    steps = arguments.steps or max([facts.get("steps") or 0 for facts in begun], default=0) or STEPS
    every = arguments.eval_every or (begun[0]["eval_every"] if begun else None)
    return steps, every or max(1, steps // EVALUATIONS)


def reset_seed(seed: int, step: int) -> int:
    """Return the seed of the training episode that begins after so many steps.

    A function of these two alone: a training that goes on from a checkpoint at an episode's end
    meets the episodes that it would have met.
    """
    drawn = np.random.SeedSequence((seed, step)).generate_state(1)[0]
    return int(drawn) % TRAINING_SEEDS


def default_model(env_id: str, seed: int) -> str:
    """Return a model id for an environment and a seed, such as ``cartpole-v1-seed-0``."""
    words = re.sub(r"[^a-z0-9]+", "-", env_id.lower()).strip("-")
    return f"{words[:40]}-seed-{seed}"
