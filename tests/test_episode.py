"""One episode: names of its steps, what an action carries, copies of what was seen."""

import copy
import pickle
import re

import numpy as np
import pytest
from gymnasium import spaces

from jormungandr.episode import (
    Choice,
    ChosenAction,
    Episode,
    as_batch,
    check_split,
    copied,
    new_run,
)
from jormungandr.errors import (
    EpisodeClosed,
    InvalidType,
    InvalidValue,
    NonFinite,
    ShapeMismatch,
    UnknownSplit,
)


def test_runs_differ_and_have_64_bits():
    """A run's name is 16 hexadecimal digits, and a thousand of them are all different."""
    runs = {new_run() for _ in range(1000)}

    assert len(runs) == 1000
    assert all(re.fullmatch("[0-9a-f]{16}", run) for run in runs)


def test_timesteps_count_up_to_the_end_and_no_further():
    """Timesteps are 0, 1, 2 …; a step after the end is refused and changes nothing."""
    episode = Episode(actor_id="a", episode_id="e", split="train")
    rows = [
        episode.transition([0.0], Choice(0), 1, [1.0], False, False),
        episode.transition([1.0], Choice(0), 1, [2.0], False, True),
    ]

    assert [r.timestep for r in rows] == [0, 1]
    assert episode.over
    with pytest.raises(EpisodeClosed, match="after its end at timestep 1"):
        episode.transition([2.0], Choice(0), 1, [3.0], False, False)
    assert episode.timestep == 2


def test_a_transition_holds_python_numbers():
    """Scalars of NumPy become Python's, whatever an environment returned."""
    episode = Episode(actor_id="a", episode_id="e", split="train")
    row = episode.transition([0.0], Choice(1, 3, 0.5), np.float32(2), [1.0], np.True_, np.False_)

    assert (type(row.reward), type(row.terminated), type(row.truncated)) == (float, bool, bool)
    assert (row.action, row.policy_version, row.behavior_prob) == (1, 3, 0.5)


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        ("1.5", InvalidType),
        (b"1", InvalidType),
        (None, InvalidType),
        ([1.0], InvalidType),
        ({}, InvalidType),
        (1j, InvalidType),
        (float("nan"), NonFinite),
        (-np.inf, NonFinite),
        (1e39, NonFinite),
        (10**400, NonFinite),
    ],
)
def test_a_reward_is_a_number(reward, error):
    """What no learner takes is refused at its step, before it waits among those to be sent."""
    episode = Episode(actor_id="a", episode_id="e", split="train")
    with pytest.raises(error, match=r"^reward: expected a number"):
        episode.transition([0.0], Choice(0), reward, [1.0], False, False)
    assert episode.timestep == 0
    for good in (1, True, np.float16(0.5), np.array(2.0)):
        episode.transition([0.0], Choice(0), good, [1.0], False, False)


@pytest.mark.parametrize("flag", ["no", "", None, 2, -1, 0.0, 0.5, [], {}, [True, False]])
def test_a_flag_is_true_or_false(flag):
    """Python's truth of something else is no answer: "no" is true."""
    episode = Episode(actor_id="a", episode_id="e", split="train")
    with pytest.raises(InvalidType, match=r"^terminated: expected true or false"):
        episode.transition([0.0], Choice(0), 1, [1.0], flag, False)
    with pytest.raises(InvalidType, match=r"^truncated: expected true or false"):
        episode.transition([0.0], Choice(0), 1, [1.0], False, flag)
    assert (episode.timestep, episode.over) == (0, False)


@pytest.mark.parametrize("flag", [0, np.False_, np.uint8(0), np.array(False), np.array([0])])
def test_a_flag_may_be_zero_or_one(flag):
    """As environments that are no stricter return it, also in an array of one."""
    row = Episode(actor_id="a", episode_id="e", split="train").transition(
        [0.0], Choice(0), 1, [1.0], flag, 1
    )
    assert (row.terminated, row.truncated) == (False, True)


def test_further_fields_of_a_transition_are_handed_on():
    """What an episode does not know of a transition reaches it all the same."""
    episode = Episode(actor_id="a", episode_id="e", split="train")
    mask = np.array([True, False])
    row = episode.transition([0.0], Choice(0), 1, [1.0], False, False, next_action_mask=mask)

    assert row.next_action_mask is mask


LONG = ChosenAction(2, "LONG", 1.5, 7, 0.25)


def test_a_chosen_action_is_an_int_for_any_environment():
    """Gymnasium's Discrete takes it; arithmetic, indexing and printing are those of the index."""
    assert LONG in spaces.Discrete(3)
    assert LONG not in spaces.Discrete(2)
    assert (LONG == 2, LONG + 1, "abc"[LONG], f"{LONG}", hash(LONG)) == (True, 3, "c", "2", 2)
    assert (np.array([LONG]).dtype, type(LONG.index)) == (np.int64, int)


@pytest.mark.parametrize(
    "make", [lambda a: a, copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]
)
def test_a_chosen_action_says_where_it_came_from(make):
    """So does its copy, and the one that reached an environment in another process."""
    again = make(LONG)
    assert (again.index, again.label, again.value) == (2, "LONG", 1.5)
    assert (again.policy_version, again.behavior_prob) == (7, 0.25)


def test_copies_share_nothing_with_what_was_seen():
    """Arrays, also those in a dict, may be written into by their owner afterwards."""
    seen = {"place": np.zeros(2, np.uint8), "inner": {"bits": np.ones(1)}}
    kept = copied(seen)
    seen["place"][:], seen["inner"]["bits"][:] = 9, 9

    assert (kept["place"].tolist(), kept["place"].dtype) == ([0, 0], np.uint8)
    assert kept["inner"]["bits"].tolist() == [1.0]


@pytest.mark.parametrize("seen", [3, np.int64(3), np.array(3)])
def test_a_discrete_observation_is_a_plain_number(seen):
    """Whatever kind of 3 the environment showed."""
    assert (copied(seen), type(copied(seen))) == (3, int)


def test_the_pair_of_a_reset_is_no_observation():
    """The usual slip, ``obs = env.reset()``, is named; a tuple of numbers is an observation."""
    with pytest.raises(InvalidType, match=r"the \(observation, info\) pair.*obs, info = env.reset"):
        copied((np.zeros(2), {}))
    assert copied((1.0, 2.0)).tolist() == [1.0, 2.0]


def test_a_ragged_list_is_no_observation():
    """It is named in our own words."""
    with pytest.raises(ShapeMismatch, match="observation: expected an array"):
        copied([[1.0], [1.0, 2.0]])


def test_one_observation_as_a_batch():
    """An array gets an axis, a number becomes an array, a dict is alone in a list."""
    assert as_batch(np.zeros((2, 3))).shape == (1, 2, 3)
    assert as_batch(4).tolist() == [4]
    assert as_batch({"x": 1}) == [{"x": 1}]


def test_splits_are_checked():
    """One for all, or one for each, of the two there are."""
    assert check_split("train") == ("train",)
    assert check_split("validation", 2) == ("validation", "validation")
    assert check_split(["train", "validation"], 2) == ("train", "validation")
    with pytest.raises(UnknownSplit, match=r"split\[1\]"):
        check_split(["train", "test"], 2)
    with pytest.raises(InvalidValue, match=r"\(3\), got 2"):
        check_split(["train", "train"], 3)
    for given in (None, 5):
        with pytest.raises(InvalidType, match="split: expected one of"):
            check_split(given)
