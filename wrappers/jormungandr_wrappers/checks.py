"""What the recorders insist on before anything is played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from jormungandr.errors import InvalidType, InvalidValue, MissingField
from jormungandr.protocol import InferenceReply
from jormungandr.spaces import Space, from_gymnasium

__all__ = ["check_actions", "check_kind", "check_label_key", "check_spaces"]


def check_kind(env: object, kind: type, where: str, remedy: str) -> None:
    """Refuse what is no environment of the kind.

    Raises:
        InvalidType: naming the kind.
    """
    if not isinstance(env, kind):
        raise InvalidType(where, f"a {kind.__module__}.{kind.__name__}", type(env), remedy)


def check_spaces(
    observation: spaces.Space[Any], action: spaces.Space[Any], of: str = ""
) -> tuple[Space, int]:
    """Refuse spaces whose steps no transition can hold, before anything is played.

    Args:
        observation: must be one that a model can have.
        action: must be a Discrete from 0.
        of: appended to the names of the spaces in the message.

    Returns:
        The observation space's description, and the number of actions.

    Raises:
        InvalidValue: another kind of observation, or an action that is no Discrete from 0.
    """
    seen = from_gymnasium(observation, f"observation_space{of}")
    if not isinstance(action, spaces.Discrete) or int(action.start) != 0:
        raise InvalidValue(f"action_space{of}", "a Discrete that starts at 0", action)
    return seen, int(action.n)


def check_actions(reply: InferenceReply, action: spaces.Space[Any]) -> None:
    """Refuse a policy whose actions are not the environment's.

    Raises:
        InvalidValue: it has fewer, so that some would never be tried, or more.
    """
    known = len(reply.expected_values[0])
    if isinstance(action, spaces.Discrete) and known != action.n:
        raise InvalidValue(
            "endpoint", f"a model of the environment's {action.n} actions", f"one of {known}"
        )


def check_label_key(label_key: str | None, info: Mapping[str, Any]) -> None:
    """Refuse a label key that the info of a reset does not have: it would record no label, ever.

    Raises:
        MissingField: naming the keys there are.
    """
    if label_key is not None and label_key not in info:
        there = sorted(key for key in info if not key.startswith("_"))
        raise MissingField(f"info[{label_key!r}]", f"one of {there}", "nothing", "see label_key")
