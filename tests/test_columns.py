"""The one door for input: what passes, what is refused, and that of it nothing is kept."""

from __future__ import annotations

import array
import collections
import decimal
import enum
import fractions
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from jormungandr import Learner, ModelSpec
from jormungandr.columns import ARRAYS, REQUIRED, Columns, columns
from jormungandr.encoding import observations
from jormungandr.errors import (
    ActionRange,
    DtypeMismatch,
    InvalidInput,
    InvalidType,
    InvalidValue,
    LabelRange,
    MissingField,
    NonFinite,
    PolicyVersionUnknown,
    ShapeMismatch,
    UnknownField,
    UnknownSplit,
)
from jormungandr.protocol import Label, Transition

Step = Callable[..., dict[str, Any]]
Small = Callable[..., ModelSpec]
State = Callable[[Learner], dict[str, Any]]

NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # cannot even be printed


class Number(int):
    """An integer by inheritance."""


class Text(str):
    """A string by inheritance."""

    __slots__ = ()


class Level(enum.IntEnum):
    """An integer with a name."""

    ONE = 1


class Liar(list[Any]):
    """A list that is not as long as it says."""

    def __len__(self) -> int:
        """Return 2, always."""
        return 2


class Odd:
    """An object that is nothing we know, and that cannot be printed."""

    def __repr__(self) -> str:
        """Fail, as a half-initialised object may."""
        raise RuntimeError("no repr")


#: (field, value, class): what a field must not be.
REFUSED: list[tuple[str, Any, type[Exception]]] = [
    *[("actor_id", v, InvalidType) for v in (1, b"a", ["a"], np.array("a"), True, HUGE, Odd())],
    *[
        ("actor_id", v, InvalidValue)
        for v in ("", "x" * 129, "é" * 65, "a\x00", "a\n", "a\x7f", "a\x85", "\ud800")
    ],
    *[("episode_id", v, InvalidType) for v in (1, b"e", ["e"])],
    *[("episode_id", v, InvalidValue) for v in ("", "x" * 129, "é" * 65, "\t", "\udfff")],
    *[
        ("timestep", v, InvalidType)
        for v in (True, np.True_, 1.0, "1", [1], np.array(1), NAN, np.timedelta64(1), Odd())
    ],
    *[("timestep", v, InvalidValue) for v in (-1, 2**53, 2**70, np.uint64(2**63), HUGE, -HUGE)],
    *[
        ("split", v, UnknownSplit)
        for v in ("test", "TRAIN", "", 0, True, b"train", ["train"], HUGE, Odd())
    ],
    *[("split", v, UnknownSplit) for v in (np.array(["train", "train"]), np.array("train"))],
    *[("policy_version", v, InvalidType) for v in (True, 0.0, "0", np.timedelta64(0))],
    *[("policy_version", v, InvalidValue) for v in (-2, 2**53, HUGE)],
    ("policy_version", 1, PolicyVersionUnknown),
    *[
        ("action", v, ActionRange)
        for v in (3, -1, True, np.True_, 1.5, 1.0, "1", [1], np.array(1), 2**70, HUGE, -HUGE)
    ],
    *[("action", v, ActionRange) for v in (np.timedelta64(1), Odd())],
    *[
        ("reward", v, InvalidType)
        for v in (True, np.True_, "1", [1.0], np.array(1.0), 1j, decimal.Decimal(1), Odd())
    ],
    *[("reward", v, InvalidType) for v in (fractions.Fraction(1), np.timedelta64(1))],
    *[
        ("reward", v, NonFinite)
        for v in (NAN, INF, -INF, 1e39, -1e39, 10**400, HUGE, np.longdouble("1e400"))
    ],
    *[
        (name, v, ShapeMismatch)
        for name in ("observation", "next_observation")
        for v in (
            [1.0],
            [1.0, 2.0, 3.0],
            [],
            [[1.0], [2.0]],
            [np.array(1.0), 2.0],
            1.0,
            "12",
            b"12",
            bytearray(b"12"),
            memoryview(b"12"),
            {1.0, 2.0},
            {0: 1.0, 1: 2.0},
            (x for x in (1.0, 2.0)),
            np.array(1.0),
            np.zeros((2, 1)),
            np.zeros((1, 2)),
            np.zeros(3),
            collections.UserString("12"),
            Odd(),
        )
    ],
    *[
        (name, v, DtypeMismatch)
        for name in ("observation", "next_observation")
        for v in (
            [True, 1.0],
            [1.0, np.False_],
            ["1", 1.0],
            [None, 1.0],
            [1j, 1.0],
            [decimal.Decimal(1), 1.0],
            [np.timedelta64(1), 1.0],
            [Odd(), 1.0],
            np.array([True, False]),
            np.array(["1", "2"]),
            np.array([1, 2], dtype=object),
            np.array([10**400, 2], dtype=object),
            np.array([1 + 0j, 2]),
            np.zeros(2, dtype="M8[s]"),
            np.zeros(2, dtype="m8[s]"),
        )
    ],
    *[
        (name, v, NonFinite)
        for name in ("observation", "next_observation")
        for v in (
            [NAN, 1.0],
            [1.0, INF],
            [1e39, 1.0],
            [10**400, 1],
            [HUGE, 1],
            [np.longdouble("1e400"), 1.0],
            np.array([1e39, 0.0]),
            np.array([NAN, 0.0], dtype=np.float16),
            np.array(["1e400", "1"], dtype=np.longdouble),
        )
    ],
    *[("terminated", v, InvalidType) for v in (0, 1, 0.0, "false", [False], np.array(False))],
    *[("truncated", v, InvalidType) for v in (0, 1, 0.0, "false", [False], np.array(False))],
    *[
        ("behavior_prob", v, InvalidType)
        for v in (True, "0.5", [0.5], np.array(0.5), np.array([0.5, 0.5]), decimal.Decimal("sNaN"))
    ],
    *[("behavior_prob", v, InvalidValue) for v in (0, 0.0, -0.1, 1.1, 1e39, 1e-50, INF)],
    *[("behavior_prob", v, NonFinite) for v in (NAN, np.float32(NAN), 10**400, HUGE)],
    *[
        ("label", v, LabelRange)
        for v in (2, -1, "LEFT", b"UP", 1.0, True, np.True_, ["UP"], np.array(1), HUGE)
    ],
    *[("label", v, LabelRange) for v in (np.array(["UP", "UP"]), np.timedelta64(1), Odd())],
]


def name_of(case: Any) -> str:
    """Return a printable name of a table entry, the same in every run."""
    if isinstance(case, type):
        return case.__name__
    try:
        name = repr(case)[:40]
    except (ValueError, RuntimeError):
        name = " at 0x"
    return type(case).__name__ if " at 0x" in name else name.replace("/", " ")


@pytest.fixture
def learner(small: Small, step: Step) -> Learner:
    """Return a learner with something in every store: replay, validation, labels, an update."""
    learner = Learner(small(c51={"n_step": 2}))
    learner.add([step(t) for t in range(5)])
    learner.add([step(t, episode_id="v", split="validation") for t in range(3)])
    learner.label([{"actor_id": "a", "episode_id": "later", "timestep": 0, "label": "UP"}])
    learner.update()
    # So that version 1 is in the future again for the table above.
    learner.progress.version = 0
    return learner


def batch(step: Step, last: dict[str, Any]) -> list[dict[str, Any]]:
    """Return three transitions of which the last has the fault."""
    return [step(5), step(0, episode_id="v2", split="validation"), last]


@pytest.mark.parametrize(("field", "value", "error"), REFUSED, ids=name_of)
def test_fault_in_the_last_transition_refuses_the_batch(
    learner: Learner, step: Step, state: State, field: str, value: Any, error: type[InvalidInput]
) -> None:
    """One bad value refuses the whole request by name, in our own words, and leaves no trace."""
    before = state(learner)
    with pytest.raises(error) as caught:
        learner.add(batch(step, step(6, **{field: value})))

    assert type(caught.value) is error
    assert caught.value.where.startswith(f"transitions[2].{field}")
    assert caught.value.expected != ""
    assert caught.value.got != ""
    assert state(learner) == before


@pytest.mark.parametrize("how", ["missing", "null"])
@pytest.mark.parametrize("field", REQUIRED)
def test_required_field(learner: Learner, step: Step, state: State, field: str, how: str) -> None:
    """Each field of the content and each of the five of provenance must be there and not null."""
    before = state(learner)
    last = step(6)
    if how == "null":
        last[field] = None
    else:
        del last[field]
    with pytest.raises(MissingField) as caught:
        learner.add(batch(step, last))

    assert caught.value.where == f"transitions[2].{field}"
    assert caught.value.got == {"missing": "nothing", "null": "null"}[how]
    assert state(learner) == before


def test_provenance_is_required() -> None:
    """The five fields of provenance are required by the protocol."""
    assert set(REQUIRED) >= {"actor_id", "episode_id", "timestep", "split", "policy_version"}


@pytest.mark.parametrize("name", ["rewrd", "obs", "done", "", "actor id", "\ud800", 1, None])
def test_unknown_field(learner: Learner, step: Step, state: State, name: Any) -> None:
    """A field that does not exist is refused, so that a typo is seen."""
    before = state(learner)
    with pytest.raises(UnknownField) as caught:
        learner.add(batch(step, {**step(6), name: 1}))

    assert caught.value.where == f"transitions[2].{name}"
    assert state(learner) == before


@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        "transitions",
        b"transitions",
        bytearray(b"x"),
        {},
        {"transitions": []},
        set(),
        object(),
        np.array(5),
        torch.tensor(5.0),
        Label(actor_id="a", episode_id="e", timestep=0, label=1),
        [None],
        [5],
        ["x"],
        [[]],
        [("actor_id", "a")],
        [object()],
    ],
    ids=name_of,
)
def test_not_a_list_of_transitions(learner: Learner, state: State, given: Any) -> None:
    """Something that is no list of transitions is refused as that."""
    before = state(learner)
    with pytest.raises(InvalidType, match=r"transitions(\[0\])?: expected an? (list|object)"):
        learner.add(given)

    assert state(learner) == before


def test_one_transition_is_not_a_list(learner: Learner, step: Step) -> None:
    """A single transition, as a dict or a struct, must be put in a list."""
    for given in (step(6), Transition(**step(6))):
        with pytest.raises(InvalidType, match="transitions: expected a list of transitions"):
            learner.add(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [[], (), iter([]), np.zeros(0, dtype=object)], ids=name_of)
def test_empty_batch(learner: Learner, state: State, given: Any) -> None:
    """No transitions are a valid request that changes nothing."""
    before = state(learner)
    receipt = learner.add(given)

    assert (receipt.accepted, receipt.duplicate, receipt.stale_dropped) == (0, 0, 0)
    assert receipt.lsn == 3
    assert state(learner) == before


GOOD_OBSERVATIONS: list[Any] = [
    (0.0, 1.0),
    [0, 1],
    range(2),
    collections.deque([0.0, 1.0]),
    collections.UserList([0.0, 1.0]),
    array.array("d", [0.0, 1.0]),
    [np.float32(0), np.float64(1)],
    [np.int8(0), np.uint64(1)],
    [np.longdouble(0), 1],
    np.array([0, 1]),
    np.array([0, 1], dtype=">f8"),
    np.array([0, 1], dtype=np.float16),
    np.array([0, 1], dtype=np.longdouble),
    np.array([0, 1], dtype=np.uint8),
    np.array([1.0, 0.0])[::-1],
    np.array([0.0, 9.0, 1.0, 9.0])[::2],
    np.array([-0.0, 1.0]),
    np.frombuffer(np.array([0.0, 1.0]).tobytes()),
]


@pytest.mark.parametrize("value", GOOD_OBSERVATIONS, ids=name_of)
@pytest.mark.parametrize("alone", [True, False])
def test_numbers_in_any_sequence(small: Small, step: Step, value: Any, alone: bool) -> None:
    """An observation is any sequence or array of real numbers, also beside one of another kind."""
    rows = [step(0, observation=value, next_observation=value)]
    found = columns(rows if alone else [*rows, step(1)], small())

    assert found.observation[0].tolist() == [0.0, 1.0]
    assert found.observation.dtype == found.next_observation.dtype == np.float32
    assert (
        found.digests()[0]
        == columns(
            [step(0, observation=[0.0, 1.0], next_observation=[0.0, 1.0])], small()
        ).digests()
    )


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("timestep", np.int8(7), 7),
        ("timestep", Number(7), 7),
        ("timestep", 2**53 - 1, 2**53 - 1),
        ("action", np.uint64(2), 2),
        ("action", Level.ONE, 1),
        ("reward", np.float16(0.5), 0.5),
        ("reward", np.longdouble(0.5), 0.5),
        ("reward", 3, 3.0),
        ("reward", 3.4e38, float(np.float32(3.4e38))),
        ("terminated", np.True_, True),
        ("policy_version", -1, -1),
        ("policy_version", np.int64(0), 0),
        ("behavior_prob", 1, 1.0),
        ("behavior_prob", np.float32(0.5), 0.5),
        ("label", "UP", 1),
        ("label", np.int8(1), 1),
        ("label", Text("DOWN"), 0),
        ("label", None, -1),
    ],
    ids=name_of,
)
def test_numpy_scalars_and_subclasses(
    small: Small, step: Step, field: str, value: Any, stored: Any
) -> None:
    """NumPy's scalars and subclasses of int and str mean what they look like."""
    found = columns([step(0, **{field: value})], small())

    assert getattr(found, field)[0] == stored
    assert getattr(found, field).dtype == ARRAYS[field]


@pytest.mark.parametrize("value", ["é" * 64, "x" * 128, " ", "ω-1/x:y", "\u2028"])
def test_good_ids(small: Small, step: Step, value: str) -> None:
    """Ids are 1-128 bytes of UTF-8, of any script."""
    assert columns([step(0, actor_id=value)], small()).actors == (value,)


def test_ids_become_plain_strings(small: Small, step: Step, tmp_path: Any) -> None:
    """A subclass of str as id is kept as the string it is, so that it can be saved."""
    learner = Learner(small())
    learner.add([step(0, actor_id=np.str_("a"), episode_id=Text("e"), split=np.str_("train"))])
    learner.label(
        [{"actor_id": np.str_("b"), "episode_id": Text("e"), "timestep": Number(1), "label": 1}]
    )
    learner.save(tmp_path / "saved")
    receipt = Learner.load(tmp_path / "saved").add([step(0)])

    assert receipt.duplicate == 1


def test_structs_and_mappings_are_the_same(small: Small, step: Step) -> None:
    """A transition as struct, dict, or any mapping has the same content."""
    rows = [
        step(0),
        Transition(**step(0)),
        collections.UserDict(step(0)),
        collections.ChainMap({"timestep": 0}, step(5)),
        {**step(0), "label": None, "behavior_prob": None},
    ]
    rows[3] = collections.ChainMap(step(0))

    assert len(set(columns(rows, small()).digests().tolist())) == 1


def test_generator_of_transitions(small: Small, step: Step) -> None:
    """Transitions may come from a generator."""
    assert Learner(small()).add(step(t) for t in range(3)).accepted == 3  # type: ignore[arg-type]


def test_sequence_that_lies_about_its_length(small: Small, step: Step) -> None:
    """Even a list that says it has two elements and has one is refused in our own words."""
    for rows in ([step(0), step(1, observation=Liar([1.0]))], [step(0, observation=Liar([1.0]))]):
        with pytest.raises(ShapeMismatch):
            columns(rows, small())


def test_label_without_auxiliary_head(small: Small, step: Step) -> None:
    """A model without an auxiliary head takes no labels."""
    with pytest.raises(LabelRange, match="no auxiliary head"):
        columns([step(0, label=0)], small(auxiliary=None))


# -- content digests ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"observation": [0.0, 1.0000001]},
        {"next_observation": [0.25, 1.0000001]},
        {"action": 1},
        {"reward": 0.50000006},
        {"terminated": True},
        {"truncated": True},
        {"behavior_prob": 0.5},
        {"policy_version": -1},
    ],
    ids=str,
)
def test_digest_sees_every_part_of_the_content(
    small: Small, step: Step, other: dict[str, Any]
) -> None:
    """The smallest change of any part of the content is another content."""
    same, changed = columns([step(0), step(0, **other)], small()).digests()

    assert same != changed


@pytest.mark.parametrize(
    "other",
    [
        {"label": 1},
        {"split": "validation"},
        {"actor_id": "b"},
        {"episode_id": "f"},
        {"timestep": 9},
        {"observation": [-0.0, 1.0 + 1e-9]},
        {"behavior_prob": None},
    ],
    ids=str,
)
def test_digest_leaves_out_what_is_no_content(
    small: Small, step: Step, other: dict[str, Any]
) -> None:
    """Identity, split and label are no content, and what float32 cannot tell apart is the same."""
    same, changed = columns([step(0), step(0, **other)], small()).digests()

    assert same == changed


def test_digest_does_not_depend_on_the_batch(small: Small, step: Step) -> None:
    """A transition has the same digest alone, in a batch, and in arrays of any layout."""
    found = columns([step(t, behavior_prob=0.5) for t in range(5)], small())
    alone = [columns([step(t, behavior_prob=0.5)], small()).digests()[0] for t in range(5)]
    strided = replace(
        found,
        observation=np.asfortranarray(found.observation),
        action=np.repeat(found.action, 2)[::2],
        reward=found.reward.astype(">f8"),
        terminated=np.repeat(found.terminated, 3)[::3],
    )

    assert found.digests().tolist() == alone
    assert columns(strided, small()).digests().tolist() == alone


# -- columns given as arrays ----------------------------------------------------------------------


@pytest.fixture
def pair(small: Small, step: Step) -> Columns:
    """Two good transitions as columns."""
    return columns([step(0), step(1)], small())


BAD_COLUMNS: list[tuple[str, Any, type[InvalidInput]]] = [
    *[("timestep", v, ShapeMismatch) for v in (5, np.array(5), np.zeros((2, 1), dtype=int))],
    *[
        ("timestep", v, InvalidValue)
        for v in (
            np.array([0.0, 1.0]),
            np.array([False, True]),
            np.array([0, 1], dtype=object),
            np.array([0, 1], dtype="m8[s]"),
            np.array([0, 2**53]),
            np.array([0, 2**63], dtype=np.uint64),
            np.array([-1, 0]),
        )
    ],
    *[("action", v, ActionRange) for v in (np.array([0, 3]), np.array([0.0, 1.0]))],
    *[("split", v, UnknownSplit) for v in (np.array([0, 2]), np.array(["train", "train"]))],
    *[("label", v, LabelRange) for v in (np.array([0, 2]), np.array([-2, 0]), np.zeros(2))],
    *[("reward", v, ShapeMismatch) for v in (np.zeros((2, 1)), np.zeros(3), None)],
    *[("reward", v, DtypeMismatch) for v in (np.array(["1", "2"]), np.array([True, False]))],
    ("reward", np.array([1e39, 0.0]), NonFinite),
    *[("observation", v, ShapeMismatch) for v in (np.zeros((2, 3)), np.zeros(2), None)],
    ("observation", [[0.0], [1.0, 2.0]], ShapeMismatch),
    ("observation", np.full((2, 2), NAN), NonFinite),
    ("next_observation", np.full((2, 2), 1e39), NonFinite),
    ("terminated", np.array([0, 1]), InvalidType),
    *[
        ("behavior_prob", v, DtypeMismatch)
        for v in (
            np.array(["a", "b"]),
            np.array([1j, 1]),
            np.array([None, None]),
            np.array([True, True]),
        )
    ],
    *[("behavior_prob", np.array([0.5, v]), InvalidValue) for v in (0.0, 1.1, 1e39, 1e-50)],
    *[("actor", v, InvalidValue) for v in (np.array([0, 1]), np.array([-1, 0]), np.zeros(2))],
    *[("actors", v, InvalidType) for v in (None, "a", ("a", 1), 5)],
    *[("actors", v, InvalidValue) for v in ((), ("a", ""), ("\ud800",), ("a", "a"))],
    ("episodes", ("e", "e"), InvalidValue),
]


@pytest.mark.parametrize(("field", "value", "error"), BAD_COLUMNS, ids=name_of)
def test_columns_are_checked_too(
    learner: Learner, pair: Columns, state: State, field: str, value: Any, error: type[InvalidInput]
) -> None:
    """Arrays pass the same door as rows, and are refused in the same words."""
    before = state(learner)
    with pytest.raises(error) as caught:
        learner.add(replace(pair, **{field: value}))

    assert type(caught.value) is error
    assert caught.value.where.startswith("transitions")
    assert state(learner) == before


def test_one_id_twice_in_the_dictionary_is_refused(small: Small, step: Step) -> None:
    """Two codes for one id would hide that two transitions have one identity."""
    same = columns([step(0), step(0)], small())
    with pytest.raises(InvalidValue, match="different ids"):
        Learner(small()).add(replace(same, actors=("a", "a"), actor=np.array([0, 1])))


def test_good_columns(small: Small, pair: Columns) -> None:
    """Arrays of other dtypes, byte orders and layouts, and unused ids, are taken as they mean."""
    given = replace(
        pair,
        actors=["a", "unused"],
        timestep=[0, 1],
        split=np.zeros(2, dtype=">i8"),
        observation=pair.observation.tolist(),
        action=np.arange(4)[::2].astype(np.uint8) // 2,
        reward=np.array([1, 2]),
        behavior_prob=np.array([0.5, NAN], dtype=">f8"),
    )
    found = columns(given, small())

    assert {name: getattr(found, name).dtype for name in ARRAYS} == ARRAYS
    assert found.reward.tolist() == [1.0, 2.0]
    assert Learner(small()).add(given).accepted == 2


def test_caller_may_reuse_its_arrays(small: Small, step: Step) -> None:
    """What a caller writes into its arrays afterwards does not reach the learner."""
    learner = Learner(small(c51={"n_step": 3}))
    observation, reward = np.zeros((2, 2), dtype=np.float32), np.zeros(2, dtype=np.float32)
    given = replace(
        columns([step(0), step(1)], small()),
        observation=observation,
        next_observation=observation,
        reward=reward,
    )
    learner.add(given)
    observation += 1
    reward += 1
    row = np.zeros(2, dtype=np.float32)
    learner.add([step(2, observation=row, next_observation=row)])
    row += 7

    (waiting,), arrays = learner.windows.state()
    assert arrays["observation"].tolist() == [[0.0, 0.0]] * 2
    assert [s["reward"] for s in waiting["steps"]] == [0.0, 0.5]
    assert learner.replay.arrays["observation"][0].tolist() == [0.0, 0.0]
    assert learner.replay.arrays["reward"][0] == pytest.approx(0.99**2 * 0.5)


# -- observations to act on -----------------------------------------------------------------------


@pytest.mark.parametrize("value", GOOD_OBSERVATIONS, ids=name_of)
@pytest.mark.parametrize("beside", [True, False])
def test_observations_in_any_sequence(small: Small, value: Any, beside: bool) -> None:
    """What is an observation in a transition is one to act on, also beside one of another kind."""
    found = observations([value, [5.0, 6.0]] if beside else [value], small())

    assert found.dtype == np.float32
    assert found.tolist() == ([[0.0, 1.0], [5.0, 6.0]] if beside else [[0.0, 1.0]])


@pytest.mark.parametrize("value", GOOD_OBSERVATIONS, ids=name_of)
def test_single_observation(small: Small, value: Any) -> None:
    """A single observation is a batch of one."""
    assert observations(value, small()).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("value", [[], (), np.zeros((0, 2)), iter([])], ids=name_of)
def test_no_observations(small: Small, value: Any) -> None:
    """No observations are a batch of none, and no actions are chosen for them."""
    assert observations(value, small()).shape == (0, 2)
    reply = Learner(small()).act([], distribution=True)
    assert (reply.actions, reply.expected_values, reply.distribution) == ([], [], [])


BAD_OBSERVATIONS: list[tuple[Any, type[InvalidInput]]] = [
    *[(v, InvalidType) for v in (None, 5, 5.0, "12", b"12", {}, {0: 1.0, 1: 2.0}, {1.0, 2.0})],
    *[(v, InvalidType) for v in (object(), True, bytearray(b"12"), memoryview(b"12"))],
    *[
        (v, ShapeMismatch)
        for v in (
            np.array(1.0),
            np.zeros(3),
            np.zeros(0),
            np.zeros((2, 3)),
            np.zeros((1, 2, 2)),
            [1.0],
            [1.0, 2.0, 3.0],
            [[]],
            [[1.0, 2.0], [1.0]],
            [[1.0, 2.0], np.array(1.0)],
            [[1.0, 2.0], 3.0],
            [[1.0, 2.0], None],
            [[[1.0, 2.0]]],
            [np.array(1.0), 2.0],
            ([1.0, 2.0], {}),
        )
    ],
    *[
        (v, DtypeMismatch)
        for v in (
            [True, 1.0],
            ["1", "2"],
            [None, 1.0],
            [[1.0, 2.0], np.array([10**400, 1], dtype=object)],
            [[1.0, 2.0], [np.timedelta64(1), 1]],
            np.array([["1", "2"]]),
            np.array([[1, 2]], dtype=object),
            np.array([[True, False]]),
        )
    ],
    *[
        (v, NonFinite)
        for v in (
            [NAN, 1.0],
            [[1e39, 1.0]],
            [HUGE, 1],
            np.array([[1.0, 2.0], [INF, 1.0]]),
            [np.longdouble("1e400"), 1.0],
            [[1.0, 2.0], np.array(["1e400", "1"], dtype=np.longdouble)],
        )
    ],
]


@pytest.mark.parametrize(("value", "error"), BAD_OBSERVATIONS, ids=name_of)
def test_bad_observations(
    learner: Learner, state: State, value: Any, error: type[InvalidInput]
) -> None:
    """What cannot be acted on is refused in our own words, and draws no random number."""
    before = state(learner)
    with pytest.raises(error) as caught:
        learner.act(value)

    assert type(caught.value) is error
    assert caught.value.where.startswith("observations")
    assert state(learner) == before
