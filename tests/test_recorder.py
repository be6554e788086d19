"""`EpisodeRecorder`: a loop written by hand; `episode()`, which every endpoint of ours has."""

import gymnasium as gym
import numpy as np
import pytest

from jormungandr import EpisodeRecorder, Learner, ModelSpec
from jormungandr.errors import (
    ActionRange,
    EpisodeClosed,
    InvalidType,
    InvalidValue,
    NonFinite,
    ShapeMismatch,
    Unavailable,
    UnknownSplit,
)
from tests.fake_endpoint import FakeEndpoint
from tests.service.serving import connect, memory

DOWN = Unavailable("service", "a connection", "none")


@pytest.fixture
def endpoint():
    """Return an empty endpoint in memory."""
    return FakeEndpoint()


def recorder_of(endpoint, **more):
    """Return a recorder of an episode e of actor a."""
    return EpisodeRecorder(endpoint, actor_id="a", **{"episode_id": "e", **more})


def test_a_loop_by_hand(endpoint):
    """Every step is tagged with identity, split, policy and probability, and sent by the end."""
    state, chosen = [0.5, 0.0], []
    with recorder_of(endpoint) as episode:
        while not episode.over:
            choice = episode.act(state)
            chosen.append(choice)
            state = [state[0] + 1, state[1]]
            episode.record(state[0], state, terminated=state[0] > 3)

    assert [(r.episode_id, r.timestep) for r in endpoint.rows] == [("e", t) for t in range(3)]
    assert [r.observation.tolist() for r in endpoint.rows] == [[t + 0.5, 0] for t in range(3)]
    assert [r.next_observation.tolist() for r in endpoint.rows] == [[t + 1.5, 0] for t in range(3)]
    assert [r.terminated for r in endpoint.rows] == [False, False, True]
    assert [r.action for r in endpoint.rows] == [c.index for c in chosen]
    assert {r.policy_version for r in endpoint.rows} == {7}
    assert [r.behavior_prob for r in endpoint.rows] == [0.25 + 0.5 * c.index for c in chosen]
    assert [c.value for c in chosen] == [10 * c.index for c in chosen]
    assert episode.total_reward == 1.5 + 2.5 + 3.5
    assert endpoint.requests == [3]


def test_an_action_chosen_elsewhere(endpoint):
    """What the endpoint did not choose is version -1, unless the caller knows better."""
    with recorder_of(endpoint) as episode:
        episode.acted([0.0], 1)
        episode.record(0.0, [1.0], label=np.int64(2))
        episode.acted([1.0], 0, policy_version=3, behavior_prob=0.5)
        episode.record(0.0, [2.0], truncated=True, label="UP")

    tags = [(r.action, r.policy_version, r.behavior_prob, r.label) for r in endpoint.rows]
    assert tags == [(1, -1, None, 2), (0, 3, 0.5, "UP")]
    assert type(endpoint.rows[0].label) is int
    assert endpoint.rows[1].truncated


def test_arrays_are_copied(endpoint):
    """A loop may keep one array and write into it."""
    state = np.zeros(1)
    with recorder_of(endpoint) as episode:
        for _ in range(2):
            episode.act(state)
            state += 1
            episode.record(0.0, state)
    moves = [(r.observation[0], r.next_observation[0]) for r in endpoint.rows]
    assert moves == [(0, 1), (1, 2)]


@pytest.mark.parametrize(("split", "expected"), [("train", False), ("validation", True)])
def test_validation_is_deterministic_unless_told_otherwise(endpoint, split, expected):
    """The split decides only when the caller does not."""
    episode = recorder_of(endpoint, split=split)
    episode.act([0.0])
    episode.act([0.0], deterministic=not expected, epsilon=0.5)
    assert [a[1:] for a in endpoint.asked] == [(expected, None), (not expected, 0.5)]


def test_every_step_needs_an_action(endpoint):
    """A step without one, or a second one after the same, is refused and recorded nowhere."""
    episode = recorder_of(endpoint)
    with pytest.raises(InvalidValue, match=r"call act\(\) or acted\(\)"):
        episode.record(0.0, [1.0])
    episode.act([0.0])
    episode.record(0.0, [1.0])
    with pytest.raises(InvalidValue):
        episode.record(0.0, [2.0])
    assert episode.timestep == 1


def test_no_step_follows_the_end(endpoint):
    """The end sends what there is; a step after it is refused."""
    episode = recorder_of(endpoint)
    episode.act([0.0])
    episode.record(0.0, [1.0], terminated=True)
    assert (episode.over, len(endpoint.rows)) == (True, 1)
    with pytest.raises(EpisodeClosed):
        episode.record(0.0, [2.0])


def test_episodes_have_names_of_their_own(endpoint):
    """Without a name given, every recorder draws another."""
    names = {EpisodeRecorder(endpoint, actor_id="a").episode_id for _ in range(9)}
    assert len(names) == 9


def test_batches_and_flush(endpoint):
    """A long episode is sent in batches, and on request."""
    episode = recorder_of(endpoint, batch_size=2)
    for t in range(5):
        episode.acted([t], 0)
        episode.record(0.0, [t + 1.0])
    assert endpoint.requests == [2, 2]
    assert episode.flush().lsn == 3
    assert endpoint.requests == [2, 2, 1]


def test_an_error_in_the_loop_sends_what_happened_before(endpoint):
    """The loop's own error passes through, after the rows are sent."""

    def loop():
        with recorder_of(endpoint) as episode:
            episode.act([0.0])
            episode.record(0.0, [1.0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert len(endpoint.rows) == 1


def test_an_endpoints_error_keeps_the_rows(endpoint):
    """It passes through without another attempt; a flush later sends them."""
    endpoint.failures = [(DOWN, False)]
    episode = recorder_of(endpoint)

    def loop():
        with episode:
            episode.act([0.0])
            episode.record(0.0, [1.0], terminated=True)

    with pytest.raises(Unavailable):
        loop()
    assert endpoint.failures == []
    assert (endpoint.rows, len(episode.outbox.unsent)) == ([], 1)
    episode.flush()
    assert len(endpoint.rows) == 1


def test_an_unknown_split_is_refused(endpoint):
    """Before anything is played."""
    with pytest.raises(UnknownSplit):
        recorder_of(endpoint, split="test")


def test_masks_go_on_only_when_they_are_given(endpoint):
    """An endpoint without masks never hears of them; given ones are copied."""
    allowed = np.array([True, False, True])
    with recorder_of(endpoint) as episode:
        episode.act([0.0])
        episode.record(0.0, [1.0])
        episode.act([1.0], action_mask=allowed)
        episode.record(0.0, [2.0], next_action_mask=allowed)
        allowed[:] = False

    assert endpoint.masks[0] == {}
    assert endpoint.masks[1]["action_masks"].tolist() == [[True, False, True]]
    masks = [r.next_action_mask for r in endpoint.rows]
    assert masks[0] is None
    assert masks[1].tolist() == [True, False, True]


def test_observations_may_be_dicts_and_numbers(endpoint):
    """A Dict space's dict goes as a batch of one, copied; a Discrete space's number as an int."""
    seen = {"place": np.zeros(2), "gear": np.int64(1)}
    with recorder_of(endpoint) as episode:
        episode.act(seen)
        seen["place"] += 1
        episode.record(0.0, seen)
        seen["place"] += 1
        episode.act(3)
        episode.record(0.0, np.int64(4))

    first, second = endpoint.rows
    assert endpoint.asked[0][0] == [{"place": pytest.approx([0, 0]), "gear": 1}]
    assert endpoint.asked[1][0].tolist() == [3]
    assert (first.observation["place"].tolist(), first.observation["gear"]) == ([0, 0], 1)
    assert first.next_observation["place"].tolist() == [1, 1]
    assert (second.observation, type(second.observation), second.next_observation) == (3, int, 4)


def test_the_pair_of_a_reset_is_refused(endpoint):
    """Before the endpoint is asked."""
    with pytest.raises(InvalidType, match=r"pair of env\.reset"):
        recorder_of(endpoint).act(gym.make("OUSpread-v0").reset(seed=0))
    assert endpoint.asked == []


def test_a_step_that_is_none_can_be_told_again(endpoint):
    """A reward, a flag or a list that is none is refused, and the action waits for a better one."""
    with recorder_of(endpoint) as episode:
        episode.act([0.0])
        with pytest.raises(NonFinite):
            episode.record(float("nan"), [1.0])
        with pytest.raises(InvalidType):
            episode.record(1.0, [1.0], terminated="no")
        with pytest.raises(ShapeMismatch):
            episode.record(1.0, [[1.0], [1.0, 2.0]])
        with pytest.raises(ShapeMismatch, match="next_action_mask"):
            episode.record(1.0, [1.0], next_action_mask=[[1], [1, 0]])
        with pytest.raises(ShapeMismatch, match="action_mask"):
            episode.act([0.0], action_mask=[[1], [1, 0]])
        episode.record(1.0, [1.0])
    assert [row.reward for row in endpoint.rows] == [1.0]
    assert episode.outbox.unsent == ()


def test_an_action_that_is_no_index_is_refused(endpoint):
    """A label or a float was chosen by nobody."""
    with pytest.raises(ActionRange, match="an action index"):
        recorder_of(endpoint).acted([0.0], 0.5)


# -- episode() of a learner in this process, and of one behind a service --------------------------

SPEC = {
    "observation": {"shape": [4]},
    "actions": [
        {"label": "SHORT", "value": -1},
        {"label": "FLAT", "value": 0},
        {"label": "LONG", "value": 1},
    ],
    "split_scope": "episode",
    "c51": {"hidden": 8, "atoms": 5, "batch_size": 8},
    "pacing": {"learning_starts": 32, "updates_per_transition": 0.25},
    "exploration": {"start": 1.0, "end": 0.5, "transitions": 96},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Return the application in memory."""
    with memory(tmp_path_factory.mktemp("data")) as http:
        yield http


@pytest.fixture(params=["learner", "remote"])
def opened(request):
    """``opened(spec)``: a learner in this process, then a model of the service."""
    if request.param == "learner":
        yield Learner
        return
    with connect(request.getfixturevalue("service"), "m") as endpoint:

        def create(spec):
            endpoint.create(spec)
            return endpoint

        yield create
        endpoint.delete()


@pytest.fixture
def ours(opened):
    """Return either of them, with the specification above."""
    return opened(SPEC)


def played(endpoint, **arguments):
    """Play an episode of OUSpread as a user would, and return its recorder and its actions."""
    env, chosen = gym.make("OUSpread-v0"), []
    obs, _ = env.reset(seed=3)
    with endpoint.episode(**arguments) as ep:
        while not ep.over:
            chosen.append(ep.act(obs))
            obs, reward, terminated, truncated, _ = env.step(chosen[-1])
            ep.record(reward, obs, terminated=terminated, truncated=truncated)
    return ep, chosen


def sent_by(endpoint, monkeypatch):
    """Return the list in which the rows that go to an endpoint will be."""
    rows, add = [], endpoint.add
    monkeypatch.setattr(endpoint, "add", lambda batch: rows.extend(batch) or add(batch))
    return rows


def test_a_plain_loop_is_tagged_whole(ours, monkeypatch):
    """Ids, timesteps, split, version and probability of every step are the helper's to know."""
    rows = sent_by(ours, monkeypatch)
    first, chosen = played(ours)
    ours.wait(first.flush().lsn)
    second, later = played(ours)
    info = ours.wait(second.flush().lsn)

    assert (info["replay"]["size"], info["mixed_episodes"], info["unversioned"]) == (96, 0, 0)
    assert (first.timestep, first.outbox.receipt.accepted, first.outbox.unsent) == (48, 48, ())
    assert [r.timestep for r in rows] == [*range(48), *range(48)]
    assert [r.episode_id for r in rows] == [first.episode_id] * 48 + [second.episode_id] * 48
    assert {r.split for r in rows} == {"train"}
    assert [r.action for r in rows] == [*chosen, *later]
    assert [r.policy_version for r in rows] == [a.policy_version for a in [*chosen, *later]]
    assert [r.behavior_prob for r in rows] == [a.behavior_prob for a in [*chosen, *later]]
    assert (chosen[0].policy_version, later[0].policy_version) == (0, 4)
    assert {a.value for a in chosen} <= {-1, 0, 1}
    assert all(a.label == ("SHORT", "FLAT", "LONG")[a] for a in chosen)
    assert [r.terminated for r in rows] == ([False] * 47 + [True]) * 2


def test_validation_plays_greedily(ours, monkeypatch):
    """The best action, with its probability of 1, goes to the held-out store."""
    rows = sent_by(ours, monkeypatch)
    ep, chosen = played(ours, split="validation")
    info = ours.wait(ep.flush().lsn)

    assert {r.split for r in rows} == {"validation"}
    assert {r.behavior_prob for r in rows} == {1.0}
    assert (info["replay"]["size"], info["validation"]["size"]) == (0, 48)
    best = ours.act(np.array([r.observation for r in rows]), deterministic=True).indices
    assert chosen == best.tolist()


def test_a_model_with_masks_is_played_with_them(opened):
    """Only allowed actions are chosen, greedily or not; the next mask goes with the transition."""
    endpoint = opened({"observation": {"shape": [1]}, "actions": 3, "action_masks": True})
    masks = [[t % 3 != i for i in range(3)] for t in range(31)]
    for split in ("train", "validation"):
        with endpoint.episode(split=split) as ep:
            for t in range(30):
                assert masks[t][ep.act([t], action_mask=masks[t])]
                ep.record(1.0, [t + 1], truncated=t == 29, next_action_mask=masks[t + 1])
        assert ep.outbox.receipt.accepted == 30


def test_an_endpoint_draws_its_actors_name_once(ours):
    """Its episodes have one actor, and names of their own, unless they are given."""
    first, second = ours.episode(), ours.episode(split="validation")
    named = ours.episode(actor_id="me", episode_id="one", batch_size=3)

    assert first.actor_id.startswith("loop-")
    assert first.actor_id == second.actor_id
    assert first.episode_id != second.episode_id
    assert (named.actor_id, named.episode_id, named.outbox.batch_size) == ("me", "one", 3)
    assert Learner(SPEC).episode().actor_id != first.actor_id
    with pytest.raises(UnknownSplit):
        ours.episode(split="test")
    with pytest.raises(InvalidValue, match="batch_size"):
        ours.episode(batch_size=0)


def test_a_loaded_learner_has_episodes_too(tmp_path):
    """Under another actor's name: it is another process's, as far as anyone knows."""
    learner = Learner(ModelSpec.preset("ou-note"))
    name = learner.episode().actor_id
    learner.save(tmp_path / "learner")

    assert Learner.load(tmp_path / "learner").episode().actor_id not in (name, None)
