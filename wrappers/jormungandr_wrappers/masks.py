"""Which actions are allowed, as environments tell it, checked before anything is kept.

A is the number of actions, B that of sub-environments that are stepped together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from jormungandr.errors import InvalidType, InvalidValue, MissingField, ShapeMismatch, shown
from jormungandr_wrappers.parallel_environment import Agent

__all__ = ["BROKEN_OFF", "TOLD", "AgentMasks", "Mask", "read_mask", "read_masks"]

#: (A,), true where an action is allowed.
Mask = NDArray[np.bool_]

#: What an error in a step says besides.
BROKEN_OFF = "its running episodes are broken off, and reset() begins new ones"

#: What an error before the first step says besides.
TOLD = "the environment has to tell it with every observation that somebody acts on"

#: The other part of a PettingZoo observation that holds a mask.
OBSERVATION = "observation"


def read_mask(
    told: Mapping[str, Any],
    key: str,
    actions: int,
    where: str,
    *,
    terminated: bool = False,
    remedy: str = TOLD,
) -> Mask | None:
    """Return the mask of an observation, copied; None where a termination has none.

    Args:
        told: an info, or a Dict observation.
        key: of the mask in it.
        actions: A.
        where: what `told` is called in an error.
        terminated: nobody acts on the observation: the mask may be missing, or allow nothing.
        remedy: what an error says besides.

    Raises:
        MissingField: there is none where one is needed; the keys there are are named.
        ShapeMismatch, InvalidType, InvalidValue: it is no mask of A actions, or allows none.
    """
    value, place = told.get(key), f"{where}[{key!r}]"
    if value is None:
        if terminated:
            return None
        there = sorted(str(name) for name in told if not str(name).startswith("_"))
        got = f"only {there}" if there else "nothing"
        raise MissingField(place, f"a mask of {actions} actions", got, remedy)
    return _checked(value, actions, place, terminated, remedy)


def read_masks(
    infos: Mapping[str, Any],
    key: str,
    actions: int,
    optional: NDArray[np.bool_],
    where: str = "infos",
) -> list[Mask | None]:
    """Return the masks of B observations, copied, from infos as Gymnasium batches them.

    Args:
        infos: their mask is under `key`, (B, A), and under ``_key`` which of them there are, (B,).
        key: see there.
        actions: A.
        optional: (B,) where a mask may be missing, or allow nothing.
        where: what `infos` is called in an error.

    Raises:
        MissingField, ShapeMismatch, InvalidType, InvalidValue: as `read_mask`, of the first.
    """
    count, place = len(optional), f"{where}[{key!r}]"
    batch = infos.get(key)
    if batch is not None and _length(batch) != count:
        expected = f"one mask per sub-environment ({count})"
        raise ShapeMismatch(place, expected, shown(batch), BROKEN_OFF)
    present = np.zeros(count) if batch is None else infos.get(f"_{key}", np.ones(count))
    found: list[Mask | None] = []
    for i in range(count):
        if present[i] and batch is not None and batch[i] is not None:
            masked = _checked(batch[i], actions, f"{place}[{i}]", bool(optional[i]), BROKEN_OFF)
            found.append(masked)
        elif optional[i]:
            found.append(None)
        else:
            there = sorted(name for name in infos if not name.startswith("_"))
            got = "nothing" if key in infos or not there else f"only {there}"
            raise MissingField(f"{place}[{i}]", f"a mask of {actions} actions", got, BROKEN_OFF)
    return found


def _length(batch: Any) -> int | None:
    """Return how many masks there are, of an array or another sequence."""
    return len(batch) if isinstance(batch, Sequence) or np.ndim(batch) else None


def _checked(value: Any, actions: int, where: str, terminated: bool, remedy: str) -> Mask:
    """Return what is a mask as booleans, copied."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        array = np.empty(())
    if array.shape != (actions,):
        got = array.shape if array.ndim else shown(value)
        raise ShapeMismatch(where, f"({actions},), one per action", got, remedy)
    if array.dtype.kind not in "biu" or not ((array == 0) | (array == 1)).all():
        raise InvalidType(where, "true or false for each action", shown(value), remedy)
    if not terminated and not array.any():
        raise InvalidValue(where, "at least one allowed action", shown(value), remedy)
    return array.astype(np.bool_)


class AgentMasks(Generic[Agent]):
    """Where the masks of a parallel environment's agents are, and what else an agent observes.

    Args:
        key: of the mask; None is an environment without masks.
        place: ``info``, or ``observation``: then what an agent sees is a Dict of ``observation``
            and `key`, and the model observes the former.

    Raises:
        InvalidValue: another place, or an observation without a key.
    """

    def __init__(
        self, key: str | None = None, place: Literal["info", "observation"] = "info"
    ) -> None:
        if place not in ("info", "observation"):
            raise InvalidValue("mask_in", "'info' or 'observation'", repr(place))
        self._inside = place == "observation"
        if self._inside and key is None:
            expected = "the key of the mask in the observation, such as 'action_mask'"
            raise InvalidValue("mask_key", expected, key)
        self.key = key
        self._actions: dict[Agent, int] = {}

    def observed(self, agent: Agent, space: spaces.Space[Any]) -> spaces.Space[Any]:
        """Return the space of what the model observes of an agent.

        Raises:
            InvalidValue: there is no mask in `space`, or more than that and an observation.
        """
        if not self._inside:
            return space
        wanted = {OBSERVATION, self.key}
        if not isinstance(space, spaces.Dict) or set(space.spaces) != wanted:
            expected = f"a Dict of {OBSERVATION!r} and {self.key!r}"
            raise InvalidValue(f"observation_space({agent!r})", expected, space, "see mask_in")
        return space[OBSERVATION]

    def admit(self, agent: Agent, actions: int) -> None:
        """Take note of how many actions an agent has."""
        self._actions[agent] = actions

    def seen(self, agent: Agent, observation: Any) -> Any:
        """Return what the model observes.

        Raises:
            InvalidType: the observation is no Dict of one.
        """
        if not self._inside:
            return observation
        if not isinstance(observation, Mapping) or OBSERVATION not in observation:
            where = f"observations[{agent!r}]"
            expected = f"a dict of {OBSERVATION!r} and {self.key!r}"
            raise InvalidType(where, expected, shown(observation), "see mask_in")
        return observation[OBSERVATION]

    def read(
        self,
        agent: Agent,
        observation: Any,
        info: Mapping[str, Any],
        *,
        terminated: bool = False,
        remedy: str = TOLD,
    ) -> Mask | None:
        """Return the mask of an observation that came with `info`; see `read_mask`."""
        if self.key is None:
            return None
        told, name = (observation, "observations") if self._inside else (info, "infos")
        where, actions = f"{name}[{agent!r}]", self._actions[agent]
        return read_mask(told, self.key, actions, where, terminated=terminated, remedy=remedy)
