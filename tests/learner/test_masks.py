"""Action masks: in what is sent, for exploration, for the best action and for the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jormungandr import Learner, ModelSpec
from jormungandr.columns import columns
from jormungandr.errors import (
    InvalidInput,
    InvalidType,
    InvalidValue,
    MissingField,
    ShapeMismatch,
    UnknownField,
)
from jormungandr.learner.c51 import C51, Batch, target_distribution

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]

X = [[0.5, -1.0], [0.0, 2.0], [1.0, 1.0]]
MASKS = [[True, False, True], [False, True, False], [True, True, True]]


@pytest.fixture
def learner(small: Small, step: Step) -> Learner:
    """Return a model with masks, after some updates."""
    learner = Learner(small(action_masks=True))
    rng = np.random.default_rng(0)
    for t in range(16):
        mask = rng.random(3) < 0.6
        mask[rng.integers(3)] = True
        learner.add([step(t, reward=float(rng.normal()), next_action_mask=mask)])
    return learner


def test_best_among_allowed(learner: Learner) -> None:
    """The greedy action is the allowed one of the highest value; the values are those of all."""
    reply = learner.act(X, deterministic=True, action_masks=MASKS)
    values = np.array(reply.expected_values)
    allowed = [[i for i in range(3) if mask[i]] for mask in MASKS]

    assert values.tolist() == learner.snapshot().values(np.array(X, np.float32)).tolist()
    expected = [max(allowed[b], key=lambda i: values[b, i]) for b in range(3)]
    assert reply.indices.tolist() == expected
    assert reply.behavior_prob == [1.0, 1.0, 1.0]
    for forbidden in range(3):  # whatever the values are, it is never the forbidden one
        mask = [i != forbidden for i in range(3)]
        assert forbidden not in learner.act(X, True, action_masks=[mask] * 3).indices


def test_exploration_among_allowed(learner: Learner) -> None:
    """Each allowed action is explored as often as any other, and says with what probability."""
    epsilon, count = 0.6, 6_000
    x, masks = [X[0]] * count, [MASKS[0]] * count
    reply = learner.act(x, epsilon=epsilon, action_masks=masks)
    best = learner.act([X[0]], True, action_masks=[MASKS[0]]).indices[0]
    other = 2 - best  # of actions 0 and 2
    share = np.bincount(reply.indices, minlength=3) / count

    assert share[1] == 0
    assert share[other] == pytest.approx(epsilon / 2, abs=0.03)
    for index, probability in zip(reply.indices, reply.behavior_prob, strict=True):
        expected = 1 - epsilon / 2 if index == best else epsilon / 2
        assert probability == pytest.approx(expected)


def test_all_allowed_is_no_mask(small: Small) -> None:
    """Greedily, a mask that allows everything changes nothing."""
    plain, masked = Learner(small()), Learner(small(action_masks=True))
    everything = [[1, 1, 1]] * 3

    assert (
        masked.act(X, True, action_masks=everything).indices.tolist()
        == plain.act(X, True).indices.tolist()
    )


@pytest.mark.parametrize("double", [False, True])
def test_target_bootstraps_from_allowed_actions(small: Small, double: bool) -> None:
    """The target of each transition is that of its best allowed successor action."""
    spec = small(action_masks=True, c51={"double": double, "batch_size": 6})
    algorithm = C51(spec, np.random.default_rng(0))
    other = C51(spec, np.random.default_rng(1))
    algorithm.target.set_weights(other.online.get_weights())
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 2)).astype(np.float32)
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]], bool)
    chooser = algorithm if double else other
    support = np.linspace(-2, 2, 11)

    def values(network: C51) -> Any:
        import torch

        with torch.no_grad():
            logits = network.online(torch.from_numpy(x))[0]
            return logits, torch.softmax(logits, -1).numpy() @ support

    target_logits, _ = values(other)
    chooser_logits, q = values(chooser)
    best = [max(np.flatnonzero(masks[b]), key=lambda i: q[b, i]) for b in range(6)]
    import torch

    found, _, _ = target_distribution(
        algorithm.support,
        target_logits,
        chooser_logits if double else None,
        torch.zeros(6),
        torch.ones(6),
        torch.from_numpy(masks),
    )
    expected = torch.softmax(target_logits, -1)[torch.arange(6), torch.tensor(best)]

    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    batch = Batch(
        observation=x,
        action=np.zeros(6, np.int64),
        reward=np.zeros(6, np.float32),
        next_observation=x,
        discount=np.ones(6, np.float32),
        label=np.full(6, -1, np.int32),
        next_action_mask=masks,
    )
    losses = algorithm.losses(batch).categorical
    logits = values(algorithm)[0][:, 0]
    by_hand = -(expected * torch.log_softmax(logits, -1)).sum(-1)
    assert losses == pytest.approx(by_hand.numpy(), abs=1e-5)


@pytest.mark.parametrize("n_step", [1, 2])
def test_learns_what_is_allowed(n_step: int) -> None:
    """From A, `go` leads to B; in B only `poor` (0) is allowed, though `rich` would pay 1.

    `stay` pays 0.3 at once. Without the mask `go` looks better, since `rich` was tried in C, which
    looks like B.
    """
    spec = ModelSpec.from_dict(
        {
            "observation": {"shape": [1], "normalize": False},
            "actions": [{"label": n, "value": n} for n in ("stay", "go", "poor", "rich")],
            "action_masks": True,
            "c51": {
                "atoms": 21,
                "support": [-1, 1],
                "hidden": 32,
                "lr": 3e-3,
                "adam_eps": 1e-8,
                "gamma": 1.0,
                "n_step": n_step,
                "target_interval": 25,
                "batch_size": 32,
            },
            "pacing": {"learning_starts": 60, "updates_per_transition": 1},
            "replay": {"alpha": 0},
        }
    )
    learner, rng = Learner(spec), np.random.default_rng(0)
    in_a, in_b, everything = [1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 1, 1]

    def step(e: int, t: int, x: float, action: int, reward: float, y: float, mask: Any) -> Any:
        end = mask is None
        row = {"actor_id": "a", "episode_id": f"e{e}", "timestep": t, "split": "train"}
        row |= {"policy_version": -1, "observation": [x], "action": action, "reward": reward}
        row |= {"next_observation": [y], "terminated": end, "truncated": False}
        return row if end else {**row, "next_action_mask": mask}

    for e in range(220):
        if e % 3 == 0:  # C looks like B, and allows everything
            learner.add([step(e, 0, 1.0, 3, 1.0, 0.0, None)])
        elif rng.random() < 0.5:
            learner.add([step(e, 0, -1.0, 0, 0.3, 0.0, None)])
        else:
            learner.add([step(e, 0, -1.0, 1, 0.0, 1.0, in_b), step(e, 1, 1.0, 2, 0.0, 0.0, None)])
    reply = learner.act([[-1.0], [1.0], [1.0]], True, action_masks=[in_a, in_b, everything])

    assert [a.label for a in reply.actions] == ["stay", "poor", "rich"]
    assert reply.expected_values[0][1] == pytest.approx(0.0, abs=0.15)
    assert reply.expected_values[1][3] == pytest.approx(1.0, abs=0.15)


REQUESTS: list[tuple[Any, type[InvalidInput], str]] = [
    (None, MissingField, "action_masks"),
    ([[True, True]] * 3, ShapeMismatch, "action_masks[0]"),
    (MASKS[:2], ShapeMismatch, "action_masks"),
    ([*MASKS[:2], [False, False, False]], InvalidValue, "action_masks[2]"),
    ([*MASKS[:2], [0, 1, 2]], InvalidType, "action_masks[2]"),
    ([*MASKS[:2], [0.0, 1.0, 1.0]], InvalidType, "action_masks[2]"),
    ([*MASKS[:2], None], ShapeMismatch, "action_masks[2]"),
    ([*MASKS[:2], "yes"], ShapeMismatch, "action_masks[2]"),
    (7, InvalidType, "action_masks"),
]


@pytest.mark.parametrize(("masks", "error", "where"), REQUESTS, ids=range(len(REQUESTS)))
def test_refused_in_a_request(
    learner: Learner, masks: Any, error: type[InvalidInput], where: str
) -> None:
    """A mask that is missing, of another shape, or allows nothing is refused at its place."""
    with pytest.raises(InvalidInput) as caught:
        learner.act(X, action_masks=masks)

    assert (type(caught.value), caught.value.where) == (error, where)


def test_one_mask_for_one_observation(learner: Learner) -> None:
    """A single observation takes a single mask, as arrays of any integer kind too."""
    one = learner.act(X[0], True, action_masks=np.array([0, 1, 0], np.int8))

    assert one.indices.tolist() == [1]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, MissingField),
        ({"next_action_mask": [True]}, ShapeMismatch),
        ({"next_action_mask": [False] * 3}, InvalidValue),
        ({"next_action_mask": ["a", "b", "c"]}, InvalidType),
    ],
)
def test_refused_in_a_transition(
    small: Small, step: Step, fields: dict[str, Any], error: type[InvalidInput]
) -> None:
    """A successor without a mask, or with one that allows nothing, is refused."""
    spec = small(action_masks=True)
    with pytest.raises(error, match=r"transitions\[1\]\.next_action_mask"):
        columns([step(0, next_action_mask=[1, 0, 0]), step(1, **fields)], spec)


def test_a_termination_needs_no_mask(small: Small, step: Step) -> None:
    """Nobody acts in the successor of a termination."""
    spec = small(action_masks=True)
    found = columns([step(0, terminated=True), step(1, next_action_mask=[0, 0, 1])], spec)

    assert found.next_action_mask.tolist() == [[True] * 3, [False, False, True]]
    nothing = columns([step(0, terminated=True, next_action_mask=[0, 0, 0])], spec)
    assert nothing.next_action_mask.tolist() == [[False] * 3]


def test_a_model_without_masks_takes_none(small: Small, step: Step) -> None:
    """A mask that would not be looked at is refused, and the remedy named."""
    with pytest.raises(UnknownField, match="create the model with action_masks"):
        Learner(small()).act(X, action_masks=MASKS)
    with pytest.raises(UnknownField, match=r"transitions\[0\]\.next_action_mask"):
        columns([step(0, next_action_mask=[1, 1, 1])], small())


def test_mask_is_part_of_the_content(small: Small, step: Step) -> None:
    """The same transition with another mask is another one."""
    spec = small(action_masks=True)
    one, other = (
        columns([step(0, next_action_mask=mask)], spec).digests()[0]
        for mask in ([1, 0, 1], [1, 1, 0])
    )

    assert one != other


def test_explores_each_of_the_allowed(learner: Learner) -> None:
    """The number of allowed actions is each observation's own."""
    masks = [[True, False, False], [True, True, False], [True, True, True]] * 3_000
    reply = learner.act([X[0]] * 9_000, epsilon=1.0, action_masks=masks)
    chosen = reply.indices.reshape(3_000, 3)

    for allowed in (1, 2, 3):
        share = np.bincount(chosen[:, allowed - 1], minlength=3) / 3_000
        expected = [1 / allowed] * allowed + [0] * (3 - allowed)
        assert share == pytest.approx(np.array(expected), abs=0.03)
        assert reply.behavior_prob[allowed - 1] == pytest.approx(1 / allowed)


def test_n_step_bootstraps_with_the_mask_of_the_last_successor(small: Small, step: Step) -> None:
    """An item's mask is that of the observation it bootstraps from."""
    learner = Learner(small(action_masks=True, c51={"n_step": 2}, pacing={"learning_starts": 99}))
    learner.add([step(0, next_action_mask=[1, 0, 0]), step(1, next_action_mask=[0, 1, 1])])

    assert learner.replay.arrays["next_action_mask"][0].tolist() == [False, True, True]


def test_held_out_loss_looks_at_masks(small: Small, step: Step) -> None:
    """The same transitions with other masks have another validation loss."""
    losses = []
    for mask in ([1, 0, 0], [0, 1, 0], [0, 0, 1]):
        learner = Learner(small(action_masks=True))
        learner.add(
            [step(t, next_action_mask=[1, 1, 1], reward=0.1 * t) for t in range(12)]
            + [step(t, episode_id="v", split="validation", next_action_mask=mask) for t in range(4)]
        )
        evaluation = learner.evaluate()
        assert evaluation is not None
        losses.append(evaluation.loss)

    assert len(set(losses)) == 3
