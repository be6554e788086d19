"""Observation spaces as data: what an environment shows, and the one rule that makes it a vector.

The rule is Gymnasium's own (`gymnasium.spaces.flatten`): a Box is its elements in C order, a
Discrete and each part of a MultiDiscrete is one-hot, a MultiBinary is its bits, a Dict is its
parts one after another in the order of their sorted keys. An image stays what it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from jormungandr.errors import InvalidValue, shown

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "Box",
    "DictSpace",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "Space",
    "as_gymnasium",
    "from_gymnasium",
]

#: Smallest side of an image: the Nature CNN's three convolutions leave one pixel of it.
SMALLEST_IMAGE = 36
#: Elements of one space.
LARGEST = 1 << 20
#: Axes of one array; NumPy has 64, and a batch and frames come on top.
MOST_AXES = 16
#: Dicts inside each other.
DEEPEST = 16
#: Of the integers that Gymnasium counts with.
INT64 = np.iinfo(np.int64)
SUPPORTED = "a Box, Discrete, MultiBinary, MultiDiscrete of one axis, or a Dict of those"


def _check_shape(shape: tuple[int, ...]) -> None:
    expected = f"1..{MOST_AXES} numbers >= 1, and at most {LARGEST} elements"
    fits = 1 <= len(shape) <= MOST_AXES and all(n >= 1 for n in shape)
    # Not before: the product of many large numbers takes its time.
    if not fits or math.prod(shape) > LARGEST:
        raise InvalidValue("observation.space.shape", expected, shown(list(shape)))


def _check_range(n: int, start: int, name: str, index: str = "") -> None:
    """Refuse integers that are none, too many, or beyond int64."""
    if not 1 <= n <= LARGEST:
        raise InvalidValue(f"observation.space.{name}{index}", f"1..{LARGEST}", n)
    if not INT64.min <= start <= INT64.max - n + 1:
        expected = "integers that fit 64 bits"
        raise InvalidValue(f"observation.space.start{index}", expected, start)


class _Space(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen description that refuses fields it does not know."""


class Box(_Space, frozen=True, tag="box", tag_field="type"):
    """An array of numbers of a fixed shape; uint8 ones of two or three axes may be an image."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "uint8"] = "float32"

    def __post_init__(self) -> None:
        _check_shape(self.shape)

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether it goes through convolutions: uint8, and no side of the picture is under 36."""
        if self.dtype != "uint8" or len(self.shape) not in (2, 3):
            return False
        height, width, _ = image_axes(self.shape)
        return min(height, width) >= SMALLEST_IMAGE

    def numbers(self) -> list[bool]:
        """Which elements of the vector are measurements, (D,): all."""
        return [True] * self.size


class Discrete(_Space, frozen=True, tag="discrete", tag_field="type"):
    """One of `n` integers from `start` on."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        _check_range(self.n, self.start, "n")

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self.n

    def numbers(self) -> list[bool]:
        """Which elements of the vector are measurements, (D,): none."""
        return [False] * self.size


class MultiBinary(_Space, frozen=True, tag="multi_binary", tag_field="type"):
    """An array of bits."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_shape(self.shape)

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return math.prod(self.shape)

    def numbers(self) -> list[bool]:
        """Which elements of the vector are measurements, (D,): none."""
        return [False] * self.size


class MultiDiscrete(_Space, frozen=True, tag="multi_discrete", tag_field="type"):
    """Several integers, the i-th one of ``nvec[i]`` from ``start[i]`` on."""

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.start:
            msgspec.structs.force_setattr(self, "start", (0,) * len(self.nvec))
        if len(self.start) != len(self.nvec):
            expected = f"one for each of nvec ({len(self.nvec)})"
            raise InvalidValue("observation.space.start", expected, len(self.start))
        for i, (n, start) in enumerate(zip(self.nvec, self.start, strict=True)):
            _check_range(n, start, "nvec", f"[{i}]")
        if not self.nvec or self.size > LARGEST:
            expected = f"at least one, and at most {LARGEST} in all"
            raise InvalidValue("observation.space.nvec", expected, shown(list(self.nvec)))

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(self.nvec)

    def numbers(self) -> list[bool]:
        """Which elements of the vector are measurements, (D,): none."""
        return [False] * self.size


class DictSpace(_Space, frozen=True, tag="dict", tag_field="type"):
    """Named parts; kept, as Gymnasium keeps them, in the order of their sorted names."""

    spaces: dict[str, Space]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise InvalidValue("observation.space.spaces", "at least one", "none")
        ordered = {key: self.spaces[key] for key in sorted(self.spaces)}
        msgspec.structs.force_setattr(self, "spaces", ordered)
        for key, part in ordered.items():
            if isinstance(part, Box) and part.is_image:
                raise InvalidValue(
                    f"observation.space.spaces[{key!r}]",
                    "no image inside a Dict",
                    f"a uint8 Box of {list(part.shape)}",
                    "observe the image alone, or train with jormungandr.sb3.C51 and"
                    " 'MultiInputPolicy'",
                )
        if self.size > LARGEST:
            raise InvalidValue(
                "observation.space.spaces", f"at most {LARGEST} elements in all", self.size
            )
        if self.depth > DEEPEST:
            expected = f"at most {DEEPEST} Dicts inside each other"
            raise InvalidValue("observation.space.spaces", expected, self.depth)

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(part.size for part in self.spaces.values())

    @property
    def depth(self) -> int:
        """Dicts inside each other, this one among them."""
        inner = (part.depth for part in self.spaces.values() if isinstance(part, DictSpace))
        return 1 + max(inner, default=0)

    def numbers(self) -> list[bool]:
        """Which elements of the vector are measurements, (D,)."""
        return [number for part in self.spaces.values() for number in part.numbers()]


Space: TypeAlias = Box | Discrete | MultiBinary | MultiDiscrete | DictSpace


def image_axes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return (height, width, channels) of an image's shape.

    Two axes are one channel. Of three, the first is the channels if it is the smallest, and the
    last otherwise, which is Stable-Baselines3's rule.
    """
    if len(shape) == 2:
        return shape[0], shape[1], 1
    if channels_first(shape):
        return shape[1], shape[2], shape[0]
    return shape[0], shape[1], shape[2]


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image of three axes come first."""
    return int(np.argmin(shape)) == 0


def from_gymnasium(space: gymnasium.Space[Any], where: str = "observation_space") -> Space:
    """Describe a Gymnasium space.

    Raises:
        InvalidValue: a space that is not supported, by its name and its place.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        if space.dtype is None or space.dtype.kind not in "fiu" or not space.shape:
            raise InvalidValue(where, "a Box of numbers with at least one axis", space)
        return Box(shape=space.shape, dtype="uint8" if space.dtype == np.uint8 else "float32")
    if isinstance(space, spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(shape=space.shape)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return MultiDiscrete(nvec=tuple(nvec), start=tuple(start))
    if isinstance(space, spaces.Dict):
        parts = {}
        for key, part in space.spaces.items():
            if not isinstance(key, str):
                raise InvalidValue(where, "a Dict whose keys are strings", shown(key))
            parts[key] = from_gymnasium(part, f"{where}[{key!r}]")
        return DictSpace(spaces=parts)
    raise InvalidValue(where, SUPPORTED, space, "flatten or encode it in a wrapper of your own")


def as_gymnasium(space: Space) -> gymnasium.Space[Any]:
    """Return the Gymnasium space that a description stands for; bounds of a Box are not kept."""
    from gymnasium import spaces

    if isinstance(space, Box):
        low, high = (0, 255) if space.dtype == "uint8" else (-np.inf, np.inf)
        dtype: Any = np.dtype(space.dtype).type
        return spaces.Box(low, high, space.shape, dtype)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, MultiBinary):
        # Gymnasium tells MultiBinary(3) and MultiBinary((3,)) apart.
        return spaces.MultiBinary(space.shape if len(space.shape) > 1 else space.shape[0])
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.array(space.nvec), start=np.array(space.start))
    return spaces.Dict({key: as_gymnasium(part) for key, part in space.spaces.items()})


def pixels_first(observation: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return images as (B, channels, height, width), stacked frames as further channels.

    Args:
        observation: (B, *shape), or (B, frames, *shape).
        shape: of one frame.
    """
    count, height, width, channels = len(observation), *image_axes(shape)
    stacked = math.prod(observation.shape[1:]) // math.prod(shape)  # also of a batch of none
    frames = observation.reshape(count, stacked, *shape)
    if len(shape) == 3 and not channels_first(shape):
        frames = np.moveaxis(frames, -1, 2)
    return frames.reshape(count, stacked * channels, height, width)
