"""`RemoteActor`: act → step → add over any endpoint, and what happens when it is interrupted."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from jormungandr.errors import (
    InvalidType,
    InvalidValue,
    MissingField,
    NonFinite,
    Unavailable,
    UnknownSplit,
)
from jormungandr_envs import OUSpreadEnv, OUSpreadVectorEnv, drift_label
from jormungandr_wrappers import RemoteActor, VectorRecorder

DOWN = Unavailable("service", "a connection", "none")
HORIZON = 5


def actor_of(endpoint, **more):
    """Return an actor on a short OUSpread."""
    return RemoteActor(OUSpreadEnv(horizon=HORIZON), endpoint, actor_id="a", **more)


def names(rows):
    """Return (episode id, timestep) of each."""
    return [(r.episode_id, r.timestep) for r in rows]


def test_so_many_episodes(endpoint):
    """Whole episodes are played, tagged and sent."""
    result = actor_of(endpoint, run="r").run(episodes=3, seed=0)

    assert names(endpoint.rows) == [(f"r-0-{n}", t) for n in range(3) for t in range(HORIZON)]
    assert [r.terminated for r in endpoint.rows] == ([False] * 4 + [True]) * 3
    assert (result.transitions, len(result.episodes)) == (15, 3)
    assert {(r.actor_id, r.split, r.policy_version) for r in endpoint.rows} == {("a", "train", 7)}
    assert [r.behavior_prob for r in endpoint.rows] == [
        0.25 + 0.5 * r.action for r in endpoint.rows
    ]


def test_so_many_steps_and_the_episode_goes_on(endpoint):
    """An unfinished episode has no end; the next run continues it, rewards and all."""
    actor = actor_of(endpoint, run="r")
    first = actor.run(steps=7, seed=0)
    assert len(endpoint.rows) == 7
    second = actor.run(steps=3)

    assert names(endpoint.rows) == [(f"r-0-{n}", t) for n in range(2) for t in range(HORIZON)]
    assert [len(first.episodes), len(second.episodes)] == [1, 1]
    assert second.episodes[0].length == HORIZON
    assert second.returns.tolist() == [sum(r.reward for r in endpoint.rows[HORIZON:])]


def test_a_seed_begins_another_episode(endpoint):
    """With a seed the running episode is broken off, and the environment starts as seeded."""
    actor = actor_of(endpoint, run="r")
    actor.run(steps=2, seed=4)
    actor.run(steps=1, seed=4)
    assert names(endpoint.rows) == [("r-0-0", 0), ("r-0-0", 1), ("r-0-1", 0)]
    np.testing.assert_array_equal(endpoint.rows[0].observation, endpoint.rows[2].observation)


def test_later_episodes_are_not_seeded_again(endpoint):
    """The seed is for the first reset; the second episode meets another path."""
    actor_of(endpoint).run(episodes=2, seed=4)
    first, second = endpoint.rows[0], endpoint.rows[HORIZON]
    assert first.observation[0] != second.observation[0]


def test_what_an_episode_came_to(endpoint):
    """Return, length, end, final info and the first and last policy version are reported."""
    endpoint.act = bumping(endpoint)
    actor = actor_of(endpoint, run="r")
    result = actor.run(episodes=2, seed=0)
    one, two = result.episodes

    assert one.total_reward == pytest.approx(sum(r.reward for r in endpoint.rows[:HORIZON]))
    assert (one.length, one.terminated, one.truncated) == (HORIZON, True, False)
    assert (one.episode_id, two.episode_id) == ("r-0-0", "r-0-1")
    assert (one.first_version, one.last_version) == (8, 12)
    assert (two.first_version, two.last_version) == (13, 17)
    assert isinstance(one.info["reference_return"], float)
    assert result.returns.tolist() == [one.total_reward, two.total_reward]


def bumping(endpoint):
    """Return an `act` under which every action is chosen by another version."""
    act = endpoint.act

    def bumped(*args, **kwargs):
        endpoint.version += 1
        return act(*args, **kwargs)

    return bumped


def test_the_receipt_tells_what_to_wait_for(endpoint):
    """A run ends with everything receipted."""
    result = actor_of(endpoint, batch_size=2, flush_at_end=False).run(steps=5, seed=0)
    assert endpoint.requests == [2, 2, 1]
    assert (result.lsn, result.receipt.accepted) == (3, 5)
    assert endpoint.wait(result.lsn)["applied_lsn"] == 3


@pytest.mark.parametrize(("option", "requests"), [(True, [5, 5, 2]), (False, [10, 2])])
def test_an_episodes_end_sends_by_option(endpoint, option, requests):
    """Without the option short episodes share a request."""
    actor_of(endpoint, batch_size=10, flush_at_end=option).run(steps=12, seed=0)
    assert endpoint.requests == requests


@pytest.mark.parametrize(
    ("split", "given", "expected"),
    [
        ("train", None, False),
        ("validation", None, True),
        ("validation", False, False),
        ("train", True, True),
    ],
)
def test_validation_is_deterministic_unless_told_otherwise(endpoint, split, given, expected):
    """The split decides only when the caller does not."""
    actor_of(endpoint, split=split).run(steps=1, deterministic=given, epsilon=0.2)
    assert endpoint.asked[0][1:] == (expected, 0.2)
    assert endpoint.rows[0].split == split


def test_labels_are_those_of_the_observation_acted_upon(endpoint):
    """The label is that of the info which came with the observation, resets included."""
    actor_of(endpoint, label_key="drift_label").run(episodes=12, seed=0)
    labels = [drift_label(float(r.observation[0])) for r in endpoint.rows]
    assert [r.label for r in endpoint.rows] == labels
    assert set(labels) == {0, 1, 2}


def test_it_records_what_a_vector_recorder_records(make_endpoint):
    """One environment alone or as a vector of one: the same transitions, names apart."""
    alone, vector = make_endpoint(), make_endpoint()
    actor_of(alone, label_key="drift_label", run="r").run(steps=12, seed=9)
    env = VectorRecorder(
        OUSpreadVectorEnv(1, autoreset_mode=AutoresetMode.SAME_STEP, horizon=HORIZON),
        vector,
        actor_id="a",
        label_key="drift_label",
        run="r",
    )
    observations, _ = env.reset(seed=9)
    for _ in range(12):
        observations, *_ = env.step(env.act(observations))

    def plain(row):
        fields = {name: row[name] for name in row.__struct_fields__}
        fields["observation"] = row.observation.tolist()
        fields["next_observation"] = row.next_observation.tolist()
        return fields

    assert [plain(r) for r in alone.rows] == [plain(r) for r in vector.rows]


def test_a_time_limit_truncates(endpoint):
    """A TimeLimit's cut is no termination, and the true successor is kept."""
    endpoint.actions = 2
    env = gym.make("CartPole-v1", max_episode_steps=3)
    result = RemoteActor(env, endpoint, actor_id="a").run(episodes=1, seed=0)
    assert [(r.terminated, r.truncated) for r in endpoint.rows] == [(False, False)] * 2 + [
        (False, True)
    ]
    assert (result.episodes[0].terminated, result.episodes[0].truncated) == (False, True)


class Reusing(gym.Env):
    """Return the same array every time, with a counter in it; break down at step `bad`."""

    observation_space = spaces.Box(-1e6, 1e6, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, bad=None):
        self.seen, self.bad, self.count = np.zeros(1, dtype=np.float32), bad, 0

    def reset(self, *, seed=None, options=None):
        """Begin at 0."""
        self.count = 0
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action):
        """Count."""
        self.count += 1
        if self.count == self.bad:
            self.bad = None
            raise RuntimeError("the environment broke")
        self.seen += 1
        return self.seen, 0.0, self.count == 4, False, {}


def test_a_reused_array_is_copied(endpoint):
    """An environment that writes into the array it returned changes no record."""
    endpoint.actions = 2
    RemoteActor(Reusing(), endpoint, actor_id="a").run(episodes=1)
    moves = [(r.observation.tolist(), r.next_observation.tolist()) for r in endpoint.rows]
    assert moves == [([float(t)], [float(t + 1)]) for t in range(4)]


def test_an_environments_error_sends_what_happened_before(endpoint):
    """Its steps are sent, its episode gets no end, and the next run begins another."""
    endpoint.actions = 2
    actor = RemoteActor(Reusing(bad=3), endpoint, actor_id="a", run="r")
    with pytest.raises(RuntimeError, match="the environment broke"):
        actor.run(episodes=1)
    assert names(endpoint.rows) == [("r-0-0", 0), ("r-0-0", 1)]
    actor.run(episodes=1)
    assert names(endpoint.rows[2:]) == [("r-0-1", t) for t in range(4)]


def test_an_endpoints_error_loses_nothing(endpoint):
    """The run raises it; the next one sends what was left and goes on with the episode."""
    actor = actor_of(endpoint, batch_size=2, run="r")
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        actor.run(steps=5, seed=0)
    assert len(actor.outbox.unsent) == 2
    actor.run(steps=3)
    assert names(endpoint.rows) == [("r-0-0", t) for t in range(HORIZON)]


def test_an_error_of_act_moves_nothing(endpoint, monkeypatch):
    """When no action comes the environment stays where it was."""
    actor = actor_of(endpoint, run="r")
    actor.run(steps=1, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "act", lambda *_, **__: (_ for _ in ()).throw(DOWN))
        with pytest.raises(Unavailable):
            actor.run(steps=1)
    actor.run(steps=1)
    assert names(endpoint.rows) == [("r-0-0", 0), ("r-0-0", 1)]
    before, after = endpoint.rows
    np.testing.assert_array_equal(before.next_observation, after.observation)


def test_a_restarted_actor_contradicts_nothing(learner):
    """One killed in mid-episode, its last rows unsent, and its successor under the same name."""
    killed = actor_of(learner, batch_size=3)
    with pytest.raises(KeyboardInterrupt):
        RemoteActor.run(killed_after(killed, 4), steps=100, seed=0)
    assert (len(learner.replay), len(killed.outbox.unsent)) == (3, 1)
    result = actor_of(learner, batch_size=3).run(episodes=2, seed=0)

    assert (result.receipt.accepted, result.receipt.duplicate) == (2 * HORIZON, 0)
    assert len(learner.replay) == 3 + 2 * HORIZON
    killed.flush()
    assert len(learner.replay) == 4 + 2 * HORIZON


def killed_after(actor, steps):
    """Let the actor's environment be interrupted after so many steps."""
    step, left = actor.env.step, [steps]

    def interrupted(action):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return step(action)

    actor.env.step = interrupted
    return actor


def test_a_lost_receipt_is_counted_as_duplicates(learner, monkeypatch):
    """Rows whose receipt got lost are sent again by the next run and learned from once."""
    add, calls = learner.add, []

    def lossy(transitions):
        receipt = add(transitions)
        calls.append(len(transitions))
        if len(calls) == 1:
            raise DOWN
        return receipt

    monkeypatch.setattr(learner, "add", lossy)
    actor = actor_of(learner)
    with pytest.raises(Unavailable):
        actor.run(episodes=1, seed=0)
    result = actor.run(episodes=1)

    assert (result.receipt.accepted, result.receipt.duplicate) == (HORIZON, HORIZON)
    assert len(learner.replay) == 2 * HORIZON


@pytest.mark.parametrize(
    "arguments", [{}, {"episodes": 1, "steps": 1}, {"episodes": 0}, {"steps": -1}]
)
def test_a_run_has_one_length(endpoint, arguments):
    """Neither, both, or nothing of it is refused before anything is played."""
    with pytest.raises(InvalidValue):
        actor_of(endpoint).run(**arguments)
    assert endpoint.asked == []


@pytest.mark.parametrize("arguments", [{"steps": 1.5}, {"steps": "9"}, {"episodes": True}])
def test_a_length_is_an_integer(endpoint, arguments):
    """Counting by ones never arrives at another number, and would play for ever."""
    with pytest.raises(InvalidType, match="expected an integer"):
        actor_of(endpoint).run(**arguments)
    assert endpoint.asked == []


def test_a_reward_that_is_none_breaks_the_episode_off(endpoint, monkeypatch):
    """It is refused at its step, not kept to spoil every later request."""
    actor = actor_of(endpoint)
    actor.run(steps=2, seed=0)
    step = actor.env.step
    monkeypatch.setattr(actor.env, "step", lambda a: (step(a)[0], float("nan"), False, False, {}))
    with pytest.raises(NonFinite, match="reward"):
        actor.run(steps=1)
    monkeypatch.undo()
    actor.run(steps=1)

    assert actor.outbox.unsent == ()
    assert [row.timestep for row in endpoint.rows] == [0, 1, 0]


def test_arguments_are_checked(endpoint):
    """Environments, splits, endpoints and spaces of the wrong kind are refused."""
    with pytest.raises(InvalidType, match="VectorRecorder takes a vector environment"):
        RemoteActor(OUSpreadVectorEnv(2), endpoint, actor_id="a")
    with pytest.raises(UnknownSplit):
        actor_of(endpoint, split="test")
    with pytest.raises(InvalidType, match="an Endpoint"):
        actor_of(None)
    with pytest.raises(InvalidValue, match="action_space"):
        RemoteActor(gym.make("MountainCarContinuous-v0"), endpoint, actor_id="a")


def test_a_mistyped_label_key_is_refused(endpoint):
    """An info key that is not there would record no label, ever: the first reset says so."""
    actor = RemoteActor(gym.make("OUSpread-v0"), endpoint, actor_id="a", label_key="drift_lable")

    with pytest.raises(MissingField, match=r"expected one of \['drift_label'\]"):
        actor.run(episodes=1)
    assert endpoint.rows == []


@pytest.mark.parametrize("actions", [2, 4])
def test_a_model_of_other_actions_is_refused(endpoint, actions):
    """A policy with fewer actions than the environment, or more, is not acted with."""
    endpoint.actions = actions
    actor = RemoteActor(gym.make("OUSpread-v0"), endpoint, actor_id="a")

    with pytest.raises(InvalidValue, match=f"3 actions, got one of {actions}"):
        actor.run(episodes=1)
