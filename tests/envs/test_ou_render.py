"""Pictures of an episode: their types, and what is to be seen in them."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from jormungandr_envs import OUSpreadEnv, OUSpreadVectorEnv
from jormungandr_envs.ou_arguments import RENDER_MODES
from jormungandr_envs.ou_parameters import OUParameters
from jormungandr_envs.ou_render import BAND, INK, POSITION_COLOURS, render_frame, render_text


def where(frame, colour):
    """Return the rows and columns of one colour."""
    return np.nonzero((frame == colour).all(axis=2))


def test_frame_is_rgb_bytes_of_one_size():
    """Every picture has the same shape and type and is the caller's own."""
    env = OUSpreadEnv(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(48):
        env.step(2)
    last = env.render()
    for frame in (first, last):
        assert (frame.dtype, frame.shape) == (np.uint8, (256, 512, 3))
    assert not np.shares_memory(first, last)
    assert (first != last).any()


def test_line_reaches_as_far_as_the_episode_and_its_height_follows_the_spread():
    """Half an episode fills half the width; a high spread is drawn above a low one."""
    parameters = OUParameters(horizon=4)
    low = render_frame([-3.0, -3.0, -3.0], [1, 1], parameters)
    high = render_frame([3.0, 3.0, 3.0], [1, 1], parameters)
    rows_low, columns = where(low, INK)
    rows_high, _ = where(high, INK)
    assert rows_high.max() < rows_low.min()
    assert abs(columns.max() - 256) < 8  # half way through the picture


def test_positions_and_band_are_drawn():
    """Each position has its colour in order of time, and the band has the reference's width."""
    frame = render_frame([0.0, 0.0, 0.0, 0.0], [0, 1, 2], OUParameters(horizon=3))
    centres = []
    for colour in POSITION_COLOURS.values():
        rows, columns = where(frame[216:240], colour)
        assert rows.size > 0
        centres.append(columns.mean())
    assert centres == sorted(centres)
    wide = render_frame([0.0], [], OUParameters(reference_threshold=2.0))
    narrow = render_frame([0.0], [], OUParameters(reference_threshold=0.2))
    assert where(wide, BAND)[0].size > 5 * where(narrow, BAND)[0].size


@pytest.mark.parametrize("horizon", [1, 3000])
def test_extreme_spreads_and_horizons_stay_inside_the_picture(horizon):
    """Values beyond the plot are drawn at its edge."""
    parameters = OUParameters(horizon=horizon, reference_threshold=9.0)
    z = np.linspace(-99.0, 99.0, horizon + 1).tolist()
    frame = render_frame(z, [2] * horizon, parameters)
    assert frame.shape == (256, 512, 3)
    rows, columns = where(frame, INK)
    assert (rows.min(), rows.max()) == (12, 208)  # the last dot at the top, the line's end below
    assert columns.max() > 490
    assert "*" in render_text(z, [2] * horizon, parameters)


def test_text_by_hand():
    """The text shows the step, the numbers and the place on the ruler."""
    text = render_text([0.0, 1.0], [0], OUParameters())
    assert text == (
        "step 1/48  z +1.000  dz +1.000  SHORT\n"
        "-3.5 .......................[....|....]..*.................... +3.5\n"
    )


def test_without_a_mode_render_warns_and_returns_nothing():
    """Rendering without a mode is a warning, as in Gymnasium's own environments."""
    for env in (OUSpreadEnv(), OUSpreadVectorEnv(2)):
        env.reset(seed=0)
        with pytest.warns(UserWarning, match="render_mode is None"):
            assert env.render() is None


def test_render_before_reset_and_unknown_modes_are_refused():
    """There is nothing to draw before a reset, and a mode we lack is refused at construction."""
    for make in (OUSpreadEnv, lambda **mode: OUSpreadVectorEnv(2, **mode)):
        with pytest.raises(ResetNeeded, match="call reset"):
            make(render_mode="ansi").render()
        with pytest.raises(ValueError, match=r"render_mode: expected None or one of .*'human'"):
            make(render_mode="human")


@pytest.mark.parametrize("mode", RENDER_MODES)
def test_vector_pictures_are_those_of_single_environments(mode):
    """Vector pictures equal single ones across autoresets and a masked reset."""
    vector = OUSpreadVectorEnv(3, horizon=4, render_mode=mode)
    sync = gym.vector.SyncVectorEnv([lambda: OUSpreadEnv(horizon=4, render_mode=mode)] * 3)
    vector.reset(seed=0)
    sync.reset(seed=0)
    rng = np.random.default_rng(0)
    for turn in range(14):
        np.testing.assert_array_equal(vector.render(), sync.render())
        actions = rng.integers(0, 3, 3)
        vector.step(actions)
        sync.step(actions)
        if turn == 6:
            for env in (vector, sync):
                env.reset(options={"reset_mask": np.array([True, False, False])})
