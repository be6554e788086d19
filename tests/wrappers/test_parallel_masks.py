"""`ParallelRecorder` with action masks, in an agent's info or in its observation."""

import numpy as np
import pytest
from gymnasium import spaces

from jormungandr import Learner
from jormungandr.errors import InvalidType, InvalidValue, MissingField, ShapeMismatch
from jormungandr_wrappers import ParallelRecorder
from tests.wrappers.crowd import CUT, END, SCRIPT, Crowd, recorder_of, step_all

PLACES = ("info", "observation")


def allowed(k, t):
    """Return the mask of agent k at a time: never nothing, never all."""
    number = (3 * k + t) % 6 + 1
    return [bool(number >> i & 1) for i in range(3)]


class Masked(Crowd):
    """A crowd whose agents are told what they may do, in either of the two places.

    Args:
        place: where.
        spoil: called with (agent, time, what holds the mask).
    """

    def __init__(self, place, script=None, spoil=None):
        super().__init__(script or SCRIPT)
        self.place, self.spoil = place, spoil

    def observation_space(self, agent):
        """Return the agent's space, with its mask where it is observed."""
        space = super().observation_space(agent)
        if self.place == "info":
            return space
        mask = spaces.Box(0, 1, (3,), np.int8)
        return spaces.Dict({"observation": space, "action_mask": mask})

    def reset(self, seed=None, options=None):
        """Begin."""
        return self.told(*super().reset(seed, options))

    def step(self, actions):
        """Go on."""
        observations, *others, infos = super().step(actions)
        observations, infos = self.told(observations, infos)
        return (observations, *others, infos)

    def told(self, observations, infos):
        """Put the masks where they belong."""
        for agent, observation in observations.items():
            mask = np.array(allowed(*map(int, observation)), np.int8)
            holder = infos[agent]
            if self.place == "observation":
                holder = observations[agent] = {"observation": observation}
            holder["action_mask"] = mask
            if self.spoil is not None:
                self.spoil(agent, self.now, holder)
        return observations, infos


def options(place):
    """Return the recorder's arguments for a place."""
    return {"mask_key": "action_mask", "mask_in": place}


def masked(endpoints, place, spoil=None, script=None):
    """Return a recorder after its reset, and the first observations."""
    return recorder_of(Masked(place, script, spoil), endpoints, **options(place))


def without_at_the_end(agent, t, holder):
    """Leave the mask of a termination out."""
    if agent == "b" and t == SCRIPT["b"][1]:
        del holder["action_mask"]


@pytest.mark.parametrize("spoil", [None, without_at_the_end])
@pytest.mark.parametrize("place", PLACES)
def test_masks_of_now_and_of_the_successor(endpoint, place, spoil):
    """Of whoever is there, newcomers and leavers too; the model observes no mask."""
    recorder, observations = masked(endpoint, place, spoil)
    while recorder.agents:
        observations, *_ = recorder.step(recorder.act(observations))

    found = {(r.actor_id, r.timestep): r for r in endpoint.rows}
    assert len(found) == len(endpoint.rows) == 4 + 2 + 1
    for k, (agent, (first, last, how)) in enumerate(SCRIPT.items()):
        for t in range(first, last):
            row = found[f"x-{agent}", t - first]
            assert row.observation.tolist() == [k, t]
            assert row.next_observation.tolist() == [k, t + 1]
            if spoil is not None and agent == "b" and t + 1 == last:
                assert row.next_action_mask is None
            else:
                assert row.next_action_mask.tolist() == allowed(k, t + 1)
            assert (row.terminated, row.truncated) == (how if t + 1 == last else (False, False))
    for (seen, _, _), masks in zip(endpoint.asked, endpoint.masks, strict=True):
        assert masks["action_masks"].tolist() == [allowed(*map(int, one)) for one in seen]


@pytest.mark.parametrize("place", PLACES)
def test_each_endpoint_gets_its_agents_masks(make_endpoint, place):
    """Two models, one of which two agents share."""
    one, other = make_endpoint(), make_endpoint()
    script = {"a": (0, 3, CUT), "b": (0, 3, END), "c": (0, 3, END)}
    recorder, observations = masked({"a": one, "b": other, "c": "a"}, place, script=script)
    recorder.act(observations)
    assert one.masks[0]["action_masks"].tolist() == [allowed(0, 0), allowed(2, 0)]
    assert other.masks[0]["action_masks"].tolist() == [allowed(1, 0)]


@pytest.mark.parametrize("place", PLACES)
def test_a_learner_with_masks(place):
    """Every agent chooses among what it is allowed, and the learner takes what is sent."""
    learner = Learner(
        {
            "observation": {"shape": [2]},
            "actions": 3,
            "action_masks": True,
            "c51": {"hidden": 8, "atoms": 5},
        }
    )
    recorder, observations = masked(learner, place)
    for _ in range(5):
        while recorder.agents:
            actions = recorder.act(observations)
            for agent, action in actions.items():
                assert allowed("abc".index(agent), recorder.env.now)[action]
            observations, *_ = recorder.step(actions)
        observations, _ = recorder.reset()
    assert len(learner.replay) == 5 * 7


def test_a_forbidden_action_is_recorded_as_it_was_taken(endpoint):
    """The mask is what a policy may choose, not what has happened."""
    recorder, _ = masked(endpoint, "observation")
    actions = {"a": allowed(0, 0).index(False), "b": allowed(1, 0).index(False)}
    recorder.step(actions)
    assert {r.actor_id: r.action for r in endpoint.rows} == {
        f"x-{agent}": action for agent, action in actions.items()
    }


def spoiled(agent, at, value):
    """Return a spoiler of one mask; None takes it away."""

    def spoil(name, t, holder):
        if (name, t) == (agent, at):
            if value is None:
                del holder["action_mask"]
            else:
                holder["action_mask"] = value

    return spoil


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("value", "error"),
    [(None, MissingField), ([0, 0, 0], InvalidValue), ([1, 0], ShapeMismatch), ("abc", None)],
)
def test_a_bad_mask_is_refused_by_the_agents_name(endpoint, place, value, error):
    """In a step all episodes are broken off, with the error; what came before is kept."""
    name = f"{place}s" if place == "observation" else "infos"
    where = rf"^{name}\['b'\]\['action_mask'\]: "
    error = error or ShapeMismatch
    with pytest.raises(error, match=where + ".*the environment has to tell it"):
        masked(endpoint, place, spoiled("b", 0, value))
    recorder, _ = masked(endpoint, place, spoiled("b", 1, value))
    with pytest.raises(error, match=where + ".*broken off"):
        step_all(recorder)
    assert endpoint.rows == []
    recorder.env.spoil = None
    recorder.reset()
    step_all(recorder)
    assert [(r.actor_id, r.episode_id) for r in endpoint.rows] == [
        ("x-a", "r-0-1"),
        ("x-b", "r-0-1"),
    ]


@pytest.mark.parametrize("place", PLACES)
def test_a_truncation_and_a_newcomer_need_their_masks(endpoint, place):
    """One is cut off, and its successor has a value; another acts on what it sees as it joins."""
    recorder, _ = masked(endpoint, place, spoiled("a", 4, None))
    for _ in range(3):
        step_all(recorder)
    with pytest.raises(MissingField, match=r"\['a'\]\['action_mask'\]"):
        step_all(recorder)
    recorder, _ = masked(endpoint, place, spoiled("c", 2, None))
    step_all(recorder)
    with pytest.raises(MissingField, match=r"\['c'\]\['action_mask'\]"):
        step_all(recorder)


def test_what_is_observed_must_be_an_observation_and_a_mask(endpoint):
    """Anything else in the Dict would be lost, and is not guessed about."""
    with pytest.raises(InvalidValue, match=r"observation_space\('a'\): .* got Box"):
        ParallelRecorder(Crowd(SCRIPT), endpoint, actor_id="x", **options("observation"))
    env = Masked("observation")
    more = {**options("observation"), "mask_key": "mask"}
    with pytest.raises(InvalidValue, match=r"'observation' and 'mask'.*see mask_in"):
        ParallelRecorder(env, endpoint, actor_id="x", **more)


def test_an_observation_without_its_parts(endpoint):
    """What an environment returns against its own space is refused."""
    recorder, _ = masked(endpoint, "observation")
    bare = {agent: np.zeros(2) for agent in ("a", "b")}
    with pytest.raises(InvalidType, match=r"observations\['a'\]: .*a dict of 'observation' and"):
        recorder.act(bare)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask_in": "observation"}, "mask_key: expected the key of the mask"),
        ({"mask_key": "m", "mask_in": "infos"}, "mask_in: expected 'info' or 'observation'"),
    ],
)
def test_arguments_are_checked(endpoint, given, message):
    """Before anything is played."""
    with pytest.raises(InvalidValue, match=message):
        ParallelRecorder(Crowd(SCRIPT), endpoint, actor_id="x", **given)
