"""`Steps`: transitions that were taken together, by their fields.

Who sends columns needs no object for each transition, and a recorder of many sub-environments has
most of them as columns already. B is the number of transitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from jormungandr.protocol import Transition

__all__ = ["Steps", "joined"]

#: B values; arrays of one shape may be one array over all of them, (B, …).
Values: TypeAlias = Sequence[Any] | NDArray[Any]


class Steps(Sequence[Transition]):
    """A sequence of transitions; each is made when somebody looks at it.

    Args:
        fields: by the names of `Transition`, all of them, in its order.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Values]) -> None:
        self.fields: Mapping[str, Any] = fields

    def __len__(self) -> int:
        return len(self.fields["timestep"])

    @overload
    def __getitem__(self, index: int) -> Transition: ...

    @overload
    def __getitem__(self, index: slice) -> Steps: ...

    def __getitem__(self, index: int | slice) -> Transition | Steps:
        found: dict[str, Any] = {name: values[index] for name, values in self.fields.items()}
        return Steps(found) if isinstance(index, slice) else Transition(**found)

    def __iter__(self) -> Iterator[Transition]:
        for values in zip(*self.fields.values(), strict=True):
            yield Transition(**dict(zip(self.fields, values, strict=True)))


def joined(parts: Sequence[Sequence[Transition]]) -> Sequence[Transition]:
    """Return transitions that came in parts as one sequence."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.fields for part in parts if isinstance(part, Steps)]
    if len(columns) < len(parts) or not parts:
        return list(chain.from_iterable(parts))
    return Steps({name: _together([fields[name] for fields in columns]) for name in columns[0]})


def _together(parts: Sequence[Values]) -> Values:
    """Return the values of several parts."""
    if all(isinstance(part, np.ndarray) for part in parts):
        arrays: Any = parts
        if len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
            return np.concatenate(arrays)
    return list(chain.from_iterable(parts))
