"""Action masks: every recorder sends those of now, and records those of the true successor."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from jormungandr import EpisodeRecorder, Learner, ModelSpec
from jormungandr.errors import (
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    UnknownField,
)
from jormungandr_wrappers import RemoteActor, VecEnvRecorder, VectorRecorder
from jormungandr_wrappers.masks import read_masks

MODES = list(AutoresetMode)
#: Where in an episode an observation is.
FIRST, LATER, LAST = 0, 1, 2
STEPS, LENGTH = 13, 3


def allowed(seed, t, where):
    """Return the mask of an observation: never nothing, never all."""
    number = (7 * seed + 3 * t + 2 * where) % 6 + 1
    return [bool(number >> k & 1) for k in range(3)]


class Doors(gym.Env):
    """Show seed, steps since the first reset, and place; every other end is a termination.

    Args:
        spoil: called with (t, where, info) before an info is returned.
    """

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(-999, 999, (3,))
    render_mode = None

    def __init__(self, spoil=None):
        self.spoil, self.t = spoil, 0

    def reset(self, *, seed=None, options=None):
        """Begin; only the first reset has a seed."""
        if seed is not None:
            self.seed, self.t = seed, 0
        return self.shown(FIRST)

    def step(self, action):
        """Count."""
        self.t += 1
        over, last = self.t % LENGTH == 0, self.t % (2 * LENGTH) == 0
        observation, info = self.shown(LAST if over else LATER)
        return observation, 1.0, over and not last, over and last, info

    def shown(self, where):
        """Return an observation, and its mask as Gymnasium's Taxi gives it."""
        mask = np.array(allowed(self.seed, self.t, where), np.int8)
        info = {"action_mask": mask, "t": self.t}
        if self.spoil is not None:
            self.spoil(self.t, where, info)
        return np.array([self.seed, self.t, where], np.float32), info


def without_at_terminations(t, where, info):
    """Leave the mask out where it is not needed."""
    if where == LAST and t % (2 * LENGTH):
        del info["action_mask"]


def nothing_at_terminations(t, where, info):
    """Allow nothing where nobody acts."""
    if where == LAST and t % (2 * LENGTH):
        info["action_mask"][:] = 0


def play_alone(endpoint, spoil=None, steps=STEPS):
    """Play with `RemoteActor`."""
    names = {"actor_id": "a", "run": "r", "mask_key": "action_mask"}
    RemoteActor(Doors(spoil), endpoint, **names, batch_size=1).run(steps=steps, seed=5)


def play_by_hand(endpoint, spoil=None, steps=STEPS):
    """Play in a loop, whose masks a caller hands on."""
    env, episode, number = Doors(spoil), None, 0
    observation, info = env.reset(seed=5)
    for _ in range(steps):
        if episode is None or episode.over:
            if episode is not None:
                observation, info = env.reset()
            episode = EpisodeRecorder(endpoint, actor_id="a", episode_id=f"r-0-{number}")
            number += 1
        action = episode.act(observation, action_mask=info["action_mask"])
        observation, reward, terminated, truncated, info = env.step(action)
        episode.record(
            reward,
            observation,
            terminated=terminated,
            truncated=truncated,
            next_action_mask=info.get("action_mask"),
        )
    episode.flush()


def vector_of(endpoint, mode, spoil=None, count=2, **more):
    """Return a recorder of a Gymnasium vector."""
    env = SyncVectorEnv([lambda: Doors(spoil)] * count, autoreset_mode=mode)
    more = {"actor_id": "a", "run": "r", "mask_key": "action_mask", **more}
    return VectorRecorder(env, endpoint, **more)


def play_vector(endpoint, spoil=None, steps=STEPS, *, mode):
    """Play two in a Gymnasium vector, the second of which is not looked at."""
    recorder = vector_of(endpoint, mode, spoil)
    observations, _ = recorder.reset(seed=[5, 11])
    while sum(r.episode_id.startswith("r-0-") for r in endpoint.rows) < steps:
        observations, _, over, cut, _ = recorder.step(recorder.act(observations))
        if mode is AutoresetMode.DISABLED and (over | cut).any():
            observations, _ = recorder.reset(options={"reset_mask": over | cut})


def vec_env_of(endpoint, spoil=None, **more):
    """Return a recorder of a VecEnv of Stable-Baselines3."""
    venv = DummyVecEnv([lambda: Doors(spoil)] * 2)
    more = {"actor_id": "a", "run": "r", "mask_key": "action_mask", **more}
    recorder = VecEnvRecorder(venv, endpoint, **more)
    recorder.seed(5)
    return recorder


def play_vec_env(endpoint, spoil=None, steps=STEPS):
    """Play two in a VecEnv."""
    recorder = vec_env_of(endpoint, spoil)
    observations = recorder.reset()
    for _ in range(steps):
        observations, _, _, _ = recorder.step(recorder.act(observations))


PLAYERS = {
    "alone": play_alone,
    "by hand": play_by_hand,
    **{mode.name: partial(play_vector, mode=mode) for mode in MODES},
    "vec_env": play_vec_env,
}


def played(spoil=None):
    """Return (observation, its mask, mask of the successor) of each step: the slow truth."""
    env, found = Doors(spoil), []
    observation, info = env.reset(seed=5)
    for _ in range(STEPS):
        seen = observation.tolist(), info["action_mask"].tolist()
        observation, _, terminated, truncated, info = env.step(0)
        after = info.get("action_mask")
        found.append((*seen, None if after is None else after.tolist()))
        if terminated or truncated:
            observation, info = env.reset()
    return found


@pytest.mark.parametrize("spoil", [None, without_at_terminations, nothing_at_terminations])
@pytest.mark.parametrize("player", PLAYERS)
def test_masks_of_now_and_of_the_true_successor(endpoint, player, spoil):
    """Whoever plays, the masks are those of the environment alone; a termination may lack one."""
    PLAYERS[player](endpoint, spoil)
    rows = [r for r in endpoint.rows if r.episode_id.startswith("r-0-")][:STEPS]
    expected = played(spoil)

    assert [r.observation.tolist() for r in rows] == [seen for seen, _, _ in expected]
    given = [None if (m := r.next_action_mask) is None else m.tolist() for r in rows]
    assert given == [after for _, _, after in expected]
    assert {(r.terminated, r.truncated) for r in rows if r.timestep == LENGTH - 1} == {
        (True, False),
        (False, True),
    }
    by_observation = {tuple(seen): mask for seen, mask, _ in expected}
    asked = []
    for (observations, _, _), masks in zip(endpoint.asked, endpoint.masks, strict=True):
        for seen, mask in zip(observations, masks["action_masks"], strict=True):
            if seen[0] == 5 and seen[2] != LAST:
                asked.append((seen.tolist(), mask.tolist()))
            elif seen[2] == LAST:  # chosen for nothing: the next step only resets
                assert mask.tolist() == [1, 1, 1]
    assert [mask for _, mask in asked] == [by_observation[tuple(seen)] for seen, _ in asked]
    assert [seen for seen, _ in asked][:STEPS] == [seen for seen, _, _ in expected]


TAXI = partial(gym.make, "Taxi-v4", max_episode_steps=7)


@pytest.mark.parametrize("player", ["alone", "vec_env", *(mode.name for mode in MODES)])
def test_a_learner_with_masks_drives_a_taxi(player):
    """What the policy chooses is always allowed, and what is sent is accepted."""
    learner = Learner(
        ModelSpec.for_env(
            TAXI(),
            action_masks=True,
            c51={"hidden": 8, "atoms": 5, "batch_size": 4},
            pacing={"learning_starts": 8},
        )
    )
    sent, add = [], learner.add
    learner.add = lambda rows: sent.extend(rows) or add(rows)
    if player == "alone":
        actor = RemoteActor(TAXI(), learner, actor_id="a", mask_key="action_mask", batch_size=1)
        actor.run(steps=30, seed=0)
    elif player == "vec_env":
        recorder = VecEnvRecorder(
            DummyVecEnv([TAXI] * 2), learner, actor_id="a", mask_key="action_mask"
        )
        recorder.seed(0)
        observations = recorder.reset()
        for _ in range(15):
            observations, *_ = recorder.step(recorder.act(observations))
    else:
        mode = AutoresetMode[player]
        env = SyncVectorEnv([TAXI] * 2, autoreset_mode=mode)
        recorder = VectorRecorder(env, learner, actor_id="a", mask_key="action_mask")
        observations, _ = recorder.reset(seed=0)
        for _ in range(17):
            observations, _, over, cut, _ = recorder.step(recorder.act(observations))
            if mode is AutoresetMode.DISABLED and (over | cut).any():
                observations, _ = recorder.reset(options={"reset_mask": over | cut})
    taxi = TAXI().unwrapped
    assert len(learner.replay) == len(sent) >= 30
    for row in sent:
        assert taxi.action_mask(row.observation)[row.action]
        assert row.next_action_mask.tolist() == taxi.action_mask(row.next_observation).tolist()
    assert learner.update_count > 0


def test_splits_are_asked_with_their_own_masks(endpoint):
    """The endpoint is asked once for each split; every row goes with its observation's mask."""
    splits = ["validation", "train", "validation"]
    recorder = vector_of(endpoint, AutoresetMode.SAME_STEP, count=3, split=splits)
    observations, _ = recorder.reset(seed=2)
    recorder.act(observations)
    masks = [given["action_masks"].tolist() for given in endpoint.masks]
    assert masks == [
        [allowed(3, 0, FIRST)],
        [allowed(2, 0, FIRST), allowed(4, 0, FIRST)],
    ]


def test_masks_are_copies(endpoint):
    """An environment may write into the mask that it returned."""
    masks = []
    spoil = lambda t, where, info: masks.append(info["action_mask"])  # noqa: E731
    RemoteActor(Doors(spoil), endpoint, actor_id="a", mask_key="action_mask").run(steps=2, seed=5)
    for mask in masks:
        mask[:] = 0
    assert endpoint.rows[0].next_action_mask.tolist() == allowed(5, 1, LATER)
    assert endpoint.rows[0].next_action_mask.dtype == np.bool_


@pytest.mark.parametrize("kind", ["vector", "vec_env"])
def test_a_forbidden_action_is_recorded_as_it_was_taken(endpoint, kind):
    """The caller decides; the mask says what the policy may choose, not what has happened."""
    recorder = (
        vector_of(endpoint, AutoresetMode.SAME_STEP) if kind == "vector" else vec_env_of(endpoint)
    )
    recorder.reset(**({} if kind == "vec_env" else {"seed": 5}))
    forbidden = [allowed(seed, 0, FIRST).index(False) for seed in (5, 6)]
    recorder.step(np.array(forbidden))
    assert [(r.action, r.policy_version) for r in endpoint.rows] == [(a, -1) for a in forbidden]


def test_without_a_mask_key_nothing_is_sent(endpoint):
    """A model without masks is not told of any."""
    recorder = vector_of(endpoint, AutoresetMode.SAME_STEP, mask_key=None)
    observations, _ = recorder.reset(seed=5)
    recorder.step(recorder.act(observations))
    assert endpoint.masks == [{}]
    assert {r.next_action_mask for r in endpoint.rows} == {None}


@pytest.mark.parametrize("kind", ["vector", "vec_env"])
def test_masks_are_known_after_a_reset_only(endpoint, kind):
    """Before it there is nothing that an action could be chosen among."""
    recorder = (
        vector_of(endpoint, AutoresetMode.NEXT_STEP) if kind == "vector" else vec_env_of(endpoint)
    )
    with pytest.raises(ResetNeeded, match="call reset"):
        recorder.act(np.zeros((2, 3), np.float32))
    assert endpoint.asked == []


def spoiled(at, value, phase=None):
    """Return a spoiler that changes the mask at a time; None takes it away."""

    def spoil(t, where, info):
        if t == at and phase in (None, where):
            if value is None:
                del info["action_mask"]
            else:
                info["action_mask"] = np.array(value)

    return spoil


#: What is wrong with a mask, and how it is called.
WRONG = {
    "missing": (None, MissingField, "expected a mask of 3 actions, got (nothing|only .*'t')"),
    "nothing allowed": ([0, 0, 0], InvalidValue, "at least one allowed action"),
    "too short": ([0, 1], ShapeMismatch, r"expected \(3,\), one per action, got \(2,\)"),
    "numbers": ([0, 1, 2], InvalidType, "true or false for each action"),
    "floats": ([0.0, 1.0, 1.0], InvalidType, "true or false for each action"),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("player", [name for name in PLAYERS if name != "by hand"])
@pytest.mark.parametrize("at", [0, 2, 2 * LENGTH])
def test_a_bad_mask_is_refused_by_name(endpoint, player, fault, at):
    """At a reset, in the middle and at a truncation; what was recorded before is kept."""
    value, error, message = WRONG[fault]
    place = r"info\['action_mask'\]" if player == "alone" else r"infos.*\['action_mask'\]\[0\]"
    with pytest.raises(error, match=f"^{place}: .*{message}.*broken off"):
        PLAYERS[player](endpoint, spoiled(at, value))
    rows = [r for r in endpoint.rows if r.episode_id.startswith("r-0-")]
    assert len(rows) == max(at - 1, 0)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, "vec_env"])
def test_the_mask_after_a_reset_in_the_same_step_is_needed(endpoint, mode):
    """A termination may lack its own, but somebody acts on what comes after."""
    spoil = spoiled(LENGTH, None)  # of the last observation, and of the first one after
    recorder = (
        vec_env_of(endpoint, spoil) if mode == "vec_env" else vector_of(endpoint, mode, spoil)
    )
    recorder.reset(**({} if mode == "vec_env" else {"seed": 5}))
    for _ in range(LENGTH - 1):
        recorder.step(np.zeros(2, int))
    with pytest.raises(MissingField, match=r"^infos\['action_mask'\]\[0\]"):
        recorder.step(np.zeros(2, int))
    assert len(endpoint.rows) == 2 * (LENGTH - 1)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, "vec_env"])
def test_a_truncation_needs_the_mask_of_its_last_observation(endpoint, mode):
    """What would have followed has a value, among what would have been allowed."""
    spoil = spoiled(2 * LENGTH, None, LAST)
    recorder = (
        vec_env_of(endpoint, spoil) if mode == "vec_env" else vector_of(endpoint, mode, spoil)
    )
    recorder.reset(**({} if mode == "vec_env" else {"seed": 5}))
    for _ in range(2 * LENGTH - 1):
        recorder.step(np.zeros(2, int))
    with pytest.raises(MissingField, match=r"""^infos\["final_info"\]\['action_mask'\]\[0\]"""):
        recorder.step(np.zeros(2, int))


def test_a_masked_reset_leaves_the_other_masks(endpoint):
    """Those that were not reset go on, and choose among what was allowed before."""
    recorder = vector_of(endpoint, AutoresetMode.DISABLED)
    recorder.reset(seed=5)
    recorder.step([0, 0])
    observations, _ = recorder.reset(options={"reset_mask": np.array([True, False])})
    recorder.act(observations)
    expected = [allowed(5, 1, FIRST), allowed(6, 1, LATER)]
    assert endpoint.masks[0]["action_masks"].tolist() == expected


@pytest.mark.parametrize("mode", MODES)
def test_after_a_missing_mask_only_a_reset_goes_on(endpoint, mode):
    """The episodes are broken off, not silently; new ones have new names."""
    gone = []
    recorder = vector_of(endpoint, mode, lambda t, where, info: gone and info.pop("action_mask"))
    recorder.reset(seed=5)
    recorder.step([0, 0])
    gone.append(True)
    with pytest.raises(MissingField, match=r"\[0\]: .*reset\(\) begins new ones"):
        recorder.step([0, 0])
    gone.clear()
    with pytest.raises(ResetNeeded):
        recorder.step([0, 0])
    observations, _ = recorder.reset(seed=5)
    recorder.step(recorder.act(observations))
    assert [r.episode_id for r in endpoint.rows] == ["r-0-0", "r-1-0", "r-0-1", "r-1-1"]


def test_the_other_sub_environment_is_named(endpoint):
    """Which one it was, and not only that one was."""
    recorder = vector_of(endpoint, AutoresetMode.NEXT_STEP)
    recorder.env.envs[1].spoil = spoiled(1, None)
    recorder.reset(seed=5)
    with pytest.raises(MissingField, match=r"^infos\['action_mask'\]\[1\]: .*got nothing"):
        recorder.step([0, 0])


def test_an_actor_goes_on_with_another_episode(endpoint):
    """A missing mask breaks its episode off, with an error; the next run begins a new one."""
    actor = RemoteActor(
        Doors(spoiled(2, None)), endpoint, actor_id="a", run="r", mask_key="action_mask"
    )
    with pytest.raises(MissingField, match="a running episode is broken off"):
        actor.run(steps=9, seed=5)
    assert len(actor.outbox.unsent) == 1
    actor.env.spoil = None
    actor.run(steps=1)
    assert [(r.episode_id, r.timestep) for r in endpoint.rows] == [("r-0-0", 0), ("r-0-1", 0)]


@pytest.mark.parametrize("given", [np.int8(1), np.array(3), np.ones((3, 3)), [1, 1, 1]])
def test_masks_that_are_not_one_per_sub_environment(given):
    """A vector environment that does not batch its infos is told so."""
    with pytest.raises(ShapeMismatch, match=r"one mask per sub-environment \(2\)"):
        read_masks({"action_mask": given}, "action_mask", 3, np.zeros(2, bool))


def test_infos_need_not_say_which_of_them_there_are():
    """Without ``_action_mask`` there is one of each; an entry that is None is none."""
    masks = [[1, 0, 1], [0, 1, 0]]
    found = read_masks({"action_mask": masks}, "action_mask", 3, np.zeros(2, bool))
    assert [mask.tolist() for mask in found] == masks
    with pytest.raises(MissingField, match=r"\[1\]"):
        read_masks({"action_mask": [masks[0], None]}, "action_mask", 3, np.zeros(2, bool))
    ragged = [[1, [0], 1], [0, 1, 0]]
    with pytest.raises(ShapeMismatch, match=r"\[0\]"):
        read_masks({"action_mask": ragged}, "action_mask", 3, np.zeros(2, bool))


def test_a_model_without_masks_refuses_them():
    """The model says so itself, and what to do."""
    learner = Learner(ModelSpec.for_env(Doors(), c51={"hidden": 8, "atoms": 5}))
    actor = RemoteActor(Doors(), learner, actor_id="a", mask_key="action_mask")
    with pytest.raises(UnknownField, match="create the model with action_masks"):
        actor.run(steps=1, seed=5)
