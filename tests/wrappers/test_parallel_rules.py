"""`ParallelRecorder`: what it refuses, of its caller and of an environment against the rules."""

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from jormungandr.errors import ActionRange, InvalidType, InvalidValue, MissingField, UnknownSplit
from jormungandr_envs import OUSpreadEnv, ou_market_v0
from jormungandr_wrappers import ParallelRecorder
from tests.wrappers.crowd import CUT, END, SCRIPT, Crowd, crowd, recorder_of, step_all


def dropping(result, env):
    """Forget an agent without an end."""
    env.agents.remove("b")
    return result


def staying(result, env):
    """Keep an agent after its end."""
    result[2]["b"] = True
    return result


def silent(index):
    """Leave one agent out of one of what a step returns."""

    def breaking(result, env):
        del result[index]["b"]
        return result

    return breaking


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"a": 1}, r"actions: expected one of 'b', who is live, got \['a'\]"),
        ({"a": 1, "b": 1.0}, r"actions\['b'\]: expected an action index, got 1\.0"),
        ({"a": None, "b": 1}, r"actions\['a'\]: expected an action index, got None"),
        ({"a": 1, "b": np.array([1])}, r"actions\['b'\]"),
    ],
)
def test_actions_are_checked_before_anything_moves(endpoint, actions, message):
    """What is no action of every live agent is refused with the environment where it was."""
    recorder, _ = crowd(endpoint)
    with pytest.raises(ActionRange, match=message):
        recorder.step(actions)
    assert recorder.env.taken == []
    recorder.step({"a": np.array(1), "b": np.uint8(2)})
    assert [(r.timestep, r.action) for r in endpoint.rows] == [(0, 1), (0, 2)]


def test_an_error_of_the_environment_records_nothing(endpoint):
    """Its refusal of an action passes through, and the episodes go on where they were."""
    recorder, _ = recorder_of(ou_market_v0.parallel_env(n_traders=2), endpoint)
    with pytest.raises(ValueError, match="action: expected 0"):
        recorder.step({"trader_0": 1, "trader_1": 3})
    step_all(recorder)
    assert [r.timestep for r in endpoint.rows] == [0, 0]


def test_step_needs_a_reset(endpoint):
    """Before the first reset the recorder says so, and after a reset that failed."""
    recorder = ParallelRecorder(Crowd(SCRIPT), endpoint, actor_id="x")
    with pytest.raises(ResetNeeded, match=r"^expected running episodes; call reset\(\) first"):
        recorder.step({})
    market = ParallelRecorder(ou_market_v0.parallel_env(), endpoint, actor_id="x")
    market.reset(seed=0)
    with pytest.raises(ValueError, match="x0"):
        market.reset(options={"x0": "high"})
    with pytest.raises(ResetNeeded, match=r"^expected running episodes"):
        step_all(market)
    assert endpoint.rows == []


def test_a_mistyped_label_key_is_refused(endpoint):
    """A key that nobody's info has would record no label, ever: the reset says so."""
    market = ou_market_v0.parallel_env()
    recorder = ParallelRecorder(market, endpoint, actor_id="x", label_key="drift_lable")
    with pytest.raises(MissingField, match=r"expected one of \['drift_label'\]"):
        recorder.reset(seed=0)
    with pytest.raises(ResetNeeded):
        step_all(recorder)


def test_after_the_end_a_step_is_the_environments_affair(endpoint):
    """The market takes no action of nobody, and tells nothing of nobody; nothing is recorded."""
    recorder, _ = recorder_of(ou_market_v0.parallel_env(horizon=1), endpoint)
    step_all(recorder)
    with pytest.raises(ValueError, match=r"OUMarket\.step"):
        recorder.step({"trader_0": 1})
    assert recorder.step({}) == ({}, {}, {}, {}, {})
    assert len(endpoint.rows) == 3


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (dropping, r"agents: expected 'b' still there, as its flags say, got \['a'\]"),
        (staying, r"agents: expected 'b' gone, as its flags say, got \['a', 'b'\]"),
        (silent(0), r"observations: expected an entry of 'b', who took part, got \['a'\]"),
        (silent(1), "rewards: expected an entry of 'b'"),
        (silent(2), "terminations: expected an entry of 'b'"),
        (silent(3), "truncations: expected an entry of 'b'"),
    ],
)
def test_a_step_against_the_rules_breaks_all_episodes_off(endpoint, monkeypatch, broken, message):
    """Nothing of it is recorded, and nothing after it before a reset, whose number is another."""
    recorder, _ = crowd(endpoint)
    step_all(recorder)
    with monkeypatch.context() as patch:
        step = recorder.env.step
        patch.setattr(recorder.env, "step", lambda actions: broken(step(actions), recorder.env))
        recorder.env.script = {"a": (0, 4, CUT), "b": (0, 9, END)}
        with pytest.raises(InvalidValue, match=message):
            step_all(recorder)
    with pytest.raises(ResetNeeded):
        step_all(recorder)
    recorder.reset()
    step_all(recorder)
    assert [(r.episode_id, r.timestep) for r in endpoint.rows] == [
        ("r-0-0", 0),
        ("r-0-0", 0),
        ("r-0-1", 0),
        ("r-0-1", 0),
    ]


def test_nobody_comes_back_after_an_end(endpoint):
    """A revived agent would contradict its own end; the others' steps are recorded all the same."""
    recorder, _ = crowd(endpoint)
    step_all(recorder)
    step_all(recorder)
    recorder.env.script = {"a": (0, 4, CUT), "b": (3, 5, END), "c": (2, 3, END)}
    with pytest.raises(InvalidValue, match="a new name for an agent that joins, got 'b'"):
        step_all(recorder)
    recorder.flush()
    assert [r.actor_id for r in endpoint.rows[4:]] == ["x-a", "x-c"]


def test_one_who_joins_unseen_is_refused(endpoint, monkeypatch):
    """Without an observation its first transition could not be told."""
    recorder, _ = crowd(endpoint)
    step = recorder.env.step

    def hiding(actions):
        result = step(actions)
        result[0].pop("c", None)
        return result

    monkeypatch.setattr(recorder.env, "step", hiding)
    step_all(recorder)
    with pytest.raises(InvalidValue, match="observations: expected one of 'c', who joins"):
        step_all(recorder)


def test_a_newcomer_that_cannot_be_recorded_costs_the_others_nothing(endpoint):
    """It is named, at every step; the steps of those who were there are kept and recorded."""
    env = Crowd({**SCRIPT, "c": (2, 9, END)}, named=False)
    recorder, _ = recorder_of(env, {"a": endpoint, "b": "a"})
    step_all(recorder)
    for _ in range(2):
        with pytest.raises(InvalidValue, match=r"endpoints\['c'\]: expected the endpoint of 'c'"):
            step_all(recorder)
    recorder.flush()
    assert [(r.actor_id, r.timestep) for r in endpoint.rows] == [
        ("x-a", 0),
        ("x-b", 0),
        ("x-a", 1),
        ("x-b", 1),
        ("x-a", 2),
    ]


@pytest.mark.parametrize(
    ("seen", "done", "where"),
    [
        (spaces.Text(3), spaces.Discrete(3), r"observation_space\('b'\)"),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)), r"action_space\('b'\)"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1), r"action_space\('b'\)"),
    ],
)
def test_spaces_that_no_transition_can_hold_are_refused(endpoint, seen, done, where):
    """The refusal comes before anything is played, and names the agent."""
    env = Crowd(SCRIPT)
    env._space["b"] = (seen, done)
    with pytest.raises(InvalidValue, match=where):
        ParallelRecorder(env, endpoint, actor_id="x")


def test_other_arguments_are_checked(endpoint):
    """An environment of another form, a wrong split, batch or actor id are refused."""
    env = Crowd(SCRIPT)
    for other in (OUSpreadEnv(), ou_market_v0.env(), object()):
        with pytest.raises(InvalidType, match="parallel_env: expected a PettingZoo parallel env"):
            ParallelRecorder(other, endpoint, actor_id="x")
    with pytest.raises(UnknownSplit, match="split: expected one of"):
        ParallelRecorder(env, endpoint, actor_id="x", split="test")
    with pytest.raises(InvalidValue, match="batch_size: expected >= 1, got 0"):
        ParallelRecorder(env, endpoint, actor_id="x", batch_size=0)
    ParallelRecorder(env, endpoint, actor_id="é" * 63)
    with pytest.raises(
        InvalidValue, match="the actor id of 'a': expected at most 128 bytes, got 1"
    ):
        ParallelRecorder(env, endpoint, actor_id="é" * 63 + "x")
