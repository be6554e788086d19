"""Divergence: a bad step is skipped, several roll back, and a good policy is always served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]


@pytest.fixture
def learner(small: Small, step: Step) -> Learner:
    """Return a learner after six updates; its good copy is the one of update four."""
    learner = Learner(small())  # patience 2, a copy every 4 updates
    learner.add([step(t) for t in range(16)])
    assert (learner.update_count, learner.progress.since_copy) == (6, 2)
    return learner


def poison(learner: Learner) -> None:
    """Make the online network's next loss NaN, as an overflow would."""
    learner.algorithm.online.value.bias.data.fill_(float("nan"))


def finite(learner: Learner) -> bool:
    """Whether everything that is served is finite."""
    reply = learner.act([[0.0, 1.0]], deterministic=True)
    return bool(
        all(np.isfinite(w).all() for w in learner.snapshot().weights.values())
        and np.isfinite(reply.expected_values).all()
    )


def test_non_finite_update_is_skipped(learner: Learner, step: Step, state: State) -> None:
    """Without a version, without a trace in weights, optimizer, priorities or target."""
    before = state(learner)
    poison(learner)
    bad = learner.algorithm.state()
    learner.update()
    after = learner.algorithm.state()

    assert (learner.policy_version, learner.update_count) == (6, 6)
    assert learner.info()["updates"] == {"skipped": 0, "non_finite": 1, "rollbacks": 0}
    assert {k: v.tobytes() for k, v in after.items()} == {k: v.tobytes() for k, v in bad.items()}
    assert state(learner)["replay"] == before["replay"]
    assert not learner.diverged


def test_skipped_update_pays_its_debt(learner: Learner, step: Step) -> None:
    """A non-finite update is not owed: it is not tried again for the same transition."""
    poison(learner)
    learner.add([step(16), step(17)])

    assert learner.pacing.owed == 0
    assert learner.info()["updates"]["non_finite"] == 1


def test_patience_in_a_row_rolls_back(small: Small, step: Step, state: State) -> None:
    """`patience` of them in a row restore network, target and optimizer under a new version."""
    learner, twin = (Learner(small()) for _ in range(2))
    learner.add([step(t) for t in range(16)])
    twin.add([step(t) for t in range(12)])  # the state of update four, when the copy was made
    poison(learner)
    learner.update(2)

    assert learner.policy_version == 7
    assert learner.update_count == 6
    assert learner.info()["updates"] == {"skipped": 0, "non_finite": 2, "rollbacks": 1}
    assert state(learner)["algorithm"] == state(twin)["algorithm"]
    assert learner.diverged
    assert learner.info()["diverged"]
    assert any(w.startswith("diverged: ") for w in learner.info()["warnings"])


def test_rolls_back_to_the_initial_network(small: Small, step: Step, state: State) -> None:
    """Before the first copy, the good one is the initial network, with a fresh optimizer."""
    learner = Learner(small())
    learner.add([step(t) for t in range(8)])
    assert learner.update_count == 2
    poison(learner)
    learner.update(2)

    assert state(learner)["algorithm"] == state(Learner(small()))["algorithm"]
    assert (learner.policy_version, learner.snapshot().mean.tolist()) == (3, [0.0, 0.0])


def test_restored_policy_is_served(learner: Learner, small: Small, step: Step) -> None:
    """While diverged, the policy served is the good copy's, with its moments."""
    twin = Learner(small())
    twin.add([step(t) for t in range(12)])
    good = twin.snapshot()
    poison(learner)
    learner.update(2)
    served = learner.snapshot()

    assert (served.version, learner.act([[0.0, 1.0]]).policy_version) == (7, 7)
    assert learner.info()["policy_version"] == 7
    assert {k: v.tobytes() for k, v in served.weights.items()} == {
        k: v.tobytes() for k, v in good.weights.items()
    }
    assert (served.mean.tolist(), served.var.tolist()) == (good.mean.tolist(), good.var.tolist())


@pytest.mark.parametrize("diverged", [False, True])
def test_snapshot_shares_nothing_with_the_learner(
    learner: Learner, state: State, diverged: bool
) -> None:
    """Writing into a snapshot's arrays does not reach the learner, its good copy least of all."""
    if diverged:
        poison(learner)
        learner.update(2)
    before = state(learner)
    snapshot = learner.snapshot()
    for array in (snapshot.mean, snapshot.var, *snapshot.weights.values()):
        array[...] = 7.0
    after = state(learner)
    del before["snapshot"], after["snapshot"]

    assert after == before


def test_a_good_update_ends_a_run(learner: Learner) -> None:
    """Patience counts in a row: good updates between bad ones are a new start."""
    for _ in range(3):
        good = learner.algorithm.state()
        poison(learner)
        learner.update()
        learner.algorithm.restore(good)
        learner.update()

    assert learner.info()["updates"] == {"skipped": 0, "non_finite": 3, "rollbacks": 0}
    assert learner.policy_version == learner.update_count == 9


def test_recovery(learner: Learner, step: Step) -> None:
    """After as many good updates as a new copy takes, the newest policy is served again."""
    poison(learner)
    learner.update(2)
    seen = []
    for _ in range(5):
        learner.update()
        seen.append((learner.policy_version, learner.served_version, learner.diverged))

    assert seen == [
        (8, 7, True),
        (9, 7, True),
        (10, 7, True),
        (11, 11, False),
        (12, 12, False),
    ]
    assert not any(w.startswith("diverged: ") for w in learner.info()["warnings"])
    assert learner.snapshot().version == 12
    # What acted while it was diverged, and what was made meanwhile, is known when it comes back.
    assert learner.add([step(t, policy_version=v) for t, v in ((16, 7), (17, 9))]).accepted == 2


def test_diverged_again(learner: Learner) -> None:
    """A second divergence restores the same good copy under yet another version."""
    poison(learner)
    learner.update(2)
    first = learner.snapshot()
    learner.update(1)
    poison(learner)
    learner.update(2)
    second = learner.snapshot()

    assert (first.version, second.version) == (7, 9)
    assert first.weights["value.bias"].tobytes() == second.weights["value.bias"].tobytes()
    assert learner.info()["updates"]["rollbacks"] == 2


@pytest.mark.parametrize("copy_every", [1, 4])
def test_step_that_ruins_the_weights(small: Small, step: Step, copy_every: int) -> None:
    """A step whose loss is finite and whose result is not makes no policy and no good copy."""
    learner = Learner(
        small(c51={"lr": 1e300}, divergence={"patience": 2, "copy_every": copy_every})
    )
    for t in range(60):
        learner.add([step(t)])
        assert finite(learner)

    assert learner.update_count == 0
    assert learner.diverged
    assert all(np.isfinite(a).all() for a in learner.algorithm.state().values())


def test_extreme_rewards_and_rate(small: Small, step: Step) -> None:
    """Absurd settings and rewards end in no exception, and serve no policy that is not finite."""
    learner = Learner(
        small(
            observation={"features": ["x", "y"], "normalize": False},
            c51={"lr": 1e6, "max_grad_norm": 1e30},
            pacing={"updates_per_transition": 2.0},
        )
    )
    rng = np.random.default_rng(0)
    for t in range(60):
        x = (rng.normal(size=2) * 10.0 ** rng.integers(0, 38)).tolist()
        learner.add([step(t, observation=x, next_observation=x, reward=3e38 * (-1) ** t)])
        assert finite(learner)

    assert learner.info()["updates"]["non_finite"] > 0


@pytest.mark.parametrize("auxiliary", [True, False])
def test_diverged_state_survives_a_checkpoint(
    learner: Learner, small: Small, step: Step, tmp_path: Path, auxiliary: bool
) -> None:
    """A model saved while diverged serves the same good policy when it comes back."""
    if not auxiliary:
        learner = Learner(small(auxiliary=None))
        learner.add([step(t) for t in range(16)])
    poison(learner)
    learner.update(3)
    learner.save(tmp_path / "saved")
    back = Learner.load(tmp_path / "saved")
    x = np.array([[0.0, 1.0], [2.0, -1.0]])

    assert back.diverged
    assert back.snapshot().version == 7
    assert back.snapshot().digest() == learner.snapshot().digest()
    assert np.array_equal(back.snapshot().values(x), learner.snapshot().values(x))
    assert {**back.info(), "lag": None} == {**learner.info(), "lag": None}
    learner.update(4)
    back.update(4)
    assert back.snapshot().digest() == learner.snapshot().digest()
