"""Names and ends of steps, without any environment."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from jormungandr.episode import Choice
from jormungandr.errors import InvalidValue
from jormungandr_wrappers import Episodes

NO = np.zeros(2, dtype=bool)


def column(*values):
    """Return observations of one element each."""
    return np.array(values, dtype=np.float32)[:, None]


def episodes(mode, **more):
    """Return the episodes of two sub-environments in run r."""
    return Episodes(actor_id="a", splits=("train", "validation"), mode=mode, run="r", **more)


def facts(rows):
    """Return (episode, timestep, observation, next observation, terminated, truncated) of each."""
    return [
        (
            r.episode_id,
            r.timestep,
            float(r.observation[0]),
            float(r.next_observation[0]),
            r.terminated,
            r.truncated,
        )
        for r in rows
    ]


def test_next_step_drops_the_row_that_reports_a_reset():
    """After sub-environment 0's end its next row is no transition; then episode 1 begins at 0."""
    e = episodes(AutoresetMode.NEXT_STEP)
    e.begin(column(0, 10), {})
    act = [Choice(0), Choice(0)]
    end = np.array([True, False])

    first = e.advance(act, column(1, 11), [0, 0], end, NO, {})
    second = e.advance(act, column(5, 12), [0, 0], NO, NO, {})
    third = e.advance(act, column(6, 13), [0, 0], NO, NO, {})

    assert facts(first) == [("r-0-0", 0, 0, 1, True, False), ("r-1-0", 0, 10, 11, False, False)]
    assert facts(second) == [("r-1-0", 1, 11, 12, False, False)]
    assert facts(third) == [("r-0-1", 0, 5, 6, False, False), ("r-1-0", 2, 12, 13, False, False)]


def test_same_step_takes_the_last_observation_from_infos():
    """The successor of an ended step is `final_obs`; the next step starts at the reset one."""
    e = episodes(AutoresetMode.SAME_STEP)
    e.begin(column(0, 10), {})
    act = [Choice(0), Choice(0)]
    final = np.full(2, None, dtype=object)
    final[1] = np.array([99.0])

    first = e.advance(
        act,
        column(1, 50),
        [0, 0],
        NO,
        np.array([False, True]),
        {"final_obs": final, "_final_obs": np.array([False, True])},
    )
    final[1][:] = -1  # as an environment may that uses one array for all its observations
    second = e.advance(act, column(2, 51), [0, 0], NO, NO, {})

    assert facts(first) == [("r-0-0", 0, 0, 1, False, False), ("r-1-0", 0, 10, 99, False, True)]
    assert facts(second) == [("r-0-0", 1, 1, 2, False, False), ("r-1-1", 0, 50, 51, False, False)]


@pytest.mark.parametrize(
    "infos",
    [
        {},
        {"final_obs": np.array([None, None])},
        {"final_obs": np.array([[1.0], [2.0]]), "_final_obs": np.array([True, False])},
    ],
)
def test_same_step_without_a_last_observation_is_refused_and_changes_nothing(infos):
    """The reset observation must not stand in for it; the episodes are as before."""
    e = episodes(AutoresetMode.SAME_STEP)
    e.begin(column(0, 10), {})
    act = [Choice(0), Choice(0)]

    with pytest.raises(InvalidValue, match=r'infos\["final_obs"\]\[1\]'):
        e.advance(act, column(1, 50), [0, 0], NO, np.array([False, True]), infos)
    rows = e.advance(act, column(1, 11), [0, 0], NO, NO, {})
    assert facts(rows) == [("r-0-0", 0, 0, 1, False, False), ("r-1-0", 0, 10, 11, False, False)]


def test_disabled_waits_for_a_masked_reset():
    """No step is taken while an episode is over; the others go on where they were."""
    e = episodes(AutoresetMode.DISABLED)
    with pytest.raises(ResetNeeded, match="call reset"):
        e.check_running()
    with pytest.raises(ResetNeeded, match="full reset before a masked one"):
        e.begin(column(0, 10), {}, NO)
    e.begin(column(0, 10), {})
    act = [Choice(0), Choice(0)]
    e.advance(act, column(1, 11), [0, 0], NO, np.array([False, True]), {})
    with pytest.raises(ResetNeeded, match=r"sub-environments \[1\] are over"):
        e.check_running()

    # What a masked reset returns for the sub-environments it leaves alone is not looked at.
    e.begin(column(-1, 20), {}, np.array([False, True]))
    e.check_running()
    rows = e.advance(act, column(2, 21), [0, 0], NO, NO, {})

    assert facts(rows) == [("r-0-0", 1, 1, 2, False, False), ("r-1-1", 0, 20, 21, False, False)]


def test_a_reset_breaks_episodes_off():
    """A full reset in mid-episode begins new ids; the old ones never get an end."""
    e = episodes(AutoresetMode.NEXT_STEP)
    act = [Choice(0), Choice(0)]
    e.begin(column(0, 10), {})
    e.advance(act, column(1, 11), [0, 0], NO, NO, {})
    e.begin(column(5, 15), {})
    rows = e.advance(act, column(6, 16), [0, 0], NO, NO, {})

    assert facts(rows) == [("r-0-1", 0, 5, 6, False, False), ("r-1-1", 0, 15, 16, False, False)]


def test_labels_belong_to_the_observation_they_came_with():
    """A label is that of the previous infos; where the mask says there is none, there is none."""
    e = episodes(AutoresetMode.NEXT_STEP, label_key="sign")
    act = [Choice(0), Choice(0)]
    e.begin(column(0, 10), {"sign": np.array([2, 1])})
    infos = {"sign": np.array([0, 5]), "_sign": np.array([True, False])}
    first = e.advance(act, column(1, 11), [0, 0], NO, NO, infos)
    second = e.advance(act, column(2, 12), [0, 0], NO, NO, {})
    third = e.advance(act, column(3, 13), [0, 0], NO, NO, {})

    assert [[r.label for r in rows] for rows in (first, second, third)] == [
        [2, 1],
        [0, None],
        [None, None],
    ]
    assert type(first[0].label) is int


def test_a_masked_reset_keeps_the_other_labels():
    """Only the sub-environments that were reset get another label."""
    e = episodes(AutoresetMode.DISABLED, label_key="sign")
    e.begin(column(0, 10), {"sign": np.array([2, 1])})
    mask = np.array([False, True])
    e.begin(column(0, 20), {"sign": np.array([0, 0]), "_sign": mask}, mask)
    rows = e.advance([Choice(0), Choice(0)], column(1, 21), [0, 0], NO, NO, {})

    assert [r.label for r in rows] == [2, 0]
