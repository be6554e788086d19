"""Ablations change one thing at a time."""

from __future__ import annotations

import math
import pickle
from typing import Any

import gymnasium
import pytest

from benchmarks.ablations.changes import BASE, Ablation, Change, changes, contender
from benchmarks.ablations.report import document as ablations_document
from benchmarks.learning.contenders import Contender, seeds_of
from benchmarks.learning.matrix import Job, estimate
from benchmarks.learning.tasks import TASKS
from jormungandr import ModelSpec
from tests.learning_benchmark.made import run


@pytest.fixture(name="base")
def _base() -> ModelSpec:
    return ModelSpec.for_env(gymnasium.make("CartPole-v1"))


def test_an_ablation_changes_one_thing(base: ModelSpec) -> None:
    """One field of one group, or two where one has no meaning alone; and never nothing."""
    found = changes(base, 150_000)
    names = [change.name for change in found]
    assert names[0] == BASE
    assert len(set(names)) == len(names)
    abouts = {change.about for change in found[1:]}
    assert abouts == {
        "updates per transition",
        "target interval",
        "Adam's epsilon",
        "annealing",
        "averaging",
        "replay size",
        "prioritized replay",
        "priorities",
        "double",
        "n-step",
        "support",
        "batch size",
    }
    for change in found[1:]:
        spec = contender(base, change).spec(TASKS["cartpole"], 0)
        assert spec is not None
        differing = {
            (group, key)
            for group, fields in base.to_dict().items()
            if isinstance(fields, dict)
            for key, value in fields.items()
            if spec.to_dict()[group][key] != value
        }
        assert 1 <= len(differing) <= (2 if change.about == "priorities" else 1), change


def test_an_annealed_rate_ends_with_the_run(base: ModelSpec) -> None:
    """The way down takes the updates of the run: a quarter of the steps after the warm-up."""
    change = next(c for c in changes(base, 50_000) if c.about == "annealing")

    assert change.fields["c51"]["lr_schedule"]["updates"] == (50_000 - 1_000) // 4


def test_the_ablation_table(base: ModelSpec) -> None:
    """The base first, in bold; then what each change comes to."""
    rows = [
        run(BASE, seed, means=[480.0] * 75, changes={"about": ""}, settings=_settings(base))
        for seed in range(2)
    ]
    fallen = [480.0] + [390.0] * 37 + [480.0] * 37
    change = {"about": "double", "c51": {"double": True}}
    rows.append(run("double", 0, means=fallen, changes=change, settings=_settings(base)))
    text = ablations_document(rows)

    assert "|  | **base** | 2,000 (2 of 2) | 480 [480, 480] | 480 | 0% of 148 | 10 |" in text
    assert "| double | double | 2,000 (1 of 1) | 390 [390, 390] | 390 | 50% of 74 | 10 |" in text
    assert text.index("**base**") < text.index("| double |")
    assert "| `c51.target_interval` | 200 |" in text


def test_only_changes_of_the_base_shown_are_shown(base: ModelSpec) -> None:
    """With another base, what was changed in the one before is no comparison."""
    other = ModelSpec.from_dict({**base.to_dict(), "c51": {**base.to_dict()["c51"], "lr": 0.5}})
    rows = []
    for number, (one, fingerprint) in enumerate(((base, "aaa"), (other, "bbb"))):
        name = ("double", "dueling")[number]
        fields = {"c51": {name: True}}
        of_change = ModelSpec.from_dict(
            {**one.to_dict(), "c51": {**one.to_dict()["c51"], **fields["c51"]}}
        )
        for who, what, spec in (
            (BASE, {"about": ""}, one),
            (name, {"about": name, **fields}, of_change),
        ):
            given = {"changes": what, "settings": _settings(spec), "fingerprint": fingerprint}
            rows.append(run(who, 0, means=[480.0] * 75, **given))
    text = ablations_document(rows)

    assert "| dueling | dueling |" in text
    assert "double | double" not in text
    assert "| `c51.lr` | 0.5 |" in text


def _settings(base: ModelSpec) -> dict[str, Any]:
    return {**base.to_dict(), "shape": TASKS["cartpole"].shape}


def test_an_ablation_can_be_sent_to_a_process(base: ModelSpec) -> None:
    """It is a value, and a Contender like the others."""
    made: Contender = contender(base, Change("double", "double", {"c51": {"double": True}}))
    sent = pickle.loads(pickle.dumps(made))

    assert isinstance(sent, Ablation)
    assert sent.settings(TASKS["cartpole"]) == made.settings(TASKS["cartpole"])
    assert seeds_of(made, TASKS["cartpole"]) == 5
    assert math.isfinite(estimate(Job("cartpole", TASKS["cartpole"], made, 100, "x"), []))
