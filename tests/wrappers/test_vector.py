"""`VectorRecorder`: every step of every sub-environment, once, in every autoreset mode."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from jormungandr.errors import (
    ActionRange,
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    Unavailable,
    UnknownSplit,
)
from jormungandr.wire import decode_object, encode_transitions
from jormungandr_envs import OUSpreadEnv, OUSpreadVectorEnv, drift_label
from jormungandr_wrappers import VectorRecorder

MODES = list(AutoresetMode)
DOWN = Unavailable("service", "a connection", "none")
HORIZON = 5


def cartpole(limit=12):
    """Return a CartPole that is cut off after `limit` steps, if it has not fallen by then."""
    return gym.make("CartPole-v1", max_episode_steps=limit)


def ou(num_envs, mode):
    """Return vectorised OUSpread of a few steps."""
    return OUSpreadVectorEnv(num_envs, autoreset_mode=mode, horizon=HORIZON)


def ou_sync(num_envs, mode):
    """Return the same as single environments, whose buffers are used again at every step."""
    return SyncVectorEnv(
        [lambda: OUSpreadEnv(horizon=HORIZON)] * num_envs, autoreset_mode=mode, copy=False
    )


def cartpole_sync(num_envs, mode):
    """Return vectorised CartPole, whose episodes differ in length and in how they end."""
    return SyncVectorEnv([cartpole] * num_envs, autoreset_mode=mode)


SCALAR = {
    ou: lambda: OUSpreadEnv(horizon=HORIZON),
    ou_sync: lambda: OUSpreadEnv(horizon=HORIZON),
    cartpole_sync: cartpole,
}


def fact(row):
    """Return what happened in a transition, hashable, to the bit."""
    return (
        np.asarray(row.observation, np.float32).tobytes(),
        row.action,
        row.reward,
        np.asarray(row.next_observation, np.float32).tobytes(),
        row.terminated,
        row.truncated,
    )


def played_alone(make, seed, actions):
    """Return the facts of one environment stepped on its own: the slow truth."""
    env, facts = make(), []
    observation, _ = env.reset(seed=seed)
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(action)
        before = np.asarray(observation, np.float32).tobytes()
        successor = np.asarray(after, np.float32).tobytes()
        facts.append((before, action, float(reward), successor, terminated, truncated))
        observation = env.reset()[0] if terminated or truncated else after
    return facts


def play(env, endpoint, seed, actions, **more):
    """Give every sub-environment its own actions, one per transition, and return its facts.

    `actions` has shape (B, transitions).
    """
    recorder = VectorRecorder(env, endpoint, actor_id="a", **more)
    mode = env.metadata["autoreset_mode"]
    count, length = actions.shape
    recorder.reset(seed=seed)
    taken, ended = np.zeros(count, dtype=int), np.zeros(count, dtype=bool)
    while (taken < length).any():
        # Those that are done go on, with any action, until the slowest is; see the last line.
        now = actions[np.arange(count), np.minimum(taken, length - 1)]
        _, _, terminated, truncated, _ = recorder.step(now)
        taken += ~ended if mode is AutoresetMode.NEXT_STEP else 1
        over = terminated | truncated
        ended = over & ~ended
        if mode is AutoresetMode.DISABLED and over.any():
            recorder.reset(options={"reset_mask": over})
    recorder.close()
    by_env = [[] for _ in range(count)]
    for row in endpoint.rows:
        by_env[int(row.episode_id.split("-")[1])].append(fact(row))
    return [facts[:length] for facts in by_env]


@pytest.mark.parametrize("make", [ou, ou_sync, cartpole_sync])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_all_modes_record_what_each_environment_does_on_its_own(make, make_endpoint, data):
    """For any seed and any actions, all three modes give the same transitions as stepping alone."""
    count, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 25))
    seed = data.draw(st.integers(0, 10**6))
    choices = 2 if make is cartpole_sync else 3
    generator = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    # CartPole falls before its limit only when it is pushed one way: one row of actions may be so.
    actions = generator.integers(choices, size=(count, length))
    if data.draw(st.booleans()):
        actions[0] = 0
    expected = [played_alone(SCALAR[make], seed + i, actions[i].tolist()) for i in range(count)]

    for mode in MODES:
        assert play(make(count, mode), make_endpoint(), seed, actions) == expected


def test_the_property_above_sees_both_kinds_of_end():
    """CartPole pushed one way falls before its limit; pushed to and fro it is cut off there."""
    fallen = played_alone(cartpole, 0, [0] * 12)
    cut = played_alone(cartpole, 0, [0, 1] * 7)

    assert {f[4:] for f in fallen} == {(False, False), (True, False)}
    assert {f[4:] for f in cut} == {(False, False), (False, True)}


def test_eight_envs_record_8k_rows_less_the_resets(endpoint):
    """In K vector steps of NEXT_STEP a row is missing for every end but those of the last step."""
    recorder = VectorRecorder(cartpole_sync(8, AutoresetMode.NEXT_STEP), endpoint, actor_id="a")
    recorder.reset(seed=3)
    generator, resets, over = np.random.default_rng(0), 0, np.zeros(8, dtype=bool)
    for k in range(1, 101):
        resets += np.count_nonzero(over)
        _, _, terminated, truncated, _ = recorder.step(generator.integers(2, size=8))
        over = terminated | truncated
        assert len(endpoint.rows) == 8 * k - resets
    assert resets > 50


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_eight_envs_record_8k_rows_where_no_row_reports_a_reset(endpoint, mode):
    """In the other modes K vector steps are 8K transitions."""
    recorder = VectorRecorder(ou(8, mode), endpoint, actor_id="a")
    recorder.reset(seed=3)
    for _ in range(3 * HORIZON):
        _, _, terminated, _, _ = recorder.step(np.ones(8, dtype=np.int64))
        if mode is AutoresetMode.DISABLED and terminated.any():
            recorder.reset()
    assert len(endpoint.rows) == 8 * 3 * HORIZON


@pytest.mark.parametrize("mode", MODES)
def test_every_episode_counts_from_zero_and_only_its_last_step_ends_it(endpoint, mode):
    """Timesteps are contiguous; ids are {run}-{sub-environment}-{n} of one actor."""
    play(cartpole_sync(3, mode), endpoint, 0, np.zeros((3, 40), dtype=int), run="00ff")
    found = endpoint.episodes()

    assert {f"00ff-{i}-{n}" for i in range(3) for n in range(3)} <= set(found)
    for rows in found.values():
        assert [r.timestep for r in rows] == list(range(len(rows)))
        assert not any(r.terminated or r.truncated for r in rows[:-1])
        for before, after in itertools.pairwise(rows):
            assert before.next_observation.tolist() == after.observation.tolist()
    assert {r.actor_id for r in endpoint.rows} == {"a"}


def test_recorders_do_not_share_a_run(endpoint):
    """Two recorders with one actor id cannot contradict each other."""
    runs = {
        VectorRecorder(ou(1, AutoresetMode.DISABLED), endpoint, actor_id="a").run for _ in range(9)
    }
    assert len(runs) == 9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [ou, ou_sync])
def test_labels_are_those_of_the_observation_acted_upon(endpoint, make, mode):
    """The recorded drift label is the one that the observation's z implies, resets included."""
    play(make(3, mode), endpoint, 1, np.ones((3, 4 * HORIZON), dtype=int), label_key="drift_label")

    assert [r.label for r in endpoint.rows] == [
        drift_label(float(r.observation[0])) for r in endpoint.rows
    ]
    assert {r.label for r in endpoint.rows} == {0, 1, 2}


def test_without_a_label_key_there_are_no_labels(endpoint):
    """Labels are recorded on request only."""
    play(ou(2, AutoresetMode.SAME_STEP), endpoint, 1, np.ones((2, 3), dtype=int))
    assert {r.label for r in endpoint.rows} == {None}


def test_splits_by_sub_environment(endpoint):
    """Each sub-environment keeps its own split."""
    play(
        ou(3, AutoresetMode.SAME_STEP),
        endpoint,
        1,
        np.ones((3, 2 * HORIZON), dtype=int),
        split=["train", "validation", "train"],
        run="r",
    )
    by_env = {(r.episode_id.split("-")[1], r.split) for r in endpoint.rows}
    assert by_env == {("0", "train"), ("1", "validation"), ("2", "train")}


def recorder_of(endpoint, num_envs=2, **more):
    """Return a recorder after its reset, and the first observations."""
    recorder = VectorRecorder(ou(num_envs, AutoresetMode.SAME_STEP), endpoint, actor_id="a", **more)
    observations, _ = recorder.reset(seed=0)
    return recorder, observations


def tags(rows):
    """Return (policy version, behaviour probability) of each."""
    return [(r.policy_version, r.behavior_prob) for r in rows]


def test_what_act_chose_is_tagged_with_its_policy(endpoint):
    """The version and probability of the reply go with the next step, then are forgotten."""
    recorder, observations = recorder_of(endpoint)
    actions = recorder.act(observations, epsilon=0.5)
    assert (actions.dtype, actions.shape) == (np.int64, (2,))
    recorder.step(actions.tolist())
    endpoint.version = 8
    recorder.step(actions)

    assert tags(endpoint.rows[:2]) == [(7, 0.25 + 0.5 * a) for a in actions]
    assert tags(endpoint.rows[2:]) == [(-1, None)] * 2
    assert recorder.reply.policy_version == 7


def test_act_hands_its_arguments_on(endpoint):
    """Observations, deterministic and epsilon reach the endpoint."""
    recorder, observations = recorder_of(endpoint)
    recorder.act(observations)
    recorder.act(observations, True)
    recorder.act(observations, epsilon=0.1)

    assert [a[1:] for a in endpoint.asked] == [(False, None), (True, None), (False, 0.1)]
    assert (endpoint.asked[0][0] == observations).all()


def test_a_replaced_action_is_nobodys(endpoint):
    """Only the sub-environment whose action was replaced loses the tag; also when done in place."""
    recorder, observations = recorder_of(endpoint)
    actions = recorder.act(observations)
    actions[1] = 2
    recorder.step(actions)
    assert tags(endpoint.rows) == [(7, 0.25 + 0.5 * actions[0]), (-1, None)]


def test_a_reset_forgets_what_act_chose(endpoint):
    """An action chosen before a reset was not chosen from what is seen now."""
    recorder, observations = recorder_of(endpoint)
    actions = recorder.act(observations)
    recorder.reset()
    recorder.step(actions)
    assert tags(endpoint.rows) == [(-1, None)] * 2


def test_act_wants_one_observation_per_sub_environment(endpoint):
    """Actions for another number could not be matched to the step's."""
    recorder, observations = recorder_of(endpoint)
    with pytest.raises(ShapeMismatch, match=r"one per sub-environment \(2\), got 1"):
        recorder.act(observations[:1])


@pytest.mark.parametrize("given", [None, 5, {}, {"x": {}}])
def test_act_wants_a_batch(endpoint, given):
    """What is none is named as such."""
    recorder, _ = recorder_of(endpoint)
    with pytest.raises(InvalidType, match="observations: expected a batch"):
        recorder.act(given)


def test_act_wants_arrays_of_one_shape_and_a_flag(endpoint):
    """Ragged lists, and a word in place of true or false, are refused before anybody is asked."""
    recorder, observations = recorder_of(endpoint)
    with pytest.raises(ShapeMismatch, match="observations: expected arrays of one shape"):
        recorder.act([[1.0], [1.0, 2.0]])
    with pytest.raises(InvalidType, match="deterministic"):
        recorder.act(observations, deterministic="no")
    assert endpoint.asked == []


@pytest.mark.parametrize("actions", [[0], [[0, 1]], [0.0, 1.0], 1, [[1], [1, 0]]])
def test_actions_are_checked_before_anything_moves(endpoint, actions):
    """Actions that are not B integers are refused with the environment where it was."""
    recorder, _ = recorder_of(endpoint)
    with pytest.raises(ActionRange, match="2 action indices"):
        recorder.step(actions)
    recorder.step([1, 1])
    assert [r.timestep for r in endpoint.rows] == [0, 0]


def test_step_needs_a_reset(endpoint):
    """Before the first reset, and without autoreset after an end, the recorder itself says so."""
    recorder = VectorRecorder(ou_sync(2, AutoresetMode.DISABLED), endpoint, actor_id="a")
    with pytest.raises(ResetNeeded, match=r"^expected running episodes; call reset\(\) first"):
        recorder.step([1, 1])
    recorder.reset(seed=0)
    for _ in range(HORIZON):
        recorder.step([1, 1])
    with pytest.raises(ResetNeeded, match=r"sub-environments \[0, 1\] are over"):
        recorder.step([1, 1])
    assert len(endpoint.rows) == 2 * HORIZON


def test_results_pass_through_unchanged(make_endpoint):
    """The recorder returns what the environment returns, and changes no stream of randomness."""
    plain = ou(3, AutoresetMode.SAME_STEP)
    recorded = VectorRecorder(ou(3, AutoresetMode.SAME_STEP), make_endpoint(), actor_id="a")
    expected, got = plain.reset(seed=5), recorded.reset(seed=5)
    assert (expected[0] == got[0]).all()
    for _ in range(2 * HORIZON):
        expected, got = plain.step(np.array([0, 1, 2])), recorded.step(np.array([0, 1, 2]))
        for a, b in zip(expected[:4], got[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert expected[4].keys() == got[4].keys()
    assert recorded.num_envs == 3
    assert recorded.single_action_space == spaces.Discrete(3)


def test_what_the_caller_does_to_results_changes_no_record(endpoint):
    """Observations are kept as copies: writing into what `step` returned is harmless."""
    recorder, observations = recorder_of(endpoint)
    first = observations.copy()
    observations[:] = 77
    after, *_ = recorder.step([1, 1])
    second = after.copy()
    after[:] = 88
    recorder.step([1, 1])

    assert [r.observation.tolist() for r in endpoint.rows] == [*first.tolist(), *second.tolist()]
    assert [r.next_observation.tolist() for r in endpoint.rows[:2]] == second.tolist()


def test_the_reset_mask_is_read_before_the_environment_takes_it(endpoint):
    """SyncVectorEnv removes the mask from the caller's options."""
    recorder = VectorRecorder(ou_sync(2, AutoresetMode.DISABLED), endpoint, actor_id="a", run="r")
    recorder.reset(seed=0)
    recorder.step([1, 1])
    recorder.reset(options={"reset_mask": np.array([True, False])})
    recorder.step([1, 1])
    names = [(r.episode_id, r.timestep) for r in endpoint.rows]
    assert names == [("r-0-0", 0), ("r-1-0", 0), ("r-0-1", 0), ("r-1-0", 1)]


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
    assert recorder.env.closed
    recorder.close()


def test_an_endpoints_error_loses_nothing(endpoint):
    """`step` raises it, keeps the results and the rows, and flush sends them once."""
    recorder, _ = recorder_of(endpoint)
    endpoint.failures = [(DOWN, False), (DOWN, False)]
    with pytest.raises(Unavailable):
        recorder.step([1, 1])
    with pytest.raises(Unavailable):
        recorder.flush()
    assert len(recorder.outbox.unsent) == 2
    observations = recorder.last_step[0]
    recorder.flush()
    recorder.step(recorder.act(observations))

    assert [r.timestep for r in endpoint.rows] == [0, 0, 1, 1]
    np.testing.assert_array_equal(endpoint.rows[2].observation, observations[0])


def test_an_error_of_act_moves_nothing(endpoint, monkeypatch):
    """When no action comes, no step is taken and no tag is made up."""
    recorder, observations = recorder_of(endpoint)
    with monkeypatch.context() as patch:
        patch.setattr(endpoint, "act", lambda *_, **__: (_ for _ in ()).throw(DOWN))
        with pytest.raises(Unavailable):
            recorder.act(observations)
    recorder.step([1, 1])
    assert tags(endpoint.rows) == [(-1, None)] * 2


def test_close_closes_the_environment_even_when_sending_fails(endpoint):
    """The error is raised, the environment is closed, and the rows can still be sent."""
    recorder, _ = recorder_of(endpoint, batch_size=100)
    recorder.step([1, 1])
    endpoint.failures = [(DOWN, False)]
    with pytest.raises(Unavailable):
        recorder.close()
    assert recorder.env.closed
    recorder.close()
    assert len(endpoint.rows) == 2


@pytest.mark.parametrize("mode", [None, "NextStep", "bogus", 1])
def test_an_unknown_autoreset_mode_is_refused(endpoint, mode):
    """Absent, misspelt or not an AutoresetMode: no guess is made."""
    env = ou(2, AutoresetMode.NEXT_STEP)
    env.metadata = {} if mode is None else {"autoreset_mode": mode}
    with pytest.raises(InvalidValue, match=r'metadata\["autoreset_mode"\]: expected one of'):
        VectorRecorder(env, endpoint, actor_id="a")


class _Other(VectorEnv):
    """A vector environment with any spaces."""

    num_envs = 1
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, seen, done):
        self.single_observation_space, self.single_action_space = seen, done


BOX = spaces.Box(-1, 1, (4,))


@pytest.mark.parametrize(
    ("seen", "done", "where"),
    [
        (spaces.Text(3), spaces.Discrete(3), "observation_space"),
        (BOX, BOX, "action_space"),
        (BOX, spaces.Discrete(3, start=1), "action_space"),
    ],
)
def test_spaces_that_no_transition_can_hold_are_refused(endpoint, seen, done, where):
    """The refusal comes before anything is played."""
    with pytest.raises(InvalidValue, match=where):
        VectorRecorder(_Other(seen, done), endpoint, actor_id="a")


def test_other_arguments_are_checked(endpoint):
    """A single environment, a wrong split or a wrong number of them are refused."""
    env = ou(2, AutoresetMode.NEXT_STEP)
    with pytest.raises(InvalidType, match="RemoteActor takes a single environment"):
        VectorRecorder(OUSpreadEnv(), endpoint, actor_id="a")
    with pytest.raises(UnknownSplit, match="split: expected one of"):
        VectorRecorder(env, endpoint, actor_id="a", split="test")
    with pytest.raises(UnknownSplit, match=r"split\[1\]"):
        VectorRecorder(env, endpoint, actor_id="a", split=["train", "test"])
    with pytest.raises(InvalidValue, match=r"one per sub-environment \(2\), got 3"):
        VectorRecorder(env, endpoint, actor_id="a", split=["train"] * 3)
    with pytest.raises(InvalidType, match="endpoint: expected an Endpoint"):
        VectorRecorder(env, "http://localhost", actor_id="a")


def test_a_lost_receipt_is_counted_as_duplicates(learner, monkeypatch):
    """Rows that arrived although the reply did not are sent again, and learned from once."""
    recorder, observations = recorder_of(learner, batch_size=4, label_key="drift_label")
    add, calls = learner.add, []

    def lossy(transitions):
        receipt = add(transitions)
        calls.append(len(transitions))
        if len(calls) == 1:
            raise DOWN
        return receipt

    monkeypatch.setattr(learner, "add", lossy)
    observations, *_ = recorder.step(recorder.act(observations))
    with pytest.raises(Unavailable):
        recorder.step(recorder.act(observations))
    recorder.step(recorder.act(recorder.last_step[0]))
    receipt = recorder.flush()

    assert calls == [4, 6]
    assert (receipt.accepted, receipt.duplicate) == (2, 4)
    assert len(learner.replay) == 6


def test_the_wire_changes_nothing(learner, monkeypatch):
    """The same rows as JSON have the same content: a learner that knows them counts duplicates."""
    rows, add = [], learner.add
    monkeypatch.setattr(learner, "add", lambda batch: rows.extend(batch) or add(batch))
    env, observations = recorder_of(learner, label_key="drift_label")
    for _ in range(2 * HORIZON):
        observations, *_ = env.step(env.act(observations))

    receipt = add(decode_object(encode_transitions(rows))["transitions"])
    assert (receipt.accepted, receipt.duplicate) == (0, 4 * HORIZON)


def test_a_learner_takes_what_is_recorded(learner):
    """Splits, labels and episodes of mixed sub-environments pass the learner's own checks."""
    env = VectorRecorder(
        ou(4, AutoresetMode.NEXT_STEP),
        learner,
        actor_id="a",
        split=["train", "train", "validation", "train"],
        label_key="drift_label",
    )
    observations, _ = env.reset(seed=0)
    for _ in range(3 * HORIZON):
        observations, *_ = env.step(env.act(observations))
    env.close()
    rows = 3 * HORIZON - 2  # two resets each

    assert (len(learner.replay), len(learner.validation)) == (3 * rows, rows)
    assert learner.normalizer.count == 6 * rows
    assert learner.evaluate().auxiliary_labelled == rows
    assert learner.info()["mixed_episodes"] == 0


def test_held_out_sub_environments_act_greedily(endpoint):
    """Unless told otherwise, the validation split takes the best actions and training explores."""
    splits = ["train", "validation", "train"]
    recorder = VectorRecorder(
        gym.make_vec("OUSpread-v0", num_envs=3), endpoint, actor_id="a", split=splits
    )
    observations, _ = recorder.reset(seed=0)
    recorder.step(recorder.act(observations))
    recorder.act(observations, deterministic=False)
    recorder.act(observations, deterministic=True)
    asked = [(len(rows), deterministic) for rows, deterministic, _ in endpoint.asked]

    assert asked == [(2, False), (1, True), (3, False), (3, True)]
    assert (endpoint.asked[1][0][0] == observations[1]).all()
    assert [row.split for row in endpoint.rows] == splits
    assert all(row.policy_version == 7 for row in endpoint.rows)
    recorder.close()


def test_a_mistyped_label_key_is_refused(endpoint):
    """An info key that is not there would record no label, ever: the reset says so."""
    recorder = VectorRecorder(
        gym.make_vec("OUSpread-v0", num_envs=2), endpoint, actor_id="a", label_key="label"
    )

    with pytest.raises(MissingField, match="drift_label"):
        recorder.reset(seed=0)
    recorder.close()


class _Forgetful(OUSpreadVectorEnv):
    """In SAME_STEP mode, keep no last observation while told to forget it."""

    forgets = True

    def step(self, actions):
        """Step, and forget."""
        *result, infos = super().step(actions)
        if self.forgets:
            infos.pop("final_obs", None)
        return *result, infos


def test_an_end_without_its_last_observation_breaks_the_episodes_off(endpoint):
    """The error names it and what to do; nothing is made up, and a reset begins other episodes."""
    env = _Forgetful(2, autoreset_mode=AutoresetMode.SAME_STEP, horizon=HORIZON)
    recorder = VectorRecorder(env, endpoint, actor_id="a", run="r")
    observations, _ = recorder.reset(seed=0)
    for _ in range(HORIZON - 1):
        observations, *_ = recorder.step([1, 1])
    actions = recorder.act(observations)
    with pytest.raises(InvalidValue, match=r'infos\["final_obs"\]\[0\].*reset\(\) begins new'):
        recorder.step(actions)
    assert recorder.last_step[2].all()
    for again in ([1, 1], actions):
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            recorder.step(again)
    with pytest.raises(ResetNeeded, match="full reset before a masked one"):
        recorder.reset(options={"reset_mask": np.array([True, False])})

    env.forgets = False
    recorder.reset(seed=1)
    for _ in range(HORIZON + 1):
        recorder.step([1, 1])
    found = endpoint.episodes()
    lengths = {name: len(rows) for name, rows in found.items()}
    whole, broken, begun = HORIZON, HORIZON - 1, 1
    assert lengths == {
        **{"r-0-0": broken, "r-1-0": broken},
        **{"r-0-1": whole, "r-1-1": whole},
        **{"r-0-2": begun, "r-1-2": begun},
    }
    for rows in found.values():
        assert [r.timestep for r in rows] == list(range(len(rows)))
        assert [r.terminated for r in rows] == [t == HORIZON - 1 for t in range(len(rows))]
        for before, after in itertools.pairwise(rows):
            assert before.next_observation.tolist() == after.observation.tolist()


def test_a_learner_takes_what_comes_after_such_an_error(learner):
    """The episodes that were broken off contradict nothing that follows."""
    env = _Forgetful(2, autoreset_mode=AutoresetMode.SAME_STEP, horizon=HORIZON)
    recorder = VectorRecorder(env, learner, actor_id="a")
    for _ in range(2):
        recorder.reset()
        for _ in range(HORIZON - 1):
            recorder.step([1, 1])
        with pytest.raises(InvalidValue, match="final_obs"):
            recorder.step([1, 1])
    assert len(learner.replay) == 2 * 2 * (HORIZON - 1)


@pytest.mark.parametrize("call", ["step", "reset"])
def test_an_environments_error_breaks_the_episodes_off(endpoint, monkeypatch, call):
    """Some may have moved unseen: what follows is no successor of what was seen last."""
    recorder, _ = recorder_of(endpoint, run="r")
    recorder.step([1, 1])
    with monkeypatch.context() as patch:
        patch.setattr(recorder.env, call, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recorder.step([1, 1]) if call == "step" else recorder.reset()
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        recorder.step([1, 1])
    recorder.reset()
    recorder.step([1, 1])
    names = [(r.episode_id, r.timestep) for r in endpoint.rows]
    assert names == [("r-0-0", 0), ("r-1-0", 0), ("r-0-1", 0), ("r-1-1", 0)]
