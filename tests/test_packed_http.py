"""Columns over HTTP: made by hand from the document, by the client, and with faults."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.testclient import TestClient

from jormungandr import ModelSpec, RemoteLearner, Transition
from jormungandr import errors as e
from jormungandr.columns import columns
from jormungandr.outbox import Outbox
from jormungandr.packed import pack
from jormungandr.protocol import LIMITS
from jormungandr.transport import Response
from tests.service.serving import BEARER, QUIET, InMemory, connect, experience, memory

GOLDEN = Path(__file__).parent / "golden" / "columns-1.msgpack"
MEANING = json.loads(GOLDEN.with_suffix(".json").read_text(encoding="utf-8"))
MASKED = {**MEANING["spec"], "pacing": {"learning_starts": 1_000_000}}
MSGPACK = {**BEARER, "Content-Type": "application/msgpack"}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """An application with the models ``golden``, ``m`` and ``other``."""
    with memory(tmp_path_factory.mktemp("data")) as client:
        for name, spec in (("golden", MASKED), ("m", QUIET), ("other", QUIET)):
            connect(client, name).create(spec)
        yield client


def add(http: TestClient, model_id: str, body: bytes) -> Any:
    """Send columns as they are."""
    return http.post(f"/v1/models/{model_id}/experience/add", content=body, headers=MSGPACK)


# -- an encoder that knows the document alone -----------------------------------------------------


def text(value: str) -> bytes:
    """Return a MessagePack str."""
    data = value.encode()
    return (bytes([0xA0 + len(data)]) if len(data) < 32 else bytes([0xD9, len(data)])) + data


def binary(layout: str, values: list[Any]) -> bytes:
    """Return a MessagePack bin of little-endian elements."""
    data = struct.pack(f"<{len(values)}{layout}", *values)
    return b"\xc6" + struct.pack(">I", len(data)) + data


def by_hand(rows: list[dict[str, Any]], size: int) -> bytes:
    """Return the columns of transitions, written after docs/protocol.md without our code."""
    actors = list(dict.fromkeys(row["actor_id"] for row in rows))
    episodes = list(dict.fromkeys(row["episode_id"] for row in rows))

    def flat(name: str) -> list[Any]:
        return [x for row in rows for x in row[name]]

    def each(name: str, missing: Any = None) -> list[Any]:
        return [row.get(name, missing) for row in rows]

    def ids(known: list[str]) -> bytes:
        return b"\xdd" + struct.pack(">I", len(known)) + b"".join(map(text, known))

    fields = {
        "split": binary("B", [0 if s == "train" else 1 for s in each("split")]),
        "format": b"\x01",
        "count": b"\xcd" + struct.pack(">H", len(rows)),
        "shape": bytes([0x91, size]),
        "dtype": text("float32"),
        "actors": ids(actors),
        "episodes": ids(episodes),
        "actor": binary("i", [actors.index(row["actor_id"]) for row in rows]),
        "episode": binary("i", [episodes.index(row["episode_id"]) for row in rows]),
        **{n: binary("q", each(n)) for n in ("timestep", "policy_version", "action")},
        **{n: binary("f", flat(n)) for n in ("observation", "next_observation")},
        "reward": binary("f", each("reward")),
        **{n: binary("B", each(n)) for n in ("terminated", "truncated")},
        "behavior_prob": binary("f", each("behavior_prob", float("nan"))),
        "label": binary("i", each("label", -1)),
        "next_action_mask": binary("B", [x for m in each("next_action_mask", [1] * 3) for x in m]),
    }
    head = b"\xde" + struct.pack(">H", len(fields))
    return head + b"".join(text(name) + value for name, value in fields.items())


def test_an_encoder_made_from_the_document_is_understood(http: TestClient) -> None:
    """The bytes of a second encoder are taken, and are the content that JSON has."""
    rows = [{**row, "actor_id": row["actor_id"] + "2"} for row in MEANING["transitions"]]
    sent = add(http, "golden", by_hand(rows, 2))
    again = connect(http, "golden", columns_from=None).add(rows)

    assert (sent.status_code, sent.json()["accepted"]) == (200, 3)
    assert (again.accepted, again.duplicate) == (0, 3)


def test_golden_bytes_are_taken(http: TestClient) -> None:
    """The committed bytes are taken, and are the content of the JSON beside them."""
    assert add(http, "golden", GOLDEN.read_bytes()).json()["accepted"] == 3
    assert connect(http, "golden", columns_from=None).add(MEANING["transitions"]).duplicate == 3
    assert add(http, "golden", GOLDEN.read_bytes()).json()["duplicate"] == 3


# -- the client -----------------------------------------------------------------------------------


class Seen(InMemory):
    """A transport that remembers what it carried, and may fail."""

    def __init__(self, http: TestClient) -> None:
        super().__init__(http)
        self.sent: list[tuple[str, bytes]] = []
        self.answers: list[Response | None] = []

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Response:
        """Carry a request, unless another answer waits; the answer None is lost on the way."""
        if path.endswith("/add"):
            self.sent.append((headers["Content-Type"], body or b""))
            if self.answers:
                answer = self.answers.pop(0)
                if answer is not None:
                    return answer
                super().request(method, path, body, headers, timeout)
                raise ConnectionResetError
        return super().request(method, path, body, headers, timeout)


@pytest.mark.parametrize(
    ("rows", "kind"), [(15, "application/json"), (16, "application/msgpack"), (17, None)]
)
def test_sixteen_rows_are_columns(http: TestClient, rows: int, kind: str | None) -> None:
    """The client sends fewer than sixteen transitions as JSON, and the others as columns."""
    seen = Seen(http)
    batch = experience(1, rows, actor_id=f"sixteen{rows}")
    receipt = RemoteLearner(None, "m", "the-operator's-token", transport=seen).add(batch)

    assert receipt.accepted == rows
    assert [sent[0] for sent in seen.sent] == [kind or "application/msgpack"]


def test_a_retry_sends_the_same_bytes(http: TestClient) -> None:
    """Columns whose answer got lost go again as they were, and count once."""
    seen = Seen(http)
    busy = {"error": e.Draining("service", "another", "").to_dict()}
    seen.answers = [None, Response(503, {"retry-after": "0"}, msgspec.json.encode(busy))]
    client = RemoteLearner(None, "m", "the-operator's-token", transport=seen)
    receipt = client.add(experience(2, 10, actor_id="retry"))

    assert (receipt.accepted, receipt.duplicate) == (0, 20)
    assert len(seen.sent) == 3
    assert len(set(seen.sent)) == 1


def test_a_service_without_columns_is_named(http: TestClient) -> None:
    """An older service that refuses the media type is no reason to fall back unseen."""
    seen = Seen(http)
    older = e.UnsupportedMediaType("Content-Type", "application/json", "application/msgpack")
    seen.answers = [Response(415, {}, msgspec.json.encode({"error": older.to_dict()}))]
    client = RemoteLearner(None, "m", "the-operator's-token", transport=seen)
    with pytest.raises(e.UnsupportedMediaType, match=r"a service that takes columns.*update it"):
        client.add(experience(2, 10, actor_id="older"))

    assert len(seen.sent) == 1


def test_a_batch_too_large_for_columns_goes_in_halves(http: TestClient) -> None:
    """The outbox halves what is over 8 MiB; what is over 1 MiB of JSON goes as columns."""
    size = 50_000
    spec = {"observation": {"shape": [size]}, "actions": 2, "c51": {"hidden": [4], "atoms": 3}}
    seen = Seen(http)
    client = RemoteLearner(None, "wide", "the-operator's-token", transport=seen)
    client.create({**spec, "replay": {"capacity": 32}, "pacing": {"learning_starts": 1_000_000}})
    rng = np.random.default_rng(0)
    rows = [
        Transition(
            actor_id="a",
            episode_id="e",
            timestep=t,
            split="train",
            policy_version=-1,
            observation=rng.standard_normal(size).astype(np.float32),
            action=0,
            reward=0.0,
            next_observation=np.zeros(size, np.float32),
            terminated=False,
            truncated=False,
        )
        for t in range(23)
    ]
    outbox = Outbox(client, len(rows))
    outbox.put(rows)  # 9.2 MB

    assert outbox.receipt.accepted == 23
    assert [kind for kind, _ in seen.sent] == ["application/msgpack"] * 3
    assert max(len(body) for _, body in seen.sent) > LIMITS["json_body_bytes"]
    client.delete()


def test_a_model_created_again_gets_no_columns_of_the_old_one(http: TestClient) -> None:
    """Columns name the generation they were made for; of another they are refused, whole."""
    client = connect(http, "again")
    spec = {**QUIET, "auxiliary": {"classes": ["DOWN", "UP"], "weight": 0.1}}
    client.create(spec)
    rows = [{**row, "label": "UP"} for row in experience(2, 10)]
    assert client.add(rows).accepted == 20
    client.delete()
    client.create({**spec, "auxiliary": {"classes": ["UP", "DOWN"], "weight": 0.1}})
    old = pack(columns(rows, ModelSpec.from_dict(spec)), 1)
    refused = add(http, "again", old)

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_conflict")
    assert refused.json()["error"]["where"] == "generation"
    assert client.info()["accepted"] == {"train": 0, "validation": 0}
    labels = [
        {**{n: rows[0][n] for n in ("actor_id", "episode_id", "timestep")}, "label": "UP"},
    ]
    assert client.add(rows).accepted == 20  # it asks again, and makes others
    assert client.label(labels).duplicate == 1


# -- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code", "where"),
    [
        ({"action": np.full(20, 3, "<i8").tobytes()}, "action_range", "transitions[0].action"),
        ({"reward": np.full(20, np.nan, "<f4").tobytes()}, "non_finite", "transitions[0].reward"),
        ({"action": b""}, "shape_mismatch", "transitions.action"),
        ({"rewrad": b""}, "unknown_field", "transitions.rewrad"),
        ({"reward": None}, "missing_field", "transitions.reward"),
        ({"count": 4_097}, "body_too_large", "transitions"),
    ],
)
def test_fault(http: TestClient, change: dict[str, Any], code: str, where: str) -> None:
    """A fault in columns has the status, the code and the place that it has as JSON."""
    fields = msgspec.msgpack.decode(
        pack(columns(experience(2, 10, actor_id="fault"), ModelSpec.from_dict(QUIET)))
    )
    before = connect(http, "m").info()["accepted"]
    answer = add(http, "m", msgspec.msgpack.encode({**fields, **change}))

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (413 if where == "transitions" else 422, code)
    assert error["where"] == where
    assert connect(http, "m").info()["accepted"] == before


def test_mutated_bodies_change_nothing(http: TestClient) -> None:
    """Whatever comes is answered or refused, with no fault of ours; a refusal keeps nothing."""
    client = connect(http, "other")
    good = pack(columns(experience(2, 10), ModelSpec.from_dict(QUIET)), 1)
    rng, codes = random.Random(3), set()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        before = client.info()["accepted"]
        answer = add(http, "other", bytes(data))
        codes.add(answer.status_code)
        assert answer.status_code in {200, 400, 409, 413, 422}, answer.text
        if answer.status_code != 200:
            assert client.info()["accepted"] == before
            assert set(answer.json()["error"]) >= {"code", "where", "expected", "got"}

    assert codes >= {200, 400, 422}


# -- the other routes -----------------------------------------------------------------------------


def post(http: TestClient, route: str, body: Any) -> Any:
    """Send MessagePack with the names that JSON has."""
    data = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return http.post(f"/v1/models/m/{route}", content=data, headers=MSGPACK)


def raw(array: Any) -> dict[str, Any]:
    """Return an array as MessagePack carries it."""
    return {"dtype": array.dtype.name, "shape": array.shape, "data": array.tobytes()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_inference_takes_raw_arrays(http: TestClient, dtype: str) -> None:
    """A raw array is the observations that the same numbers are as JSON."""
    given = np.array([[1, 2], [3, 0]]).astype(dtype)
    expected = connect(http, "m").act(given.tolist(), deterministic=True)
    answer = post(http, "inference", {"observations": raw(given), "deterministic": True})

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["expected_values"] == expected.expected_values
    assert post(http, "inference", {"observations": given.tolist()}).status_code == 200


GOOD = raw(np.zeros((2, 2), np.float32))


@pytest.mark.parametrize(
    ("given", "code", "where"),
    [
        ({**GOOD, "dtype": "object"}, "dtype_mismatch", "observations.dtype"),
        ({**GOOD, "dtype": 4}, "dtype_mismatch", "observations.dtype"),
        ({**GOOD, "data": "text"}, "invalid_type", "observations.data"),
        ({**GOOD, "data": b"123"}, "invalid_value", "observations"),
        ({**GOOD, "shape": [2, 3]}, "invalid_value", "observations"),
        ({**GOOD, "shape": [2**62, 4]}, "invalid_value", "observations"),
        ({**GOOD, "shape": [4]}, "shape_mismatch", "observations"),
        ({**GOOD, "shape": 4}, "invalid_value", "observations.shape"),
        ({**GOOD, "shape": [-1, 2]}, "invalid_value", "observations.shape"),
        (raw(np.full((1, 2), np.nan, np.float32)), "non_finite", "observations[0]"),
        ([[1.0, float("nan")]], "non_finite", "observations[0]"),
        ([[1.0, b"x"]], "shape_mismatch", "observations[0][1]"),
        ([[1.0, datetime.now(UTC)]], "dtype_mismatch", "observations[0][1]"),
    ],
)
def test_bad_raw_array(http: TestClient, given: Any, code: str, where: str) -> None:
    """An array whose bytes are not what it says is refused by name."""
    answer = post(http, "inference", {"observations": given})

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code), answer.text
    assert answer.json()["error"]["where"] == where


def test_labels_take_messagepack(http: TestClient) -> None:
    """Labels have the names that they have as JSON."""
    label = {"actor_id": "packed", "episode_id": "e", "timestep": 0, "label": "UP"}
    first, again = (post(http, "labels/add", {"labels": [label]}).json() for _ in range(2))
    wrong = post(http, "labels/add", {"labels": [{**label, "actor_id": b"packed"}]})

    assert (first["pending"], again["duplicate"]) == (1, 1)
    assert wrong.json()["error"]["where"] == "labels[0].actor_id"


@pytest.mark.parametrize("route", ["inference", "labels/add"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x81\x01\x01",
        b"\x80\x80",
        msgspec.msgpack.encode({"labels": msgspec.msgpack.Ext(5, b"x")}),
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=repr,
)
def test_no_messagepack(http: TestClient, route: str, body: bytes) -> None:
    """What is no MessagePack map of names, or holds an extension, is malformed."""
    answer = post(http, route, body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "malformed")
