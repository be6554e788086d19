"""What the recorders insist on before anything is played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from jormungandr.errors import InvalidType, InvalidValue, UnknownSplit
from jormungandr.protocol import SPLITS, Split

__all__ = ["check_kind", "check_spaces", "check_split"]


def check_kind(env: object, kind: type, where: str, remedy: str) -> None:
    """Refuse what is no environment of the kind.

    Raises:
        InvalidType: naming the kind.
    """
    if not isinstance(env, kind):
        raise InvalidType(where, f"a {kind.__module__}.{kind.__name__}", type(env), remedy)


def check_spaces(observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Refuse spaces whose steps no transition can hold, before anything is played.

    Raises:
        InvalidValue: an observation that is no Box, or an action that is no Discrete from 0.
    """
    if not isinstance(observation, spaces.Box):
        raise InvalidValue(
            "observation_space", "a Box", observation, "gymnasium's FlattenObservation gives one"
        )
    if not isinstance(action, spaces.Discrete) or int(action.start) != 0:
        raise InvalidValue("action_space", "a Discrete that starts at 0", action)


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
