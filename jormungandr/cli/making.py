"""`make_env`: an environment by its id; one that cannot be made is refused in a line."""

from __future__ import annotations

import traceback
from typing import Any

import gymnasium

from jormungandr.errors import InvalidValue, JormungandrError

__all__ = ["make_env"]

#: Packages in which a fault is ours, and its traceback for us to see.
OURS = ("jormungandr", "jormungandr_envs", "jormungandr_wrappers")


def make_env(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment, whoever wrote it.

    Args:
        env_id: as Gymnasium takes it, such as ``CartPole-v1`` or ``package:Name-v0``.
        **options: for its constructor.

    Raises:
        InvalidValue: it fails while it is made, or has no spaces.
        gymnasium.error.Error, ModuleNotFoundError: there is none of that name.
    """
    where, expected = "ENV", f"an environment that gymnasium.make({env_id!r}) makes"
    try:
        env: gymnasium.Env[Any, Any] = gymnasium.make(env_id, **options)
    except (JormungandrError, gymnasium.error.Error, ModuleNotFoundError):
        raise  # a line of its own
    except Exception as error:
        _, *places = traceback.walk_tb(error.__traceback__)  # the first one is the line above
        cause: BaseException = error
        while cause.__cause__ is not None:  # Gymnasium wraps a TypeError in many words
            cause = cause.__cause__
            places += traceback.walk_tb(cause.__traceback__)
        names = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in places]
        if not names or not set(names).isdisjoint(OURS):
            raise
        frame, line = places[-1]
        got = f"{type(cause).__name__}: {cause}"
        remedy = f"it is raised at {frame.f_code.co_filename}:{line}"
        raise InvalidValue(where, expected, got, remedy) from error
    for name in ("observation_space", "action_space"):
        if getattr(env, name, None) is None:
            env.close()
            remedy = f"give it an {name}, as Gymnasium asks of every environment"
            raise InvalidValue(where, expected, f"one without {name}", remedy)
    return env
