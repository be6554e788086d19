"""`EpisodeRecorder`: a loop written by hand, without Gymnasium."""

import numpy as np
import pytest

from jormungandr.errors import EpisodeClosed, InvalidValue, Unavailable, UnknownSplit
from jormungandr_wrappers import EpisodeRecorder

DOWN = Unavailable("service", "a connection", "none")


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
            episode.step(state[0], state, terminated=state[0] > 3)

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
        episode.step(0.0, [1.0], label=np.int64(2))
        episode.acted([1.0], 0, policy_version=3, behavior_prob=0.5)
        episode.step(0.0, [2.0], truncated=True, label="UP")

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
            episode.step(0.0, state)
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
        episode.step(0.0, [1.0])
    episode.act([0.0])
    episode.step(0.0, [1.0])
    with pytest.raises(InvalidValue):
        episode.step(0.0, [2.0])
    assert episode.timestep == 1


def test_no_step_follows_the_end(endpoint):
    """The end sends what there is; a step after it is refused."""
    episode = recorder_of(endpoint)
    episode.act([0.0])
    episode.step(0.0, [1.0], terminated=True)
    assert (episode.over, len(endpoint.rows)) == (True, 1)
    with pytest.raises(EpisodeClosed):
        episode.step(0.0, [2.0])


def test_episodes_have_names_of_their_own(endpoint):
    """Without a name given, every recorder draws another."""
    names = {EpisodeRecorder(endpoint, actor_id="a").episode_id for _ in range(9)}
    assert len(names) == 9


def test_batches_and_flush(endpoint):
    """A long episode is sent in batches, and on request."""
    episode = recorder_of(endpoint, batch_size=2)
    for t in range(5):
        episode.acted([t], 0)
        episode.step(0.0, [t + 1.0])
    assert endpoint.requests == [2, 2]
    assert episode.flush().lsn == 3
    assert endpoint.requests == [2, 2, 1]


def test_an_error_in_the_loop_sends_what_happened_before(endpoint):
    """The loop's own error passes through, after the rows are sent."""

    def loop():
        with recorder_of(endpoint) as episode:
            episode.act([0.0])
            episode.step(0.0, [1.0])
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
            episode.step(0.0, [1.0], terminated=True)

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
