"""Stable-Baselines3's .zip files as contenders. Loading one runs code that it brings."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecTransposeImage

from jormungandr.cli.contenders import Contender, Seen
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.sb3 import C51

__all__ = ["ArchiveContender", "open_archive"]

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {"dqn": DQN, "ppo": PPO, "a2c": A2C, "c51": C51}
PREFIXES = "dqn:, ppo:, a2c: or c51: in front of the path"
#: Which algorithm has the policies of a module; that of actor-critics serves several.
OF_MODULE: dict[str, tuple[str, ...]] = {
    "stable_baselines3.dqn.policies": ("dqn",),
    "jormungandr.sb3.policies": ("c51",),
}
ACTOR_CRITIC = "stable_baselines3.common.policies"


class ArchiveContender(Contender):
    """A model of Stable-Baselines3.

    Args:
        name: see `Contender`.
        model: acts.
    """

    def __init__(self, name: str, model: BaseAlgorithm) -> None:
        super().__init__(name)
        self.model = model

    @property
    def description(self) -> str:
        """Its algorithm and how long it learned."""
        return f"{type(self.model).__name__}, after {self.model.num_timesteps:,} timesteps"

    def _choose(self, seen: Seen) -> tuple[NDArray[Any], Any]:
        """Of these models only C51 knows masks."""
        if isinstance(self.model, C51):
            return self.model.predict(*seen)
        return self.model.predict(*seen[:-1])


def open_archive(given: str, env: gymnasium.Env[Any, Any], where: str) -> ArchiveContender:
    """Load a model and check that it fits the environment.

    Args:
        given: a path, with the algorithm's prefix or without.
        env: what it acts in.
        where: the argument that names it.

    Raises:
        CheckpointError: there is no such file, it is no model, or of another algorithm.
        InvalidValue: the algorithm cannot be told, or the spaces differ.
    """
    prefix, colon, rest = given.partition(":")
    named, path = (prefix, Path(rest)) if colon and prefix in ALGORITHMS else (None, Path(given))
    possible = _algorithms(path, where)
    if named is None:
        if len(possible) != 1:
            found = " or ".join(possible) or "a policy that is none of theirs"
            raise InvalidValue(where, PREFIXES, f"{given}: {found}")
        (named,) = possible
    elif possible and named not in possible:
        raise CheckpointError(where, f"a model of {named}", f"{path}: {' or '.join(possible)}")
    try:
        # A buffer of one: it only acts, and a million images need not be set aside for that.
        model = ALGORITHMS[named].load(path, device="cpu", custom_objects={"buffer_size": 1})
    except Exception as error:  # whatever the file's own code raises
        raise CheckpointError(where, f"a model of {named}", f"{given}: {error!r}") from error
    _check_spaces(model, env, where)
    return ArchiveContender(given, model)


def _algorithms(path: Path, where: str) -> tuple[str, ...]:
    """Return which algorithms a model may be of, by its policy's class; nothing of it is run."""
    expected = "a .zip of Stable-Baselines3"
    try:
        with zipfile.ZipFile(path) as archive:
            if "data" not in archive.namelist():  # as what policy.save() and torch write
                remedy = "model.save() writes one; a policy's file alone does not do"
                raise CheckpointError(where, expected, f"{path} without a model", remedy)
            data = json.loads(archive.read("data"))
        module = data["policy_class"]["__module__"]
    except OSError as error:
        raise CheckpointError(where, expected, error) from None
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(where, expected, f"{path}: {error!r}") from None
    if module == ACTOR_CRITIC:  # of which only PPO has a clip range
        return ("ppo",) if "clip_range" in data else ("a2c", "trpo")
    return OF_MODULE.get(module, ())


def _check_spaces(model: BaseAlgorithm, env: gymnasium.Env[Any, Any], where: str) -> None:
    shown = env.observation_space
    if is_image_space(shown) and model.observation_space != shown:
        assert isinstance(shown, spaces.Box)
        shown = VecTransposeImage.transpose_space(shown)  # as training on images does
    for name, theirs, ours in (
        ("observation_space", model.observation_space, shown),
        ("action_space", model.action_space, env.action_space),
    ):
        if theirs != ours:
            raise InvalidValue(f"{where}: {name}", f"{ours}, as the environment has", theirs)
