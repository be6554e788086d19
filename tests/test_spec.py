"""`ModelSpec`: defaults, presets, round trips, partial comparison, and every refusal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jormungandr.errors import (
    InvalidInput,
    InvalidType,
    InvalidValue,
    MissingField,
    UnknownField,
)
from jormungandr.spec import MODEL_ID, ModelSpec, preset_names
from jormungandr.weights import layer_shapes

BASE: dict[str, Any] = {"observation": {"shape": [4]}, "actions": 2}

#: The table of the architecture document, with the groups' further fields.
DEFAULTS: dict[str, Any] = {
    "observation": {
        "features": None,
        "shape": [4],
        "dtype": "float32",
        "normalize": True,
        "clip": 10.0,
        "space": {"type": "box", "shape": [4], "dtype": "float32"},
        "frame_stack": 1,
    },
    "actions": [{"label": "0", "value": 0}, {"label": "1", "value": 1}],
    "algorithm": "c51",
    "auxiliary": None,
    "action_masks": False,
    "action_repeat": 1,
    "seed": 0,
    "split_scope": "transition",
    "threads": 1,
    "c51": {
        "atoms": 51,
        "support": [-10.0, 10.0],
        "hidden": [128, 128],
        "gamma": 0.99,
        "lr": 5e-4,
        "lr_schedule": {"kind": "constant", "updates": None, "end": 0.1},
        "adam_eps": 0.01 / 64,
        "batch_size": 64,
        "max_grad_norm": 10.0,
        "target_interval": 200,
        "n_step": 1,
        "double": False,
        "dueling": False,
        "noisy": False,
        "noisy_sigma": 0.5,
        "averaging": 0.0,
        "engine": "closed_form",
    },
    "replay": {
        "capacity": 100_000,
        "alpha": 0.6,
        "beta_start": 0.4,
        "beta_updates": 100_000,
        "priority_epsilon": 1e-6,
        "is_normalizer": "batch",
        "window_idle": 10_000,
        "priority": "cross_entropy",
    },
    "validation": {"capacity": 10_000, "evaluate_every": 100},
    "pacing": {"learning_starts": 1_000, "updates_per_transition": 0.25, "max_backlog": 100_000},
    "exploration": {"start": 1.0, "end": 0.05, "transitions": 10_000},
    "staleness": {"max_policy_lag": None, "mode": "accept", "stale_share": 0.25},
    "labels": {"pending_capacity": 100_000, "pending_expiry": 1_000_000},
    "divergence": {"patience": 5, "copy_every": 100},
    "promotion": {
        "serve": "latest",
        "min_episodes": 100,
        "candidate_every": 1_000,
        "confidence": 0.95,
    },
    "risk": {"kind": "mean", "level": 0.1},
}

OU_NOTE: dict[str, Any] = {
    **DEFAULTS,
    "observation": {
        **DEFAULTS["observation"],
        "features": ["z", "dz", "position", "time_left"],
    },
    "actions": [
        {"label": "SHORT", "value": -1},
        {"label": "FLAT", "value": 0},
        {"label": "LONG", "value": 1},
    ],
    "auxiliary": {"classes": ["DOWN", "FLAT", "UP"], "weight": 0.1},
    "split_scope": "episode",
    "c51": {
        **DEFAULTS["c51"],
        "support": [-8.0, 8.0],
        "gamma": 0.98,
        "hidden": [64, 64],
        "target_interval": 60,
        "adam_eps": 1e-8,
        "averaging": 0.98,
    },
    "validation": {"capacity": 10_000, "evaluate_every": 11},
    "pacing": {"learning_starts": 1_000, "updates_per_transition": 1.0, "max_backlog": 100_000},
    "exploration": {"start": 1.0, "end": 0.1, "transitions": 1_344},
}


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return the base specification with `value` at a dotted path."""
    group, _, field = path.partition(".")
    return {**BASE, group: {**BASE.get(group, {}), field: value} if field else value}


# -- what a spec is -----------------------------------------------------------------------------


def test_defaults() -> None:
    """The defaults are those of the architecture document's table."""
    assert ModelSpec.from_dict(BASE).to_dict() == DEFAULTS


def test_preset_ou_note() -> None:
    """The preset `ou-note` is the release note's experiment."""
    assert ModelSpec.preset("ou-note").to_dict() == OU_NOTE
    assert "ou-note" in preset_names()


def test_preset_overrides_group_by_group() -> None:
    """A keyword overrides one field of a group and leaves its other fields the preset's."""
    spec = ModelSpec.preset("ou-note", seed=7, c51={"gamma": 0.5}).to_dict()

    assert spec == {**OU_NOTE, "seed": 7, "c51": {**OU_NOTE["c51"], "gamma": 0.5}}


def test_preset_inside_a_dict() -> None:
    """The JSON form names a preset too, so that a service can be asked for one with changes."""
    given = {"preset": "ou-note", "pacing": {"learning_starts": 10}}

    assert ModelSpec.from_dict(given) == ModelSpec.preset("ou-note", pacing={"learning_starts": 10})


def test_override_of_an_observation_replaces_it_whole() -> None:
    """A new shape does not inherit the preset's feature names."""
    spec = ModelSpec.preset("ou-note", observation={"shape": [7]})

    assert (spec.observation.shape, spec.observation.features) == ((7,), None)


def test_presets_are_not_changed_by_use() -> None:
    """Overriding a preset once does not change it for the next user."""
    ModelSpec.preset("ou-note", c51={"gamma": 0.1}, auxiliary={"classes": ["a", "b"]})

    assert ModelSpec.preset("ou-note").to_dict() == OU_NOTE


@pytest.mark.parametrize(
    "given",
    [
        BASE,
        {"preset": "ou-note"},
        {**BASE, "actions": [{"label": "left", "value": "L"}, {"label": "right", "value": 0.5}]},
        {**BASE, "auxiliary": {"classes": ["x", "y"]}, "seed": 2**63 - 1},
        {**BASE, "c51": {"hidden": [3, 5], "adam_eps": 1e-8, "support": [0, 1]}},
        {**BASE, "staleness": {"max_policy_lag": 0, "mode": "drop"}},
        {**BASE, "pacing": {"updates_per_transition": 0.1}},
    ],
    ids=range(7),
)
def test_round_trip(given: dict[str, Any]) -> None:
    """The JSON form of a resolved spec restores the very same spec."""
    spec = ModelSpec.from_dict(given)

    assert ModelSpec.from_dict(spec.to_dict()) == spec
    assert ModelSpec.from_dict(spec.to_dict()).to_dict() == spec.to_dict()


def test_support_may_begin_at_zero() -> None:
    """Zero is a bound like any other, and does not mean "unset"."""
    assert ModelSpec.from_dict(nested("c51.support", [0, 500])).c51.support == (0.0, 500.0)


def test_features_give_the_shape() -> None:
    """Naming the features is enough."""
    spec = ModelSpec.from_dict({"observation": {"features": ["x", "y", "z"]}, "actions": 2})

    assert spec.observation.shape == (3,)


def test_hidden_as_an_integer_means_two_layers() -> None:
    """One number is the width of both layers."""
    assert ModelSpec.from_dict(nested("c51.hidden", 64)).c51.layers == (64, 64)


def test_adam_epsilon_follows_the_batch_size() -> None:
    """Unless given, Adam's epsilon is 0.01 / batch_size."""
    assert ModelSpec.from_dict(nested("c51.batch_size", 32)).c51.adam_eps == 0.01 / 32


@pytest.mark.parametrize(
    ("transitions", "epsilon"), [(0, 1.0), (5_000, 0.525), (10_000, 0.05), (10**9, 0.05)]
)
def test_exploration_schedule(transitions: int, epsilon: float) -> None:
    """Epsilon falls linearly, reaches its end exactly, and stays there."""
    assert ModelSpec.from_dict(BASE).exploration.epsilon(transitions) == epsilon


def test_frozen() -> None:
    """A spec cannot be changed under the learner that was built from it."""
    spec = ModelSpec.from_dict(BASE)
    with pytest.raises(AttributeError):
        spec.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("model_id", "good"),
    [
        ("ou", True),
        ("0_a-b", True),
        ("a" * 63, True),
        ("", False),
        ("a" * 64, False),
        ("-a", False),
        ("A", False),
        ("a/b", False),
        ("..", False),
        ("a\n", False),
        ("é", False),
    ],
)
def test_model_id_grammar(model_id: str, good: bool) -> None:
    """Model ids are safe in a URL and as a folder name."""
    assert (MODEL_ID.fullmatch(model_id) is not None) == good


# -- what is refused ----------------------------------------------------------------------------

OUT_OF_RANGE: list[tuple[str, Any, str]] = [
    ("observation.shape", [], "`features`, `shape` or `space`"),
    ("observation.shape", [0], "numbers >= 1"),
    ("observation.shape", [2, 32_769], "at most 65536 elements"),
    ("observation.clip", 0, "> 0, at most 1e6"),
    ("observation.clip", float("inf"), "> 0, at most 1e6"),
    ("observation.clip", float("nan"), "> 0, at most 1e6"),
    ("observation.clip", 1_000_001.0, "> 0, at most 1e6"),
    ("actions", 0, "1..4096"),
    ("actions", 4097, "1..4096"),
    ("actions", [], "1..4096 of them"),
    ("seed", -1, "0..2**63-1"),
    ("seed", 2**63, "0..2**63-1"),
    ("threads", 0, "1..1024"),
    ("threads", 1025, "1..1024"),
    ("c51.atoms", 1, "2..1001"),
    ("c51.atoms", 1002, "2..1001"),
    ("c51.support", [1.0, 1.0], "[lowest, highest], finite and increasing, or 'auto'"),
    ("c51.support", [2.0, 1.0], "[lowest, highest], finite and increasing, or 'auto'"),
    ("c51.support", [float("-inf"), 1.0], "[lowest, highest], finite and increasing, or 'auto'"),
    ("c51.support", [0.0, float("nan")], "[lowest, highest], finite and increasing, or 'auto'"),
    ("observation.frame_stack", 0, "1..256, of a Box"),
    ("observation.frame_stack", 257, "1..256, of a Box"),
    ("action_repeat", 0, "1..1024"),
    ("action_repeat", 1025, "1..1024"),
    ("c51.hidden", 0, "1..8 layers of 1..4096 units"),
    ("c51.hidden", 4097, "1..8 layers of 1..4096 units"),
    ("c51.hidden", [], "1..8 layers of 1..4096 units"),
    ("c51.hidden", [8] * 9, "1..8 layers of 1..4096 units"),
    ("c51.gamma", -0.01, "0..1"),
    ("c51.gamma", 1.01, "0..1"),
    ("c51.gamma", float("nan"), "0..1"),
    ("c51.lr", 0, "a number > 0"),
    ("c51.lr", float("inf"), "a number > 0"),
    ("c51.adam_eps", 0, "> 0"),
    ("c51.adam_eps", float("inf"), "> 0"),
    ("c51.batch_size", 0, "1..65536"),
    ("c51.batch_size", 65_537, "1..65536"),
    ("c51.max_grad_norm", 0, "a number > 0"),
    ("c51.max_grad_norm", float("inf"), "a number > 0"),
    ("c51.max_grad_norm", float("nan"), "a number > 0"),
    ("c51.target_interval", 0, ">= 1"),
    ("c51.n_step", 0, "1..256"),
    ("c51.n_step", 257, "1..256"),
    ("c51.noisy_sigma", -0.1, "a number >= 0"),
    ("c51.noisy_sigma", float("inf"), "a number >= 0"),
    ("c51.averaging", 1.0, "0..1, without 1"),
    ("c51.averaging", -0.1, "0..1, without 1"),
    ("replay.capacity", 0, "1..1e8"),
    ("replay.capacity", 100_000_001, "1..1e8"),
    ("replay.alpha", -0.1, "0..2"),
    ("replay.alpha", 2.1, "0..2"),
    ("replay.beta_start", -0.1, "0..1"),
    ("replay.beta_start", 1.1, "0..1"),
    ("replay.beta_updates", 0, "1..2**63-1"),
    ("replay.beta_updates", 10**400, "1..2**63-1"),
    ("replay.priority_epsilon", 0, "a number > 0"),
    ("replay.priority_epsilon", float("inf"), "a number > 0"),
    ("replay.window_idle", 0, ">= 1"),
    ("validation.capacity", 0, "1..1e7"),
    ("validation.capacity", 10_000_001, "1..1e7"),
    ("validation.evaluate_every", 0, ">= 1"),
    ("pacing.learning_starts", -1, ">= 0"),
    ("pacing.updates_per_transition", -0.1, "0..1000"),
    ("pacing.updates_per_transition", 1000.1, "0..1000"),
    ("pacing.updates_per_transition", float("nan"), "0..1000"),
    ("pacing.max_backlog", 0, ">= 1"),
    ("exploration.start", 1.1, "0..1"),
    ("exploration.end", -0.1, "0..1"),
    ("exploration.transitions", 0, ">= 1"),
    ("staleness.max_policy_lag", -1, ">= 0 or null"),
    ("staleness.stale_share", -0.5, "0..1"),
    ("staleness.stale_share", 1.5, "0..1"),
    ("staleness.stale_share", math.nan, "0..1"),
    ("labels.pending_capacity", -1, ">= 0"),
    ("labels.pending_expiry", 0, ">= 1"),
    ("divergence.patience", 0, ">= 1"),
    ("divergence.copy_every", 0, ">= 1"),
    ("promotion.min_episodes", 1, "2..10000"),
    ("promotion.min_episodes", 10_001, "2..10000"),
    ("promotion.candidate_every", 0, "1..2**63-1"),
    ("risk.level", 0.0, "above 0, at most 1"),
    ("risk.level", 1.1, "above 0, at most 1"),
    ("promotion.confidence", 0.5, "0.5..1, without the ends"),
    ("promotion.confidence", 1.0, "0.5..1, without the ends"),
]


def test_words_are_the_users() -> None:
    """What a field may be is said without the names of our types."""
    for where, value, expected in (
        ("c51.support", "Auto", "one of ['a list of 2', 'auto']"),
        ("c51.lr_schedule", "linear", "an object with any of ['kind', 'updates', 'end']"),
        ("risk.kind", "var", "one of ['mean', 'cvar']"),
        ("c51.noisy", "yes", "bool"),
    ):
        with pytest.raises(InvalidInput) as caught:
            ModelSpec.from_dict(nested(where, value))
        assert (caught.value.where, caught.value.expected) == (where, expected)


@pytest.mark.parametrize(
    ("where", "value", "expected"),
    OUT_OF_RANGE,
    ids=[f"{where}={value}" for where, value, _ in OUT_OF_RANGE],
)
def test_range(where: str, value: Any, expected: str) -> None:
    """Every number outside its range is refused with its path, the range, and what was given."""
    with pytest.raises(InvalidValue) as caught:
        ModelSpec.from_dict(nested(where, value))

    assert (caught.value.where, caught.value.expected) == (where, expected)
    assert caught.value.got != ""


def test_every_number_has_its_range_tested() -> None:
    """The table above forgets no numeric field of any group."""
    numeric = {
        f"{group}.{field}" if isinstance(fields, dict) else group
        for group, fields in DEFAULTS.items()
        for field, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
        if isinstance(value, int | float | list) and not isinstance(value, bool)
    }

    assert numeric - {where for where, _, _ in OUT_OF_RANGE} == set()


PARTS = "observation.space.spaces[...]"


def of_parts(part: dict[str, Any]) -> dict[str, Any]:
    """Return a specification of a Dict with one part."""
    return {**BASE, "observation": {"space": {"type": "dict", "spaces": {"a": part}}}}


REFUSED: list[tuple[dict[str, Any], type[InvalidInput], str]] = [
    ({"actions": 2}, MissingField, "observation"),
    ({"observation": {"shape": [4]}}, MissingField, "actions"),
    ({**BASE, "sead": 1}, UnknownField, "sead"),
    (nested("c51.leaning_rate", 1), UnknownField, "c51.leaning_rate"),
    ({**BASE, "algorithm": "ppo"}, InvalidValue, "algorithm"),
    ({**BASE, "split_scope": "batch"}, InvalidValue, "split_scope"),
    (nested("replay.is_normalizer", "max"), InvalidValue, "replay.is_normalizer"),
    (nested("staleness.mode", "maybe"), InvalidValue, "staleness.mode"),
    (nested("observation.dtype", "float64"), InvalidValue, "observation.dtype"),
    ({**BASE, "seed": 1.5}, InvalidType, "seed"),
    ({**BASE, "seed": True}, InvalidType, "seed"),
    ({**BASE, "actions": "two"}, InvalidType, "actions"),
    (nested("c51.double", 1), InvalidType, "c51.double"),
    (nested("c51.gamma", "0.9"), InvalidType, "c51.gamma"),
    (nested("c51.support", [0.0]), InvalidInput, "c51.support"),
    ({**BASE, "c51": None}, InvalidType, "c51"),
    ({**BASE, "c51": [1]}, InvalidType, "c51"),
    ({**BASE, "actions": [{"label": "x"}]}, MissingField, "actions[0].value"),
    ({**BASE, "actions": [{"label": "x", "value": None}]}, InvalidType, "actions[0].value"),
    ({**BASE, "actions": [{"label": "x", "value": 1}] * 2}, InvalidValue, "actions"),
    ({"observation": {}, "actions": 2}, InvalidValue, "observation.shape"),
    ({"observation": {"features": []}, "actions": 2}, InvalidValue, "observation.features"),
    ({"observation": {"features": ["x", "x"]}, "actions": 2}, InvalidValue, "observation.features"),
    (
        {"observation": {"features": ["x"], "shape": [2]}, "actions": 2},
        InvalidValue,
        "observation.features",
    ),
    ({"observation": {"features": "xy"}, "actions": 2}, InvalidType, "observation.features"),
    ({**BASE, "auxiliary": {}}, MissingField, "auxiliary.classes"),
    ({**BASE, "auxiliary": {"classes": ["one"]}}, InvalidValue, "auxiliary.classes"),
    ({**BASE, "auxiliary": {"classes": ["x", "x"]}}, InvalidValue, "auxiliary.classes"),
    (
        {**BASE, "auxiliary": {"classes": ["x", "y"], "weight": -1}},
        InvalidValue,
        "auxiliary.weight",
    ),
    ({**BASE, "preset": "ou"}, InvalidValue, "preset"),
    ({**BASE, "preset": None}, InvalidValue, "preset"),
    ({**BASE, "preset": ["ou-note"]}, InvalidValue, "preset"),
    ({**BASE, 1: 2}, InvalidInput, "spec"),  # type: ignore[dict-item]
    ({**BASE, "seed": 10**5000}, InvalidValue, "seed"),
    ({**BASE, "preset": 10**5000}, InvalidValue, "preset"),
    ({**BASE, "split_scope": "\ud800"}, InvalidType, "spec"),
    ({**BASE, "pacing": np.zeros(2)}, InvalidType, "spec"),
    ({**BASE, "replay": range(2)}, InvalidType, "spec"),
    (
        {**BASE, "observation": {"space": {"type": "tuple"}}},
        InvalidValue,
        "observation.space.type",
    ),
    (
        {**BASE, "observation": {"space": {"type": "discrete", "n": 2, "m": 3}}},
        UnknownField,
        "observation.space.m",
    ),
    (of_parts({"type": "discrete", "n": 2, "m": 3}), UnknownField, f"{PARTS}.m"),
    (of_parts({"type": "box", "shape": [2], "dtype": "int8"}), InvalidValue, f"{PARTS}.dtype"),
    (of_parts({"type": "text"}), InvalidValue, f"{PARTS}.type"),
    (
        of_parts({"type": "dict", "spaces": {"b": {"type": "text"}}}),
        InvalidValue,
        f"{PARTS}.spaces[...].type",
    ),
    ({**BASE, "x` - at `$.y": 1}, UnknownField, "y.x"),  # a name that looks like a path
    (nested("observation.x` - at `$.y", 1), UnknownField, "y` - at `$.observation.x"),
]


@pytest.mark.parametrize(("given", "error", "where"), REFUSED, ids=range(len(REFUSED)))
def test_refused(given: dict[str, Any], error: type[InvalidInput], where: str) -> None:
    """A wrong name, type or choice is refused by the class that says which, with its path."""
    with pytest.raises(error) as caught:
        ModelSpec.from_dict(given)

    assert caught.value.where == where
    assert caught.value.expected != ""


def test_what_a_space_may_be_is_listed() -> None:
    """A wrong choice inside a Dict names the right ones, as it does outside."""
    with pytest.raises(InvalidValue) as caught:
        ModelSpec.from_dict(of_parts({"type": "text"}))
    assert caught.value.expected == (
        "one of ['box', 'discrete', 'multi_binary', 'multi_discrete', 'dict']"
    )
    assert caught.value.got == "'text'"
    with pytest.raises(InvalidValue, match=r"one of \['float32', 'uint8'\], got 'int8'"):
        ModelSpec.from_dict(of_parts({"type": "box", "shape": [2], "dtype": "int8"}))
    with pytest.raises(UnknownField, match="'n', 'start', 'nvec', 'spaces'"):
        ModelSpec.from_dict(of_parts({"type": "discrete", "n": 2, "m": 3}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"actions": 7, "c51": {"hidden": [5, 6], "atoms": 3}},
        {"auxiliary": {"classes": ["x", "y", "z"]}},
        {"observation": {"shape": [36, 84], "dtype": "uint8"}},
        {"observation": {"shape": [200, 67, 3], "dtype": "uint8", "frame_stack": 2}},
        {"observation": {"space": {"type": "discrete", "n": 11}}},
    ],
)
def test_weights_are_those_of_the_network(fields: dict[str, Any]) -> None:
    """What is counted, before there is a network, is its linear layers without their biases."""
    spec = ModelSpec.from_dict({**BASE, **fields})
    shapes = [shape for shape in layer_shapes(spec).values() if len(shape) == 2]

    assert spec._weights() == sum(math.prod(shape) for shape in shapes)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"actions": 4096, "c51": {"atoms": 1001, "hidden": [64]}}, "c51.hidden"),
        ({"observation": {"shape": [65_536]}, "c51": {"hidden": [4096]}}, "c51.hidden"),
        (
            {
                "observation": {"shape": [84, 84, 4], "dtype": "uint8"},
                "replay": {"capacity": 100_000_000},
            },
            "replay.capacity",
        ),
        (
            {"observation": {"shape": [65_536]}, "validation": {"capacity": 10_000_000}},
            "validation.capacity",
        ),
    ],
)
def test_too_large_for_any_machine(fields: dict[str, Any], where: str) -> None:
    """A few digits do not make a model of gigabytes that can only fail later, without a word."""
    with pytest.raises(InvalidValue) as caught:
        ModelSpec.from_dict({**BASE, **fields})

    assert caught.value.where == where


def test_the_largest_that_is_documented_is_taken() -> None:
    """Every range that the fields have by themselves can be used to its end."""
    ModelSpec.from_dict({**BASE, "c51": {"hidden": [4096] * 8}})
    ModelSpec.from_dict({**BASE, "actions": 4096, "c51": {"hidden": [512, 512]}})
    ModelSpec.from_dict({**BASE, "replay": {"capacity": 100_000_000}})
    ModelSpec.from_dict({**BASE, "observation": {"shape": [512, 512], "dtype": "uint8"}})
    ModelSpec.from_dict({**BASE, "observation": {"shape": [65_536]}})


@pytest.mark.parametrize("given", [None, [], "ou-note", 3])
def test_not_an_object(given: Any) -> None:
    """Something else than an object is refused in our own words."""
    with pytest.raises(InvalidType, match="spec: expected an object"):
        ModelSpec.from_dict(given)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_action_value_must_survive_json(value: float) -> None:
    """JSON has no NaN: a value that would be lost on the way to a checkpoint is refused at once."""
    with pytest.raises(InvalidValue, match="value: expected a finite number"):
        ModelSpec.from_dict({**BASE, "actions": [{"label": "x", "value": value}]})


@pytest.mark.parametrize(
    "given",
    [
        {"observation": {"features": ["\ud800"]}, "actions": 2},
        {**BASE, "actions": [{"label": "\ud800", "value": 1}]},
        {**BASE, "actions": [{"label": "x", "value": "\ud800"}]},
        {**BASE, "auxiliary": {"classes": ["\ud800", "x"]}},
    ],
)
def test_names_must_be_utf8(given: dict[str, Any]) -> None:
    """A name that cannot be written to a checkpoint is refused at once."""
    with pytest.raises(InvalidValue, match="UTF-8"):
        ModelSpec.from_dict(given)


@pytest.mark.parametrize(
    "support", [[-1e39, 1e39], [-1e308, 1e308], [-3e38, 3e38], [1e9, 1e9 + 1.0]]
)
def test_support_must_be_distinct_atoms_in_float32(support: list[float]) -> None:
    """Atoms that overflow or coincide in float32, the dtype of the network, are refused."""
    with pytest.raises(InvalidValue, match=r"c51\.support: expected .* in float32"):
        ModelSpec.from_dict(nested("c51.support", support))


# -- comparing with an existing model -----------------------------------------------------------

STORED = ModelSpec.preset("ou-note", c51={"batch_size": 32, "adam_eps": None})


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({}, []),
        ({"preset": "ou-note"}, ["c51.adam_eps"]),
        (STORED.to_dict(), []),
        ({"seed": 0}, []),
        ({"seed": 1}, ["seed"]),
        ({"c51": {}}, []),
        ({"c51": {"gamma": 0.98}}, []),
        ({"c51": {"gamma": 0.9, "atoms": 51, "lr": 1e-3}}, ["c51.gamma", "c51.lr"]),
        ({"c51": {"hidden": 64}}, []),
        ({"c51": {"hidden": [64, 64]}}, []),
        ({"c51": {"hidden": 65}}, ["c51.hidden"]),
        ({"c51": {"support": [-8, 8]}}, []),
        ({"c51": {"adam_eps": 0.01 / 32}}, []),
        ({"c51": {"adam_eps": None}}, []),
        ({"auxiliary": None}, ["auxiliary"]),
        ({"auxiliary": {"weight": 0.1}}, []),
        ({"auxiliary": {"weight": 0.2}}, ["auxiliary.weight"]),
        ({"actions": 3}, ["actions"]),
        ({"actions": 2}, ["actions"]),
        ({"observation": {"shape": [4]}}, []),
        ({"observation": {"shape": [5]}}, ["observation.shape"]),
        ({"observation": {"features": ["z", "dz", "position", "time_left"]}}, []),
        (
            {"observation": {"features": ["dz", "z", "position", "time_left"]}},
            ["observation.features"],
        ),
        ({"observation": {"features": ["z"]}}, ["observation.features"]),
        ({"observation": {"clip": 10.0}}, []),
        ({"observation": {"clip": 5.0, "normalize": True}}, ["observation.clip"]),
        ({"split_scope": "transition", "seed": 3}, ["split_scope", "seed"]),
        ({"preset": "ou-note", "c51": {"gamma": 0.5}}, ["c51.adam_eps", "c51.gamma"]),
        ({"staleness": {"max_policy_lag": 3}}, ["staleness.max_policy_lag"]),
    ],
    ids=str,
)
def test_mismatches(given: dict[str, Any], paths: list[str]) -> None:
    """Only what is given is compared, once resolved, and what differs is named by its path."""
    assert sorted(STORED.mismatches(given)) == sorted(paths)


def test_mismatches_with_a_preset() -> None:
    """A preset is compared whole, its observation and actions too."""
    other = ModelSpec.preset("ou-note", observation={"shape": [7]}, actions=2, seed=1)

    assert sorted(other.mismatches({"preset": "ou-note"})) == ["actions", "observation.features"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"c51": {"nope": 1}}, UnknownField),
        ({"seed": "0"}, InvalidType),
        ({"preset": "nope"}, InvalidValue),
        (None, InvalidType),
        ([], InvalidType),
    ],
)
def test_mismatches_refuses_nonsense(given: Any, error: type[InvalidInput]) -> None:
    """What is no partial spec is bad input, rather than a mismatch or a crash."""
    with pytest.raises(error):
        STORED.mismatches(given)


# -- from an environment ------------------------------------------------------------------------


class SpacesOnly(gymnasium.Env[Any, Any]):
    """An environment that has nothing but spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action


BOX = spaces.Box(-1, 1, (3,))


def test_for_env_cartpole() -> None:
    """CartPole's spaces become four elements and two actions; keywords are further fields."""
    with gymnasium.make("CartPole-v1") as env:
        spec = ModelSpec.for_env(env, seed=3, c51={"support": [0, 100]})

    assert spec == ModelSpec.from_dict({**BASE, "seed": 3, "c51": {"support": [0, 100]}})


def test_for_env_vector() -> None:
    """A vector environment is described by its single spaces."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    try:
        assert ModelSpec.for_env(envs) == ModelSpec.from_dict(BASE)  # type: ignore[arg-type]
    finally:
        envs.close()


def test_for_env_integer_box() -> None:
    """An integer Box is a Box: observations are cast to float32."""
    env = SpacesOnly(spaces.Box(0, 255, (6,), dtype=np.uint8), spaces.Discrete(5))
    spec = ModelSpec.for_env(env)

    assert (spec.observation.shape, len(spec.action_set)) == ((6,), 5)


@pytest.mark.parametrize(
    ("env", "where"),
    [
        (SpacesOnly(spaces.Text(4), spaces.Discrete(2)), "observation_space"),
        (SpacesOnly(spaces.Tuple([BOX]), spaces.Discrete(2)), "observation_space"),
        (SpacesOnly(spaces.Box(0, 1, ()), spaces.Discrete(2)), "observation_space"),
        (
            SpacesOnly(spaces.Dict({"x": spaces.Text(4)}), spaces.Discrete(2)),
            "observation_space['x']",
        ),
        (SpacesOnly(BOX, BOX), "action_space"),
        (SpacesOnly(BOX, spaces.MultiDiscrete([2, 2])), "action_space"),
        (SpacesOnly(BOX, spaces.Discrete(2, start=1)), "action_space"),
    ],
    ids=range(7),
)
def test_for_env_unsupported_spaces(env: SpacesOnly, where: str) -> None:
    """A space this version cannot learn on is refused by name."""
    with pytest.raises(InvalidValue, match=rf"^{re.escape(where)}: expected a ") as caught:
        ModelSpec.for_env(env)

    assert caught.value.where == where


@pytest.mark.parametrize("env", ["CartPole-v1", None, gymnasium.Env()])
def test_for_env_of_no_environment(env: Any) -> None:
    """A name is none, and so is one without spaces; what makes one is said."""
    with pytest.raises(InvalidType, match=r"^env: expected an environment with .*'CartPole-v1'"):
        ModelSpec.for_env(env)


def test_learner_takes_a_dict_or_a_spec(small: Callable[..., ModelSpec]) -> None:
    """`Learner` resolves the JSON form itself."""
    from jormungandr import Learner

    assert Learner(small().to_dict()).spec == small()
    with pytest.raises(InvalidType, match="spec: expected an object"):
        Learner(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [5, None, [4], "x"])
def test_for_env_wants_fields_of_the_observation(given: Any) -> None:
    """Something else than fields is refused by name."""
    with pytest.raises(InvalidType, match="observation: expected an object"):
        ModelSpec.for_env(SpacesOnly(spaces.Box(0, 1, (2,)), spaces.Discrete(2)), observation=given)


def test_for_env_keeps_the_shape_beside_other_settings() -> None:
    """An override of how observations are treated does not take away what they are."""
    spec = ModelSpec.for_env(gymnasium.make("CartPole-v1"), observation={"normalize": False})

    assert (spec.observation.shape, spec.observation.normalize) == ((4,), False)
