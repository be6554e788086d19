"""From what a command line names to a `Contender` that fits the environment."""

from __future__ import annotations

import contextlib
import glob
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from jormungandr.bundle import EXPORT_FILE
from jormungandr.cli import contenders
from jormungandr.cli.contenders import (
    Contender,
    RandomContender,
    ReferenceContender,
    RemoteContender,
    SnapshotContender,
)
from jormungandr.client import RemoteLearner
from jormungandr.errors import CheckpointError, InvalidValue
from jormungandr.policy import PolicySnapshot
from jormungandr.spaces import Box, Space
from jormungandr.spec import ModelSpec
from jormungandr_envs import OUSpreadEnv, reference_action

__all__ = [
    "check_fits",
    "check_writable",
    "name_of",
    "open_contender",
    "open_policy",
    "served_model",
    "served_policy",
]

Env = gymnasium.Env[Any, Any]

#: Paths that a hint names.
NAMED = 4


def open_contender(given: str, env: Env, where: str) -> Contender:
    """Return what `given` names, ready to act in `env`.

    Args:
        given: ``random``, ``reference``, the URL of a service's model, an archive of
            Stable-Baselines3 (``dqn:``, ``ppo:``, ``a2c:`` or ``c51:`` and a path, or a path that
            ends with ``.zip``), or else a path for `PolicySnapshot.open`. A file called
            ``random`` is ``./random``.
        env: the environment that it acts in.
        where: the argument that names it.

    Raises:
        JormungandrError: there is no such thing, or it does not fit the environment.
    """
    if not isinstance(env.action_space, spaces.Discrete):
        raise InvalidValue("action_space", "a Discrete", env.action_space)
    if given == "random":
        return RandomContender(given, env.action_space)
    if given == "reference":
        return ReferenceContender(given, _reference(env, where))
    if given.startswith(("http://", "https://")):
        url, model_id = served_model(given, where)
        remote = RemoteContender(given, url, model_id)
        try:
            check_fits(remote.spec, env, where)
        except InvalidValue:
            remote.close()
            raise
        return remote
    if re.match(r"(dqn|ppo|a2c|c51):", given) or given.endswith(".zip"):
        from jormungandr.cli.archives import open_archive  # loads Stable-Baselines3

        return open_archive(given, env, where)
    if not given or not Path(given).exists():
        raise CheckpointError(
            where,
            "a policy's file, checkpoint, model folder or bundle, a .zip of Stable-Baselines3,"
            " http://HOST:PORT/v1/models/ID, random or reference",
            repr(given),
            _named_like(Path(given)),
        )
    policy = open_policy(given)
    check_fits(policy.spec, env, where)
    return SnapshotContender(given, policy)


def open_policy(path: str, features: Sequence[str] | None = None) -> PolicySnapshot:
    """Return the policy of a path, as `PolicySnapshot.open` does; its errors name the path.

    Raises:
        CheckpointError: there is none, or it is damaged, or not a policy of ours.
        InvalidValue: the policy's features are others, or in another order.
    """
    if (Path(path) / EXPORT_FILE).is_file():
        expected = "a checkpoint, a policy's file, a bundle, or a model's folder of a service"
        raise CheckpointError(path, expected, "an export that cannot be read back", "bundles can")
    try:
        return PolicySnapshot.open(path, features=features)
    except CheckpointError as error:
        where = error.where if path in error.where else f"{path}: {error.where}"
        remedy = error.remedy or _models_in(Path(path))
        raise CheckpointError(where, error.expected, error.got, remedy) from None


def _named_like(path: Path) -> str:
    """Return which paths a path may be short for; "" where there are none.

    A model's folder has a generation behind its id, and a file an ending.
    """
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):  # of a NUL in the path
        found = sorted(path.parent.glob(f"{glob.escape(path.name)}.*")) if path.name else []
    return _one_of("there is", found)


def _models_in(path: Path) -> str:
    """Return which folders of models a data directory has; "" of any other."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):  # of a NUL in the path
        found = sorted(p for p in (path / "models").glob("[!.]*.*") if p.is_dir())
    return _one_of("this is a service's data directory: name", found)


def _one_of(words: str, paths: Sequence[Path]) -> str:
    """Return a hint that names a few of some paths; "" where there are none."""
    if not paths:
        return ""
    more = f" … ({len(paths)} in all)" if len(paths) > NAMED else ""
    return f"{words} {' or '.join(map(str, paths[:NAMED]))}{more}"


def served_policy(given: str, where: str) -> PolicySnapshot:
    """Return the policy that a model of a service hands out now.

    Args:
        given: the URL of the model; the token is in the environment, as for `RemoteLearner`.
        where: the argument that names it.

    Raises:
        JormungandrError: there is no such service, model, or policy yet, or it is not given out.
    """
    url, model_id = served_model(given, where)
    with RemoteLearner(url, model_id, patience=contenders.PATIENCE) as model:
        return model.snapshot()


def check_writable(path: Path, where: str, expected: str) -> None:
    """Refuse a place that cannot be written, before the work that is to be kept there.

    Args:
        path: of the file or folder to come; the folder around it must exist.
        where: the argument that names it.
        expected: what would be right.

    Raises:
        InvalidValue: saying why.
    """
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise InvalidValue(where, expected, error) from None


def check_fits(spec: ModelSpec, env: Env, where: str) -> None:
    """Refuse a model that does not see what the environment shows, or acts otherwise.

    Raises:
        InvalidValue: naming both.
    """
    shows = ModelSpec.for_env(env)
    sees, shown = spec.observation.described, shows.observation.described
    acts, taken = len(spec.action_set), len(shows.action_set)
    if not spec.observation.sees(shown) or acts != taken:
        raise InvalidValue(
            where,
            f"{_words(shown)} and {taken} actions, as {name_of(env)} has",
            f"{_words(sees)} and {acts} actions",
        )


def _words(space: Space) -> str:
    """Describe an observation space in a few words."""
    if isinstance(space, Box) and len(space.shape) == 1:
        return f"{space.size} features"
    return msgspec.json.encode(space).decode()


def _reference(env: Env, where: str) -> Callable[[Any], ArrayLike]:
    """Return the environment's own policy, as a function of what it shows."""
    inner = env.unwrapped
    if isinstance(inner, OUSpreadEnv):
        threshold = inner.parameters.reference_threshold
        return lambda observation: reference_action(np.asarray(observation)[..., 0], threshold)
    act: Callable[[Any], ArrayLike] | None = getattr(inner, "reference_action", None)
    if not callable(act):
        raise InvalidValue(
            where,
            "an environment with a method reference_action(observation)",
            f"{name_of(env)}, which has no reference",
        )
    return act


def served_model(given: str, where: str) -> tuple[str, str]:
    """Split the URL of a model into that of its service and the model's id.

    Raises:
        InvalidValue: it is none.
    """
    try:
        parts = urlsplit(given)
    except ValueError as error:  # brackets of no IPv6 address
        raise InvalidValue(where, "an address", error) from None
    folder, _, model_id = parts.path.rstrip("/").rpartition("/")
    prefix = folder.removesuffix("/v1/models")
    web = parts.scheme in ("http", "https")
    if not (web and model_id) or parts.query or parts.fragment or (folder and prefix == folder):
        raise InvalidValue(
            where, "http://HOST:PORT/v1/models/ID or http://HOST:PORT/ID", repr(given)
        )
    return f"{parts.scheme}://{parts.netloc}{prefix}", unquote(model_id)


def name_of(env: Env) -> str:
    """Return an environment's id."""
    return "the environment" if env.spec is None else env.spec.id
