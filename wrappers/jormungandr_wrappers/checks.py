"""What the recorders insist on before anything is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from jormungandr.errors import InvalidType, InvalidValue, MissingField, UnknownSplit
from jormungandr.protocol import SPLITS, InferenceReply, Split

__all__ = [
    "check_actions",
    "check_endpoint",
    "check_kind",
    "check_label_key",
    "check_spaces",
    "check_split",
]


def check_kind(env: object, kind: type, where: str, remedy: str) -> None:
    """Refuse what is no environment of the kind.

    Raises:
        InvalidType: naming the kind.
    """
    if not isinstance(env, kind):
        raise InvalidType(where, f"a {kind.__module__}.{kind.__name__}", type(env), remedy)


def check_endpoint(endpoint: object, where: str) -> None:
    """Refuse what cannot take transitions.

    Raises:
        InvalidType: naming the place.
    """
    if not callable(getattr(endpoint, "add", None)):
        expected = "an Endpoint, such as Learner or RemoteLearner"
        raise InvalidType(where, expected, type(endpoint).__name__)


def check_spaces(
    observation: spaces.Space[Any], action: spaces.Space[Any], of: str = ""
) -> tuple[spaces.Box, spaces.Discrete]:
    """Refuse spaces whose steps no transition can hold, before anything is played.

    Args:
        observation: must be a Box.
        action: must be a Discrete from 0.
        of: appended to the names of the spaces in the message.

    Raises:
        InvalidValue: an observation that is no Box, or an action that is no Discrete from 0.
    """
    if not isinstance(observation, spaces.Box):
        raise InvalidValue(
            f"observation_space{of}",
            "a Box",
            observation,
            "gymnasium's FlattenObservation gives one",
        )
    if not isinstance(action, spaces.Discrete) or int(action.start) != 0:
        raise InvalidValue(f"action_space{of}", "a Discrete that starts at 0", action)
    return observation, action


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


def check_split(split: Split | Sequence[Split], count: int) -> tuple[Split, ...]:
    """Return one split per sub-environment, (count,).

    Raises:
        UnknownSplit: one that is neither ``train`` nor ``validation``.
        InvalidValue: another number of splits than of sub-environments.
    """
    splits: tuple[Any, ...] = (split,) * count if isinstance(split, str) else tuple(split)
    if len(splits) != count:
        raise InvalidValue("split", f"one, or one per sub-environment ({count})", len(splits))
    for i, name in enumerate(splits):
        if name not in SPLITS:
            where = "split" if isinstance(split, str) else f"split[{i}]"
            raise UnknownSplit(where, f"one of {list(SPLITS)}", repr(name))
    return splits
