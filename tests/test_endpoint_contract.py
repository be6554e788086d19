"""One contract: in process, the application in memory, with columns, with a spool, a real server.

Every test runs against all of them, with the same literal expectations. Tests share two models of
each implementation, `quiet` (it stores and never updates) and `learned`; each test has episodes of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from jormungandr import Endpoint, Label, LabelReceipt, Learner, Receipt, RemoteLearner, Transition
from jormungandr import errors as e
from jormungandr.client import Spool
from tests.service.serving import QUIET, SPEC, Server, connect, experience, memory, served

Step = Callable[..., dict[str, Any]]
Open = Callable[[str, dict[str, Any]], Any]
#: 8 training episodes of 6 steps and 3 held-out ones: 40 updates after the first 8 steps.
ROWS = experience(11, 6)
UPDATES = 40
#: It drops training transitions whose policy is more than two versions behind.
LEARNED = {**SPEC, "staleness": {"max_policy_lag": 2, "mode": "drop"}}
OBSERVATIONS = [[0.5, -1.0], [2.0, 0.25], [-3.0, 1.5]]


@dataclass
class Implementation:
    """How to open a model, how many rows go into a request, how to see a policy's digest."""

    open: Open
    batch: int
    digest: Callable[[], str]
    #: What `quiet` and `learned` said of themselves when they were new.
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)


@pytest.fixture(scope="module", params=["learner", "memory", "process", "columns", "spooled"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Implementation]:
    """One implementation of the endpoint."""
    if request.param == "learner":
        learners: dict[str, Learner] = {}

        def learner(model_id: str, spec: dict[str, Any]) -> Learner:
            return learners.setdefault(model_id, Learner(spec))

        yield Implementation(learner, 1, lambda: learners["learned"].snapshot().digest())
        return
    path = tmp_path_factory.mktemp("data")
    with ExitStack() as stack:

        def remote(model_id: str, spec: dict[str, Any]) -> RemoteLearner:
            endpoint = stack.enter_context(client(model_id))
            endpoint.create(spec)
            return endpoint

        if request.param != "process":
            # Requests of any size as JSON, or as columns.
            form = {"columns_from": 0 if request.param == "columns" else None}
            client = partial(connect, stack.enter_context(memory(path)), **form)
        else:
            client = stack.enter_context(Server(path)).connect
        if request.param == "spooled":
            # Each behind a spool in a file of its own: `add` waits for its turn in it.
            client = partial(_spooled, path, client)
        batch = {"memory": 7, "process": len(ROWS), "columns": 11, "spooled": 5}[request.param]
        yield Implementation(remote, batch, lambda: served(path, "learned.1").digest())


def _spooled(path: Path, client: Callable[..., RemoteLearner], model_id: str) -> RemoteLearner:
    return client(model_id, spool=Spool(path / f"{model_id}.spool"))


@pytest.fixture(scope="module")
def quiet(made: Implementation) -> Any:
    """An endpoint that stores and never updates; its first batch was one episode of both splits."""
    endpoint = made.open("quiet", QUIET)
    splits = ("train", "validation", "train", "validation")
    batch = [dict(ROWS[t], split=split, actor_id="first") for t, split in enumerate(splits)]
    made.figures["quiet"] = endpoint.wait(endpoint.add(batch).lsn)
    return endpoint


@pytest.fixture(scope="module")
def learned(made: Implementation) -> Any:
    """An endpoint that has applied `ROWS` with the updates that they make due."""
    endpoint = made.open("learned", LEARNED)
    for at in range(0, len(ROWS), made.batch):
        lsn = endpoint.add(ROWS[at : at + made.batch]).lsn
    made.figures["learned"] = endpoint.wait(lsn)
    return endpoint


@pytest.fixture(scope="module")
def reference() -> Learner:
    """What `learned` must have become."""
    learner = Learner(LEARNED)
    learner.add(ROWS)
    return learner


NAMES = count()


@pytest.fixture
def fresh() -> Step:
    """``fresh(3, reward=1.0)``: timestep 3 of an episode that no other test has."""
    name = f"fresh{next(NAMES)}"

    def build(timestep: Any = 0, /, **fields: Any) -> dict[str, Any]:
        row = {
            "actor_id": "a",
            "episode_id": name,
            "timestep": timestep,
            "split": "train",
            "policy_version": 0,
            "observation": [0.25 * timestep, 1.0],
            "action": timestep % 3,
            "reward": 0.5,
            "next_observation": [0.25 * (timestep + 1), 1.0],
            "terminated": False,
            "truncated": False,
        }
        return {**row, **fields}

    return build


def label_of(row: Mapping[str, Any], cls: Any) -> dict[str, Any]:
    """Return a label for a transition."""
    identity = {name: row[name] for name in ("actor_id", "episode_id", "timestep")}
    return {**identity, "label": cls}


def without_lsn(receipt: Receipt | LabelReceipt) -> dict[str, Any]:
    """Return a receipt's fields but its position."""
    fields: dict[str, Any] = msgspec.to_builtins(receipt)
    fields.pop("lsn")
    return fields


def receipt(accepted: int, duplicate: int = 0, version: int = 0) -> dict[str, Any]:
    """Return what `without_lsn` makes of the receipt for so many."""
    return {
        "accepted": accepted,
        "duplicate": duplicate,
        "stale_dropped": 0,
        "policy_version": version,
        "generation": 1,
    }


def settled(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's figures without those of its process, which tell the time."""
    return {name: value for name, value in info.items() if name != "learner"}


def refused(endpoint: Any, call: Callable[[], Any], error: type[e.JormungandrError]) -> str:
    """Check that a call raises exactly `error` and changes nothing; return where it says."""
    before = settled(endpoint.wait(endpoint.info()["journal_lsn"]))
    with pytest.raises(e.JormungandrError) as raised:
        call()

    assert type(raised.value) is error, raised.value
    assert settled(endpoint.info()) == before
    return raised.value.where


def evaluations(endpoint: Any) -> list[dict[str, Any]]:
    """Return an endpoint's evaluations, oldest first."""
    if isinstance(endpoint, Learner):
        return [msgspec.to_builtins(evaluation) for evaluation in endpoint.evaluations]
    return cast("list[dict[str, Any]]", endpoint.metrics()["evaluations"])


# -- receipts -----------------------------------------------------------------------------------


def test_is_an_endpoint(quiet: Any) -> None:
    """Each implementation satisfies the protocol."""
    assert isinstance(quiet, Endpoint)


def test_receipt_counts(quiet: Any, fresh: Step) -> None:
    """New transitions are accepted, under the version served and the model's generation."""
    assert without_lsn(quiet.add([fresh(0), fresh(1)])) == receipt(2)


def test_structs_are_taken_like_dicts(quiet: Any, fresh: Step) -> None:
    """A Transition is the same content as the dict with its fields."""
    quiet.add([fresh(0)])

    assert without_lsn(quiet.add([Transition(**fresh(0))])) == receipt(0, 1)


def test_arrays_are_taken_like_lists(quiet: Any, fresh: Step) -> None:
    """NumPy arrays and scalars are the same content as lists and numbers."""
    quiet.add([fresh(0)])
    row = fresh(
        np.int64(0),
        observation=np.array([0.0, 1.0], dtype=np.float32),
        next_observation=np.array([0.25, 1.0]),
        action=np.int32(0),
        reward=np.float32(0.5),
        terminated=np.bool_(False),
    )

    assert without_lsn(quiet.add([row])) == receipt(0, 1)


def test_lsn_grows_with_what_is_new(quiet: Any, fresh: Step) -> None:
    """Each request that brings something new gets a higher position; a duplicate gets the last."""
    first, second = quiet.add([fresh(0)]).lsn, quiet.add([fresh(1)]).lsn

    assert 0 < first < second
    assert quiet.add([fresh(0)]).lsn == second


def test_empty_batch(quiet: Any) -> None:
    """A batch of nothing is nothing."""
    assert without_lsn(quiet.add([])) == receipt(0)


def test_resend_is_duplicate(quiet: Any, fresh: Step) -> None:
    """The same batch again is all duplicates, and is not stored again."""
    batch = [fresh(t) for t in range(5)]
    before = quiet.wait(quiet.add(batch).lsn)["transitions"]
    again = quiet.add(batch)

    assert without_lsn(again) == receipt(0, 5)
    assert quiet.wait(again.lsn)["transitions"] == before


def test_rebatched_overlap(quiet: Any, fresh: Step) -> None:
    """Each identity counts for itself: what is known is a duplicate, the rest is accepted."""
    quiet.add([fresh(t) for t in range(4)])

    assert without_lsn(quiet.add([fresh(t) for t in range(2, 7)])) == receipt(3, 2)


def test_duplicate_within_a_batch(quiet: Any, fresh: Step) -> None:
    """A batch may hold the same transition twice."""
    assert without_lsn(quiet.add([fresh(0), fresh(1), fresh(0)])) == receipt(2, 1)


def test_out_of_order_and_gaps(quiet: Any, fresh: Step) -> None:
    """Timesteps may come in any order, and gaps may be filled later, also before the end."""
    assert without_lsn(quiet.add([fresh(9, terminated=True), fresh(2)])) == receipt(2)
    assert without_lsn(quiet.add([fresh(7), fresh(3)])) == receipt(2)


def test_wire_precision_is_float32(quiet: Any, fresh: Step) -> None:
    """Content is compared in the model's dtype: 0.1 and its float32 are the same number."""
    quiet.add([fresh(0, observation=[0.1, -0.0], reward=0.1)])
    row = fresh(0, observation=[float(np.float32(0.1)), 0], reward=float(np.float32(0.1)))

    assert without_lsn(quiet.add([row])) == receipt(0, 1)


# -- conflicts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", 0.75),
        ("action", 2),
        ("observation", [9.0, 9.0]),
        ("next_observation", [9.0, 9.0]),
        ("terminated", True),
        ("truncated", True),
        ("behavior_prob", 0.5),
        ("policy_version", -1),
    ],
)
def test_identity_conflict(quiet: Any, fresh: Step, field: str, value: Any) -> None:
    """The same identity with other content is refused, the batch with it, and the first stands."""
    quiet.add([fresh(1)])
    batch = [fresh(0), fresh(1, **{field: value})]

    assert refused(quiet, lambda: quiet.add(batch), e.IdentityConflict) == "transitions[1]"
    assert without_lsn(quiet.add([fresh(0), fresh(1)])) == receipt(1, 1)


def test_identity_conflict_within_a_batch(quiet: Any, fresh: Step) -> None:
    """Two contents under one identity in one batch are refused, though neither was known."""
    batch = [fresh(0), fresh(1), fresh(0, reward=0.0)]

    assert refused(quiet, lambda: quiet.add(batch), e.IdentityConflict) == "transitions[2]"


def test_split_conflict_of_an_identity(quiet: Any, fresh: Step) -> None:
    """The same transition cannot come again in the other split."""
    quiet.add([fresh(0)])
    batch = [fresh(0, split="validation")]

    assert refused(quiet, lambda: quiet.add(batch), e.SplitConflict) == "transitions[0]"


def test_split_conflict_of_an_episode(learned: Any, fresh: Step) -> None:
    """With split_scope episode, an episode keeps its first split."""
    learned.add([fresh(0, split="validation")])
    batch = [fresh(1, split="validation"), fresh(2)]

    assert refused(learned, lambda: learned.add(batch), e.SplitConflict) == "transitions[1]"


def test_episode_closed(quiet: Any, fresh: Step) -> None:
    """Nothing follows an end."""
    quiet.add([fresh(3, truncated=True)])
    batch = [fresh(2), fresh(4)]

    assert refused(quiet, lambda: quiet.add(batch), e.EpisodeClosed) == "transitions[1]"


def test_end_before_a_known_step(quiet: Any, fresh: Step) -> None:
    """An end cannot come before a step that is known."""
    quiet.add([fresh(5)])
    batch = [fresh(4, terminated=True)]

    assert refused(quiet, lambda: quiet.add(batch), e.EpisodeClosed) == "transitions[0]"


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (e.IdentityConflict, "identity_conflict", 409),
        (e.SplitConflict, "split_conflict", 409),
        (e.EpisodeClosed, "episode_closed", 409),
        (e.PolicyVersionUnknown, "policy_version_unknown", 409),
    ],
)
def test_code_and_message(
    quiet: Any, fresh: Step, error: type[e.JormungandrError], code: str, status: int
) -> None:
    """A conflict has the same code, status and words wherever it comes from."""
    quiet.add([fresh(1, terminated=True)])
    row = {
        e.IdentityConflict: fresh(1),
        e.SplitConflict: fresh(1, terminated=True, split="validation"),
        e.EpisodeClosed: fresh(2),
        e.PolicyVersionUnknown: fresh(0, policy_version=1),
    }[error]
    with pytest.raises(error) as raised:
        quiet.add([row])
    local = Learner(QUIET)
    local.add([fresh(1, terminated=True)])
    with pytest.raises(error) as expected:
        local.add([row])

    assert (raised.value.code, raised.value.status) == (code, status)
    assert raised.value.to_dict() == expected.value.to_dict()


# -- bad input ----------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
BAD: list[tuple[str, dict[str, Any], type[e.JormungandrError], str]] = [
    *(
        (f"{name} missing", {name: ...}, e.MissingField, f".{name}")
        for name in ("actor_id", "timestep", "split", "policy_version", "observation", "reward")
    ),
    ("null", {"next_observation": None}, e.MissingField, ".next_observation"),
    ("typo", {"rewrad": 1.0}, e.UnknownField, ".rewrad"),
    ("id of a number", {"actor_id": 5}, e.InvalidType, ".actor_id"),
    ("id empty", {"episode_id": ""}, e.InvalidValue, ".episode_id"),
    ("id long", {"episode_id": "é" * 65}, e.InvalidValue, ".episode_id"),
    ("id with newline", {"actor_id": "a\nb"}, e.InvalidValue, ".actor_id"),
    ("timestep -1", {"timestep": -1}, e.InvalidValue, ".timestep"),
    ("timestep 2**53", {"timestep": 2**53}, e.InvalidValue, ".timestep"),
    ("timestep 2**70", {"timestep": 2**70}, e.InvalidValue, ".timestep"),
    ("timestep 1.0", {"timestep": 1.0}, e.InvalidType, ".timestep"),
    ("timestep true", {"timestep": True}, e.InvalidType, ".timestep"),
    ("split", {"split": "test"}, e.UnknownSplit, ".split"),
    ("split list", {"split": ["train"]}, e.UnknownSplit, ".split"),
    ("version -2", {"policy_version": -2}, e.InvalidValue, ".policy_version"),
    ("version text", {"policy_version": "0"}, e.InvalidType, ".policy_version"),
    ("short", {"observation": [1.0]}, e.ShapeMismatch, ".observation"),
    ("long", {"next_observation": [1.0, 2.0, 3.0]}, e.ShapeMismatch, ".next_observation"),
    ("number", {"observation": 1.0}, e.ShapeMismatch, ".observation"),
    ("text", {"observation": "12"}, e.ShapeMismatch, ".observation"),
    ("object", {"observation": {"x": 1}}, e.ShapeMismatch, ".observation"),
    ("nested", {"observation": [[1.0], 2.0]}, e.ShapeMismatch, ".observation[0]"),
    ("text inside", {"observation": [1.0, "2"]}, e.DtypeMismatch, ".observation[1]"),
    ("true inside", {"observation": [1.0, True]}, e.DtypeMismatch, ".observation[1]"),
    ("null inside", {"observation": [None, 1.0]}, e.DtypeMismatch, ".observation[0]"),
    *(
        (f"{name} {value}", {name: given}, e.NonFinite, f".{name}")
        for value in (NAN, INF, -INF, 1e39)
        for name, given in (
            ("observation", [value, 1.0]),
            ("next_observation", [1.0, value]),
            ("reward", value),
        )
    ),
    ("reward 10**400", {"reward": 10**400}, e.NonFinite, ".reward"),
    ("reward text", {"reward": "1"}, e.InvalidType, ".reward"),
    ("reward true", {"reward": True}, e.InvalidType, ".reward"),
    ("action 3", {"action": 3}, e.ActionRange, ".action"),
    ("action -1", {"action": -1}, e.ActionRange, ".action"),
    ("action 2**70", {"action": 2**70}, e.ActionRange, ".action"),
    ("action 1.5", {"action": 1.5}, e.ActionRange, ".action"),
    ("action true", {"action": True}, e.ActionRange, ".action"),
    ("action label", {"action": "LONG"}, e.ActionRange, ".action"),
    ("terminated 1", {"terminated": 1}, e.InvalidType, ".terminated"),
    ("truncated text", {"truncated": "no"}, e.InvalidType, ".truncated"),
    ("probability 0", {"behavior_prob": 0}, e.InvalidValue, ".behavior_prob"),
    ("probability 1.5", {"behavior_prob": 1.5}, e.InvalidValue, ".behavior_prob"),
    ("probability nan", {"behavior_prob": NAN}, e.NonFinite, ".behavior_prob"),
    ("probability text", {"behavior_prob": "1"}, e.InvalidType, ".behavior_prob"),
    ("label 2", {"label": 2}, e.LabelRange, ".label"),
    ("label -1", {"label": -1}, e.LabelRange, ".label"),
    ("label true", {"label": True}, e.LabelRange, ".label"),
    ("label 1.0", {"label": 1.0}, e.LabelRange, ".label"),
    ("label name", {"label": "SIDEWAYS"}, e.LabelRange, ".label"),
]


@pytest.mark.parametrize(
    ("change", "error", "where"), [c[1:] for c in BAD], ids=[c[0] for c in BAD]
)
def test_bad_transition(
    quiet: Any, fresh: Step, change: dict[str, Any], error: type[e.JormungandrError], where: str
) -> None:
    """A bad transition is refused by name, and nothing of its batch is kept."""
    row = {k: v for k, v in fresh(1, **change).items() if v is not ...}

    assert refused(quiet, lambda: quiet.add([fresh(0), row]), error) == f"transitions[1]{where}"


ARRAYS: list[tuple[str, Any, type[e.JormungandrError]]] = [
    ("nan", np.array([NAN, 0.0], dtype=np.float32), e.NonFinite),
    ("1e39", np.array([1e39, 0.0]), e.NonFinite),
    ("bool", np.array([True, False]), e.DtypeMismatch),
    ("text", np.array(["1", "2"]), e.DtypeMismatch),
    ("wide", np.zeros((1, 2)), e.ShapeMismatch),
    ("0-d", np.array(1.0), e.ShapeMismatch),
]


@pytest.mark.parametrize(("array", "error"), [c[1:] for c in ARRAYS], ids=[c[0] for c in ARRAYS])
def test_bad_array(quiet: Any, fresh: Step, array: Any, error: type[e.JormungandrError]) -> None:
    """An array that does not fit is refused as a list of its elements would be."""
    where = refused(quiet, lambda: quiet.add([fresh(0, observation=array)]), error)

    assert where.startswith("transitions[0].observation")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"a": 1}, "transitions"),
        ("text", "transitions"),
        ([3], "transitions[0]"),
        ([None], "transitions[0]"),
    ],
)
def test_no_list_of_transitions(quiet: Any, given: Any, where: str) -> None:
    """What is no list of objects is refused as such."""
    assert refused(quiet, lambda: quiet.add(given), e.InvalidType) == where


def test_lone_surrogate(quiet: Any, fresh: Step) -> None:
    """Text that is no Unicode is refused as an id, of a transition and of a label."""
    row = fresh(0, actor_id="\ud800")

    refused(quiet, lambda: quiet.add([row]), e.InvalidValue)
    refused(quiet, lambda: quiet.label([label_of(row, 0)]), e.InvalidValue)


BAD_LABELS: list[tuple[str, dict[str, Any], type[e.JormungandrError], str]] = [
    ("missing", {"label": ...}, e.MissingField, ".label"),
    ("null", {"actor_id": None}, e.MissingField, ".actor_id"),
    ("unknown", {"split": "train"}, e.UnknownField, ".split"),
    ("id", {"actor_id": 1}, e.InvalidType, ".actor_id"),
    ("id long", {"episode_id": "x" * 129}, e.InvalidValue, ".episode_id"),
    ("timestep", {"timestep": 0.0}, e.InvalidType, ".timestep"),
    ("timestep -1", {"timestep": -1}, e.InvalidValue, ".timestep"),
    ("class", {"label": 2}, e.LabelRange, ".label"),
    ("name", {"label": "up"}, e.LabelRange, ".label"),
]


@pytest.mark.parametrize(
    ("change", "error", "where"), [c[1:] for c in BAD_LABELS], ids=[c[0] for c in BAD_LABELS]
)
def test_bad_label(
    quiet: Any, fresh: Step, change: dict[str, Any], error: type[e.JormungandrError], where: str
) -> None:
    """A bad label is refused by name, and nothing of its request is kept."""
    bad = {k: v for k, v in {**label_of(fresh(1), 0), **change}.items() if v is not ...}
    labels = [label_of(fresh(0), 0), bad]

    assert refused(quiet, lambda: quiet.label(labels), error) == f"labels[1]{where}"


@pytest.mark.parametrize(
    ("given", "where"), [({"a": 1}, "labels"), ("text", "labels"), ([3], "labels[0]")]
)
def test_no_list_of_labels(quiet: Any, given: Any, where: str) -> None:
    """What is no list of objects is refused as such."""
    assert refused(quiet, lambda: quiet.label(given), e.InvalidType) == where


# -- tags --------------------------------------------------------------------------------------


def test_tags_are_content(quiet: Any, fresh: Step) -> None:
    """An episode keeps those it first came with; the same again, in any order, is known."""
    quiet.add([fresh(0, tags={"regime": "calm", "map": "x"})])

    assert without_lsn(quiet.add([fresh(0, tags={"map": "x", "regime": "calm"}), fresh(1)])) == (
        receipt(1, 1)
    )
    for other in ({"regime": "wild", "map": "x"}, {"regime": "calm"}, None):
        with pytest.raises(e.IdentityConflict) as caught:
            quiet.add([fresh(0, tags=other)])
        assert caught.value.where == "transitions[0]"


def test_tags_as_structs(quiet: Any, fresh: Step) -> None:
    """A Transition with tags is the same content as the dict with its fields."""
    quiet.add([fresh(0, tags={"regime": "calm"})])

    assert without_lsn(quiet.add([Transition(**fresh(0, tags={"regime": "calm"}))])) == (
        receipt(0, 1)
    )


@pytest.mark.parametrize(
    ("timestep", "tags", "error", "where"),
    [
        (1, {"regime": "calm"}, e.InvalidValue, "tags"),
        (0, {"Regime": "calm"}, e.InvalidValue, "tags"),
        (0, {"regime": 3}, e.InvalidType, "tags.regime"),
        (0, {"regime": "x" * 65}, e.InvalidValue, "tags.regime"),
        (0, {f"k{i}": "v" for i in range(9)}, e.InvalidValue, "tags"),
        (0, "calm", e.InvalidType, "tags"),
    ],
)
def test_bad_tags(
    quiet: Any, fresh: Step, timestep: int, tags: Any, error: type[e.InvalidInput], where: str
) -> None:
    """They are refused at their place, and the batch with them."""
    with pytest.raises(error) as caught:
        quiet.add([fresh(2), fresh(timestep, tags=tags)])

    assert caught.value.where == f"transitions[1].{where}"
    assert without_lsn(quiet.add([fresh(2)])) == receipt(1)


def test_returns_by_tag(quiet: Any, fresh: Step) -> None:
    """The figures of a model tell whole episodes apart by their tags."""
    tags = {"contract": fresh()["episode_id"]}
    episode = [fresh(0, tags=tags), fresh(1, terminated=True)]
    held_out = [
        dict(row, episode_id=f"{row['episode_id']}v", split="validation") for row in episode
    ]
    quiet.wait(quiet.add([*episode, *held_out[:1]]).lsn)
    quiet.wait(quiet.add(held_out[1:]).lsn)
    returns = quiet.metrics()["returns"]

    for split in ("train", "validation"):
        assert returns[split]["by_tag"]["contract"][tags["contract"]] == {
            "episodes": 1,
            "over_newest": 1,
            "mean_return": 1.0,
            "interval_95": None,
        }


# -- labels -------------------------------------------------------------------------------------


def counts(**given: int) -> dict[str, int]:
    """Return what `without_lsn` makes of a label receipt."""
    return {"attached": 0, "pending": 0, "duplicate": 0, "target_evicted": 0, **given}


def test_label_after_its_transition(quiet: Any, fresh: Step) -> None:
    """A label for a known transition is attached, by index or by name."""
    quiet.add([fresh(0), fresh(1)])
    labels = [label_of(fresh(0), 1), label_of(fresh(1), "DOWN")]

    assert without_lsn(quiet.label(labels)) == counts(attached=2)


def test_label_before_its_transition(quiet: Any, fresh: Step) -> None:
    """A label for a transition that is not there yet waits, and is taken when it comes."""
    before = quiet.info()["labels"]["pending"]
    receipt = quiet.label([label_of(fresh(0), 1)])

    assert without_lsn(receipt) == counts(pending=1)
    assert quiet.info()["labels"]["pending"] == before + 1
    quiet.add([fresh(0)])
    assert quiet.info()["labels"]["pending"] == before
    assert without_lsn(quiet.label([label_of(fresh(0), 1)])) == counts(duplicate=1)


def test_label_inline(quiet: Any, fresh: Step) -> None:
    """A label may come with its transition, and with the duplicate of one that had none."""
    quiet.add([fresh(0, label="UP"), fresh(1)])

    assert without_lsn(quiet.label([label_of(fresh(0), 1)])) == counts(duplicate=1)
    assert without_lsn(quiet.add([fresh(1, label=0)])) == receipt(0, 1)
    assert without_lsn(quiet.label([label_of(fresh(1), 0)])) == counts(duplicate=1)


def test_label_twice(quiet: Any, fresh: Step) -> None:
    """The same label again is a duplicate, attached or waiting, in one request or two."""
    quiet.add([fresh(0)])
    known, waiting = label_of(fresh(0), 1), label_of(fresh(1), 0)

    assert without_lsn(quiet.label([known, waiting, known])) == counts(
        attached=1, pending=1, duplicate=1
    )
    assert without_lsn(quiet.label([waiting, known])) == counts(duplicate=2)


def test_label_struct(quiet: Any, fresh: Step) -> None:
    """A Label is the same as the dict with its fields."""
    quiet.add([fresh(0)])
    quiet.label([Label(**label_of(fresh(0), 1))])

    assert without_lsn(quiet.label([label_of(fresh(0), 1)])) == counts(duplicate=1)


@pytest.mark.parametrize("known", [True, False])
def test_label_conflict(quiet: Any, fresh: Step, known: bool) -> None:
    """Another label for the same identity is refused, its request with it, and the first stands."""
    if known:
        quiet.add([fresh(0)])
    quiet.label([label_of(fresh(0), 1)])
    labels = [label_of(fresh(1), 1), label_of(fresh(0), 0)]

    assert refused(quiet, lambda: quiet.label(labels), e.LabelConflict) == "labels[1].label"
    assert without_lsn(quiet.label([label_of(fresh(0), 1)])) == counts(duplicate=1)


def test_inline_label_conflict(quiet: Any, fresh: Step) -> None:
    """A transition whose label contradicts the one that waits for it is refused."""
    quiet.label([label_of(fresh(0), 1)])
    batch = [fresh(0, label=0)]

    assert refused(quiet, lambda: quiet.add(batch), e.LabelConflict) == "transitions[0].label"


def test_label_after_eviction(quiet: Any, fresh: Step) -> None:
    """A label for a transition that replay has let go of does nothing, and does not wait."""
    quiet.add([fresh(t) for t in range(5)])  # replay holds four
    labels = [label_of(fresh(0), 1), label_of(fresh(1), 1)]

    assert without_lsn(quiet.label(labels)) == counts(attached=1, target_evicted=1)


# -- counters -----------------------------------------------------------------------------------


def test_mixed_batch_in_one_episode(made: Implementation, quiet: Any) -> None:
    """train, validation, train, validation: two and two are stored, and the moments count four."""
    info = made.figures["quiet"]

    assert [info["replay"]["size"], info["validation"]["size"]] == [2, 2]
    assert info["normalizer"]["count"] == 4
    assert info["transitions"] == {"train": 2, "validation": 2}
    assert info["mixed_episodes"] == 1
    assert info["warnings"][0].startswith("mixed_episodes: 1 episodes have transitions of both")


def test_mixed_batch_of_two_episodes(quiet: Any, fresh: Step) -> None:
    """Interleaved episodes of the two splits count the same, and are nothing to warn about."""
    before = quiet.wait(quiet.add([fresh(9)]).lsn)
    splits = ("train", "validation", "train", "validation")
    names = [f"{split}-{fresh()['episode_id']}" for split in splits]
    batch = [fresh(t, split=splits[t], episode_id=names[t]) for t in range(4)]
    after = quiet.wait(quiet.add(batch).lsn)

    assert after["transitions"]["train"] - before["transitions"]["train"] == 2
    assert after["transitions"]["validation"] - before["transitions"]["validation"] == 2
    assert after["normalizer"]["count"] - before["normalizer"]["count"] == 4
    assert after["mixed_episodes"] == before["mixed_episodes"]


def test_wait_shows_everything_up_to_it(quiet: Any, fresh: Step) -> None:
    """When `wait` returns, the receipt's position is applied."""
    receipt = quiet.add([fresh(0)])
    info = quiet.wait(receipt.lsn)

    assert info["applied_lsn"] == info["journal_lsn"] == receipt.lsn
    assert quiet.info()["applied_lsn"] == receipt.lsn


# -- learning -----------------------------------------------------------------------------------


def test_figures_after_learning(made: Implementation, learned: Any) -> None:
    """One update for each of the 48 training transitions after the first eight."""
    info = made.figures["learned"]

    assert info["update_count"] == info["policy_version"] == UPDATES
    assert info["transitions"] == {"train": 48, "validation": 18}
    assert info["replay"] == {"size": 48, "capacity": 64}
    assert info["validation"] == {"size": 16, "capacity": 16}
    assert info["normalizer"]["count"] == 96


def test_first_evaluation(learned: Any) -> None:
    """The first update is evaluated under version 1."""
    first = evaluations(learned)[0]

    assert (first["policy_version"], first["update_count"]) == (1, 1)
    assert 0 < first["validation_loss"] < 10


def test_evaluations_are_the_same(learned: Any, reference: Learner) -> None:
    """Every update was evaluated, with the same figures to the last bit."""
    assert evaluations(learned) == evaluations(reference)
    assert len(evaluations(learned)) == UPDATES


def test_snapshot_is_the_same(made: Implementation, learned: Any, reference: Learner) -> None:
    """The same rows in the same order make the same policy, however they were batched."""
    assert made.digest() == reference.snapshot().digest()


def test_acts_the_same(learned: Any, reference: Learner) -> None:
    """The same policy answers with the same numbers, bit for bit."""
    ours = learned.act(OBSERVATIONS, deterministic=True, distribution=True)
    theirs = reference.act(OBSERVATIONS, deterministic=True, distribution=True)

    assert ours == theirs


def test_versions_agree(learned: Any, fresh: Step) -> None:
    """Reply, receipt and figures name the version that is served."""
    assert learned.act(OBSERVATIONS).policy_version == UPDATES
    assert learned.act(OBSERVATIONS).generation == 1
    assert without_lsn(learned.add([])) == receipt(0, version=UPDATES)


def test_future_version(learned: Any, fresh: Step) -> None:
    """A version that does not exist yet is refused; the newest and -1 are not."""
    batch = [fresh(0), fresh(1, policy_version=UPDATES + 1)]
    where = refused(learned, lambda: learned.add(batch), e.PolicyVersionUnknown)

    assert where == "transitions[1].policy_version"
    held = fresh(0, split="validation", policy_version=UPDATES)
    other = fresh(1, split="validation", policy_version=-1)
    assert without_lsn(learned.add([held, other])) == receipt(2, version=UPDATES)


# -- acting -------------------------------------------------------------------------------------


def test_deterministic(learned: Any) -> None:
    """The best action is chosen with certainty, whatever epsilon says, and has the top value."""
    reply = learned.act(OBSERVATIONS, deterministic=True, epsilon=1.0)

    assert reply.behavior_prob == [1.0, 1.0, 1.0]
    assert reply.indices.tolist() == np.argmax(reply.expected_values, axis=1).tolist()
    assert reply.distribution is reply.support is None


def test_choices_carry_label_and_value(learned: Any) -> None:
    """A choice says what its index means, in the words of the specification."""
    choice = learned.act(OBSERVATIONS[:1], deterministic=True).actions[0]
    expected = [("SHORT", -1), ("FLAT", 0), ("LONG", 1)]

    assert (choice.label, choice.value) == expected[choice.index]


def test_epsilon_zero_and_one(learned: Any) -> None:
    """Epsilon 0 is the best action, 1 is uniform; its probability is that of the choice made."""
    best = learned.act(OBSERVATIONS, deterministic=True).indices.tolist()
    reply = learned.act(OBSERVATIONS, epsilon=0)

    assert (reply.indices.tolist(), reply.behavior_prob) == (best, [1.0, 1.0, 1.0])
    assert learned.act(OBSERVATIONS, epsilon=1.0).behavior_prob == pytest.approx([1 / 3] * 3)


def test_epsilon_between(learned: Any) -> None:
    """A choice has probability 1 - epsilon + epsilon/3 when it is the best one, else epsilon/3."""
    many = OBSERVATIONS * 30
    reply = learned.act(many, epsilon=0.5)
    best = learned.act(many, deterministic=True).indices
    expected = np.where(reply.indices == best, 0.5 + 0.5 / 3, 0.5 / 3)

    assert reply.behavior_prob == pytest.approx(expected.tolist())
    assert 0 < np.count_nonzero(reply.indices != best) < len(many)


def test_schedule_without_epsilon(learned: Any) -> None:
    """Without epsilon the model's schedule applies: it has ended, at 0.25."""
    many = OBSERVATIONS * 10
    reply = learned.act(many)
    best = learned.act(many, deterministic=True).indices

    assert reply.behavior_prob == pytest.approx(
        np.where(reply.indices == best, 0.75 + 0.25 / 3, 0.25 / 3).tolist()
    )


def test_distribution(learned: Any) -> None:
    """Every action's distribution has mass one and the expected value that is given."""
    reply = learned.act(OBSERVATIONS, deterministic=True, distribution=True)

    assert reply.support == pytest.approx([-2 + 0.4 * k for k in range(11)])
    assert np.shape(reply.distribution) == (3, 3, 11)
    assert np.sum(reply.distribution, axis=-1) == pytest.approx(np.ones((3, 3)))
    values = np.dot(reply.distribution, reply.support)
    assert values == pytest.approx(np.array(reply.expected_values), abs=1e-6)


@pytest.mark.parametrize("single", [[0.5, -1.0], (0.5, -1.0), np.array([0.5, -1.0], np.float32)])
def test_single_observation(learned: Any, single: Any) -> None:
    """A single observation is a batch of one."""
    assert learned.act(single, deterministic=True) == learned.act(
        OBSERVATIONS[:1], deterministic=True
    )


def test_empty_batch_of_observations(learned: Any) -> None:
    """No observations, no actions."""
    reply = learned.act([])

    assert (reply.actions, reply.expected_values, reply.behavior_prob) == ([], [], [])


def test_many_observations(learned: Any) -> None:
    """A large batch answers as small ones do."""
    many = np.random.default_rng(3).standard_normal((300, 2)).astype(np.float32)
    whole = learned.act(many, deterministic=True)
    parts = [learned.act(many[at : at + 50], deterministic=True) for at in range(0, 300, 50)]

    assert whole.indices.tolist() == [i for part in parts for i in part.indices]
    np.testing.assert_allclose(
        whole.expected_values, [v for part in parts for v in part.expected_values], atol=1e-6
    )


BAD_OBSERVATIONS: list[tuple[str, Any, type[e.JormungandrError]]] = [
    ("short", [[1.0]], e.ShapeMismatch),
    ("short array", np.zeros((2, 3)), e.ShapeMismatch),
    ("single short", [1.0, 2.0, 3.0], e.ShapeMismatch),
    ("ragged", [[1.0, 2.0], [1.0]], e.ShapeMismatch),
    ("deep", [[[1.0, 2.0]]], e.ShapeMismatch),
    ("text", [[1.0, "2"]], e.DtypeMismatch),
    ("null", [[1.0, None]], e.DtypeMismatch),
    ("true", [[1.0, True]], e.DtypeMismatch),
    ("bool array", np.array([[True, False]]), e.DtypeMismatch),
    ("nan", [[1.0, 2.0], [1.0, NAN]], e.NonFinite),
    ("nan array", np.array([[NAN, 0.0]], dtype=np.float32), e.NonFinite),
    ("inf", [[INF, 0.0]], e.NonFinite),
    ("1e39", [[1e39, 0.0]], e.NonFinite),
]


@pytest.mark.parametrize(
    ("given", "error"), [c[1:] for c in BAD_OBSERVATIONS], ids=[c[0] for c in BAD_OBSERVATIONS]
)
def test_bad_observations(learned: Any, given: Any, error: type[e.JormungandrError]) -> None:
    """A bad observation is refused as such."""
    where = refused(learned, lambda: learned.act(given), error)

    assert where.startswith("observations")


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, NAN, INF])
def test_bad_epsilon(learned: Any, epsilon: float) -> None:
    """An epsilon that is no probability is refused."""
    where = refused(learned, lambda: learned.act(OBSERVATIONS, epsilon=epsilon), e.InvalidValue)

    assert where == "epsilon"


# -- staleness ----------------------------------------------------------------------------------


def test_stale_transition_is_dropped(learned: Any, fresh: Step) -> None:
    """A training transition of too old a policy is dropped, also when it is sent again."""
    first = learned.add([fresh(0, policy_version=UPDATES - 3)])
    again = learned.add([fresh(0, policy_version=UPDATES - 3)])

    assert (first.accepted, first.duplicate, first.stale_dropped) == (0, 0, 1)
    assert (again.accepted, again.duplicate, again.stale_dropped) == (0, 0, 1)
    assert learned.wait(again.lsn)["transitions"]["train"] == 48


def test_held_out_transitions_are_never_stale(learned: Any, fresh: Step) -> None:
    """Lag is a rule for training data alone."""
    assert learned.add([fresh(0, split="validation", policy_version=0)]).accepted == 1


def test_figures_of_actors(quiet: Any, fresh: Step) -> None:
    """Each actor's transitions are counted by what became of them, and its lags measured."""
    who = {"actor_id": fresh()["episode_id"]}
    rows = [fresh(t, **who, policy_version=0 if t else -1) for t in range(3)]
    quiet.add(rows)
    quiet.add([fresh(3, **who, split="validation")])
    lsn = quiet.add(rows[:2]).lsn
    actors = quiet.metrics()["actors"]
    (mine,) = (each for each in actors["each"] if each["actor_id"] == who["actor_id"])

    assert mine == {
        **who,
        "train": 3,
        "validation": 1,
        "stale_dropped": 0,
        "rejected": 0,
        "duplicate": 2,
        "last_lsn": lsn,
        "newest_version": 0,
        "lag": {"transitions": 2, "last": 0, "mean": 0.0, "p50": 0, "p95": 0, "max": 0},
    }
    assert actors["others"] == {"train": 0, "validation": 0, "stale_dropped": 0}


def test_lag_of_a_model(learned: Any, fresh: Step) -> None:
    """A model shows how far behind its data is, and who is furthest."""
    who = {"actor_id": fresh()["episode_id"]}
    lsn = learned.add([fresh(0, **who, policy_version=5)]).lsn
    lag = learned.wait(lsn)["lag"]

    assert lag["last"] == UPDATES - 5 <= lag["max"]
    assert {"actor_id": who["actor_id"], "last": UPDATES - 5, "version": 5} in lag["worst"]
