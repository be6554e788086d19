"""OUSpreadVectorEnv equals SyncVectorEnv over OUSpreadEnv, bit for bit, in every mode."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr_envs import OUSpreadEnv, OUSpreadVectorEnv

MODES = list(AutoresetMode)


def make_both(count, mode, **parameters):
    """Return our vector environment and Gymnasium's over single ones."""
    ours = OUSpreadVectorEnv(count, autoreset_mode=mode, **parameters)
    theirs = SyncVectorEnv([lambda: OUSpreadEnv(**parameters)] * count, autoreset_mode=mode)
    return ours, theirs


def assert_same(expected, actual, where=""):
    """Compare types, dtypes, shapes and bytes, through tuples, dicts and object arrays."""
    assert type(expected) is type(actual), where
    if isinstance(expected, dict):
        assert expected.keys() == actual.keys(), where
        for key in expected:
            assert_same(expected[key], actual[key], f"{where}.{key}")
    elif isinstance(expected, tuple):
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(expected, np.ndarray) and expected.dtype == object:
        assert_same(tuple(expected), tuple(actual), where)
    elif isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape), where
        assert expected.tobytes() == actual.tobytes(), where
    else:
        assert expected == actual, where


def assert_same_generators(ours, theirs):
    """Compare the generators copy by copy: the same draws lie ahead."""
    assert ours.np_random_seed == theirs.np_random_seed
    states = [generator.bit_generator.state for generator in ours.np_random]
    assert states == [generator.bit_generator.state for generator in theirs.np_random]


def step_both(ours, theirs, actions):
    """Step both and, without autoreset, reset both where an episode ended."""
    expected = theirs.step(actions)
    assert_same(expected, ours.step(actions), "step")
    ended = expected[2]
    if ours.autoreset_mode == AutoresetMode.DISABLED and ended.any():
        reset_both(ours, theirs, mask=ended)


def reset_both(ours, theirs, seed=None, mask=None, x0=None):
    """Reset both and compare what they return."""
    options = {} if x0 is None else {"x0": x0}
    if mask is not None:
        options["reset_mask"] = mask
    # SyncVectorEnv takes the mask out of the caller's dict, hence the copies.
    expected = theirs.reset(seed=seed, options=dict(options))
    assert_same(expected, ours.reset(seed=seed, options=dict(options)), "reset")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", [7, [3, 1, 4, 1, 5], [9, None, 2, None, 6]], ids=str)
def test_several_episodes_of_random_actions(mode, seed):
    """Full resets, by every kind of seed and by none, followed by several episodes."""
    ours, theirs = make_both(5, mode)
    reset_both(ours, theirs, seed=123)
    reset_both(ours, theirs, seed=seed)
    rng = np.random.default_rng(0)
    for _ in range(160):
        step_both(ours, theirs, rng.integers(0, 3, 5))
    assert_same_generators(ours, theirs)
    reset_both(ours, theirs)  # seed=None goes on with the seeded generators
    for _ in range(60):
        step_both(ours, theirs, rng.integers(0, 3, 5))
    assert_same_generators(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_copies_out_of_step_with_each_other(mode):
    """Masked resets give the copies clocks of their own."""
    ours, theirs = make_both(4, mode, horizon=7)
    reset_both(ours, theirs, seed=0)
    rng = np.random.default_rng(1)
    for turn in range(120):
        step_both(ours, theirs, rng.integers(0, 3, 4))
        if turn % 11 == 3:
            mask = rng.random(4) < 0.5
            mask[turn % 4] = True
            reset_both(ours, theirs, seed=turn if turn % 2 else None, mask=mask, x0=0.25)
    assert_same_generators(ours, theirs)


@settings(max_examples=150, deadline=None)
@given(
    mode=st.sampled_from(MODES),
    count=st.integers(1, 3),
    horizon=st.integers(1, 4),
    moves=st.lists(
        st.one_of(
            st.lists(st.integers(0, 2), min_size=3, max_size=3),
            st.tuples(
                st.lists(st.booleans(), min_size=3, max_size=3),
                st.one_of(st.none(), st.integers(0, 5)),
            ),
        ),
        max_size=25,
    ),
)
def test_any_sequence_of_steps_and_masked_resets(mode, count, horizon, moves):
    """Nothing that a caller may do in any order tells the two apart."""
    ours, theirs = make_both(count, mode, horizon=horizon)
    reset_both(ours, theirs, seed=1)
    for move in moves:
        if isinstance(move, list):
            step_both(ours, theirs, np.array(move[:count]))
        elif any(move[0][:count]):
            reset_both(ours, theirs, seed=move[1], mask=np.array(move[0][:count]))
    assert_same_generators(ours, theirs)


def test_next_step_ignores_the_action_of_a_copy_being_reset():
    """The step after an end is a reset, whatever its action."""
    env = OUSpreadVectorEnv(2, horizon=1)
    env.reset(seed=0)
    env.step(np.array([2, 0]))
    observations, rewards, terminated, _, infos = env.step(np.array([99, -99]))
    assert observations[:, 2:].tolist() == [[0.0, 1.0]] * 2
    assert rewards.tolist() == [0.0, 0.0]
    assert terminated.tolist() == [False, False]
    assert infos.keys() == {"drift_label", "_drift_label"}


def test_same_step_returns_the_true_last_observation():
    """The finished episode's end is in the infos, the new one's start in the observation."""
    env = OUSpreadVectorEnv(3, horizon=2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    env.step(np.array([0, 1, 2]))
    observations, _, terminated, _, infos = env.step(np.array([0, 1, 2]))
    assert terminated.all()
    assert observations[:, 3].tolist() == [1.0] * 3
    assert [last[2:].tolist() for last in infos["final_obs"]] == [[-1, 0], [0, 0], [1, 0]]
    assert infos["final_info"]["_reference_return"].all()


@pytest.mark.parametrize("mode", MODES)
def test_returned_arrays_share_no_memory(mode):
    """No array is used twice, not even inside the infos, and none is a view of a table."""
    env = OUSpreadVectorEnv(2, horizon=3, autoreset_mode=mode)

    def arrays(data):
        if isinstance(data, np.ndarray):
            return (
                [each for item in data if item is not None for each in arrays(item)]
                if (data.dtype == object)
                else [data]
            )
        if isinstance(data, dict):
            data = tuple(data.values())
        return [each for item in data for each in arrays(item)] if isinstance(data, tuple) else []

    returned = arrays(env.reset(seed=0))
    for _ in range(3):
        returned += arrays(env.step(np.array([0, 2])))
    returned += arrays(env.reset())
    for index, array in enumerate(returned):
        assert array.base is None
        assert not any(np.shares_memory(array, later) for later in returned[index + 1 :])


def test_what_the_caller_does_to_arrays_stays_with_the_caller():
    """Overwriting returned arrays and passed actions leaves the environment alone."""
    ours, theirs = make_both(2, AutoresetMode.NEXT_STEP, horizon=3)
    reset_both(ours, theirs, seed=0)
    for _ in range(12):
        actions = np.array([0, 2])
        *arrays, infos = ours.step(actions)
        for array in (*arrays, *infos.values(), actions):
            array[:] = 0
        theirs.step(np.array([0, 2]))
        step_both(ours, theirs, np.array([1, 1]))


def test_reset_leaves_the_callers_options_alone():
    """The caller's dict keeps its mask."""
    env = OUSpreadVectorEnv(2)
    env.reset(seed=0)
    options = {"reset_mask": np.array([True, False]), "x0": 0.0}
    env.reset(options=options)
    assert options.keys() == {"reset_mask", "x0"}


@pytest.mark.parametrize("mode", MODES)
def test_mode_is_declared_on_the_instance(mode):
    """Each instance declares its own mode, as the enum member that wrappers ask for."""
    env = OUSpreadVectorEnv(2, autoreset_mode=mode)
    assert env.metadata["autoreset_mode"] is mode
    assert OUSpreadVectorEnv(2, autoreset_mode=mode.value).metadata["autoreset_mode"] is mode
    assert "autoreset_mode" not in OUSpreadEnv.metadata


def test_episode_statistics_wrapper_agrees_with_the_rewards():
    """Gymnasium's episode statistics find their key free and add up our rewards."""
    env = RecordEpisodeStatistics(OUSpreadVectorEnv(3, horizon=4))
    env.reset(seed=0)
    total = np.zeros(3)
    for _ in range(4):
        *_, infos = step = env.step(np.array([0, 1, 2]))
        total += step[1]
    np.testing.assert_allclose(infos["episode"]["r"], total)
    assert infos["episode"]["l"].tolist() == [4, 4, 4]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 3], r"actions\[1\]: expected 0 \(SHORT\).*got 3"),
        ([-1, 0], r"actions\[0\]: expected 0 \(SHORT\).*got -1"),
        (np.array([0, 2**63], dtype=np.uint64), r"actions\[1\]"),
        ([0, 1, 2], r"expected 2 integers of shape \(2,\), got dtype int64 and shape \(3,\)"),
        ([[0], [1]], r"shape \(2, 1\)"),
        ([0.0, 1.0], "dtype float64"),
        (1, r"shape \(\)"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(actions, message):
    """A bad action is named, and the episode goes on as if it had not been tried."""
    env = OUSpreadVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)
    assert env.step(np.array([1, 1], dtype=np.int8))[0][0, 3] == np.float32(47 / 48)


@pytest.mark.parametrize(
    ("mask", "count"),
    [([True, True], 2), (np.array([1, 0]), 2), (np.ones(3, bool), 2), (np.zeros(2, bool), 2)],
)
def test_bad_reset_masks_are_refused(mask, count):
    """A mask is a bool array of the right shape with something to reset."""
    env = OUSpreadVectorEnv(count)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="reset_mask"):
        env.reset(options={"reset_mask": mask})


def test_calls_out_of_order_are_refused():
    """Steps and masked resets need running episodes."""
    env = OUSpreadVectorEnv(2, horizon=1, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(np.array([1, 1]))
    with pytest.raises(ResetNeeded, match="full reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    env.step(np.array([1, 1]))
    with pytest.raises(ResetNeeded, match=r"copies \[0, 1\] are over"):
        env.step(np.array([1, 1]))


def test_bad_constructions_are_refused():
    """Counts, modes, parameters and seeds are checked where they come in."""
    with pytest.raises(ValueError, match=r"num_envs: expected an integer >= 1, got 0"):
        OUSpreadVectorEnv(0)
    with pytest.raises(ValueError, match="not a valid AutoresetMode"):
        OUSpreadVectorEnv(2, autoreset_mode="sometimes")
    with pytest.raises(ValueError, match=r"OUSpread\.kappa"):
        OUSpreadVectorEnv(2, kappa=3.0)
    with pytest.raises(ValueError, match="expected 2 seeds, got 3"):
        OUSpreadVectorEnv(2).reset(seed=[1, 2, 3])
