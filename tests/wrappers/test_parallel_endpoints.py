"""`ParallelRecorder` and its endpoints: whom it asks, what it sends, and what an error costs."""

import numpy as np
import pytest
from gymnasium import spaces

from jormungandr.errors import InvalidType, InvalidValue, ShapeMismatch, Unavailable
from jormungandr_envs import ou_market_v0
from jormungandr_wrappers import ParallelRecorder
from tests.wrappers.crowd import CUT, END, SCRIPT, Crowd, crowd, recorder_of, step_all, tags

DOWN = Unavailable("service", "a connection", "none")


def test_one_endpoint_is_asked_once_for_all_live_agents(endpoint):
    """One request per step, of the live agents in their order; nobody is asked after the end."""
    recorder, observations = crowd(endpoint)
    while recorder.agents:
        actions = recorder.act(observations)
        assert list(actions) == recorder.agents
        assert {type(action) for action in actions.values()} == {int}
        observations, *_ = recorder.step(actions)
    assert recorder.act(observations) == {}
    assert [asked[0].tolist() for asked in endpoint.asked] == [
        [[0, 0], [1, 0]],
        [[0, 1], [1, 1]],
        [[0, 2], [2, 2]],
        [[0, 3]],
    ]


def test_each_of_several_endpoints_is_asked_once_for_its_own_agents(make_endpoint):
    """Agents are grouped by endpoint, whether given as an object or as another's name."""
    one, two = make_endpoint(), make_endpoint()
    two.version = 9
    recorder, observations = crowd({"a": one, "b": two, "c": "a"}, batch_size=100)
    while recorder.agents:
        observations, *_ = recorder.step(recorder.act(observations))
    assert one.requests == two.requests == []
    receipts = recorder.flush()

    assert [asked[0].tolist() for asked in one.asked] == [
        [[0, 0]],
        [[0, 1]],
        [[0, 2], [2, 2]],
        [[0, 3]],
    ]
    assert [asked[0].tolist() for asked in two.asked] == [[[1, 0]], [[1, 1]]]
    assert [outbox.endpoint for outbox in recorder.outboxes] == [one, two]
    assert [receipt.accepted for receipt in receipts] == [5, 2]
    assert {(r.actor_id, r.policy_version) for r in one.rows} == {("x-a", 7), ("x-c", 7)}
    assert {(r.actor_id, r.policy_version) for r in two.rows} == {("x-b", 9)}


def test_a_name_that_is_no_agent_stands_for_a_group(make_endpoint):
    """An entry may be there only to be pointed at; an object given twice is one endpoint."""
    one, two = make_endpoint(), make_endpoint()
    recorder, _ = crowd({"pack": one, "a": "pack", "b": two, "c": one})
    while recorder.agents:
        step_all(recorder)
    assert [outbox.endpoint for outbox in recorder.outboxes] == [one, two]
    assert {r.actor_id for r in one.rows} == {"x-a", "x-c"}


def test_act_hands_its_arguments_on(endpoint):
    """Deterministic and epsilon reach the endpoint."""
    recorder, observations = crowd(endpoint)
    recorder.act(observations)
    recorder.act(observations, True)
    recorder.act(observations, epsilon=0.1)
    assert [asked[1:] for asked in endpoint.asked] == [(False, None), (True, None), (False, 0.1)]


def test_validation_is_greedy_unless_told_otherwise(endpoint):
    """The split decides only when the caller does not."""
    recorder, observations = crowd(endpoint, split="validation")
    recorder.act(observations)
    recorder.act(observations, deterministic=False)
    assert [asked[1] for asked in endpoint.asked] == [True, False]


@pytest.mark.parametrize("actions", [2, 4])
def test_a_model_of_other_actions_is_refused(endpoint, actions):
    """A policy with fewer actions than the agents have, or more, is not acted with."""
    endpoint.actions = actions
    recorder, observations = crowd(endpoint)
    with pytest.raises(InvalidValue, match=f"3 actions, got one of {actions}"):
        recorder.act(observations)


def test_what_act_chose_is_tagged_with_its_policy(endpoint):
    """The version and probability of the reply go with the next step, then are forgotten."""
    recorder, observations = crowd(endpoint)
    actions = recorder.act(observations)
    recorder.step({agent: np.int64(action) for agent, action in actions.items()})
    endpoint.version = 8
    recorder.step(actions)
    assert tags(endpoint.rows) == [
        ("x-a", 7, 0.25 + 0.5 * actions["a"]),
        ("x-b", 7, 0.25 + 0.5 * actions["b"]),
        ("x-a", -1, None),
        ("x-b", -1, None),
    ]


def test_a_replaced_action_is_nobodys(endpoint):
    """Only the agent whose action was replaced loses the tag."""
    recorder, observations = crowd(endpoint)
    actions = recorder.act(observations)
    recorder.step(actions | {"b": 2})
    assert tags(endpoint.rows) == [("x-a", 7, 0.25 + 0.5 * actions["a"]), ("x-b", -1, None)]
    assert [r.action for r in endpoint.rows] == [actions["a"], 2]


def test_agents_may_be_asked_one_after_the_other(endpoint):
    """Those who are not in the observations are left out; the rest is remembered until the step."""
    recorder, observations = crowd(endpoint)
    a = recorder.act({"a": observations["a"], "nobody": np.zeros(2)})
    endpoint.version = 8
    b = recorder.act({"b": observations["b"]})
    recorder.step(a | b)
    assert (list(a), list(b)) == (["a"], ["b"])
    assert [tag[:2] for tag in tags(endpoint.rows)] == [("x-a", 7), ("x-b", 8)]


def test_a_reset_forgets_what_act_chose(endpoint):
    """An action chosen before a reset was not chosen from what is seen now."""
    recorder, observations = crowd(endpoint)
    actions = recorder.act(observations)
    recorder.reset()
    recorder.step(actions)
    assert [tag[1:] for tag in tags(endpoint.rows)] == [(-1, None)] * 2


def test_an_error_of_act_moves_nothing_and_makes_up_no_tag(make_endpoint, monkeypatch):
    """When one of two endpoints fails, what the other chose is not remembered either."""
    one, two = make_endpoint(), make_endpoint()
    recorder, observations = crowd({"a": one, "b": two, "c": one})
    with monkeypatch.context() as patch:
        patch.setattr(two, "act", lambda *_, **__: (_ for _ in ()).throw(DOWN))
        with pytest.raises(Unavailable):
            recorder.act(observations)
    recorder.step({"a": 0, "b": 0})
    assert tags(one.rows + two.rows) == [("x-a", -1, None), ("x-b", -1, None)]


def test_observations_of_two_shapes_are_no_batch(endpoint):
    """The message names the shapes."""
    recorder, observations = crowd(endpoint)
    with pytest.raises(ShapeMismatch, match="one shape for all who share an endpoint"):
        recorder.act(observations | {"b": np.zeros(3)})


def test_batches_are_sent_when_full_and_the_rest_at_the_end(endpoint):
    """With a batch size rows gather over steps; flush and close send what is left."""
    recorder, _ = crowd(endpoint, batch_size=3)
    step_all(recorder)
    assert (endpoint.requests, len(recorder.outboxes[0].unsent)) == ([], 2)
    step_all(recorder)
    step_all(recorder)
    assert endpoint.requests == [4]
    assert recorder.flush()[0].lsn == 2
    step_all(recorder)
    recorder.close()
    assert endpoint.requests == [4, 2, 1]
    assert recorder.env.closed
    recorder.close()


def test_an_endpoints_error_loses_nothing(endpoint):
    """`step` raises it, keeps the results and the rows, and flush sends them once."""
    recorder, _ = crowd(endpoint)
    endpoint.failures = [(DOWN, False), (DOWN, False)]
    with pytest.raises(Unavailable):
        step_all(recorder)
    with pytest.raises(Unavailable):
        recorder.flush()
    assert len(recorder.outboxes[0].unsent) == 2
    observations = recorder.last_step[0]
    recorder.flush()
    recorder.step(recorder.act(observations))
    assert [(r.actor_id, r.timestep) for r in endpoint.rows] == [
        ("x-a", 0),
        ("x-b", 0),
        ("x-a", 1),
        ("x-b", 1),
    ]
    assert endpoint.rows[3].observation.tolist() == observations["b"].tolist()


def test_an_error_of_the_last_step_keeps_the_ends(endpoint):
    """Episodes that ended while the endpoint was down are sent with their ends."""
    recorder, _ = crowd(endpoint, {"a": (0, 1, END), "b": (0, 1, CUT)})
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        step_all(recorder)
    assert recorder.agents == []
    recorder.reset()
    step_all(recorder)
    assert [(r.episode_id, r.terminated, r.truncated) for r in endpoint.rows] == [
        ("r-0-0", True, False),
        ("r-0-0", False, True),
        ("r-0-1", True, False),
        ("r-0-1", False, True),
    ]


@pytest.mark.parametrize("error", [DOWN, KeyboardInterrupt()])
def test_one_endpoints_error_costs_another_nothing(make_endpoint, error):
    """The others get theirs in the same step; after an interrupt, whose rows are kept, later."""
    one, two = make_endpoint(), make_endpoint()
    recorder, _ = crowd({"a": one, "b": two, "c": two})
    one.failures = [(error, False)]
    with pytest.raises(type(error)):
        step_all(recorder)
    assert (len(one.rows), len(two.rows)) == (0, 1 if error is DOWN else 0)
    recorder.flush()
    step_all(recorder)
    assert [r.timestep for r in one.rows] == [r.timestep for r in two.rows] == [0, 1]


def test_of_two_errors_the_first_is_raised_and_tells_of_the_other(make_endpoint):
    """Every endpoint was tried; none has lost anything."""
    one, two = make_endpoint(), make_endpoint()
    recorder, _ = crowd({"a": one, "b": two, "c": two}, batch_size=9)
    step_all(recorder)
    one.failures = [(Unavailable("first", "a connection"), False)]
    two.failures = [(Unavailable("second", "a connection"), False)]
    with pytest.raises(Unavailable, match=r"^first") as caught:
        recorder.flush()
    assert caught.value.__notes__ == ["Another endpoint failed too: second: expected a connection"]
    assert [len(outbox.unsent) for outbox in recorder.outboxes] == [1, 1]
    recorder.flush()
    assert (len(one.rows), len(two.rows)) == (1, 1)


def test_close_closes_the_environment_even_when_sending_fails(endpoint):
    """The error is raised, the environment is closed, and the rows can still be sent."""
    recorder, _ = crowd(endpoint, batch_size=100)
    step_all(recorder)
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        recorder.close()
    assert recorder.env.closed
    recorder.close()
    assert len(endpoint.rows) == 2


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(3)),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
    ],
)
def test_who_shares_an_endpoint_shares_its_model(make_endpoint, seen, done):
    """Agents with other observations or actions need an endpoint of their own."""
    env, one = Crowd(SCRIPT), make_endpoint()
    env._space["b"] = (seen, done)
    with pytest.raises(
        InvalidValue, match=r"the spaces of 'b': expected observations \(2,\) and 3"
    ):
        ParallelRecorder(env, one, actor_id="x")
    ParallelRecorder(env, {"a": one, "b": make_endpoint(), "c": one}, actor_id="x")


def test_bounds_may_differ_between_agents_of_one_endpoint(endpoint):
    """A model has a shape, not bounds."""
    env = Crowd(SCRIPT)
    env._space["b"] = (spaces.Box(-1, 1, (2,)), spaces.Discrete(3))
    assert len(ParallelRecorder(env, endpoint, actor_id="x").outboxes) == 1


@pytest.mark.parametrize(
    ("endpoints", "error", "message"),
    [
        ("http://localhost", InvalidType, "endpoints: expected an Endpoint.*got str"),
        ({}, InvalidValue, r"endpoints\['a'\]: expected the endpoint of 'a', got nothing"),
        ({"a": "pack"}, InvalidValue, r"endpoints\['pack'\]: expected the endpoint of 'a', got no"),
        ({"a": "b", "b": "a"}, InvalidType, r"endpoints\['b'\]: expected an Endpoint.*got str"),
        ({"spare": None}, InvalidType, r"endpoints\['spare'\]: expected an Endpoint.*got NoneType"),
    ],
)
def test_endpoints_are_checked(endpoints, error, message):
    """What is none, is missing or leads nowhere is named."""
    with pytest.raises(error, match=message):
        ParallelRecorder(Crowd(SCRIPT), endpoints, actor_id="x")


def test_a_learner_takes_what_is_recorded(learner):
    """Actors, ends and labels pass the learner's own checks, and a flush names the lsn."""
    market = ou_market_v0.parallel_env(leave_after={"trader_1": 10})
    recorder = ParallelRecorder(
        market, learner, actor_id="x", label_key="drift_label", batch_size=64
    )
    for seed in range(2):
        observations, _ = recorder.reset(seed=seed)
        while recorder.agents:
            observations, *_ = recorder.step(recorder.act(observations))
    (receipt,) = recorder.flush()

    rows = 2 * (48 + 10 + 48)
    assert (receipt.accepted, receipt.duplicate, len(learner.replay)) == (rows, 0, rows)
    assert learner.wait(receipt.lsn)["journal_lsn"] == receipt.lsn
    assert learner.normalizer.count == 2 * rows


def test_a_lost_receipt_is_counted_as_duplicates(learner, monkeypatch):
    """Rows that arrived although the reply did not are sent again, and learned from once."""
    recorder, observations = recorder_of(ou_market_v0.parallel_env(), learner)
    add, calls = learner.add, []

    def lossy(transitions):
        receipt = add(transitions)
        calls.append(len(transitions))
        if len(calls) == 1:
            raise DOWN
        return receipt

    monkeypatch.setattr(learner, "add", lossy)
    with pytest.raises(Unavailable):
        recorder.step(recorder.act(observations))
    recorder.step(recorder.act(recorder.last_step[0]))
    (receipt,) = recorder.flush()
    assert calls == [3, 6]
    assert (receipt.accepted, receipt.duplicate, len(learner.replay)) == (3, 3, 6)
