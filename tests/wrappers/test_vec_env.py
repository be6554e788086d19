"""`VecEnvRecorder`: a VecEnv's transitions are those of the same environments anywhere else."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from jormungandr import Learner
from jormungandr.errors import (
    ActionRange,
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    Unavailable,
    UnknownSplit,
)
from jormungandr.sb3 import C51
from jormungandr_envs import OUSpreadEnv, drift_label
from jormungandr_wrappers import VecEnvRecorder, VectorRecorder

DOWN = Unavailable("service", "a connection", "none")
HORIZON = 5

#: Made by name, so that processes of their own can make them too.
SPREAD = partial(gym.make, "jormungandr_envs:OUSpread-v0")
CARTPOLE = partial(gym.make, "CartPole-v1", max_episode_steps=13)
ENVIRONMENTS = {"OUSpread": SPREAD, "CartPole": CARTPOLE}


def short():
    """Return an OUSpread of a few steps."""
    return OUSpreadEnv(horizon=HORIZON)


def fact(row):
    """Return what happened in a transition, and which step it was, hashable, to the bit."""
    return (
        row.timestep,
        np.asarray(row.observation, np.float32).tobytes(),
        row.action,
        np.float32(row.reward),  # as which DummyVecEnv returns it
        np.asarray(row.next_observation, np.float32).tobytes(),
        row.terminated,
        row.truncated,
    )


def played_alone(make, seed, actions, i):
    """Return the facts of one environment stepped on its own, by episode: the slow truth."""
    env, found, number, timestep = make(), {}, 0, 0
    observation, _ = env.reset(seed=seed)
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        before = np.asarray(observation, np.float32).tobytes()
        successor = np.asarray(after, np.float32).tobytes()
        step = (timestep, before, action, np.float32(reward), successor, terminated, truncated)
        found.setdefault(f"r-{i}-{number}", []).append(step)
        observation, timestep = after, timestep + 1
        if terminated or truncated:
            observation, number, timestep = env.reset()[0], number + 1, 0
    return found


def play_gymnasium(make, mode, endpoint, seed, actions):
    """Give every sub-environment of a Gymnasium vector its actions, one per transition."""
    count, length = actions.shape
    env = SyncVectorEnv([make] * count, autoreset_mode=mode)
    recorder = VectorRecorder(env, endpoint, actor_id="a", run="r")
    recorder.reset(seed=seed)
    taken, ended = np.zeros(count, dtype=int), np.zeros(count, dtype=bool)
    while (taken < length).any():
        # Those that are done go on, with any action, until the slowest is.
        now = actions[np.arange(count), np.minimum(taken, length - 1)]
        _, _, terminated, truncated, _ = recorder.step(now)
        taken += ~ended if mode is AutoresetMode.NEXT_STEP else 1
        over = terminated | truncated
        ended = over & ~ended
        if mode is AutoresetMode.DISABLED and over.any():
            recorder.reset(options={"reset_mask": over})
    recorder.close()


def play_vec_env(make, kind, endpoint, seed, actions):
    """Do the same with a VecEnv of Stable-Baselines3."""
    recorder = VecEnvRecorder(kind([make] * len(actions)), endpoint, actor_id="a", run="r")
    recorder.seed(seed)
    recorder.reset()
    for now in actions.T:
        recorder.step(now)
    recorder.close()


KINDS = {
    **{mode.name: partial(play_gymnasium, mode=mode) for mode in AutoresetMode},
    "DummyVecEnv": partial(play_vec_env, kind=DummyVecEnv),
    "SubprocVecEnv": partial(play_vec_env, kind=SubprocVecEnv),
}


@pytest.mark.parametrize(
    ("kind", "make"),
    # Once is enough for what processes of their own change, and each takes a while to start.
    [(k, m) for k in KINDS for m in ENVIRONMENTS if (k, m) != ("SubprocVecEnv", "OUSpread")],
)
def test_one_contract_for_all_vectors(endpoint, kind, make):
    """Every kind of vector records, episode by episode, what each environment does on its own."""
    make = ENVIRONMENTS[make]
    choices = 2 if make is CARTPOLE else 3
    actions = np.random.default_rng(0).integers(choices, size=(2, 100))
    actions[0, 20:40] = 0  # pushed one way a CartPole falls, pushed to and fro it is cut off
    expected = {}
    for i in range(2):
        expected |= played_alone(make, 7 + i, actions[i].tolist(), i)

    KINDS[kind](make=make, endpoint=endpoint, seed=7, actions=actions)
    got, left = {}, {0: 100, 1: 100}
    for name, rows in endpoint.episodes().items():
        i = int(name.split("-")[1])
        if left[i] > 0:
            got[name] = [fact(row) for row in rows[: left[i]]]
        left[i] -= len(rows)

    assert got == expected
    ends = {f[5:] for facts in expected.values() for f in facts} - {(False, False)}
    assert ends == ({(True, False), (False, True)} if make is CARTPOLE else {(True, False)})
    assert {r.actor_id for r in endpoint.rows} == {"a"}


class Both(gym.Env):
    """Its second step terminates and truncates at once; `info` is what that step tells besides."""

    observation_space = spaces.Box(-9, 9, (1,))
    action_space = spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        """Begin at 0."""
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Count."""
        self.count += 1
        if action == 1 and self.count == 2:
            raise RuntimeError("the environment broke")
        return np.full(1, self.count, np.float32), 1.0, self.count == 2, self.count == 2, {}


def test_a_step_that_does_both_is_a_termination(endpoint):
    """A VecEnv says of such a step only that it is no truncation; learning masks it either way."""
    recorder = VecEnvRecorder(DummyVecEnv([Both]), endpoint, actor_id="a")
    recorder.reset()
    for _ in range(3):
        recorder.step([0])
    assert [(r.terminated, r.truncated) for r in endpoint.rows] == [
        (False, False),
        (True, False),
        (False, False),
    ]
    assert [r.next_observation.tolist() for r in endpoint.rows] == [[1.0], [2.0], [1.0]]


def recorder_of(endpoint, num_envs=2, **more):
    """Return a recorder after its reset, and the first observations."""
    recorder = VecEnvRecorder(DummyVecEnv([short] * num_envs), endpoint, actor_id="a", **more)
    recorder.seed(0)
    return recorder, recorder.reset()


def tags(rows):
    """Return (policy version, behaviour probability) of each."""
    return [(r.policy_version, r.behavior_prob) for r in rows]


def test_it_steps_as_it_did_without(make_endpoint):
    """Observations, rewards, dones and infos are those of the VecEnv, and so are its attributes."""
    plain = DummyVecEnv([short] * 2)
    recorder, first = recorder_of(make_endpoint())
    plain.seed(0)
    np.testing.assert_array_equal(plain.reset(), first)
    for _ in range(2 * HORIZON):
        expected, got = plain.step(np.array([0, 2])), recorder.step(np.array([0, 2]))
        for a, b in zip(expected[:3], got[:3], strict=True):
            np.testing.assert_array_equal(a, b)
        assert [info.keys() for info in expected[3]] == [info.keys() for info in got[3]]
        assert got[2].tolist() == ["terminal_observation" in info for info in got[3]]
    assert recorder.reset_infos == plain.reset_infos
    assert recorder.get_attr("spec") == plain.get_attr("spec") == [None] * 2


def test_what_act_chose_is_tagged_with_its_policy(endpoint):
    """The version and probability of the reply go with the next step, then are forgotten."""
    recorder, observations = recorder_of(endpoint)
    actions = recorder.act(observations, epsilon=0.5)
    recorder.step(actions)
    recorder.step(actions)
    actions = recorder.act(recorder.last_step[0])
    actions[1] = 2
    recorder.step(actions)

    assert tags(endpoint.rows[:2]) == [(7, 0.25 + 0.5 * a) for a in recorded(endpoint.rows[:2])]
    assert tags(endpoint.rows[2:4]) == [(-1, None)] * 2
    assert tags(endpoint.rows[4:]) == [(7, 0.25 + 0.5 * actions[0]), (-1, None)]
    assert endpoint.asked[0][1:] == (False, 0.5)
    assert recorder.reply.policy_version == 7


def recorded(rows):
    """Return the actions of rows."""
    return [r.action for r in rows]


def test_a_reset_forgets_what_act_chose(endpoint):
    """An action chosen before a reset was not chosen from what is seen now."""
    recorder, observations = recorder_of(endpoint)
    actions = recorder.act(observations)
    recorder.reset()
    recorder.step(actions)
    assert tags(endpoint.rows) == [(-1, None)] * 2
    assert {r.episode_id.rsplit("-")[-1] for r in endpoint.rows} == {"1"}


def test_splits_by_sub_environment(endpoint):
    """Each keeps its own; those of the validation split act greedily unless told otherwise."""
    recorder, observations = recorder_of(endpoint, 3, split=["train", "validation", "train"])
    recorder.step(recorder.act(observations))

    assert [r.split for r in endpoint.rows] == ["train", "validation", "train"]
    assert [(len(a[0]), a[1]) for a in endpoint.asked] == [(2, False), (1, True)]


@pytest.mark.parametrize("outer", [lambda env: env, VecMonitor, lambda env: VecFrameStack(env, 1)])
def test_labels_are_those_of_the_observation_acted_upon(endpoint, outer):
    """After a reset the label is that of the reset's info, also under wrappers of the VecEnv."""
    venv = outer(DummyVecEnv([short] * 3))
    recorder = VecEnvRecorder(venv, endpoint, actor_id="a", label_key="drift_label")
    recorder.seed(1)
    recorder.reset()
    for _ in range(4 * HORIZON):
        recorder.step([1, 1, 1])

    assert [r.label for r in endpoint.rows] == [
        drift_label(float(r.observation[0])) for r in endpoint.rows
    ]
    assert {type(r.label) for r in endpoint.rows} == {int}
    assert {r.label for r in endpoint.rows} == {0, 1, 2}


def test_a_mistyped_label_key_is_refused(endpoint):
    """An info key that is not there would record no label, ever: the reset says so."""
    with pytest.raises(MissingField, match="drift_label"):
        recorder_of(endpoint, label_key="label")


def test_actions_are_checked_before_anything_moves(endpoint):
    """Actions that are not B integers are refused with the environment where it was."""
    recorder, observations = recorder_of(endpoint)
    with pytest.raises(ActionRange, match="2 action indices"):
        recorder.step([0.0, 1.0])
    with pytest.raises(ShapeMismatch, match=r"one per sub-environment \(2\), got 1"):
        recorder.act(observations[:1])
    recorder.step([1, 1])
    np.testing.assert_array_equal([r.observation for r in endpoint.rows], observations)


def test_a_step_needs_a_beginning(endpoint):
    """Neither before the first reset, nor without `step_async`, is there a step to wait for."""
    recorder = VecEnvRecorder(DummyVecEnv([short]), endpoint, actor_id="a")
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        recorder.step([1])
    recorder.reset()
    recorder.step([1])
    with pytest.raises(ResetNeeded, match=r"call step\(actions\)"):
        recorder.step_wait()
    assert len(endpoint.rows) == 1


def test_what_the_caller_does_to_results_changes_no_record(endpoint):
    """Observations are kept as copies: writing into what `step` returned is harmless."""
    recorder, observations = recorder_of(endpoint, 1)
    for t in range(HORIZON):
        before = observations.copy()
        observations[:] = 77
        observations, _, _, infos = recorder.step([1])
        after = infos[0].get("terminal_observation", observations[0])
        expected = after.tolist()
        after[:] = 88 if t == HORIZON - 1 else after
        assert endpoint.rows[t].observation.tolist() == before[0].tolist()
        assert endpoint.rows[t].next_observation.tolist() == expected


def test_batches_are_sent_when_full_and_the_rest_at_the_end(endpoint):
    """With a batch size rows gather over steps; flush and close send what is left."""
    recorder, _ = recorder_of(endpoint, batch_size=5)
    for _ in range(4):
        recorder.step([1, 1])
    assert (endpoint.requests, len(recorder.outbox.unsent)) == ([6], 2)
    assert recorder.flush().lsn == 2
    recorder.step([1, 1])
    recorder.close()
    assert endpoint.requests == [6, 2, 2]


def test_an_endpoints_error_loses_nothing(endpoint):
    """`step` raises it, keeps the results and the rows, and flush sends them once."""
    recorder, _ = recorder_of(endpoint)
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        recorder.step([1, 1])
    observations = recorder.last_step[0]
    recorder.flush()
    recorder.step(recorder.act(observations))

    assert [r.timestep for r in endpoint.rows] == [0, 0, 1, 1]
    np.testing.assert_array_equal(endpoint.rows[2].observation, observations[0])


class Forgetful(DummyVecEnv):
    """Leave one key out of the info of an episode's last step."""

    missing = None

    def step_wait(self):
        """Step, and forget."""
        observations, rewards, dones, infos = super().step_wait()
        for info in infos:
            if "terminal_observation" in info and self.missing is not None:
                del info[self.missing]
        return observations, rewards, dones, infos


@pytest.mark.parametrize("missing", ["terminal_observation", "TimeLimit.truncated"])
def test_an_end_that_does_not_say_what_it_was_is_refused(endpoint, missing):
    """By name; no guess is recorded, the episodes are broken off, and a reset begins others."""
    venv = Forgetful([short] * 2)
    recorder = VecEnvRecorder(venv, endpoint, actor_id="a", run="r")
    recorder.reset()
    venv.missing = missing
    for _ in range(HORIZON - 1):
        recorder.step([1, 1])
    with pytest.raises(InvalidValue, match=rf'infos\[0\]\["{missing}"\].*reset\(\) begins new'):
        recorder.step([1, 1])
    assert recorder.last_step[2].all()
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        recorder.step([1, 1])

    assert [r.timestep for r in endpoint.rows] == [t for t in range(HORIZON - 1) for _ in range(2)]
    assert not any(r.terminated or r.truncated for r in endpoint.rows)
    venv.missing = None
    recorder.reset()
    for _ in range(HORIZON):
        recorder.step([1, 1])
    assert {n for n in endpoint.episodes() if n.endswith("-1")} == {"r-0-1", "r-1-1"}
    assert [r.terminated for r in endpoint.episodes()["r-0-1"]] == [False] * 4 + [True]


def test_an_environments_error_breaks_the_episodes_off(endpoint):
    """Some may have moved unseen: what follows is no successor of what was seen last."""
    recorder = VecEnvRecorder(DummyVecEnv([Both] * 2), endpoint, actor_id="a", run="r")
    recorder.reset()
    recorder.step([0, 0])
    with pytest.raises(RuntimeError, match="broke"):
        recorder.step([0, 1])
    with pytest.raises(ResetNeeded):
        recorder.step([0, 0])
    assert len(endpoint.rows) == 2
    recorder.reset()
    recorder.step([0, 0])
    assert [(r.episode_id, r.timestep) for r in endpoint.rows] == [
        ("r-0-0", 0),
        ("r-1-0", 0),
        ("r-0-1", 0),
        ("r-1-1", 0),
    ]


def test_normalised_observations_are_refused(endpoint):
    """Their meaning drifts with the statistics; around the recorder, or for rewards, it is well."""
    with pytest.raises(InvalidValue, match="put VecNormalize around the recorder"):
        VecEnvRecorder(VecNormalize(DummyVecEnv([short])), endpoint, actor_id="a")
    rewards_only = VecNormalize(DummyVecEnv([short]), norm_obs=False)
    VecEnvRecorder(rewards_only, endpoint, actor_id="a")
    around = VecNormalize(VecEnvRecorder(DummyVecEnv([short]), endpoint, actor_id="a"))
    around.reset()
    around.step(np.array([1]))
    assert abs(float(endpoint.rows[0].observation[3]) - 1.0) < 1e-6


def test_other_arguments_are_checked(endpoint):
    """What is no VecEnv, a wrong split, another endpoint or spaces no transition can hold."""
    venv = DummyVecEnv([short] * 2)
    with pytest.raises(InvalidType, match="VectorRecorder takes Gymnasium's"):
        VecEnvRecorder(SyncVectorEnv([short]), endpoint, actor_id="a")
    with pytest.raises(UnknownSplit, match=r"split\[1\]"):
        VecEnvRecorder(venv, endpoint, actor_id="a", split=["train", "test"])
    with pytest.raises(InvalidType, match="endpoint: expected an Endpoint"):
        VecEnvRecorder(venv, "http://localhost", actor_id="a")
    venv.action_space = spaces.Discrete(3, start=1)
    with pytest.raises(InvalidValue, match="action_space"):
        VecEnvRecorder(venv, endpoint, actor_id="a")


@pytest.mark.parametrize("algorithm", [DQN, C51])
def test_an_algorithm_trains_as_usual_while_a_learner_gets_it_all(learner, algorithm, monkeypatch):
    """What the algorithm stored for itself and what the learner was sent are the same steps."""
    rows, add = [], learner.add
    monkeypatch.setattr(learner, "add", lambda batch: rows.extend(batch) or add(batch))
    env = VecEnvRecorder(
        DummyVecEnv([SPREAD] * 2), learner, actor_id="sb3", label_key="drift_label"
    )
    model = algorithm("MlpPolicy", env, seed=0, device="cpu", learning_starts=20, buffer_size=400)
    model.learn(200)
    env.close()

    kept = model.replay_buffer
    assert kept.size() == 100
    assert (len(rows), len(learner.replay), learner.info()["unversioned"]) == (200, 200, 200)
    assert {r.policy_version for r in rows} == {-1}
    for column, field in (
        (kept.observations, "observation"),
        (kept.next_observations, "next_observation"),
    ):
        stored = column[:100].reshape(200, 4)
        np.testing.assert_array_equal(stored, [getattr(r, field) for r in rows])
    assert kept.actions[:100].reshape(200).tolist() == recorded(rows)
    assert kept.dones[:100].reshape(200).astype(bool).tolist() == [r.terminated for r in rows]
    assert sum(r.terminated for r in rows) == 4


def test_a_learner_plays_through_it(learner):
    """The learner's own policy acts, is tagged, and its held-out steps go to the held-out store."""
    env = VecEnvRecorder(
        DummyVecEnv([short] * 2), learner, actor_id="a", split=["train", "validation"]
    )
    env.seed(0)
    observations = env.reset()
    for _ in range(2 * HORIZON):
        observations, _, _, _ = env.step(env.act(observations))
    assert isinstance(learner, Learner)
    assert (len(learner.replay), len(learner.validation)) == (2 * HORIZON, 2 * HORIZON)
    assert learner.info()["unversioned"] == 0
