"""Standard normal draws of many generators, some episodes ahead."""

import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding

__all__ = ["Draws"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Episodes drawn at once, and draws of one generator beyond which more at once saves nothing.
_EPISODES, _DRAWS = 8, 512


class Draws:
    """What B generators draw for their episodes, the same numbers as drawn one after the other.

    A call of a generator costs as much as the 49 draws of an episode, so several episodes are
    drawn by one. `generators` shows each where it would be without that.

    Args:
        count: number of generators B.
        length: draws of an episode.
    """

    def __init__(self, count: int, length: int) -> None:
        self.seeds: list[int | None] = [None] * count
        self._length = length
        self._episodes = max(1, min(_EPISODES, _DRAWS // length))
        self._generators: list[np.random.Generator | None] = [None] * count
        self._before = [dict[str, object]()] * count  # each generator's state before its block
        self._blocks = np.empty((count, self._episodes, length))
        self._used = np.full(count, self._episodes)  # episodes of its block that each has had

    @property
    def generators(self) -> tuple[np.random.Generator | None, ...]:
        """The generators, each after what was taken from it; ``None`` before it has a seed."""
        for copy in np.flatnonzero(self._used < self._episodes).tolist():
            generator = self._generators[copy]
            assert generator is not None
            generator.bit_generator.state = self._before[copy]
            generator.standard_normal(self._used[copy] * self._length)
        self._used[:] = self._episodes
        return tuple(self._generators)

    def seed(self, copy: int, seed: int | None) -> None:
        """Give one a new generator if it is given a seed or has none."""
        if seed is not None or self._generators[copy] is None:
            self._generators[copy], self.seeds[copy] = seeding.np_random(seed)
            self._used[copy] = self._episodes

    def take(self, copies: Ints) -> Floats:
        """Return the next episode's draws of these generators, (len(copies), length), read-only."""
        spent = copies[self._used[copies] == self._episodes]
        for copy in spent.tolist():
            generator = self._generators[copy]
            assert generator is not None  # every generator is made by the first reset
            self._before[copy] = generator.bit_generator.state
            generator.standard_normal(out=self._blocks[copy])
        self._used[spent] = 0
        used = self._used[copies]
        self._used[copies] += 1
        if len(copies) == len(self._used) and (used == used[0]).all():
            taken = self._blocks[:, used[0]]  # without a copy: the common case
        else:
            taken = self._blocks[copies, used]
        taken.flags.writeable = False
        return taken
