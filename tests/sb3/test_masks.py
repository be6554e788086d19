"""Action masks at `predict`, of the policy and of the algorithm that explores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stable_baselines3.common.envs import SimpleMultiObsEnv

from jormungandr.errors import InvalidType, InvalidValue, JormungandrError, ShapeMismatch
from jormungandr.sb3 import C51, MultiInputPolicy

Build = Callable[..., C51]

RNG = np.random.default_rng(0)
X = (100 + 5 * RNG.normal(size=(40, 2))).astype(np.float32)
MASKS = RNG.random((40, 3)) < 0.5
MASKS[~MASKS.any(axis=1), 1] = True


def best_allowed(model: C51, x: NDArray[Any], masks: NDArray[np.bool_]) -> list[int]:
    """Return the best allowed action of each row, found one by one."""
    with torch.no_grad():
        values = model.q_net(torch.as_tensor(x)).numpy()
    return [
        max((a for a in range(len(row)) if row[a]), key=lambda a, i=i: (values[i, a], -a))
        for i, row in enumerate(masks)
    ]


def test_best_of_the_allowed_actions(model: Build) -> None:
    """Of a batch, and of each observation alone; without masks, or with full ones, of all."""
    learned = model().learn(60)
    free = learned.policy.predict(X)[0]
    expected = best_allowed(learned, X, MASKS)
    masked, state = learned.policy.predict(X, ("s",), action_masks=MASKS)
    one_by_one = [
        learned.policy.predict(x, action_masks=mask)[0] for x, mask in zip(X, MASKS, strict=True)
    ]

    assert masked.tolist() == expected != free.tolist()
    assert (masked.shape, masked.dtype, state) == ((40,), free.dtype, ("s",))
    assert [action.shape for action in one_by_one] == [()] * 40
    assert [int(action) for action in one_by_one] == expected
    assert learned.policy.predict(X[:1], action_masks=MASKS[0])[0].tolist() == expected[:1]
    assert learned.policy.predict(X, action_masks=MASKS.astype(int))[0].tolist() == expected
    assert learned.policy.predict(X, action_masks=np.ones((40, 3)) > 0)[0].tolist() == free.tolist()


def test_exploring_stays_among_the_allowed(model: Build) -> None:
    """Every allowed action is tried alike, no other one ever: chi-square at the 0.1 % level."""
    learned = model()
    learned.exploration_rate = 1.0
    learned.action_space.seed(0)
    mask = np.array([True, False, True])
    drawn = learned.predict(np.tile(X[0], (2000, 1)), action_masks=np.tile(mask, (2000, 1)))[0]
    counts = np.bincount(drawn, minlength=3)
    alone = [learned.predict(X[0], action_masks=[False, True, False])[0] for _ in range(5)]

    assert counts[1] == 0
    assert ((counts[[0, 2]] - 1000) ** 2 / 1000).sum() < 10.8  # one degree of freedom
    assert [(int(action), action.shape) for action in alone] == [(1, ())] * 5


@pytest.mark.parametrize(("rate", "deterministic"), [(0.0, False), (1.0, True)])
def test_algorithm_without_exploring_is_the_policy(
    model: Build, rate: float, deterministic: bool
) -> None:
    """`C51.predict` takes the best allowed actions when it does not explore."""
    learned = model().learn(60)
    learned.exploration_rate = rate
    actions, state = learned.predict(X, ("s",), deterministic=deterministic, action_masks=MASKS)

    assert actions.tolist() == best_allowed(learned, X, MASKS)
    assert state == ("s",)


def test_same_draws_decide_whether_to_explore(
    model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks change what is tried, not when."""
    learned = model()
    learned.exploration_rate = 0.5
    drawn: list[Any] = []
    monkeypatch.setattr(learned.action_space, "sample", lambda *mask: drawn.append(mask) or 0)
    when = []
    for masks in (None, MASKS[0]):
        np.random.seed(3)
        for _ in range(50):
            learned.predict(X[0], action_masks=masks)
            when.append(len(drawn))
        drawn.clear()

    assert when[:50] == when[50:]
    assert 10 < when[49] < 40


def test_dict_observations_have_masks_too() -> None:
    """A batch of Dicts counts its rows, a single Dict is one."""
    env = SimpleMultiObsEnv()
    learned = C51("MultiInputPolicy", env, buffer_size=8, device="cpu", seed=0)
    assert isinstance(learned.policy, MultiInputPolicy)
    one, _ = env.reset()
    three = {key: np.stack([value] * 3) for key, value in one.items()}
    masks = np.eye(4, dtype=bool)[[0, 2, 1]]
    for rate in (0.0, 1.0):
        learned.exploration_rate = rate

        assert learned.predict(three, action_masks=masks)[0].tolist() == [0, 2, 1]
        assert learned.predict(one, action_masks=masks[1])[0].tolist() == 2


@pytest.mark.parametrize("exploring", [False, True])
@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        (MASKS[:39], ShapeMismatch, r"action_masks: expected \(40, 3\).*got \(39, 3\)"),
        (MASKS[:, :2], ShapeMismatch, r"action_masks: expected \(40, 3\).*got \(40, 2\)"),
        (MASKS[0], ShapeMismatch, r"action_masks: expected \(40, 3\).*got \(3,\)"),
        ([[True], [True, False]], ShapeMismatch, "action_masks: .*different lengths"),
        (MASKS.astype(float), InvalidType, "action_masks: expected true or false.*float64"),
        (2 * MASKS.astype(int), InvalidType, "action_masks: expected true or false"),
        (
            np.where(np.arange(40)[:, None] == 7, False, MASKS),
            InvalidValue,
            r"action_masks\[7\]: expected at least one action allowed",
        ),
    ],
    ids=["rows", "actions", "one", "ragged", "floats", "twos", "nothing"],
)
def test_masks_that_do_not_fit_are_refused(
    model: Build, masks: Any, error: type[JormungandrError], message: str, exploring: bool
) -> None:
    """The error says what was expected, whether the algorithm would explore or not."""
    learned = model()
    learned.exploration_rate = float(exploring)
    with pytest.raises(error, match=message):
        learned.predict(X, action_masks=masks)


def test_pair_of_a_reset_is_explained(model: Build) -> None:
    """SB3's explanation of mixed-up interfaces is the one given with masks too."""
    pair: Any = (X[0], {})
    with pytest.raises(ValueError, match="mixing Gym API with SB3 VecEnv API"):
        model().policy.predict(pair, action_masks=MASKS[0])
