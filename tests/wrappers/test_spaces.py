"""Observations that are no arrays: every recorder takes what a model can see."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from jormungandr import Learner, ModelSpec
from jormungandr_wrappers import ParallelRecorder, RemoteActor, VecEnvRecorder, VectorRecorder
from jormungandr_wrappers.batches import count, joined, separated, subset

STEPS, LENGTH = 7, 3
KINDS = {
    "discrete": spaces.Discrete(9),
    "multi_binary": spaces.MultiBinary(2),
    "multi_discrete": spaces.MultiDiscrete([9, 9]),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict({"gear": spaces.Discrete(9), "place": spaces.Box(-99, 99, (2,))}),
}


def shown(kind, seed, t):
    """Return what an environment of a kind shows at a time."""
    number = (seed + t) % 9
    return {
        "discrete": np.int64(number),
        "multi_binary": np.array([number % 2, 1], np.int8),
        "multi_discrete": np.array([number, t % 9]),
        "image": np.full((36, 36, 1), number, np.uint8),
        "dict": {"gear": np.int64(number), "place": np.array([seed, t], np.float32)},
    }[kind]


class Counting(gym.Env):
    """Show a function of the seed and of the steps since the first reset; end every third one."""

    action_space = spaces.Discrete(2)
    render_mode = None

    def __init__(self, kind):
        self.kind, self.observation_space, self.t = kind, KINDS[kind], 0

    def reset(self, *, seed=None, options=None):
        """Begin; only the first reset has a seed."""
        super().reset(seed=seed)
        if seed is not None:
            self.seed, self.t = seed, 0
        return shown(self.kind, self.seed, self.t), {}

    def step(self, action):
        """Count."""
        self.t += 1
        return shown(self.kind, self.seed, self.t), 1.0, self.t % LENGTH == 0, False, {}


class Parallel:
    """One agent, who sees what `Counting` shows."""

    possible_agents = ("x",)

    def __init__(self, kind):
        self.env, self.agents = Counting(kind), []

    def observation_space(self, agent):
        """Return the kind's."""
        return self.env.observation_space

    def action_space(self, agent):
        """Return two actions."""
        return self.env.action_space

    def reset(self, seed=None, options=None):
        """Begin."""
        self.agents = ["x"]
        observation, info = self.env.reset(seed=seed)
        return {"x": observation}, {"x": info}

    def step(self, actions):
        """Go on."""
        result = self.env.step(actions["x"])
        self.agents = [] if result[2] else ["x"]
        return tuple({"x": part} for part in result)

    def close(self):
        """Nothing to close."""


def play_alone(kind, endpoint):
    """Play with `RemoteActor`."""
    RemoteActor(Counting(kind), endpoint, actor_id="a", run="r").run(steps=STEPS, seed=5)


def play_vector(kind, endpoint, mode):
    """Play two in a Gymnasium vector, the second of which is not looked at."""
    env = SyncVectorEnv([lambda: Counting(kind)] * 2, autoreset_mode=mode)
    recorder = VectorRecorder(env, endpoint, actor_id="a", run="r")
    observations, _ = recorder.reset(seed=[5, 11])
    while sum(r.episode_id.startswith("r-0-") for r in endpoint.rows) < STEPS:
        observations, _, over, _, _ = recorder.step(recorder.act(observations))
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = recorder.reset(options={"reset_mask": over})


def play_vec_env(kind, endpoint):
    """Play two in a VecEnv of Stable-Baselines3."""
    venv = DummyVecEnv([lambda: Counting(kind)] * 2)
    recorder = VecEnvRecorder(venv, endpoint, actor_id="a", run="r")
    recorder.seed(5)
    observations = recorder.reset()
    for _ in range(STEPS):
        observations, _, _, _ = recorder.step(recorder.act(observations))


def play_parallel(kind, endpoint):
    """Play one agent."""
    recorder = ParallelRecorder(Parallel(kind), endpoint, actor_id="a", run="r")
    for _ in range(STEPS):
        if not recorder.agents:
            observations, _ = recorder.reset(seed=None if endpoint.rows else 5)
        observations, *_ = recorder.step(recorder.act(observations))


PLAYERS = {
    "alone": play_alone,
    **{mode.name: partial(play_vector, mode=mode) for mode in AutoresetMode},
    "vec_env": play_vec_env,
    "parallel": play_parallel,
}


def plain(observation):
    """Return an observation as lists and numbers."""
    if isinstance(observation, dict):
        return {key: plain(part) for key, part in observation.items()}
    return np.asarray(observation).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("player", PLAYERS)
def test_every_recorder_records_every_kind(endpoint, player, kind):
    """What it showed and what it showed next, step by step, whoever recorded it."""
    endpoint.actions = 2
    PLAYERS[player](kind, endpoint)
    rows = [r for r in endpoint.rows if r.episode_id.startswith("r-0-")][:STEPS]

    seen = [plain(shown(kind, 5, t)) for t in range(STEPS + 1)]
    assert [plain(r.observation) for r in rows] == seen[:-1]
    assert [plain(r.next_observation) for r in rows] == seen[1:]
    assert [r.timestep for r in rows] == [t % LENGTH for t in range(STEPS)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_takes_every_kind(kind):
    """Of its own environment's spaces, from every recorder, in both forms of a batch."""
    env = Counting(kind)
    spec = ModelSpec.for_env(env, c51={"hidden": 8, "atoms": 5})
    for player in ("alone", "SAME_STEP", "vec_env"):
        learner = Learner(spec)
        learner.rows = []
        add = learner.add
        learner.add = lambda batch, add=add, rows=learner.rows: rows.extend(batch) or add(batch)
        PLAYERS[player](kind, learner)
        assert len(learner.replay) == len(learner.rows) == (STEPS if player == "alone" else 14)


def test_batches_of_dicts():
    """Rows are copies, a subset has the form of the whole, and joined rows are a batch again."""
    batch = {"x": np.arange(6.0).reshape(3, 2), "inner": {"n": np.array([7, 8, 9])}}
    rows = separated(batch)
    some = subset(batch, np.array([2, 0]))
    batch["x"][:] = -1

    assert (count(batch), count(batch["x"])) == (3, 3)
    assert plain(rows[1]) == {"x": [2.0, 3.0], "inner": {"n": 8}}
    assert plain(some) == {"x": [[4.0, 5.0], [0.0, 1.0]], "inner": {"n": [9, 7]}}
    assert joined(rows) == rows
    assert joined([3, 4]).tolist() == [3, 4]
    assert joined([np.zeros(2), np.ones(2)]).shape == (2, 2)
