"""Pictures of an episode so far, in text or in pixels, with NumPy alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jormungandr_envs.ou_labels import Action
from jormungandr_envs.ou_parameters import OUParameters

__all__ = ["render_frame", "render_text"]

Frame = npt.NDArray[np.uint8]

# Multiples of 16 pixels, which is what video encoders ask for.
HEIGHT, WIDTH = 256, 512
MARGIN = 16
PLOT_BOTTOM = 208  # the strip of positions lies below it
STRIP_TOP, STRIP_BOTTOM = 216, 240
Z_LIMIT = 3.5  # stationary standard deviations from the middle of the plot to its edge

PAPER, BAND, RULE, INK = (255, 255, 255), (226, 230, 235), (150, 156, 164), (30, 41, 59)
# Orange and blue are told apart by every common form of colour vision.
POSITION_COLOURS = {
    Action.SHORT: (230, 121, 35),
    Action.FLAT: (203, 208, 214),
    Action.LONG: (38, 112, 196),
}


def render_frame(z: Sequence[float], actions: Sequence[int], parameters: OUParameters) -> Frame:
    """Draw the path so far over the reference band, and the positions held below it.

    Args:
        z: spread at each step so far in stationary standard deviations, n + 1 numbers.
        actions: the n action indices taken so far.
        parameters: the task.

    Returns:
        Red, green, blue, shape (256, 512, 3). Orange is SHORT, grey FLAT, blue LONG; a spread
        beyond 3.5 is drawn at the edge.
    """
    frame = np.empty((HEIGHT, WIDTH, 3), dtype=np.uint8)
    frame[:] = PAPER
    column = np.linspace(MARGIN, WIDTH - MARGIN - 1, parameters.horizon + 1)  # of each step
    left, right = MARGIN, WIDTH - MARGIN

    band = _rows(np.array([1.0, -1.0]) * parameters.reference_threshold)
    frame[band[0] : band[1] + 1, left:right] = BAND
    middle = _rows(np.zeros(1))[0]
    frame[middle, left:right] = RULE
    frame[PLOT_BOTTOM, left:right] = RULE

    for step, action in enumerate(actions):
        start, end = round(column[step]), round(column[step + 1])
        frame[STRIP_TOP:STRIP_BOTTOM, start:end] = POSITION_COLOURS[Action(action)]

    # One vertical run of pixels per column, from this column's height to the next one's.
    across = np.arange(MARGIN, round(column[len(z) - 1]) + 1)
    height = _rows(np.interp(across, column[: len(z)], np.asarray(z, dtype=np.float64)))
    ahead = np.append(height[1:], height[-1])
    top, bottom = np.minimum(height, ahead) - 1, np.maximum(height, ahead)
    rows = np.arange(HEIGHT)[:, None]
    line = (rows >= top) & (rows <= bottom)  # (H, columns)
    frame[:, across[0] : across[-1] + 1][line] = INK

    dot_row, dot_column = int(height[-1]), int(across[-1])
    held = Action(actions[-1]) if len(actions) else Action.FLAT
    frame[dot_row - 4 : dot_row + 5, dot_column - 4 : dot_column + 5] = INK
    frame[dot_row - 3 : dot_row + 4, dot_column - 3 : dot_column + 4] = POSITION_COLOURS[held]
    return frame


def render_text(z: Sequence[float], actions: Sequence[int], parameters: OUParameters) -> str:
    """Write the state in two lines: the numbers, and the spread's place on a ruler.

    Args:
        z: spread at each step so far in stationary standard deviations, n + 1 numbers.
        actions: the n action indices taken so far.
        parameters: the task.

    Returns:
        On the ruler ``*`` is the spread, ``[`` and ``]`` the reference band and ``|`` the mean.
    """
    held = Action(actions[-1]) if len(actions) else Action.FLAT
    change = z[-1] - z[-2] if len(z) > 1 else 0.0
    ruler = ["."] * 57  # eight cells to a standard deviation
    threshold = parameters.reference_threshold
    for at, mark in ((0.0, "|"), (-threshold, "["), (threshold, "]"), (z[-1], "*")):
        ruler[round(28 + 8 * float(np.clip(at, -Z_LIMIT, Z_LIMIT)))] = mark
    return (
        f"step {len(actions)}/{parameters.horizon}  z {z[-1]:+.3f}  dz {change:+.3f}  {held.name}\n"
        f"{-Z_LIMIT:+.1f} {''.join(ruler)} {Z_LIMIT:+.1f}\n"
    )


def _rows(z: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the pixel row of each spread, clipped to the plot."""
    half = (PLOT_BOTTOM - MARGIN) / 2
    rows: npt.NDArray[np.int64] = np.rint(
        MARGIN + half - half / Z_LIMIT * np.clip(z, -Z_LIMIT, Z_LIMIT)
    ).astype(np.int64)
    return rows
