"""Bodies that were valid once: mutated as bytes and as values, always the same ones from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from jormungandr import ModelSpec
from jormungandr.columns import columns
from jormungandr.packed import pack
from tests.service.serving import QUIET, experience, identity

JSON, MSGPACK = "application/json", "application/msgpack"
MODEL = "/v1/models/m"
_INFERENCE = {"observations": [[0.0, 1.0], [1.0, 2.0]], "epsilon": 0.5, "distribution": True}
_LABELS = {
    "labels": [{**identity("a", "e0", 1), "label": "UP"}, {**identity("z", "z", 9), "label": 0}]
}
_TAGS = {"map": "dust", "regime": "é"}


def _tagged(rows: list[Any]) -> list[Any]:
    """Return transitions with tags on the first step of each episode."""
    return [{**row, "tags": _TAGS} if row["timestep"] == 0 else row for row in rows]


_VALUES: list[tuple[str, Any]] = [
    ("/v1/models", {"model_id": "m", "spec": QUIET}),
    (f"{MODEL}/experience/add", {"transitions": experience(2, 2)}),
    (f"{MODEL}/experience/add", {"transitions": _tagged(experience(1, 2, actor_id="b", seed=1))}),
    (f"{MODEL}/labels/add", _LABELS),
    (f"{MODEL}/inference", _INFERENCE),
]
_PACKED = pack(columns(_tagged(experience(2, 3, actor_id="c")), ModelSpec.from_dict(QUIET)))
#: Path, media type, and body: all of them valid.
SEEDS: list[tuple[str, str, bytes]] = [
    *((path, JSON, json.dumps(value).encode()) for path, value in _VALUES),
    (f"{MODEL}/experience/add", MSGPACK, _PACKED),
    (f"{MODEL}/labels/add", MSGPACK, msgspec.msgpack.encode(_LABELS)),
    (f"{MODEL}/inference", MSGPACK, msgspec.msgpack.encode(_INFERENCE)),
]
#: How often each is taken: making a model, or looking whether it is the same, costs the most.
WEIGHTS = [1, 4, 4, 3, 3, 8, 2, 2]

#: What is put somewhere in the bytes.
PIECES = [
    b"NaN",
    b"-Infinity",
    b"null",
    b"true",
    b"1e999",
    b"-1e308",
    b"9" * 40,
    b"9" * 5_000,
    b'"\\ud800"',
    b"\\u0000",
    b"[" * 20,
    b"[" * 3_000,
    b'{"a":' * 20,
    b"\xff\xfe",
    b"\x00",
    b"\x91" * 40,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\xd4\x01\x00",
]
#: What takes the place of a value.
STRANGERS: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    0.5,
    -0.0,
    1e39,
    -1e308,
    "",
    "x",
    "0",
    "\x00",
    "é" * 200,
    "a" * 129,
    [],
    {},
    [[]],
    [0, "1"],
    [None],
    [1e39, 0.0],
    {"uint8": "AAAA", "shape": [2]},
    {"uint8": "!", "shape": [2**62, 4]},
    {"label": "a"},
]


def mutated(rng: random.Random) -> tuple[str, str, bytes]:
    """Return a path, a media type and a body that is probably not valid."""
    path, kind, body = rng.choices(SEEDS, WEIGHTS)[0]
    if rng.random() < 0.5:
        value = msgspec.json.decode(body) if kind == JSON else msgspec.msgpack.decode(body)
        for _ in range(rng.randint(1, 2)):
            value = _changed(rng, value)
        body = msgspec.json.encode(value) if kind == JSON else msgspec.msgpack.encode(value)
    if rng.random() < 0.6:
        data = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            rng.choice(BYTES)(rng, data)
        body = bytes(data)
    return path, kind, body


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


def _drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 20)]


def _double(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.randint(1, 200)]


def _put(rng: random.Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at : at + rng.choice((0, 0, 1, 5))] = rng.choice(PIECES)


def _number(rng: random.Random, data: bytearray) -> None:
    """Put something in the place of one digit."""
    digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if digits:
        at = rng.choice(digits)
        data[at : at + 1] = rng.choice((b"-", b"1e400", b"9" * 20, b"0.", b"NaN", b"e", b"+1"))


BYTES: list[Callable[[random.Random, bytearray], None]] = [
    _flip,
    _flip,
    _cut,
    _drop,
    _double,
    _put,
    _put,
    _number,
]


def _changed(rng: random.Random, value: Any) -> Any:
    """Return a value in which one place is something else."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.08:
            del value[key]
        elif how < 0.14:
            value[rng.choice(("extra", "", "Label", "spec", "preset", "\x00"))] = value[key]
        else:
            value[key] = _changed(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.08:
            value.append(value[at])
        elif how < 0.12:
            del value[at]
        else:
            value[at] = _changed(rng, value[at])
        return value
    if rng.random() < 0.15:
        for _ in range(rng.choice((1, 2, 15, 30))):
            value = rng.choice(([value], {"a": value}))
        return value
    return copy.deepcopy(rng.choice(STRANGERS))  # it may be changed again
