"""An episode as a GIF: a frame for each state, in their order and at their pace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from jormungandr.cli import film, main
from jormungandr.cli.film import Film, make_filmed

Capture = pytest.CaptureFixture[str]


def frames(path: Path) -> list[np.ndarray[Any, Any]]:
    """Return the frames of a GIF, each (height, width, 3)."""
    with Image.open(path) as image:
        found = []
        for n in range(image.n_frames):  # type: ignore[attr-defined]
            image.seek(n)
            found.append(np.asarray(image.convert("RGB")))
    return found


def test_the_first_episode_of_the_policy(capsys: Capture, tmp_path: Path) -> None:
    """OUSpread-v0 has 48 steps: 49 pictures, the ones that the environment draws, and no other."""
    path = tmp_path / "ou.gif"
    arguments = ["evaluate", "OUSpread-v0", "--policy", "reference", "--against", "random"]
    assert main([*arguments, "--episodes", "2", "--seed", "6", "--gif", str(path)]) == 0
    assert f"wrote {path}: 49 frames of A's episode with seed 6\n" in capsys.readouterr().out
    shown = frames(path)

    assert len(shown) == 49
    env = gymnasium.make("OUSpread-v0", render_mode="rgb_array")
    observation, _ = env.reset(seed=6)
    for i, frame in enumerate(shown):
        np.testing.assert_array_equal(frame, env.render())  # few colours: nothing is lost
        if i < 48:
            z = observation[0]
            observation = env.step(0 if z > 0.65 else 2 if z < -0.65 else 1)[0]
    with Image.open(path) as image:
        assert (image.info["duration"], image.info["loop"]) == (80, 0)  # 12 frames a second


def test_frames_that_show_the_same_stay_longer(tmp_path: Path) -> None:
    """Two equal pictures in a row are one in the file, for twice as long."""
    env = make_filmed("Coins-v0")
    env.reset(seed=0)
    recorded = Film(tmp_path / "coins.gif", env)
    for side in (0, 0, 2):
        env.unwrapped.side = side  # type: ignore[attr-defined]
        recorded.look()
    assert recorded.write() == 3

    assert [int(frame[0, 0, 0]) for frame in frames(tmp_path / "coins.gif")] == [200, 0]
    with Image.open(tmp_path / "coins.gif") as image:
        assert image.info["duration"] == 200


def test_a_film_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an episode that is too long to show, the beginning is."""
    monkeypatch.setattr(film, "MOST_STEPS", 2)
    env = make_filmed("Coins-v0")
    env.reset(seed=0)
    recorded = Film(tmp_path / "coins.gif", env)
    for _ in range(5):
        recorded.look()

    assert recorded.write() == 3


def test_many_colours_come_close(tmp_path: Path) -> None:
    """A picture of more than 256 colours is one of 256 that are near."""
    env = make_filmed("Coins-v0")
    env.reset(seed=0)
    picture = np.stack(np.meshgrid(np.arange(64), np.arange(64)), axis=-1).astype(np.uint8) * 4
    picture = np.concatenate([picture, np.full((64, 64, 1), 90, np.uint8)], axis=-1)
    env.unwrapped.render = lambda: picture  # type: ignore[method-assign,assignment]
    recorded = Film(tmp_path / "colours.gif", env)
    recorded.look()
    recorded.write()
    (shown,) = frames(tmp_path / "colours.gif")

    assert np.abs(shown.astype(int) - picture).mean() < 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["Coins-v0", "--gif", "coins.mp4"], "--gif: expected a name that ends with .gif"),
        (["Coins-v0", "--gif", "no/x.gif"], "--gif: expected a file in a folder that exists"),
        (["Blind-v0", "--gif", "x.gif"], "--gif: expected an environment with render mode rgb_arr"),
        (["Liar-v0", "--gif", "x.gif"], "--gif: expected render() to return uint8 (height, width,"),
    ],
)
def test_what_cannot_be_filmed_is_refused(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, text: str
) -> None:
    """A name, a folder, or an environment without pictures is told of before anything is played."""

    class Blind(type(gymnasium.make("Coins-v0").unwrapped)):  # type: ignore[misc]
        metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    class Liar(type(gymnasium.make("Coins-v0").unwrapped)):  # type: ignore[misc]
        def render(self) -> str:
            return "no picture"

    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register(id="Blind-v0", entry_point=Blind)
    gymnasium.register(id="Liar-v0", entry_point=Liar, disable_env_checker=True)
    monkeypatch.chdir(tmp_path)

    assert main(["evaluate", *arguments, "--policy", "random"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"jormungandr evaluate: {text}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_pillow_is_asked_for(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Pillow the command says what to install."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    path = tmp_path / "x.gif"

    assert main(["evaluate", "Coins-v0", "--policy", "random", "--gif", str(path)]) == 1
    assert capsys.readouterr().err == (
        'jormungandr evaluate: --gif needs Pillow: pip install "jormungandr-rl[gif]"\n'
    )
