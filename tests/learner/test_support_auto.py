"""``c51.support: auto`` in a learner: where it goes, what it keeps, and what recovery has."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from jormungandr import Learner, ModelSpec, PolicySnapshot
from jormungandr.errors import CheckpointError, InvalidInput
from jormungandr.learner.c51 import Update

SPEC = {
    "observation": {"shape": [2]},
    "actions": 2,
    "c51": {"support": "auto", "hidden": 16, "gamma": 0.9, "lr": 3e-3, "averaging": 0.9},
    "pacing": {"learning_starts": 64, "updates_per_transition": 1.0},
    "replay": {"alpha": 0.6},
}


def spec(**c51):
    """Return the specification with other settings of C51."""
    return ModelSpec.from_dict({**SPEC, "c51": {**SPEC["c51"], **c51}})


def rows(count, reward, start=0):
    """Return one endless episode: the reward follows from the observation and the action."""
    rng = np.random.default_rng(start)
    seen = rng.normal(size=(count + 1, 2)).astype(np.float32)
    return [
        {
            "actor_id": "a",
            "episode_id": "e",
            "timestep": start + t,
            "split": "train",
            "policy_version": -1,
            "observation": seen[t].tolist(),
            "action": t % 2,
            "reward": float(reward(seen[t], t % 2)),
            "next_observation": seen[t + 1].tolist(),
            "terminated": False,
            "truncated": False,
        }
        for t in range(count)
    ]


def good_or_bad(seen, action):
    """Return 1 for the action that the first element asks for, else 0."""
    return float((seen[0] > 0) == bool(action))


@pytest.mark.parametrize("engine", ["closed_form", "autograd"])
def test_it_begins_at_the_first_update_and_then_holds_the_returns(engine):
    """Until then the bounds say nothing; rewards of 0 and 1 at γ 0.9 have returns in 0..10."""
    learner = Learner(spec(engine=engine))
    assert learner.snapshot().bounds == (-1.0, 1.0)
    learner.add(rows(200, good_or_bad))
    low, high = learner.snapshot().bounds
    assert low == 0.0
    assert 5.0 < high <= 10.0
    assert learner.snapshot().support[-1] == high
    assert learner.metrics()["update"]["support"] == [low, high]


@pytest.mark.parametrize("engine", ["closed_form", "autograd"])
def test_what_was_learned_from_rewards_of_0_is_kept(engine):
    """The first other one moves the bounds, and not the values from 0 to the middle of them."""
    learner = Learner(spec(engine=engine))
    learner.add(rows(600, lambda *_: 0.0))
    seen = np.random.default_rng(9).normal(size=(200, 2)).astype(np.float32)
    before = learner.snapshot()
    learner.add(rows(1, lambda *_: 40.0, start=600))
    after = learner.snapshot()

    assert (before.update_count, after.update_count) == (536, 537)
    assert before.bounds == (-1.0, 1.0)
    low, high = after.bounds
    assert low == -high
    assert high >= 40.0
    assert np.abs(before.values(seen)).mean() < 0.1
    assert np.abs(after.values(seen) / high).mean() < 0.1


@pytest.mark.parametrize("engine", ["closed_form", "autograd"])
@pytest.mark.parametrize("dueling", [False, True])
def test_it_grows_where_the_rewards_grow_and_forgets_nothing(engine, dueling):
    """A hundredfold reward comes after 300 steps: the values go there, and choices stay."""
    learner = Learner(spec(engine=engine, dueling=dueling))
    learner.add(rows(300, good_or_bad))
    before, bounds = learner.snapshot(), learner.snapshot().bounds
    moved = learner.algorithm
    seen = np.random.default_rng(9).normal(size=(200, 2)).astype(np.float32)
    old = before.values(seen)
    moved.move_support((bounds[0], 1.25 * bounds[1]))
    learner._snapshot = None
    after = learner.snapshot()
    gap = after.support[1] - after.support[0]
    off = np.abs(after.values(seen) - old)
    assert off.mean() < gap / 2
    assert off.max() < 2 * gap
    clear = np.abs(old[:, 0] - old[:, 1]) > gap / 2
    assert clear.sum() > 20
    assert (after.values(seen).argmax(1) == old.argmax(1))[clear].all()
    learner.add(rows(900, lambda s, a: 100 * good_or_bad(s, a), start=300))
    assert learner.snapshot().bounds[1] > 300
    assert learner.metrics()["update"]["support_moves"] > 3
    assert not [w for w in learner.warnings() if w.startswith("support_clipped")]


def test_rewards_in_another_unit_are_learned_alike():
    """The same actions, and values a hundred times as large: with powers of two, to the bit."""
    policies = []
    for scale in (1.0, 128.0, 1 / 128):
        learner = Learner(spec())
        learner.add(rows(400, lambda s, a, scale=scale: scale * good_or_bad(s, a)))
        policies.append((scale, learner.snapshot()))
    seen = np.random.default_rng(5).normal(size=(300, 2)).astype(np.float32)
    plain = policies[0][1].values(seen)
    for scale, policy in policies[1:]:
        np.testing.assert_allclose(policy.values(seen), scale * plain, rtol=1e-3, atol=scale * 1e-2)


@pytest.mark.parametrize("engine", ["closed_form", "autograd"])
def test_a_checkpoint_goes_on_to_the_bit(engine, tmp_path):
    """Saved before its first update, between two moves, and after: rows give the same bits."""
    whole = Learner(spec(engine=engine))
    parts = [
        rows(40, good_or_bad),
        rows(160, good_or_bad, 40),
        rows(300, lambda s, a: 30 * good_or_bad(s, a), 200),
    ]
    split = Learner(spec(engine=engine))
    for i, part in enumerate(parts):
        whole.add(part)
        split.add(part)
        split.save(tmp_path / str(i))
        split = Learner.load(tmp_path / str(i))
    assert whole.metrics()["update"]["support_moves"] > 1
    assert split.snapshot().digest() == whole.snapshot().digest()
    assert split.snapshot().bounds == whole.snapshot().bounds


def test_how_rows_are_batched_makes_no_difference():
    """One by one and all at once."""
    one, all_at_once = Learner(spec()), Learner(spec())
    given = rows(150, good_or_bad)
    for row in given:
        one.add([row])
    all_at_once.add(given)
    assert one.snapshot().digest() == all_at_once.snapshot().digest()


def test_a_rollback_brings_the_support_of_its_copy():
    """The copy that is kept has the bounds its weights belong to, even those of nothing yet."""
    learner = Learner(spec())
    learner.add(rows(100, good_or_bad))
    learner._roll_back()
    assert learner.snapshot().bounds == (-1.0, 1.0)
    learner.add(rows(20, good_or_bad, start=100))
    assert learner.algorithm.bounds[1] > 1


def test_a_skipped_update_takes_its_move_back(tmp_path, monkeypatch):
    """A version number stands for one policy: what is saved then is what was served before."""
    learner = Learner(spec())
    served = learner.snapshot()
    state = learner.algorithm.state()
    refused = Update(False, float("nan"), None, float("nan"), 0.0, 0.0, np.zeros(64, np.float32))
    monkeypatch.setattr(learner.algorithm, "update", lambda *_: refused)
    learner.add(rows(66, good_or_bad))
    assert learner.progress.non_finite == 2
    learner.save(tmp_path / "saved")
    again = Learner.load(tmp_path / "saved")
    assert again.snapshot().version == served.version
    assert again.snapshot().digest() == served.digest() == learner.snapshot().digest()
    assert all((array == again.algorithm.state()[n]).all() for n, array in state.items())
    monkeypatch.undo()
    learner.add(rows(20, good_or_bad, 66))
    assert learner.algorithm.fitted
    assert learner.snapshot().bounds[1] > 1


def test_rewards_whose_bounds_are_those_of_nothing_yet():
    """Rewards of −1 and 1 without a future lie in −1..1; then come larger ones."""
    learner = Learner(spec(gamma=0.0))
    learner.add(rows(100, lambda s, a: 1.0 if a else -1.0))
    assert learner.algorithm.fitted
    assert learner.snapshot().bounds == (-1.0, 1.0)
    learner.add(rows(300, lambda s, a: 4.0 if a else -4.0, 100))
    assert learner.metrics()["update"]["support_moves"] > 2  # grown step by step, not begun anew


def test_a_policy_carries_its_bounds_in_its_bytes():
    """And a file whose bounds are missing, or come where the specification has them, is refused."""
    learner = Learner(spec())
    learner.add(rows(100, good_or_bad))
    policy = learner.snapshot()
    again = PolicySnapshot.from_bytes(policy.to_bytes())
    assert again.bounds == policy.bounds
    assert again.digest() == policy.digest()
    assert (again.support == policy.support).all()
    fixed = msgspec.structs.replace(policy.spec.c51, support=(-1.0, 1.0))
    other = msgspec.structs.replace(policy.spec, c51=fixed)
    for changed in ({"bounds": None}, {"spec": other}, {"bounds": (2.0, 1.0)}):
        with pytest.raises(CheckpointError, match="support"):
            PolicySnapshot.from_bytes(replace(policy, **changed).to_bytes())


@pytest.mark.parametrize("support", ["automatic", None, [1], [0, 1, 2], [5, 5]])
def test_another_support_is_refused(support):
    """With the words for what there is."""
    with pytest.raises(InvalidInput, match="support"):
        spec(support=support)
