"""`Learner` as a user meets it: routing by split, versions, evaluation, labels, acting, waiting."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import Endpoint, Learner, ModelSpec
from jormungandr.errors import InvalidValue, SplitConflict

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]


def mixed(step: Step, episodes: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the release note's batch: train, validation, train, validation."""
    return [
        step(t, split=split, episode_id=episodes[i])
        for t, (split, i) in enumerate([("train", 0), ("validation", 1)] * 2)
    ]


@pytest.mark.parametrize("episodes", [("e", "f"), ("e", "e")])
def test_one_mixed_batch(small: Small, step: Step, episodes: tuple[str, str]) -> None:
    """Two go to replay, two to the held-out store, and the moments see four observations."""
    learner = Learner(small())
    receipt = learner.add(mixed(step, episodes))

    assert receipt.accepted == 4
    assert (len(learner.replay), len(learner.validation)) == (2, 2)
    assert learner.normalizer.count == 4
    # Observations 0 and 0.5, next observations 0.25 and 0.75: nothing of the held-out ones.
    assert learner.normalizer.mean.tolist() == [0.375, 1.0]


def test_one_mixed_episode_under_scope_episode(small: Small, step: Step) -> None:
    """With episodes kept whole, the same batch as one episode is a conflict that keeps nothing."""
    learner = Learner(small(split_scope="episode"))
    with pytest.raises(SplitConflict) as caught:
        learner.add(mixed(step, ("e", "e")))

    assert (caught.value.status, caught.value.code) == (409, "split_conflict")
    assert (len(learner.replay), len(learner.validation), learner.normalizer.count) == (0, 0, 0)


def test_loss_is_reported_with_its_version(small: Small, step: Step) -> None:
    """The held-out loss names the policy version under which it was computed."""
    learner = Learner(small())
    learner.add(mixed(step, ("e", "f")))
    before = learner.evaluate()
    learner.update()
    after = learner.evaluate()

    assert before is not None
    assert after is not None
    assert (before.version, before.update_count) == (0, 0)
    assert (after.version, after.update_count, after.transitions) == (1, 1, 2)
    assert np.isfinite(after.loss)
    assert after.loss != before.loss
    assert learner.evaluations[-1] == after


def test_mixed_episodes_are_counted_and_warned_about(small: Small, step: Step) -> None:
    """An episode that mixes splits shares observations between them, and the operator is told."""
    learner = Learner(small())
    assert learner.info()["warnings"] == []
    learner.add(mixed(step, ("e", "e")))

    assert learner.info()["mixed_episodes"] == 1
    assert any("split" in warning for warning in learner.info()["warnings"])


def test_validation_contents_change_nothing_else(small: Small, step: Step, state: State) -> None:
    """Two learners that differ in their held-out data only are the same, bit for bit."""
    rng = np.random.default_rng(0)
    one, two = (Learner(small(c51={"n_step": 2})) for _ in range(2))
    for t in range(30):
        train = step(t, observation=rng.normal(size=2), reward=float(rng.normal()))
        held = [
            step(t, split="validation", episode_id=e, reward=r, observation=[r, r], action=a)
            for e, r, a in (("v", 0.1 * t, 0), ("w", 100.0, 2))
        ]
        one.add([train, held[0]])
        two.add([train, held[1]])
        if t % 5 == 0:
            two.add([step(t, split="validation", episode_id="x")])
            two.label([{"actor_id": "a", "episode_id": "x", "timestep": t, "label": 1}])
    mine, other = state(one), state(two)
    kept = ("algorithm", "good", "moments", "replay", "normalizer", "windows", "streams", "pacing")

    assert one.update_count == two.update_count == 13
    assert {name: mine[name] for name in kept} == {name: other[name] for name in kept}
    assert mine["snapshot"] == other["snapshot"]
    assert [e.loss for e in one.evaluations] != [e.loss for e in two.evaluations]


def test_evaluation_changes_nothing_but_its_history(small: Small, step: Step, state: State) -> None:
    """Measuring is not learning: only the history of evaluations grows."""
    learner = Learner(small())
    learner.add([step(t, split="validation" if t % 3 else "train") for t in range(20)])
    before = state(learner)
    result = learner.evaluate()
    after = state(learner)

    assert result is not None
    assert len(after.pop("evaluations")) == len(before.pop("evaluations")) + 1
    assert after == before


def test_evaluation_of_nothing(small: Small, step: Step) -> None:
    """Without held-out transitions there is nothing to report."""
    learner = Learner(small())
    learner.add([step(t) for t in range(12)])

    assert learner.update_count == 4
    assert learner.evaluate() is None
    assert len(learner.evaluations) == 0


# -- versions -------------------------------------------------------------------------------------


def test_each_update_is_a_version(small: Small, step: Step) -> None:
    """Version 0 is the initial network; each completed update makes the next one."""
    learner = Learner(small())
    assert (learner.policy_version, learner.update_count) == (0, 0)
    learner.add([step(t) for t in range(10)])

    assert (learner.policy_version, learner.update_count) == (3, 3)
    assert learner.update(2) == 5
    assert learner.act([[0.0, 1.0]]).policy_version == 5
    assert learner.add([step(10, policy_version=5)]).policy_version == 5


def test_first_version_of_a_later_generation(small: Small, step: Step) -> None:
    """A model created again goes on numbering where the earlier one stopped."""
    learner = Learner(small(), generation=2, first_version=41)
    receipt = learner.add([step(t) for t in range(6)])

    assert (receipt.policy_version, receipt.generation) == (41, 2)
    assert (learner.policy_version, learner.update_count) == (42, 1)
    assert learner.act([[0.0, 1.0]]).generation == 2


def test_forced_updates_are_not_taken_off_the_pacing(small: Small, step: Step) -> None:
    """`update()` is outside the pacing: what is due later still runs."""
    forced, paced = Learner(small()), Learner(small())
    for learner in (forced, paced):
        learner.add([step(t) for t in range(4)])
    forced.update(3)
    for learner in (forced, paced):
        learner.add([step(t) for t in range(4, 10)])

    assert (paced.update_count, forced.update_count) == (3, 6)


def test_update_with_fewer_than_a_batch(small: Small, step: Step) -> None:
    """A forced update draws repeatedly from what there is, but not from nothing."""
    learner = Learner(small())
    with pytest.raises(InvalidValue, match="at least one training transition"):
        learner.update()
    learner.add([step(0)])

    assert learner.update() == 1
    with pytest.raises(InvalidValue, match="n: expected >= 1"):
        learner.update(0)


def test_same_seed_same_learner(small: Small, step: Step, state: State) -> None:
    """The seed decides; another seed is another learner."""
    learners = [Learner(small(seed=seed)) for seed in (1, 1, 2)]
    for learner in learners:
        learner.add([step(t) for t in range(20)])
        learner.act([[0.0, 1.0]], epsilon=1.0)
    one, same, other = map(state, learners)

    assert one == same
    assert one["snapshot"] != other["snapshot"]


def test_threads_of_the_process_do_not_matter(small: Small, step: Step, state: State) -> None:
    """A learner computes on its own number of threads, and leaves the process's as it was."""
    learners = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        learners.append(Learner(small(c51={"hidden": 256, "batch_size": 64})))
        learners[-1].add([step(t) for t in range(12)])
        learners[-1].update(3)
        assert torch.get_num_threads() == threads
    torch.set_num_threads(1)

    assert state(learners[0]) == state(learners[1])


def test_acting_does_not_change_learning(small: Small, step: Step, state: State) -> None:
    """Exploration draws from a stream of its own, which nothing else depends on."""
    acting, silent = Learner(small()), Learner(small())
    for t in range(20):
        acting.act(np.zeros((t + 1, 2)))
        for learner in (acting, silent):
            learner.add([step(t)])
    one, other = state(acting), state(silent)

    assert one.pop("streams")[0] == other.pop("streams")[0]
    assert one == other


# -- labels in the stores -------------------------------------------------------------------------


def held(learner: Learner) -> tuple[list[int], list[int]]:
    """Return the labels in replay and in the held-out store."""
    replay = learner.replay.arrays["label"][: len(learner.replay)].tolist()
    return replay, learner.validation.all()["label"].tolist()


@pytest.mark.parametrize("n_step", [1, 3])
def test_labels_in_both_orders(small: Small, step: Step, label: Step, n_step: int) -> None:
    """Before, after and inline, a label ends up with the item that starts at its transition."""
    learner = Learner(small(c51={"n_step": n_step}, pacing={"learning_starts": 100}))
    learner.label([label(1, "DOWN"), label(0, "UP", episode_id="v")])
    learner.add([step(t, label=1 if t == 2 else None) for t in range(3)])
    learner.add([step(0, episode_id="v", split="validation")])
    learner.label([label(0, "UP")])
    learner.add([step(t, terminated=t == 4) for t in range(3, 5)])
    learner.label([label(4, "DOWN")])

    assert held(learner) == ([1, 0, 1, -1, 0], [1])
    assert learner.info()["labels"] == {"pending": 0, "expired": 0}


@pytest.mark.parametrize("n_step", [1, 3])
def test_labels_after_the_ring_wrapped(small: Small, step: Step, label: Step, n_step: int) -> None:
    """A late label finds its transition by ordinal, however often the slots were re-used."""
    learner = Learner(small(c51={"n_step": n_step}, pacing={"learning_starts": 1000}))
    learner.add([step(t, terminated=t == 40) for t in range(41)])
    learner.add([step(t, split="validation", episode_id="v") for t in range(20)])
    receipt = learner.label([label(t, t % 2) for t in range(41)])
    late = learner.label([label(t, t % 2, episode_id="v") for t in range(20)])

    assert (receipt.attached, receipt.target_evicted) == (16, 25)
    assert (late.attached, late.target_evicted) == (8, 12)
    order = np.arange(25, 41) % 16
    assert learner.replay.arrays["label"][order].tolist() == [t % 2 for t in range(25, 41)]
    assert sorted(held(learner)[1]) == [0] * 4 + [1] * 4
    assert learner.progress.unlabelled == 0


def test_label_of_an_item_beside_a_late_one(small: Small, step: Step, label: Step) -> None:
    """An item whose window closed late does not take a newer item's labels away.

    Actor "late" starts transition 0 and ends its episode as transition 7: its items enter a ring of
    four after those of transitions 1 to 6, and 0 and 4 share a place in the index by ordinal.
    """
    learner = Learner(
        small(c51={"n_step": 2}, replay={"capacity": 4}, pacing={"learning_starts": 1000})
    )
    learner.add([step(0, actor_id="late")])
    learner.add([step(t, actor_id="b") for t in range(6)])
    learner.add([step(1, actor_id="late", terminated=True)])
    receipt = learner.label([label(3, 1, actor_id="b")])  # transition 4

    assert learner.replay.ordinal.tolist() == [5, 0, 7, 4]
    assert receipt.attached == 1
    assert learner.replay.arrays["label"].tolist() == [-1, -1, -1, 1]
    assert learner.progress.unlabelled == 0


def test_auxiliary_figures(small: Small, step: Step) -> None:
    """The auxiliary loss and accuracy are over the labelled transitions, and None without any."""
    learner = Learner(small())
    learner.add([step(t, split="validation") for t in range(4)])
    bare = learner.evaluate()
    learner.add([step(t, split="validation", label=t % 2) for t in range(4, 7)])
    labelled = learner.evaluate()

    assert bare is not None
    assert labelled is not None
    assert (bare.auxiliary_loss, bare.auxiliary_accuracy, bare.auxiliary_labelled) == (
        None,
        None,
        0,
    )
    assert labelled.auxiliary_labelled == 3
    assert labelled.auxiliary_accuracy in (0.0, 1 / 3, 2 / 3, 1.0)
    probabilities = learner.snapshot().logits(np.array([[0.25 * t, 1.0] for t in range(4, 7)]))[1]
    assert probabilities is not None
    shifted = probabilities - probabilities.max(axis=1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    expected = -np.mean([log[i, t % 2] for i, t in enumerate(range(4, 7))])
    assert labelled.auxiliary_loss == pytest.approx(expected, abs=1e-5)


def test_learns_the_auxiliary_classes(small: Small, step: Step) -> None:
    """The classification head learns from labels through the same updates."""
    rng = np.random.default_rng(1)
    learner = Learner(small(auxiliary={"weight": 1.0}, c51={"batch_size": 16, "lr": 5e-3}))
    x = rng.normal(size=(64, 2))
    for t in range(64):
        split = "train" if t % 2 else "validation"
        row = step(t, observation=x[t], next_observation=x[t], split=split, terminated=False)
        learner.add([{**row, "label": int(x[t, 0] > 0)}])
    learner.update(200)
    result = learner.evaluate()

    assert result is not None
    assert result.auxiliary_accuracy == 1.0
    assert learner.snapshot().classify([[-1.0, 0.0], [1.0, 0.0]]).tolist() == [0, 1]


# -- the endpoint ---------------------------------------------------------------------------------


def test_learner_is_an_endpoint(small: Small) -> None:
    """Code written for the endpoint takes a learner."""
    assert isinstance(Learner(small()), Endpoint)


def test_wait_answers_at_once(small: Small, step: Step) -> None:
    """In process, everything admitted is applied; a position beyond that cannot be waited for."""
    learner = Learner(small())
    lsn = learner.add([step(0)]).lsn

    assert learner.wait(lsn)["applied_lsn"] == lsn
    with pytest.raises(InvalidValue, match="lsn: expected one of a receipt, at most 1, got 2"):
        learner.wait(lsn + 1)


def test_figures_are_json(small: Small, step: Step) -> None:
    """What `info` and `metrics` show can be sent as it is."""
    learner = Learner(small())
    learner.add([step(t, split="validation" if t % 3 else "train") for t in range(30)])
    json.dumps([learner.info(), learner.metrics()], allow_nan=False)

    assert learner.info()["normalizer"] == {"count": 20}
    assert learner.info()["transitions"] == {"train": 10, "validation": 20}
    assert learner.info()["replay"] == {"size": 10, "capacity": 16}
    assert learner.info()["validation"] == {"size": 8, "capacity": 8}
    assert learner.info()["update_count"] == learner.metrics()["update"]["policy_version"] == 3


def test_support_warning(small: Small, step: Step) -> None:
    """Returns beyond the support are noticed, with the end they are beyond."""
    learner = Learner(small())
    learner.add([step(t, reward=50.0) for t in range(60)])
    warnings = learner.info()["warnings"]

    assert [w.split(":")[0] for w in warnings] == ["support_clipped"]
    assert "beyond the highest atom (2); widen c51.support" in warnings[0]
    assert learner.metrics()["update"]["clipped_high"] > 0.2


@pytest.mark.parametrize("n_step", [1, 2])
def test_rewards_at_the_edge_of_float32(small: Small, step: Step, n_step: int) -> None:
    """The largest numbers the door lets in do no harm, summed over steps neither."""
    learner = Learner(small(c51={"n_step": n_step}))
    big = 3.4e38
    for t in range(20):
        learner.add([step(t, reward=-big, observation=[big, -big], next_observation=[-big, big])])

    assert learner.update_count == 8
    assert np.isfinite(learner.replay.arrays["reward"]).all()
    assert np.isfinite(learner.act([[big, big]]).expected_values).all()


@pytest.mark.parametrize("serve", ["champion", "latest"])
def test_promotions_are_a_services(small: Small, serve: str) -> None:
    """A learner in this process that is to hand out a champion says that it does not."""
    learner = Learner(small(promotion={"serve": serve}))
    warnings = [w for w in learner.info()["warnings"] if w.startswith("not_gated: promotion.serve")]

    assert len(warnings) == (serve == "champion")
    assert all("jormungandr serve" in warning for warning in warnings)
