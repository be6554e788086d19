"""What callers hand in, checked at the door: actions, seeds, reset options, render modes."""

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

RENDER_MODES = ["ansi", "rgb_array"]
_ACTIONS = "0 (SHORT), 1 (FLAT) or 2 (LONG)"


def checked_action(action: SupportsIndex) -> int:
    """Return one action as an int.

    Raises:
        ValueError: if it is not an integer from 0 to 2.
    """
    try:
        index = operator.index(action)
    except TypeError:
        index = -1
    if not 0 <= index <= 2:
        raise ValueError(f"action: expected {_ACTIONS}, got {action!r}")
    return index


def checked_actions(actions: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` actions as a fresh int64 array (B,).

    Raises:
        ValueError: if they are not ``count`` integers from 0 to 2.
    """
    given = np.asarray(actions)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"actions: expected {count} integers of shape ({count},), "
            f"got dtype {given.dtype} and shape {given.shape}"
        )
    indices = np.array(given, dtype=np.int64)
    if indices.view(np.uint64).max() > 2:  # one pass: seen as unsigned, a negative is huge
        first = int(np.argmax((given < 0) | (given > 2)))
        raise ValueError(f"actions[{first}]: expected {_ACTIONS}, got {given[first]}")
    return indices


def checked_x0(options: dict[str, Any] | None) -> float | None:
    """Return the start that reset options fix, if any.

    Raises:
        ValueError: on an unknown option, which would otherwise be a silent typing error, or on a
            start that is not a finite number.
    """
    for name in options or {}:
        if name != "x0":
            raise ValueError(f"OUSpread.reset options: expected only 'x0', got {name!r}")
    x0 = (options or {}).get("x0")
    if x0 is None:
        return None
    try:
        start = float(x0)
    except (TypeError, ValueError):
        start = math.nan
    if not math.isfinite(start):
        raise ValueError(f"OUSpread.reset options['x0']: expected a finite number, got {x0!r}")
    return start


def checked_render_mode(render_mode: str | None) -> str | None:
    """Return a supported render mode.

    Raises:
        ValueError: if it is not supported.
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(
            f"OUSpread.render_mode: expected None or one of {RENDER_MODES}, got {render_mode!r}"
        )
    return render_mode


def checked_mask(mask: object, count: int) -> npt.NDArray[np.bool_]:
    """Return a reset mask (B,).

    Raises:
        ValueError: if it is not a bool array of shape (B,) with at least one True.
    """
    if (
        isinstance(mask, np.ndarray)
        and mask.dtype == np.bool_
        and mask.shape == (count,)
        and mask.any()
    ):
        return mask
    raise ValueError(
        "OUSpread.reset options['reset_mask']: expected a bool array of shape "
        f"({count},) with at least one True, got {mask!r}"
    )


def checked_seeds(seed: int | Sequence[int | None] | None, count: int) -> Sequence[int | None]:
    """Return one seed per copy: ``seed + i`` for an int, ``None`` for none.

    Raises:
        ValueError: if a sequence holds another number of seeds.
    """
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):
        return [int(seed) + copy for copy in range(count)]
    if len(seed) != count:
        raise ValueError(f"OUSpread.reset seed: expected {count} seeds, got {len(seed)}")
    return seed
