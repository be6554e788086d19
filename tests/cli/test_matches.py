"""Playing and pairing: one seed, one episode, whoever plays it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from jormungandr import PolicySnapshot
from jormungandr.cli.contenders import (
    Contender,
    RandomContender,
    ReferenceContender,
    Seen,
    SnapshotContender,
)
from jormungandr.cli.matches import Paired, Played, act_on_batch, pair, play, summarize
from jormungandr.errors import InvalidType, InvalidValue, MissingField, NonFinite, ShapeMismatch


class Scribe(Contender):
    """Calls what it is told to, and writes down what it was asked."""

    def __init__(self, actions: list[int]) -> None:
        super().__init__("scribe")
        self.actions, self.asked, self.started = actions, [], []  # type: ignore[var-annotated]

    @property
    def description(self) -> str:
        """What it does."""
        return "writes everything down"

    def start(self, seed: int, episode: int) -> int:
        """Count steps from 0."""
        self.started.append((seed, episode))
        return 0

    def _choose(self, seen: Seen) -> tuple[np.ndarray[Any, Any], Any]:
        starts = seen.episode_start.tolist()
        self.asked.append((seen.observation.tolist(), seen.state, starts, seen.action_masks))
        return np.array(self.actions[seen.state % len(self.actions)]), seen.state + 1


def played(returns: list[float]) -> Played:
    """Return episodes with these returns."""
    values = np.array(returns)
    return Played(values, np.ones(len(returns), np.int64), np.zeros(len(returns), np.bool_))


def random_against_random(env_id: str, episodes: int, seed: int) -> Paired:
    """Compare a contender with itself."""
    both = []
    for _ in range(2):
        env = gymnasium.make(env_id)
        random = RandomContender("random", env.action_space)  # type: ignore[arg-type]
        both.append(play(random, env, episodes=episodes, seed=seed, max_steps=1_000))
    return pair(*both, seed=seed)


def test_episodes_are_those_of_a_plain_loop() -> None:
    """Episode i is the one that reset(seed=S + i) begins, and its return is a plain sum."""
    env = gymnasium.make("Coins-v0")
    result = play(Scribe([0, 1]), env, episodes=3, seed=11, max_steps=100)

    for i in range(3):
        bare = gymnasium.make("Coins-v0")
        bare.reset(seed=11 + i)
        rewards = [bare.step(action)[1] for action in (0, 1, 0, 1, 0, 1)]
        assert result.returns[i] == sum(rewards)  # type: ignore[arg-type]
    assert result.lengths.tolist() == [6, 6, 6]
    assert result.cut.tolist() == [False, False, False]
    assert env.unwrapped.seeds == [11, 12, 13]  # type: ignore[attr-defined]


def test_a_contender_is_asked_in_the_shape_of_stable_baselines() -> None:
    """It starts anew in each episode, gets its own state back, and knows where an episode began."""
    scribe = Scribe([2])
    play(scribe, gymnasium.make("Coins-v0"), episodes=2, seed=4, max_steps=3)

    assert scribe.started == [(4, 0), (4, 1)]
    assert [asked[1] for asked in scribe.asked] == [0, 1, 2, 0, 1, 2]
    assert [asked[2] for asked in scribe.asked] == [[True], [False], [False]] * 2
    assert [asked[0][1] for asked in scribe.asked] == [0, 1, 2, 0, 1, 2]
    assert all(asked[3] is None for asked in scribe.asked)


def test_an_episode_that_does_not_end_is_cut() -> None:
    """After `max_steps` the next episode begins, and the result says which were cut."""
    endless = play(Scribe([0]), gymnasium.make("EndlessCoins-v0"), episodes=2, seed=0, max_steps=9)
    assert (endless.lengths.tolist(), endless.cut.tolist()) == ([9, 9], [True, True])

    just = play(Scribe([0]), gymnasium.make("Coins-v0"), episodes=2, seed=0, max_steps=6)
    assert (just.lengths.tolist(), just.cut.tolist()) == ([6, 6], [False, False])


def test_a_mask_that_the_environment_shows_is_handed_on() -> None:
    """The mask in `info` belongs to the observation that came with it, from the reset on."""
    scribe = Scribe([0])
    play(scribe, gymnasium.make("MaskedCoins-v0"), episodes=1, seed=3, max_steps=100)

    assert len(scribe.asked) == 6
    for (side, _), _, _, mask in scribe.asked:
        assert mask.tolist() == [[s != (side + 2) % 3 for s in range(3)]]


@pytest.mark.parametrize(
    ("mask", "error", "text"),
    [
        ([1, 1], ShapeMismatch, r"expected \(3,\), one per action, got \(2,\)"),
        ([0, 0, 0], InvalidValue, "expected at least one allowed action"),
        ([2, 0, 0], InvalidType, "expected true or false for each action"),
        ([float("nan"), 0, 0], InvalidType, "expected true or false for each action"),
        ([[1], [1, 0], 1], ShapeMismatch, r"expected \(3,\), one per action"),
        (None, MissingField, "expected a mask of 3 actions"),
    ],
)
def test_a_mask_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, mask: Any, error: type[Exception], text: str
) -> None:
    """A mask has an entry for each action, and allows one of them."""
    env = gymnasium.make("Coins-v0").unwrapped
    whole = env.reset
    monkeypatch.setattr(env, "reset", lambda **given: (whole(**given)[0], {"action_mask": mask}))
    with pytest.raises(error, match=r"^info\['action_mask'\]: " + text):
        play(Scribe([0]), env, episodes=1, seed=0, max_steps=100)


def test_a_return_that_is_no_number_is_refused() -> None:
    """NaN is named by the seed of its episode, and no mean is taken over it."""
    env = gymnasium.make("BrokenCoins-v0")
    with pytest.raises(NonFinite, match=r"return of the episode with seed 5: .* got nan"):
        play(Scribe([0]), env, episodes=2, seed=5, max_steps=100)


def test_the_first_episode_is_watched() -> None:
    """A watcher looks after its reset and after each of its steps, and at no other episode."""
    looks: list[int] = []
    env = gymnasium.make("Coins-v0")
    play(
        Scribe([0]),
        env,
        episodes=3,
        seed=0,
        max_steps=100,
        watch=lambda: looks.append(len(env.unwrapped.seeds)),  # type: ignore[attr-defined]
    )

    assert looks == [1] * 7


def test_a_policy_that_repeats_its_actions_does_so_on_a_bare_environment(
    caller: Callable[..., PolicySnapshot],
) -> None:
    """What the specification says about repeated actions holds without a wrapper."""
    for repeat in (1, 2, 3):
        env = gymnasium.make("Coins-v0")
        policy = SnapshotContender("policy", caller(action_repeat=repeat))
        result = play(policy, env, episodes=2, seed=1, max_steps=100)
        called = env.unwrapped.called  # type: ignore[attr-defined]

        assert all(called[i] == called[i - i % repeat] for i in range(6))
        assert (result.returns == 6).all() == (repeat == 1)


def test_returns_in_numbers() -> None:
    """Each figure is the one that NumPy, or a look, gives."""
    summary = summarize(played([3.0, 1.0, 2.0, 10.0]), seed=0)

    assert (summary.mean.estimate, summary.iqm.estimate) == (4.0, 2.5)
    assert (summary.median, summary.lowest, summary.highest, summary.length) == (2.5, 1.0, 10.0, 1)
    assert summary.mean.low < 4.0 < summary.mean.high
    assert summary.iqm.low < 2.5 < summary.iqm.high


def test_pairs_in_numbers() -> None:
    """Differences are taken seed by seed before anything is averaged or trimmed."""
    paired = pair(played([5.0, 1.0, 7.0, 0.0]), played([1.0, 1.0, 6.0, 2.0]), seed=0)

    assert paired.mean.estimate == (4 + 0 + 1 - 2) / 4
    assert paired.iqm.estimate == (0 + 1) / 2
    assert paired.improvement[1:] == (2, 1, 1)
    assert paired.improvement.probability.estimate == 2.5 / 4


@pytest.mark.parametrize("env_id", ["Coins-v0", "MaskedCoins-v0", "CartPole-v1", "OUSpread-v0"])
def test_equal_contenders_do_not_differ(env_id: str) -> None:
    """A contender against itself ties on every seed, and the interval has no width."""
    paired = random_against_random(env_id, 12, 3)

    assert paired.mean == paired.iqm == (0.0, 0.0, 0.0)
    assert paired.improvement[1:] == (0, 12, 0)
    assert paired.improvement.probability.estimate == 0.5


def test_exchanging_contenders_flips_the_sign() -> None:
    """B minus A is A minus B mirrored at zero, intervals too."""
    rng = np.random.default_rng(0)
    a, b = (played(rng.normal(size=31).tolist()) for _ in range(2))
    one, other = pair(a, b, seed=5), pair(b, a, seed=5)

    for name in ("mean", "iqm"):
        estimate, low, high = getattr(one, name)
        np.testing.assert_allclose(getattr(other, name), (-estimate, -high, -low), rtol=1e-9)
    p, q = one.improvement.probability, other.improvement.probability
    np.testing.assert_allclose(q, (1 - p.estimate, 1 - p.high, 1 - p.low), rtol=1e-9)
    assert one.improvement.wins == other.improvement.losses > 0


def test_a_pair_is_narrower_than_its_parts() -> None:
    """What both have in common on a seed, however large, does not widen the interval."""
    rng = np.random.default_rng(1)
    luck = rng.normal(scale=100.0, size=50)
    a, b = played((luck + 1.0).tolist()), played((luck + rng.normal(scale=0.1, size=50)).tolist())
    paired = pair(a, b, seed=0)

    assert 0.9 < paired.mean.low < paired.mean.high < 1.1
    assert summarize(a, seed=0).mean.high - summarize(a, seed=0).mean.low > 40


def test_a_batch_is_acted_in_as_one(caller: Callable[..., PolicySnapshot]) -> None:
    """As a function of B observations a contender is asked once a step, and keeps its state."""
    sides = np.array([[0, 0], [1, 0], [2, 0]], dtype=np.float32)
    scribe = Scribe([0, 1])
    act = act_on_batch(scribe, 9)
    act(sides)
    act(sides)
    assert scribe.started == [(9, 0)]
    assert [asked[1:3] for asked in scribe.asked] == [(0, [True] * 3), (1, [False] * 3)]

    act = act_on_batch(SnapshotContender("policy", caller(action_repeat=2)), 0)
    assert [act(sides).tolist(), act(sides[::-1]).tolist(), act(sides[::-1]).tolist()] == [
        [0, 1, 2],
        [0, 1, 2],
        [2, 1, 0],
    ]


def test_a_reference_of_the_environment_is_played() -> None:
    """It is asked in the instance it belongs to, and calls every coin."""
    env = gymnasium.make("JudgedCoins-v0")
    reference = ReferenceContender("reference", env.unwrapped.reference_action)  # type: ignore[attr-defined]
    result = play(reference, env, episodes=2, seed=0, max_steps=100)

    assert result.returns.tolist() == [6.0, 6.0]
    assert math.isclose(summarize(result, seed=0).iqm.estimate, 6.0)
