"""An episode as an animated GIF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from jormungandr.cli.making import make_env
from jormungandr.errors import InvalidValue

__all__ = ["Film", "make_filmed"]

#: Steps in a film: a longer one is no GIF that anything would like to show.
MOST_STEPS = 1_000
#: Shortest time of a frame in milliseconds; viewers slow down what is shorter.
SHORTEST = 20


class Film:
    """Frames of an environment, one for each time it is looked at, and the GIF made of them.

    Frames that show the same one after another are one in the file, which stays for as long.

    Args:
        path: of the GIF.
        env: made with ``render_mode="rgb_array"``.

    Raises:
        ModuleNotFoundError: Pillow is not installed; it says what to install.
    """

    def __init__(self, path: Path, env: gymnasium.Env[Any, Any]) -> None:
        try:
            from PIL import Image
        except ModuleNotFoundError as error:
            message = '--gif needs Pillow: pip install "jormungandr-rl[gif]"'
            raise ModuleNotFoundError(message, name=error.name) from None
        self._image, self._path, self._env = Image, path, env
        self._frames: list[Any] = []
        self.looks = 0

    def look(self) -> None:
        """Take a frame, unless there are enough.

        Raises:
            InvalidValue: the environment renders no picture.
        """
        self.looks += 1
        if self.looks > MOST_STEPS + 1:
            return
        pixels: Any = self._env.render()
        if not (
            isinstance(pixels, np.ndarray)
            and pixels.dtype == np.uint8
            and pixels.ndim == 3
            and pixels.shape[2] == 3
        ):
            got = f"{type(pixels).__name__} {getattr(pixels, 'shape', '')}".strip()
            raise InvalidValue("--gif", "render() to return uint8 (height, width, 3)", got)
        # Of 256 colours, which is what a GIF has, and a third of the memory.
        self._frames.append(self._image.fromarray(pixels).quantize())

    def write(self) -> int:
        """Write the file and return the number of frames."""
        fps = self._env.metadata.get("render_fps") or 30
        first, *others = self._frames
        first.save(
            self._path,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=max(SHORTEST, round(100 / fps) * 10),
            loop=0,
        )
        return len(self._frames)


def make_filmed(env_id: str) -> gymnasium.Env[Any, Any]:
    """Make an environment that renders pictures.

    Raises:
        InvalidValue: it cannot.
    """
    env = make_env(env_id)
    modes = env.metadata.get("render_modes") or []
    env.close()
    if "rgb_array" not in modes:
        raise InvalidValue(
            "--gif", "an environment with render mode rgb_array", f"one with {modes}"
        )
    return make_env(env_id, render_mode="rgb_array")
