"""`OverlappedRecorder`: two halves in turns, and the transitions of both in lockstep."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jormungandr.errors import InvalidType, InvalidValue, Unavailable
from jormungandr_wrappers import OverlappedRecorder, VectorRecorder
from tests.fake_endpoint import FakeEndpoint
from tests.wrappers.walk import Walk

MODES = list(AutoresetMode)
DOWN = Unavailable("service", "a connection", "none")


def walks(count, mode, masked=False):
    """Return a vector of walks."""
    return SyncVectorEnv([lambda: Walk(masked=masked)] * count, autoreset_mode=mode)


def halves(sizes, mode, **more):
    """Return two vectors of walks."""
    return [walks(size, mode, **more) for size in sizes]


def facts(endpoint):
    """Return everything of the rows that were sent, in order."""
    return [
        (
            r.episode_id,
            r.timestep,
            r.split,
            r.policy_version,
            r.observation.tolist(),
            r.action,
            r.reward,
            r.next_observation.tolist(),
            r.terminated,
            r.truncated,
            r.behavior_prob,
            None if r.next_action_mask is None else list(r.next_action_mask),
        )
        for r in endpoint.rows
    ]


def lockstep(count, mode, steps, split, **more):
    """Return the facts of one recorder over all sub-environments: the slow truth."""
    endpoint = FakeEndpoint()
    env = walks(count, mode, masked="mask_key" in more)
    recorder = VectorRecorder(env, endpoint, actor_id="a", run="r", split=split, **more)
    seen, _ = recorder.reset(seed=3)
    for _ in range(steps):
        seen, _, terminated, truncated, _ = recorder.step(recorder.act(seen))
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            seen, _ = recorder.reset(options={"reset_mask": over})
    recorder.close()
    return facts(endpoint)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masks", [{}, {"mask_key": "action_mask"}])
def test_the_same_transitions_in_the_same_order(mode, overlap, masks):
    """With and without overlap, in all modes, as one recorder in lockstep makes them."""
    split = ["train", "validation", "train", "train", "validation"]
    endpoint = FakeEndpoint()
    recorder = OverlappedRecorder(
        halves((2, 3), mode, masked=bool(masks)),
        endpoint,
        actor_id="a",
        run="r",
        split=split,
        overlap=overlap,
        **masks,
    )
    recorder.reset(seed=3)
    for steps in (1, 7, 32):
        recorder.play(steps)
    recorder.close()

    assert facts(endpoint) == lockstep(5, mode, 40, split, **masks)


class Meeting(FakeEndpoint):
    """Answers only while a sub-environment steps, and lets it step only while it is asked."""

    def __init__(self):
        super().__init__()
        self.barrier = threading.Barrier(2, timeout=60)
        self.first = True

    def act(self, *given, **more):
        """Wait for a step."""
        if len(given[0]) == 2 and self.first:  # nobody steps beside the very first question
            self.first = False
        else:
            self.barrier.wait()
        return super().act(*given, **more)


def test_one_half_steps_while_the_other_is_asked_for():
    """A step and a question meet, every time: neither waits for the other to be done."""
    endpoint = Meeting()
    one, other = halves((2, 3), AutoresetMode.SAME_STEP)
    steps = iter(range(10))
    for half in (one, other):
        real = half.step

        def step(actions, real=real):
            if next(steps) < 9:  # beside the last one nobody is asked
                endpoint.barrier.wait()
            return real(actions)

        half.step = step
    recorder = OverlappedRecorder((one, other), endpoint, actor_id="a", overlap=True)
    recorder.reset(seed=0)
    recorder.play(5)

    assert len(endpoint.rows) == 25


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_an_error_of_the_endpoint_loses_nothing(overlap, at):
    """Sending fails at some half's step: the next call goes on, and all is as if it had not."""
    endpoint = FakeEndpoint()
    endpoint.failures = [None] * at + [(DOWN, False)]
    recorder = OverlappedRecorder(
        halves((2, 2), AutoresetMode.NEXT_STEP), endpoint, actor_id="a", run="r", overlap=overlap
    )
    recorder.reset(seed=3)
    with pytest.raises(Unavailable):
        recorder.play(10)
    done = (at + 2) // 2 if at % 2 else at // 2  # vector steps, whole ones
    recorder.play(20 - done - (0 if at % 2 else 1))
    recorder.close()

    assert facts(endpoint) == lockstep(4, AutoresetMode.NEXT_STEP, 20, "train")


def test_an_error_of_the_policy_leaves_the_episodes_as_they_are(monkeypatch):
    """When nobody answers, the call ends; the next one asks again."""
    endpoint, left = FakeEndpoint(), iter([True, True, True, False])
    real = endpoint.act
    monkeypatch.setattr(
        endpoint,
        "act",
        lambda *a, **k: real(*a, **k) if next(left, True) else (_ for _ in ()).throw(DOWN),
    )
    recorder = OverlappedRecorder(
        halves((2, 2), AutoresetMode.NEXT_STEP), endpoint, actor_id="a", run="r", overlap=True
    )
    recorder.reset(seed=3)
    with pytest.raises(Unavailable):
        recorder.play(10)
    recorder.play(18)
    recorder.close()

    found = facts(endpoint)
    assert len(found) > 60
    assert found == lockstep(4, AutoresetMode.NEXT_STEP, 30, "train")[: len(found)]


def test_an_error_of_an_environment_needs_a_reset():
    """Where it broke off was not seen: episodes begin anew."""
    one, other = halves((1, 1), AutoresetMode.SAME_STEP)
    recorder = OverlappedRecorder((one, other), FakeEndpoint(), actor_id="a")
    with pytest.raises(ResetNeeded):
        recorder.play(1)
    recorder.reset(seed=0)
    real = other.step
    other.step = lambda actions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        recorder.play(1)
    other.step = real
    with pytest.raises(ResetNeeded):
        recorder.play(1)
    recorder.reset()
    recorder.play(1)


def test_each_step_is_told():
    """`on_step` sees what each half returned, by its first sub-environment; it may end the play."""
    seen = []
    recorder = OverlappedRecorder(
        halves((1, 2), AutoresetMode.SAME_STEP), FakeEndpoint(), actor_id="a"
    )
    recorder.reset(seed=0)
    recorder.play(2, on_step=lambda first, result: seen.append((first, len(result[1]))))

    assert seen == [(0, 1), (1, 2)] * 2


def test_overlap_is_for_endpoints_that_act_at_a_service(learner):
    """A learner in this process is not asked by two threads; a remote one is, unless told."""
    one = OverlappedRecorder(halves((1, 1), MODES[0]), learner, actor_id="a")
    remote = FakeEndpoint()
    remote.placement = "remote"
    two = OverlappedRecorder(halves((1, 1), MODES[0]), remote, actor_id="a")
    three = OverlappedRecorder(halves((1, 1), MODES[0]), remote, actor_id="a", overlap=False)

    assert (one.overlap, two.overlap, three.overlap) == (False, True, False)


def test_arguments(endpoint):
    """What is no pair of vector environments, no seed for each or no number of steps is refused."""
    with pytest.raises(InvalidType, match="halves: expected two vector environments"):
        OverlappedRecorder(walks(2, MODES[0]), endpoint, actor_id="a")
    with pytest.raises(InvalidValue, match="one, twice"):
        OverlappedRecorder([walks(2, MODES[0])] * 2, endpoint, actor_id="a")
    with pytest.raises(InvalidType, match=r"halves\[0\]"):
        OverlappedRecorder([gym.make("CartPole-v1"), walks(1, MODES[0])], endpoint, actor_id="a")
    recorder = OverlappedRecorder(halves((2, 1), MODES[0]), endpoint, actor_id="a")
    with pytest.raises(InvalidValue, match="seed"):
        recorder.reset(seed=[1, 2])
    recorder.reset(seed=[1, 2, 3])
    for steps in (0, True, 1.5, np.float32(1)):
        with pytest.raises(InvalidValue, match="steps"):
            recorder.play(steps)
