"""Mutated bodies: whatever comes, no answer is a fault of ours, and a refusal changes nothing."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.service.serving import QUIET, experience, identity

#: Raw JSON texts put where a value was: of every type, at every edge, and some that are no JSON.
TOKENS = [
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "2",
    "0.5",
    "1e39",
    "1e308",
    "1e309",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    str(2**31),
    str(2**53),
    str(2**63),
    str(2**64),
    "1" + "0" * 300,
    "1" + "0" * 5_000,
    "0." + "1" * 5_000,
    '""',
    '"x"',
    '"\\ud800"',
    '"\\u0000"',
    '"\\ud83d\\ude00"',
    '"' + "é" * 200 + '"',
    "[]",
    "{}",
    "[[]]",
    "[0, 1]",
    '[0, "1"]',
    "[null, 1]",
    "[1e39, 0]",
    "[" * 40 + "]" * 40,
    "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1" + "}" * 900,
    "[" * 2_000,
    '{"label": "a", "label": "b"}',
]
KEYS = ["extra", "", "Actor_id", "label", "split", "spec", "preset", "observations", "\\ud800"]
TAGS = {"map": "dust", "regime": "é"}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/models", {"model_id": "m", "spec": QUIET}),
    ("/v1/models", {"model_id": "m", "spec": {"preset": "ou-note", "seed": 1}}),
    ("/v1/models/m/experience/add", {"transitions": experience(2, 2)}),
    ("/v1/models/m/experience/add", {"transitions": experience(1, 2, actor_id="b", seed=1)}),
    ("/v1/models/m/experience/add", {"transitions": [{**experience(1, 1)[0], "tags": TAGS}]}),
    ("/v1/models/m/labels/add", {"labels": [{**identity("a", "e0", 1), "label": "UP"}]}),
    (
        "/v1/models/m/inference",
        {
            "observations": [[0.0, 1.0], [1.0, 2.0]],
            "deterministic": False,
            "epsilon": 0.5,
            "distribution": True,
        },
    ),
]
FINE = {200, 201, 400, 404, 409, 413, 415, 422, 429}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a value, and of the value itself."""
    inside = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path, *(p for key, v in inside for p in places(v, (*path, key)))]


def mutated(body: Any, place: tuple[Any, ...], how: str, token: str, key: str) -> str:
    """Return JSON in which one place is something else: a token, gone, doubled, or with a key."""
    copy = json.loads(json.dumps(body))
    holder, at, value = None, None, copy
    for step in place:
        holder, at, value = value, step, value[step]
    mark = "\0mutated\0"
    if how == "key" and isinstance(value, dict):
        value[mark] = 0
        text = json.dumps(copy)
        return text.replace(json.dumps(mark), f'"{key}"').replace(
            f'"{key}": 0', f'"{key}": {token}'
        )
    if holder is None:
        return token
    if how == "gone":
        del holder[at]
        return json.dumps(copy)
    if how == "doubled" and isinstance(holder, list):
        holder.append(value)
        return json.dumps(copy)
    holder[at] = mark
    return json.dumps(copy).replace(json.dumps(mark), token)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a path and a valid body for it, mutated in one or two ways."""
    path, body = draw(st.sampled_from(BODIES))
    place = draw(st.sampled_from(places(body)))
    how = draw(st.sampled_from(["token", "token", "token", "gone", "doubled", "key"]))
    text = mutated(body, place, how, draw(st.sampled_from(TOKENS)), draw(st.sampled_from(KEYS)))
    data = bytearray(text.encode())
    for _ in range(draw(st.integers(0, 4)) // 3):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data[at : at + cut] = draw(st.binary(max_size=3))
    return path, bytes(data)


def send(app: Any, method: str, path: str, body: bytes | None = None) -> None:
    """Send something, and check the answer's form and that a refusal changed nothing."""
    model = app.model("m")
    before = model.info()
    response = app.request(method, path, body)

    assert response.status_code in FINE, (path, body, response.text)
    if response.status_code >= 400:
        assert set(response.json()["error"]) >= {"code", "message", "where", "expected", "got"}
        assert model.info() == before


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(mutation=mutations())
@example(("/v1/models/m/inference", b'{"observations": [[1' + b"0" * 400 + b", 0]]}"))
@example(("/v1/models/m/experience/add", b'{"transitions": [{"actor_id": "\\udfff"}]}'))
def test_mutated_body(shared: Any, mutation: tuple[str, bytes]) -> None:
    """A mutated body is answered or refused; never 500."""
    send(shared, "POST", *mutation)


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:24])
def test_token_everywhere(shared: Any, token: str) -> None:
    """Each odd value in each place of each body is answered or refused."""
    for path, body in BODIES:
        for place in places(body):
            if place[:1] != ("transitions",) or place[1:2] in ((), (1,)):  # rows are alike
                send(shared, "POST", path, mutated(body, place, "token", token, "").encode())


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=60))
def test_random_bytes(shared: Any, body: bytes) -> None:
    """Bytes of no meaning are refused."""
    for path in sorted({path for path, _ in BODIES}):
        send(shared, "POST", path, body)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(
    name=st.text(max_size=5) | st.sampled_from(["applied_lsn", "wait"]),
    value=st.text(max_size=8) | st.sampled_from(["1", "0", "-1", "1e999", "nan", "9" * 500, "0x1"]),
)
def test_random_query(shared: Any, name: str, value: str) -> None:
    """A query of any kind is answered or refused."""
    query = f"{quote(name, errors='replace')}={quote(value, errors='replace')}&wait=0"
    send(shared, "GET", f"/v1/models/m?{query}")


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(model_id=st.text(max_size=6))
def test_random_model_id(shared: Any, model_id: str) -> None:
    """A model id of any kind in a path finds nothing, and is no other path."""
    path = f"/v1/models/{quote('none' + model_id, safe='', errors='replace')}"
    for method in ("GET", "DELETE"):
        response = shared.request(method, path)
        assert response.status_code == 404
