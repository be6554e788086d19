"""`SpecifiedEnv`: actions are repeated and frames stacked as the specification says."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FrameStackObservation

from jormungandr import Learner, ModelSpec
from jormungandr.errors import DtypeMismatch, InvalidType, InvalidValue, ShapeMismatch
from jormungandr_wrappers import RemoteActor, SpecifiedEnv, VectorRecorder
from tests.wrappers.walk import KINDS, Walk

ARRAYS = ("vector", "matrix", "image")
EACH = [(k, n) for k in (1, 2, 3) for n in (1, 2, 3)]


def specified(kind, k, n, **fields):
    """Return the specification of a walk, and the walk as it says."""
    bare = Walk(kind, masked=fields.get("action_masks", False))
    spec = ModelSpec.for_env(bare, observation={"frame_stack": k}, action_repeat=n, **fields)
    return spec, SpecifiedEnv(bare, spec)


def stacked(frames, k):
    """Return the newest k frames of an episode, its first one before there are as many."""
    newest = ([frames[0]] * k + frames)[-k:]
    return newest[0] if k == 1 else np.stack(newest)


def played(kind, k, n, seed, actions, masked=False):
    """Return what the actions come to, step by step, from the bare environment: the slow truth."""
    env, rows = Walk(kind, masked), []
    observation, _ = env.reset(seed=seed)
    frames, t = [np.array(observation)], 0
    for action in actions:
        rewards, before = [], stacked(frames, k)
        for _ in range(n):
            observation, reward, terminated, truncated, info = env.step(action)
            rewards.append(reward)
            if terminated or truncated:
                break
        frames.append(np.array(observation))
        after, over = stacked(frames, k), terminated or truncated
        row = [t, before.tolist(), action, sum(rewards), after.tolist(), terminated, truncated]
        rows.append([*row, info["action_mask"].tolist()] if masked else row)
        t += 1
        if over:
            frames, t = [np.array(env.reset()[0])], 0
    return rows


def facts(rows, masked=False):
    """Return the same of what was recorded."""
    found = []
    for r in rows:
        before, after = np.asarray(r.observation).tolist(), np.asarray(r.next_observation).tolist()
        row = [r.timestep, before, r.action, r.reward, after, r.terminated, r.truncated]
        found.append([*row, r.next_action_mask.tolist()] if masked else row)
    return found


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize(("k", "n"), EACH)
def test_an_actor_records_decisions(endpoint, kind, k, n):
    """Stacks, summed rewards and ends are those of the bare environment, played by hand."""
    spec, env = specified(kind, k, n)
    RemoteActor(env, endpoint, actor_id="a").run(steps=40, seed=3)
    actions = [r.action for r in endpoint.rows]

    assert facts(endpoint.rows) == played(kind, k, n, 3, actions)
    ends = {(r.terminated, r.truncated) for r in endpoint.rows}
    assert ends == {(False, False), (True, False), (False, True)}
    shape = (k, *KINDS[kind].shape) if k > 1 else KINDS[kind].shape
    assert endpoint.rows[0].observation.shape == env.observation_space.shape == shape
    assert shape == spec.observation.shown_shape
    assert env.observation_space.dtype == KINDS[kind].dtype
    assert all(r.observation in env.observation_space for r in endpoint.rows)


def test_masks_are_those_of_decisions(endpoint):
    """What is repeated was chosen once: the mask between is nobody's."""
    _, env = specified("vector", 2, 3, action_masks=True)
    actor = RemoteActor(env, endpoint, actor_id="a", mask_key="action_mask")
    actor.run(steps=40, seed=3)
    actions = [r.action for r in endpoint.rows]
    assert facts(endpoint.rows, masked=True) == played("vector", 2, 3, 3, actions, masked=True)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "dict"])
def test_actions_are_repeated_whatever_is_seen(endpoint, kind):
    """Observations that are no arrays cannot be stacked, but acted on less often."""
    spec = ModelSpec.for_env(Walk(kind), action_repeat=3)
    env = SpecifiedEnv(Walk(kind), spec)
    RemoteActor(env, endpoint, actor_id="a").run(steps=9, seed=3)
    taken, expected = env.unwrapped.taken, []
    bare = Walk(kind)
    bare.reset(seed=3)
    for row in endpoint.rows:
        for _ in range(3):
            expected.append(row.action)
            if any(bare.step(row.action)[2:4]):
                bare.reset()
                break
    assert taken == expected
    assert env.observation_space == KINDS[kind]


@pytest.mark.parametrize("k", [2, 4])
def test_stacks_are_those_of_gymnasiums_own_wrapper(k):
    """To the bit and the dtype, padding included."""
    make = partial(gym.make, "CartPole-v1", max_episode_steps=9)
    spec = ModelSpec.for_env(make(), observation={"frame_stack": k})
    ours, theirs = SpecifiedEnv(make(), spec), FrameStackObservation(make(), k)
    assert ours.observation_space == theirs.observation_space
    for seed in (0, 1):
        one, other = ours.reset(seed=seed), theirs.reset(seed=seed)
        over = False
        while True:
            np.testing.assert_array_equal(one[0], other[0], strict=True)
            assert one[1:-1] == other[1:-1]
            if over:
                break
            one, other = ours.step(0), theirs.step(0)
            over = one[2] or one[3]


def test_with_both_at_one_nothing_changes():
    """The very objects that the environment returned, its spaces among them."""
    spec = ModelSpec.for_env(Walk())
    bare = Walk()
    env = SpecifiedEnv(bare, spec)
    assert env.observation_space is bare.observation_space
    observation, _ = env.reset(seed=0)
    after, reward, *_ = env.step(1)
    assert observation is after is bare.buffer
    assert isinstance(reward, float)


def test_what_was_returned_stays(endpoint):
    """A stack is the caller's own: neither later steps nor the caller change the other's."""
    _, env = specified("vector", 3, 1)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second, *_ = env.step(0)
    assert first.tolist() == kept.tolist()
    second[:] = 99
    third, *_ = env.step(0)
    assert not (third == 99).any()


def test_frames_have_the_dtype_of_the_space():
    """Also where the environment is careless: a stack is then the same whatever it returned."""

    class Careless(Walk):
        def shown(self):
            return [float(self.place), 0.5]

    spec = ModelSpec.for_env(Careless(), observation={"frame_stack": 2})
    env = SpecifiedEnv(Careless(), spec)
    assert env.reset(seed=0)[0].dtype == env.step(0)[0].dtype == np.float32


@pytest.mark.parametrize(
    ("kind", "shown", "error"),
    [
        ("image", np.full((36, 36), 0.5), DtypeMismatch),  # divided by 255 already
        ("image", np.full((36, 36), 256), DtypeMismatch),
        ("image", np.full((36, 36), -1), DtypeMismatch),
        ("image", np.full((36, 36), np.nan), DtypeMismatch),
        ("image", np.zeros((36, 35), np.uint8), ShapeMismatch),
        ("vector", np.zeros(3), ShapeMismatch),
        ("vector", [[1.0], [1.0, 2.0]], ShapeMismatch),
        ("vector", "ab", ShapeMismatch),
        ("vector", ["a", "b"], DtypeMismatch),
    ],
)
def test_frames_are_of_the_space(kind, shown, error):
    """A cast to its dtype would make a black picture of one that was scaled, and hide it."""
    _, env = specified(kind, 2, 1)
    env.reset(seed=0)
    walk = env.unwrapped
    walk.shown = lambda: shown
    with pytest.raises(error, match=r"as its space says|expected an array"):
        env.step(0)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_single_environments_are_wrapped_before_they_are_vectorised(endpoint, mode):
    """`make_vec` takes the wrapper; `VectorRecorder` records what an actor would, in each mode."""
    gym.register(id="Walk-v0", entry_point=Walk, disable_env_checker=True)
    try:
        spec = ModelSpec.for_env(Walk(), observation={"frame_stack": 2}, action_repeat=2)
        vector = gym.make_vec(
            "Walk-v0",
            num_envs=3,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": mode},
            wrappers=[lambda env: SpecifiedEnv(env, spec)],
        )
    finally:
        del gym.registry["Walk-v0"]
    recorder = VectorRecorder(vector, endpoint, actor_id="a")
    observations, _ = recorder.reset(seed=3)
    assert observations.shape == (3, 2, 2)
    for _ in range(40):
        observations, _, terminated, truncated, _ = recorder.step(recorder.act(observations))
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = recorder.reset(options={"reset_mask": over})
    for i in range(3):
        rows = [r for r in endpoint.rows if r.episode_id.split("-")[1] == str(i)]
        assert len(rows) > 20
        assert facts(rows) == played("vector", 2, 2, 3 + i, [r.action for r in rows])


def test_a_vector_is_refused_and_says_what_to_do():
    """Gymnasium stacks no vectors either."""
    spec = ModelSpec.for_env(Walk())
    with pytest.raises(InvalidType, match=r"wrap the single environments.*wrappers=\[lambda"):
        SpecifiedEnv(gym.make_vec("CartPole-v1", num_envs=2), spec)


def test_a_learner_learns_from_stacks():
    """The whole way: what the learner stores is what the specification says."""
    spec, env = specified("image", 2, 2, c51={"hidden": 8, "atoms": 5})
    learner = Learner(spec)
    RemoteActor(env, learner, actor_id="a").run(steps=6, seed=0)
    assert learner.replay.newest(9)["observation"].shape == (6, 2, 36, 36)


def test_other_spaces_are_refused_by_name():
    """Which space it is, what was specified, and what the environment has."""
    spec = ModelSpec.for_env(Walk(), observation={"frame_stack": 3})
    with pytest.raises(InvalidValue, match=r"observation_space: expected Box.*\(2,\).*got .*\(4,"):
        SpecifiedEnv(gym.make("CartPole-v1"), spec)
    with pytest.raises(InvalidValue, match="SpecifiedEnv stacks frames itself"):
        SpecifiedEnv(FrameStackObservation(Walk(), 3), spec)
    with pytest.raises(InvalidValue, match=r"action_space: expected 5 actions.*got 3"):
        SpecifiedEnv(Walk(), ModelSpec.from_dict({"observation": {"shape": [2]}, "actions": 5}))
    with pytest.raises(InvalidValue, match="env: expected a bare environment"):
        SpecifiedEnv(gym.wrappers.TimeLimit(SpecifiedEnv(Walk(), spec), 9), spec)
    with pytest.raises(InvalidType, match="spec: expected a ModelSpec, got dict"):
        SpecifiedEnv(Walk(), spec.to_dict())


def test_bytes_that_are_no_image_may_be_specified_as_numbers():
    """A specification by hand says how many there are; of an image it has to say that it is one."""

    class Memory(Walk):
        def __init__(self, shape):
            super().__init__()
            self.observation_space = spaces.Box(0, 255, shape, np.uint8)

    spec = ModelSpec.from_dict({"observation": {"shape": [128]}, "actions": 3})
    assert SpecifiedEnv(Memory((128,)), spec)
    spec = ModelSpec.from_dict({"observation": {"shape": [40, 40]}, "actions": 3})
    with pytest.raises(InvalidValue, match=r"observation_space: .*float32.*uint8"):
        SpecifiedEnv(Memory((40, 40)), spec)


def test_a_step_before_the_reset():
    """There is no stack yet."""
    _, env = specified("vector", 2, 1)
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step(0)


def test_it_can_be_made_again():
    """Gymnasium's own record of it has the specification."""
    spec = ModelSpec.for_env(gym.make("CartPole-v1"), action_repeat=2)
    env = gym.make(SpecifiedEnv(gym.make("CartPole-v1"), spec).spec)
    env.reset(seed=0)
    assert isinstance(env, SpecifiedEnv)
    assert env.step(0)[1] == 2.0
