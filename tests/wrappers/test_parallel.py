"""`ParallelRecorder`: every step of every agent, once, whoever leaves early or comes late."""

import copy
import itertools
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test
from pettingzoo.test.example_envs import generated_agents_parallel_v0
from pettingzoo.utils.conversions import parallel_to_aec

from jormungandr_envs import OUSpreadEnv, drift_label, ou_market_v0
from jormungandr_wrappers import ParallelRecorder
from tests.wrappers.crowd import (
    BOTH,
    CUT,
    END,
    SCRIPT,
    Crowd,
    crowd,
    recorded,
    recorder_of,
    step_all,
    told,
)

#: trader_1 leaves after two of four steps.
LEAVING = {"leave_after": {"trader_1": 2}, "horizon": 4}
#: Of an agent: its first step, how many it takes, and how it ends.
STAYS = st.tuples(st.integers(0, 5), st.integers(1, 6), st.sampled_from([END, CUT, BOTH]))


@settings(max_examples=60)
@given(
    stays=st.lists(STAYS, min_size=1, max_size=5),
    batch_size=st.integers(1, 9),
    resets=st.integers(1, 3),
)
def test_every_step_of_every_agent_is_recorded_once(make_endpoint, stays, batch_size, resets):
    """Whoever comes and leaves when: all transitions, with their ends and labels, and no others."""
    script = {f"agent_{k}": (f, f + n, how) for k, (f, n, how) in enumerate(stays)}
    script["agent_0"] = (0, 12, END)  # somebody is there throughout
    endpoint = make_endpoint()
    recorder, _ = crowd(endpoint, script, label_key="t", batch_size=batch_size)
    for n in range(resets):
        if n:
            recorder.reset()
        while recorder.agents:
            step_all(recorder)
    recorder.close()

    assert recorded(endpoint) == told(script, resets)


@settings(max_examples=30)
@given(data=st.data())
def test_a_market_is_recorded_as_its_traders_play_alone(make_endpoint, data):
    """Each trader's transitions are OUSpread's under its actions, cut off where it leaves."""
    horizon, seed = data.draw(st.integers(2, 9)), data.draw(st.integers(0, 10**6))
    last = data.draw(st.lists(st.integers(1, horizon), min_size=1, max_size=4))
    leave = {f"trader_{i}": n for i, n in enumerate(last) if n < horizon}
    actions = np.random.default_rng(seed).integers(3, size=(len(last), horizon))
    endpoint, parameters = make_endpoint(), {"n_traders": len(last), "leave_after": leave}
    market = ou_market_v0.parallel_env(horizon=horizon, **parameters)
    recorder = ParallelRecorder(market, endpoint, actor_id="x", run="r", label_key="drift_label")
    recorder.reset(seed=seed)
    for now in actions.T:
        if recorder.agents:
            recorder.step({agent: now[int(agent[-1])] for agent in recorder.agents})

    expected = {}
    for i, (length, taken) in enumerate(zip(last, actions, strict=True)):
        env, rows = OUSpreadEnv(horizon=horizon), []
        seen, info = env.reset(seed=seed)
        for t in range(length):
            after, reward, terminated, _, later = env.step(taken[t])
            cut = t + 1 == length < horizon
            label = info["drift_label"]
            rows.append((seen.tolist(), reward, after.tolist(), terminated, cut, label))
            seen, info = after, later
        expected[f"x-trader_{i}", "r-0-0"] = rows
    assert recorded(endpoint) == expected


class ByType(dict):
    """One endpoint for all agents of a type, made when the first of them is met."""

    def __init__(self, make, env):
        super().__init__()
        self._make, self._env = make, env

    def __missing__(self, agent):
        """Return its type's."""
        kind = agent.split("_")[0]
        if kind not in self:
            self[kind] = self._make()
            self[kind].actions = self._env.action_space(agent).n
        return self[kind]


def test_agents_nobody_could_name_beforehand(make_endpoint):
    """PettingZoo's own example of generated agents: each one's steps, ended if it is gone."""
    env = generated_agents_parallel_v0.parallel_env()
    endpoints = ByType(make_endpoint, env)
    recorder, observations = recorder_of(env, endpoints)
    steps, joined = 0, set()
    for _ in range(60):
        steps += len(recorder.agents)
        joined.update(recorder.agents)
        observations, *_ = recorder.step(recorder.act(observations))

    assert len(joined) > len(recorder.agents) > 5  # some came, and some of them left
    assert len(recorder.outboxes) == len(endpoints) >= 3
    rows = [row for endpoint in endpoints.values() for row in endpoint.rows]
    assert len(rows) == steps
    assert {row.policy_version for row in rows} == {7}
    found = defaultdict(list)
    for row in rows:
        found[row.actor_id.removeprefix("x-")].append(row)
    assert found.keys() == joined
    for agent, own in found.items():
        assert [row.timestep for row in own] == list(range(len(own)))
        ends = [row.terminated or row.truncated for row in own]
        assert ends == [False] * (len(own) - 1) + [agent not in recorder.agents]
        for before, after in itertools.pairwise(own):
            assert before.next_observation.tolist() == after.observation.tolist()


def test_ids_name_the_agent_and_count_the_resets(endpoint):
    """An agent is an actor; its episodes have the reset's number, also of one who joined late."""
    recorder, _ = crowd(endpoint)
    step_all(recorder)
    recorder.reset()
    while recorder.agents:
        step_all(recorder)
    names = dict.fromkeys((row.actor_id, row.episode_id) for row in endpoint.rows)
    assert list(names) == [
        ("x-a", "r-0-0"),
        ("x-b", "r-0-0"),
        ("x-a", "r-0-1"),
        ("x-b", "r-0-1"),
        ("x-c", "r-0-1"),
    ]
    assert not any(row.terminated or row.truncated for row in endpoint.rows[:2])


def test_recorders_do_not_share_a_run(endpoint):
    """Two recorders with one actor id cannot contradict each other."""
    runs = {ParallelRecorder(Crowd(SCRIPT), endpoint, actor_id="x").run for _ in range(9)}
    assert len(runs) == 9


def test_labels_are_those_of_the_observation_acted_upon(endpoint):
    """The recorded drift label is the one that the observation's z implies, for every trader."""
    market = ou_market_v0.parallel_env()
    recorder, observations = recorder_of(market, endpoint, label_key="drift_label")
    while recorder.agents:
        observations, *_ = recorder.step(recorder.act(observations))
    assert [r.label for r in endpoint.rows] == [
        drift_label(float(r.observation[0])) for r in endpoint.rows
    ]
    assert {r.label for r in endpoint.rows} == {0, 1, 2}
    assert {type(r.label) for r in endpoint.rows} == {int}


def test_without_a_label_key_there_are_no_labels(endpoint):
    """Labels are recorded on request only."""
    step_all(crowd(endpoint)[0])
    assert [r.label for r in endpoint.rows] == [None] * 2


def test_labels_are_recorded_of_those_who_have_any(endpoint, monkeypatch):
    """It is enough that some agents' infos have the key."""
    env = Crowd(SCRIPT)
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda **more: (reset(**more)[0], {"b": {"t": 5}, "c": {}}))
    step_all(recorder_of(env, endpoint, label_key="t")[0])
    assert [r.label for r in endpoint.rows] == [None, 5]


def test_the_split_is_that_of_all(endpoint):
    """Nobody is held out from those who saw the same."""
    step_all(crowd(endpoint, split="validation")[0])
    assert [r.split for r in endpoint.rows] == ["validation"] * 2


def test_pettingzoos_tests_pass_through_the_recorder(endpoint):
    """It is a parallel environment like the one it records, also when agents leave early."""

    def make():
        return ParallelRecorder(ou_market_v0.parallel_env(**LEAVING), endpoint, actor_id="x")

    parallel_api_test(make())
    parallel_seed_test(make)
    assert endpoint.rows
    recorder = make()
    assert isinstance(recorder, pettingzoo.ParallelEnv)
    assert type(recorder.unwrapped) is type(ou_market_v0.parallel_env())
    assert recorder.metadata["name"] == str(recorder) == "ou_market_v0"
    assert recorder.parameters.horizon == 4


def test_results_pass_through_unchanged(endpoint):
    """The recorder returns what the environment returns, objects and all."""
    env = Crowd(SCRIPT)
    recorder, _ = recorder_of(env, endpoint)
    seen = []
    step = env.step
    env.step = lambda actions: seen.append(step(actions)) or seen[-1]
    assert step_all(recorder) is seen[0] is recorder.last_step
    assert recorder.observation_space("a") is env.observation_space("a")
    assert recorder.action_space("a") is env.action_space("a")
    assert (recorder.num_agents, recorder.max_num_agents) == (2, 3)
    with pytest.raises(AttributeError):
        _ = recorder.no_such_thing
    with pytest.raises(NotImplementedError):
        recorder.state()


def test_pictures_pass_through(endpoint):
    """The recorder renders as the environment does."""
    recorder, _ = recorder_of(ou_market_v0.parallel_env(render_mode="ansi"), endpoint)
    assert recorder.render().startswith("trader_0  step 0/48")


def test_it_can_be_stepped_agent_by_agent(endpoint):
    """Under PettingZoo's conversion to turns it records the same."""
    turns = parallel_to_aec(ParallelRecorder(Crowd(SCRIPT), endpoint, actor_id="x", run="r"))
    turns.reset()
    for _ in turns.agent_iter():
        *_, terminated, truncated, _ = turns.last()
        turns.step(None if terminated or truncated else 1)
    expected = {key: len(rows) for key, rows in told(SCRIPT, 1).items()}
    assert {key: len(rows) for key, rows in recorded(endpoint).items()} == expected


def test_what_the_caller_does_to_results_changes_no_record(endpoint):
    """Observations are kept as copies: writing into what `step` returned is harmless."""
    recorder, observations = crowd(endpoint)
    for _ in range(2):
        for seen in observations.values():
            seen[:] = 77
        observations, *_ = step_all(recorder)
    observations["a"][:] = 88
    assert [(r.observation.tolist(), r.next_observation.tolist()) for r in endpoint.rows[:3:2]] == [
        ([0, 0], [0, 1]),
        ([0, 1], [0, 2]),
    ]


def test_rewards_and_flags_of_numpy_become_pythons(endpoint, monkeypatch):
    """Also an array of one element, which PettingZoo allows as a reward."""
    recorder, _ = crowd(endpoint, {"a": (0, 1, END)})
    step = recorder.env.step

    def arrays(actions):
        observations, rewards, terminations, truncations, infos = step(actions)
        rewards = {agent: np.array([reward], np.float32) for agent, reward in rewards.items()}
        ends = {agent: np.bool_(end) for agent, end in terminations.items()}
        return observations, rewards, ends, truncations, infos

    monkeypatch.setattr(recorder.env, "step", arrays)
    step_all(recorder)
    (row,) = endpoint.rows
    assert (row.reward, row.terminated, row.truncated) == (float(np.float32(0.1)), True, False)
    assert (type(row.reward), type(row.terminated)) == (float, bool)


def test_agents_need_not_be_named_by_strings(endpoint):
    """Whatever PettingZoo takes for a name is part of the actor id."""
    recorder, observations = crowd(endpoint, {0: (0, 1, END), ("b", 1): (0, 1, END)})
    recorder.step(recorder.act(observations))
    assert [r.actor_id for r in endpoint.rows] == ["x-0", "x-('b', 1)"]


def test_a_copy_of_a_recorder_is_one(endpoint):
    """Passing attributes through does not get in the way of making one."""
    recorder, _ = crowd(endpoint)
    other = copy.copy(recorder)
    assert (other.env, other.run, other.agents) == (recorder.env, "r", ["a", "b"])
    with pytest.raises(AttributeError, match="'env'"):
        _ = ParallelRecorder.__new__(ParallelRecorder).agents


def test_it_needs_no_pettingzoo():
    """Any class of that form is recorded where PettingZoo is not installed."""
    code = """
import sys
sys.modules["pettingzoo"] = None
import numpy as np
from gymnasium import spaces
from jormungandr.protocol import ActionChoice, InferenceReply, Receipt
from jormungandr_wrappers import ParallelRecorder

class Sink:
    rows = []
    def add(self, rows):
        self.rows += rows
        counts = dict(accepted=len(rows), duplicate=0, stale_dropped=0)
        return Receipt(**counts, lsn=1, policy_version=0, generation=1)
    def act(self, observations, deterministic, epsilon):
        count = len(observations)
        return InferenceReply(
            policy_version=0,
            generation=1,
            actions=[ActionChoice(index=0, label="0", value=0)] * count,
            expected_values=[[0.0, 0.0]] * count,
            behavior_prob=[1.0] * count,
        )

class Twins:
    possible_agents = ["left", "right"]
    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1,))
    def action_space(self, agent):
        return spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        return self.all(np.zeros(1)), self.all({})
    def step(self, actions):
        result = [self.all(x) for x in (np.ones(1), 1.0, True, False, {})]
        self.agents = []
        return tuple(result)
    def all(self, value):
        return dict.fromkeys(self.agents, value)
    def close(self):
        pass

twins = ParallelRecorder(Twins(), Sink(), actor_id="x")
observations, _ = twins.reset()
while twins.agents:
    observations, *_ = twins.step(twins.act(observations))
twins.close()
assert [row.policy_version for row in Sink.rows] == [0, 0]
assert type(twins.unwrapped) is Twins
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
